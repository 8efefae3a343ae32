"""kfac-pytorch's own examples with nothing changed but `import kfac`.

Needs a checkout of kfac-pytorch (DESCENT_PEER), its data (DESCENT_PEER_DATA), and a folder with the
packages that its examples import and this machine lacks (DESCENT_PEER_PATH: torchinfo, tqdm,
torchtext, TensorBoard's writer). Nothing of that program is kept here: its examples are copied into
a temporary folder, and the imports changed there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from free_port import free_port
from test_examples import HERE

PEER = os.environ.get("DESCENT_PEER")
pytestmark = pytest.mark.skipif(
    not PEER, reason="DESCENT_PEER does not name a checkout of kfac-pytorch"
)


@pytest.fixture
def examples(tmp_path):
    """A copy of the peer's examples with other imports."""
    shutil.copytree(os.path.join(PEER, "examples"), str(tmp_path / "examples"))
    changed = 0
    for path in (tmp_path / "examples").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        new, count = re.subn(r"^import kfac$", "from descent import kfac", text, flags=re.M)
        path.write_text(new, encoding="utf-8")
        changed += count
    assert changed == 5
    return tmp_path


def run(folder, ranks, script, *arguments):
    """Runs a script under torchrun and returns what it printed."""
    import descent

    package = os.path.dirname(os.path.dirname(descent.__file__))
    given = [os.environ.get(name) for name in ("DESCENT_PEER_PATH", "PYTHONPATH")]
    path = os.pathsep.join(filter(None, [str(folder), package, *given]))
    command = [
        sys.executable, os.path.join(HERE, "torchrun.py"), "--nproc_per_node", str(ranks),
        "--master_addr", "127.0.0.1", "--master_port", str(free_port()), f"examples/{script}",
        "--no-cuda", "--backend", "gloo", *map(str, arguments),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=str(folder), timeout=600, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(text):
    return [float(x) for x in re.findall(r"\bloss: ([0-9.]+)", text)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_cifar10_resnet(examples, ranks):
    """Two epochs, a checkpoint after each, and a third from the last of them."""
    common = (
        "--data-dir", os.environ["DESCENT_PEER_DATA"], "--log-dir", examples / "logs",
        "--model", "resnet20", "--batch-size", 64 // ranks, "--warmup-epochs", 1,
        "--checkpoint-freq", 1,
    )  # fmt: skip
    script = "torch_cifar10_resnet.py"
    found = losses(run(examples, ranks, script, *common, "--epochs", 2))
    assert found[-1] < found[0]
    resumed = run(examples, ranks, script, *common, "--epochs", 3, "--batches-per-allreduce", 2)
    assert "Epoch   3/  3" in resumed and "Epoch   2/" not in resumed
    assert losses(resumed)[-1] < found[0]


@pytest.mark.parametrize("ranks,strategy", [(1, "COMM_OPT"), (2, "COMM_OPT"), (2, "MEM_OPT")])
def test_language_model(examples, ranks, strategy):
    found = losses(
        run(examples, ranks, "torch_language_model.py", "--embedding-dim", 64, "--hidden-dim", 64,
            "--seq-len", 32, "--batch-size", 16, "--epochs", 2, "--kfac", "--strategy", strategy)
    )  # fmt: skip
    assert found[-1] < found[0]
