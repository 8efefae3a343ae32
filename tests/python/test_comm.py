"""Communicators in one process, and how processes begin and end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

import descent
from descent import comm as descent_comm

HERE = os.path.dirname(os.path.abspath(__file__))
MPIEXEC = os.environ.get("DESCENT_MPIEXEC", "mpiexec")
LAUNCHER = re.compile("^(OMPI_(?!ALLOW|MCA)|PMIX|PMI_|SLURM_|RANK$|WORLD_SIZE$)")


def start(script, *launcher, **variables):
    """Runs a script that has imported the package, maybe by a launcher; status and output."""
    kept = {k: v for k, v in os.environ.items() if not LAUNCHER.match(k)}
    if launcher and "LD_PRELOAD" in kept:  # the sanitizers are for the ranks, not for the launcher
        launcher = (*launcher, "env", "LD_PRELOAD=" + kept.pop("LD_PRELOAD"))
    source = os.path.dirname(os.path.dirname(os.path.abspath(descent.__file__)))
    head = f"import sys; sys.path.insert(0, {source!r})\nimport descent, descent.comm\n"
    result = subprocess.run(
        [*launcher, sys.executable, "-c", head + textwrap.dedent(script)],
        env=dict(kept, **variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        universal_newlines=True,
    )  # fmt: skip
    return result.returncode, result.stdout


def mpirun(script, ranks=2):
    try:
        subprocess.run([MPIEXEC, "--version"], stdout=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mpiexec here")
    flags = os.environ.get("DESCENT_MPIEXEC_FLAGS", "").split()
    return start(script, MPIEXEC, *flags, "-n", str(ranks))


def test_one_process():
    status, text = start(
        """
        comm = descent.comm.default()
        print(comm, comm.name, comm.rank, comm.size, comm.local_rank, comm.local_size)
        comm.barrier()
        comm.close()
        print(comm)
        again = descent.comm.default()
        assert again is not comm and again.size == 1
        try:
            comm.rank
        except descent.CommError as error:
            print(error)
        """
    )
    assert status == 0, text
    assert "Communicator(rank 0 of 1, self: one process" in text
    assert "self 0 1 0 1" in text and "Communicator(closed)" in text
    assert "the communicator is closed" in text


def test_what_is_no_communicator():
    with pytest.raises(descent.InvalidError, match="not builtins.int"):
        descent_comm.default(3)


def test_groups_that_come_later(tmp_path):
    """torch.distributed may be initialised after a communicator of one process, and once more."""
    status, text = start(
        f"""
        import torch.distributed as dist
        comms = [descent.comm.default()]
        for i in range(2):
            where = "file://{tmp_path}/%d" % i
            dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
            comms.append(descent.comm.default())
            assert descent.comm.default() is comms[-1]
            dist.destroy_process_group()
            assert descent.comm.default() is comms[-1]
        print([comm.name for comm in comms], len(set(comms)))
        """
    )
    assert status == 0, text
    assert "['self', 'functions', 'functions'] 3" in text


def test_torchrun_without_a_group():
    """Processes that do not know of each other must not train alone."""
    status, text = start("descent.comm.default()", WORLD_SIZE="4", RANK="1")
    assert status == 1
    assert "CommError" in text and "WORLD_SIZE is 4" in text
    assert "torch.distributed.init_process_group" in text


def test_a_group_of_one(tmp_path):
    status, text = start(
        f"""
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        print(descent.comm.default())
        """
    )
    assert status == 0, text
    assert "functions: 1 rank, gloo of torch.distributed" in text


@pytest.mark.parametrize(
    "config, expected",
    [("cpu:gloo,cuda:gloo", (True, False)), ("cpu:gloo,cuda:nccl", (True, True)),
     ("cuda:nccl", (False, True)), ("cpu:gloo", (True, False))],
)  # fmt: skip
def test_backends_of_a_group(monkeypatch, config, expected):
    """Groups of torch 2 have a backend for each kind of device."""
    from descent import _torch_group

    monkeypatch.setattr(_torch_group.c10d, "get_backend_config", lambda _: config, raising=False)
    assert _torch_group._devices_of(None) == expected


def test_the_end_of_ranks():
    """Neither closing twice nor not at all is an error."""
    for end in ("comm.close(); descent.comm.default().barrier()", "", "sys.exit(0)"):
        status, text = mpirun(f"comm = descent.comm.default(); comm.barrier(); {end}")
        assert status == 0, text


def test_an_exception_on_one_rank():
    """The others do not wait for ever, and the message is there."""
    status, text = mpirun(
        """
        comm = descent.comm.default()
        if comm.rank == 1:
            raise ValueError("this rank has enough")
        comm.barrier()
        """
    )
    assert status != 0
    assert "ValueError: this rank has enough" in text


def test_what_is_called_at_the_end():
    """Users of a communicator before it, the newest first; after an exception nothing waits."""
    script = """
        class User:
            def __init__(self, name):
                self.name = name
                descent.comm.close_at_exit(self)
            def close(self):
                print("close", self.name, comm)
            def abandon(self):
                print("abandon", self.name)
        comm = descent.comm.default()
        first, second, gone = User("first"), User("second"), User("gone")
        del gone
        {end}
        """
    status, text = start(script.format(end=""))
    assert status == 0 and "gone" not in text
    expected = "close second Communicator.rank 0.*close first Communicator.rank 0"
    assert re.search(expected, text, re.S)
    status, text = start(script.format(end="raise KeyError('k')"))
    assert status == 1 and "close" not in text
    assert text.index("KeyError: 'k'") < text.index("abandon second") < text.index("abandon first")


def test_mpi_of_mpi4py():
    """MPI that the program has initialised is used, and finalised by the program."""
    pytest.importorskip("mpi4py")
    status, text = mpirun(
        """
        from mpi4py import MPI
        if MPI.COMM_WORLD.Get_size() == 1:
            print("mpi4py is that of another MPI")
            sys.exit(0)
        a, b = descent.comm.default(MPI.COMM_WORLD), descent.comm.default()
        assert a is not b and a.size == b.size == MPI.COMM_WORLD.Get_size() == 2
        a.barrier()
        """
    )
    assert status == 0, text
    if "of another MPI" in text:
        pytest.skip("mpi4py is that of another MPI")
