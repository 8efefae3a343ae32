"""Communicators on several ranks, started by mpirun or torchrun: operations, parts, errors."""

from __future__ import annotations

import os
from ctypes import POINTER, byref, c_int, c_void_p

import pytest
import torch

import descent
from descent import _library as L
from descent import comm as descent_comm
from descent.torch._device import device_of

TORCHRUN = os.environ.get("DESCENT_TEST_LAUNCHER") == "torchrun"
RANKS = int(os.environ["DESCENT_TEST_RANKS"])
WORLD = descent_comm.default()
HOST = device_of(torch.device("cpu"))
OTHER = 5  # dsc_traffic
SUM, MAX, MIN = range(3)
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64,
    torch.uint8,
]  # fmt: skip

_T, _H, _HP = POINTER(L.Tensor), c_void_p, POINTER(c_void_p)
_BEGINS = {
    "allreduce": [_H, c_int, c_int, _T, _HP],
    "reduce": [_H, c_int, c_int, c_int, _T, _HP],
    "broadcast": [_H, c_int, c_int, _T, _HP],
    "allgather": [_H, c_int, _T, _T, _HP],
    "reduce_scatter": [_H, c_int, c_int, _T, _T, _HP],
    "send": [_H, c_int, c_int, c_int, _T, _HP],
    "recv": [_H, c_int, c_int, _T, _HP],
}


def call(name, argtypes, *arguments):
    function = L.lib[name]
    function.argtypes, function.restype, function.errcheck = argtypes, c_int, L._check
    function(*arguments)


def begin(comm, name, *arguments):
    """Begins an operation; tensors are passed as such."""
    request = c_void_p()
    views = [
        byref(HOST.view(a, (a.numel(),))) if isinstance(a, torch.Tensor) else a for a in arguments
    ]
    call(f"dsc_comm_{name}_begin", _BEGINS[name], comm.handle, *views, byref(request))
    return request


def wait(request):
    call("dsc_comm_wait", [_HP], byref(request))


def poll(request):
    done = c_int(0)
    call("dsc_comm_test", [_HP, POINTER(c_int)], byref(request), byref(done))
    return bool(done.value)


def run(comm, name, *arguments):
    wait(begin(comm, name, *arguments))


def values(rank, dtype, count=9):
    """Small whole numbers, exact in every type."""
    return ((torch.arange(count) * 7 + rank * 5) % 11).to(dtype)


def all_values(dtype, count=9, ranks=RANKS):
    return torch.stack([values(r, torch.float64, count) for r in range(ranks)])


REDUCED = [lambda x: x.sum(0), lambda x: x.max(0)[0], lambda x: x.min(0)[0]]


def test_the_ranks():
    assert WORLD.size == RANKS and 0 <= WORLD.rank < RANKS
    assert WORLD.local_size == RANKS and WORLD.local_rank == WORLD.rank
    assert WORLD.name == ("functions" if TORCHRUN else "mpi")
    assert repr(WORLD).startswith(f"Communicator(rank {WORLD.rank} of {RANKS}, {WORLD.name}: ")
    assert descent_comm.default() is WORLD and descent_comm.as_communicator(WORLD) is WORLD
    WORLD.barrier()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype):
    for op, expected in enumerate(REDUCED):
        x = values(WORLD.rank, dtype)
        run(WORLD, "allreduce", OTHER, op, x)
        assert torch.equal(x.double(), expected(all_values(dtype)))
        for root in range(RANKS):
            x = values(WORLD.rank, dtype)
            run(WORLD, "reduce", OTHER, op, root, x)
            here = expected(all_values(dtype)) if WORLD.rank == root else values(WORLD.rank, dtype)
            assert torch.equal(x.double(), here.double())
        given, part = values(WORLD.rank, dtype, 4 * RANKS), torch.zeros(4, dtype=dtype)
        run(WORLD, "reduce_scatter", OTHER, op, given, part)
        whole = expected(all_values(dtype, 4 * RANKS))
        assert torch.equal(part.double(), whole[4 * WORLD.rank : 4 * WORLD.rank + 4])
        assert torch.equal(given, values(WORLD.rank, dtype, 4 * RANKS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies(dtype):
    for root in range(RANKS):
        x = values(WORLD.rank, dtype)
        run(WORLD, "broadcast", OTHER, root, x)
        assert torch.equal(x, values(root, dtype))
    for inside in (False, True):
        everything = torch.zeros(RANKS, 9, dtype=dtype)
        own = everything[WORLD.rank] if inside else torch.empty(9, dtype=dtype)
        own.copy_(values(WORLD.rank, dtype))
        run(WORLD, "allgather", OTHER, own, everything)
        assert torch.equal(everything.double(), all_values(dtype))


def ring(comm, dtype=torch.bfloat16):
    """Three messages to the right, of two tags; receives begin in another order of tags."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = [values(comm.rank + i, dtype) for i in range(3)]
    into = [torch.zeros(9, dtype=dtype) for _ in range(3)]
    requests = [
        begin(comm, "send", OTHER, right, tag, x) for tag, x in zip((5, 32767, 5), out)
    ] + [begin(comm, "recv", left, tag, x) for tag, x in zip((32767, 5, 5), into)]
    for i, request in enumerate(requests):
        if i % 2:
            wait(request)
        else:  # by polls
            while not poll(request):
                pass
    for i, x in zip((1, 0, 2), into):
        assert torch.equal(x, values(left + i, dtype))


def test_messages():
    for _ in range(20):
        ring(WORLD)


def test_many_at_once():
    """Operations in flight together, completed in another order."""
    x = [values(WORLD.rank, torch.float32, 50 + i) for i in range(12)]
    requests = [begin(WORLD, "allreduce", OTHER, SUM, t) for t in x]
    ring(WORLD)
    for request in reversed(requests):
        wait(request)
    for i, t in enumerate(x):
        assert torch.equal(t.double(), all_values(torch.float32, 50 + i).sum(0))


def test_parts():
    """Parts of parts, whose ranks make them without the others."""
    part = WORLD.split(WORLD.rank % 2, -WORLD.rank)
    members = [r for r in reversed(range(RANKS)) if r % 2 == WORLD.rank % 2]
    assert part.size == len(members) and part.rank == members.index(WORLD.rank)
    x = torch.tensor([float(WORLD.rank)])
    run(part, "allreduce", OTHER, SUM, x)
    assert x.item() == sum(members)
    inner = part.split(0, part.rank)
    ring(inner)
    inner.close()
    part.close()
    left_out = WORLD.split(-1 if WORLD.rank == 0 else 3)
    assert (left_out is None) == (WORLD.rank == 0)
    if left_out:
        left_out.barrier()
        left_out.close()
    alone = WORLD.split(WORLD.rank)
    assert alone.size == 1
    ring(alone)  # messages to itself
    alone.close()


def test_closed():
    with WORLD.split(0) as part:
        part.barrier()
    assert repr(part) == "Communicator(closed)"
    for use in (lambda: part.rank, part.barrier, lambda: part.split(0)):
        with pytest.raises(descent.CommError, match="is closed"):
            use()
    part.close()  # does nothing


def test_limit():
    """A wait with a time limit ends; the operation can be waited for again."""
    part = WORLD.split(0)
    if part.rank == 0:
        x = torch.zeros(1)
        L.lib.dsc_comm_set_timeout(part.handle, 0.2)
        request = begin(part, "recv", 1, 4, x)
        with pytest.raises(descent.CommError, match="recv with tag 4 from rank 1: not complete"):
            wait(request)
        WORLD.barrier()
        L.lib.dsc_comm_set_timeout(part.handle, 20)
        wait(request)
        assert x.item() == 1
    else:
        WORLD.barrier()
    if part.rank == 1:
        run(part, "send", OTHER, 0, 4, torch.ones(1))
    part.close()


def test_over_the_host(monkeypatch):
    """The ranks of a communicator without NCCL, for threads."""
    host = WORLD.over_host()
    assert (host is WORLD) == TORCHRUN
    assert (host.rank, host.size) == (WORLD.rank, RANKS) and WORLD.over_host() is host
    ring(host)
    assert host.over_host() is host
    monkeypatch.setattr(descent_comm.Communicator, "name", "nccl")
    if TORCHRUN:
        other = WORLD.over_host()
        assert other is not WORLD and WORLD.over_host() is other
        ring(other)
        other.close()
    with WORLD.split(0) as part, pytest.raises(descent.UnsupportedError, match="NCCL only"):
        part.over_host()
    monkeypatch.undo()
    assert WORLD.over_host() is host


def test_wrong_arguments():
    with pytest.raises(descent.InvalidError, match="ranks 0 to"):
        run(WORLD, "broadcast", OTHER, RANKS, torch.zeros(1))
    with pytest.raises(descent.InvalidError, match="not builtins.str"):
        descent_comm.default("all of them")


@pytest.mark.skipif(not TORCHRUN, reason="functions in Python")
def test_exceptions_of_functions(monkeypatch):
    """The type and text of an exception in a function that the library has called come back."""
    from descent import _torch_group

    def broken(*_):
        raise KeyError("the cable")

    part = WORLD.split(0)
    monkeypatch.setattr(_torch_group._Gloo, "start", broken)
    expected = "gloo of torch.distributed.*`start` of barrier.*KeyError.*the cable"
    with pytest.raises(descent.Error, match=expected) as info:
        part.barrier()
    assert isinstance(info.value.__cause__, KeyError)
    monkeypatch.undo()
    monkeypatch.setattr(_torch_group._Gloo, "split", broken)
    with pytest.raises(descent.Error, match="`split`.*the cable"):
        part.split(0)
    monkeypatch.undo()
    with pytest.raises(descent.InvalidError) as info:  # an older exception is no cause
        run(part, "broadcast", OTHER, RANKS, torch.zeros(1))
    assert info.value.__cause__ is None
    part.barrier()
    part.close()


@pytest.mark.skipif(not TORCHRUN, reason="process groups")
def test_process_groups():
    """Some ranks of torch.distributed, beside operations of the program's own."""
    import torch.distributed as dist

    ranks = list(range(RANKS - 1, -1, -2))[::-1]
    group = dist.new_group(ranks)
    sums = [torch.ones(1000) for _ in range(8)]
    works = [dist.all_reduce(t, async_op=True) for t in sums[:4]]
    if WORLD.rank in ranks:
        comm = descent_comm.default(group)
        assert comm.size == len(ranks) and comm.rank == ranks.index(WORLD.rank)
        assert descent_comm.default(group) is comm
        x = torch.tensor([float(WORLD.rank)])
        run(comm, "allreduce", OTHER, SUM, x)
        assert x.item() == sum(ranks)
        comm.close()
        again = descent_comm.default(group)
        assert again is not comm
        again.close()
    else:
        with pytest.raises((descent.InvalidError, RuntimeError)):
            descent_comm.default(group)
    works += [dist.all_reduce(t, async_op=True) for t in sums[4:]]
    for work, t in zip(works, sums):
        work.wait()
        assert torch.equal(t, torch.full((1000,), float(RANKS)))


@pytest.mark.skipif(not TORCHRUN, reason="process groups")
def test_first_contact():
    """What brings ranks together for NCCL, here on CPU tensors."""
    from descent import _torch_group

    contact = _torch_group._Contact(None, torch.device("cpu"))
    assert contact.place() == (WORLD.rank, RANKS, WORLD.local_rank, WORLD.local_size)
    own, everything = values(WORLD.rank, torch.uint8, 5), torch.zeros(RANKS, 5, dtype=torch.uint8)
    number = _torch_group._register(contact)
    status = _torch_group._EXCHANGE(number, own.data_ptr(), 5, everything.data_ptr())
    assert status == 0 and torch.equal(everything.double(), all_values(torch.uint8, 5))
    _torch_group._CLOSE(number)
    assert number not in _torch_group._contexts


@pytest.mark.skipif(TORCHRUN, reason="MPI")
def test_mpi4py():
    pytest.importorskip("mpi4py").rc.initialize = False
    try:
        from mpi4py import MPI
    except RuntimeError as error:
        pytest.skip(f"mpi4py is that of another MPI: {error}")
    half = MPI.COMM_WORLD.Split(WORLD.rank % 2, WORLD.rank)
    comm = descent_comm.default(half)
    assert (comm.rank, comm.size) == (half.Get_rank(), half.Get_size())
    assert comm.name == "mpi" and descent_comm.default(half) is comm
    comm.barrier()
    comm.close()
    assert half.allreduce(1) == half.Get_size()
    half.Free()
    with pytest.raises(descent.InvalidError, match="MPI_COMM_NULL"):
        descent_comm.default(MPI.COMM_NULL)
