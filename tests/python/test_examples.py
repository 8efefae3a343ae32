"""The PyTorch examples: each runs for some steps on its built-in data, without and with K-FAC."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from free_port import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "pytorch")


pytestmark = pytest.mark.skipif(
    "DESCENT_TEST_QUICK" in os.environ, reason="the examples are not run with sanitizers"
)


def needs(package):
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"the package {package} is not installed")


def run(tmp_path, script, *arguments, ranks=1):
    """Runs an example and returns its results. The package is found where this test found it."""
    import descent

    package = os.path.dirname(os.path.dirname(descent.__file__))
    path = os.pathsep.join([package] + [p for p in [os.environ.get("PYTHONPATH")] if p])
    out = str(tmp_path / "results.json")
    command = [sys.executable]
    if ranks > 1:
        command += [os.path.join(HERE, "torchrun.py"), "--nproc_per_node", str(ranks),
                    "--master_addr", "127.0.0.1", "--master_port", str(free_port())]  # fmt: skip
    command += [os.path.join(EXAMPLES, script), "--json", out, *map(str, arguments)]
    if "--device" not in arguments:
        command += ["--device", os.environ.get("DESCENT_TEST_DEVICE", "cpu")]
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=str(tmp_path), timeout=300, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    with open(out, encoding="utf-8") as file:
        results = json.load(file)["results"]
    for result in results:
        assert all(loss == loss for _, _, loss in result["curve"]), done.stdout
        assert f"{result['name']}: {result['steps']} steps in" in done.stdout
    return results


SMALL = ("--width", 4, "--depth", 8, "--batch-size", 16, "--factor-steps", 1, "--inv-steps", 2)


def test_cifar10(tmp_path):
    plain, kfac = run(tmp_path, "cifar10_resnet.py", *SMALL, "--steps", 4, "--report", 1)
    assert (plain["name"], kfac["name"]) == ("SGD", "K-FAC")
    assert plain["curve"][0][2] == kfac["curve"][0][2]  # both start with the same model and batch
    assert plain["curve"][3][2] != kfac["curve"][3][2]
    assert 0 <= kfac["test_accuracy"] <= 1


def test_cifar10_reads_binary_batches(tmp_path):
    """A label and 3072 bytes for each image; with and without a test batch; compressed, too."""
    import lzma

    records = torch.randint(0, 10, (40, 3073), dtype=torch.uint8).numpy()
    folder = tmp_path / "data"
    folder.mkdir()
    records.tofile(str(folder / "data_batch_1.bin"))
    (folder / "data_batch_2.bin.xz").write_bytes(lzma.compress(records.tobytes()))
    (result,) = run(tmp_path, "cifar10_resnet.py", *SMALL, "--steps", 2, "--no-kfac",
                    "--data", folder)  # fmt: skip
    assert result["test_accuracy"] * 8 == pytest.approx(round(result["test_accuracy"] * 8))
    records[:20].tofile(str(folder / "test_batch.bin"))
    (result,) = run(tmp_path, "cifar10_resnet.py", *SMALL, "--steps", 2, "--kfac", "--data", folder)
    assert result["test_accuracy"] * 20 == pytest.approx(round(result["test_accuracy"] * 20))


def test_cifar10_resumes_with_the_same_bits(tmp_path):
    arguments = (*SMALL, "--steps", 4, "--report", 1, "--kfac")
    pattern = str(tmp_path / "at{step}.pt")
    (whole,) = run(tmp_path, "cifar10_resnet.py", *arguments, "--checkpoint", pattern,
                   "--checkpoint-every", 2)  # fmt: skip
    (rest,) = run(tmp_path, "cifar10_resnet.py", *arguments, "--resume", tmp_path / "at2.pt")
    assert [c[1:] for c in rest["curve"]] == [c[1:] for c in whole["curve"][2:]]
    assert rest["test_loss"] == whole["test_loss"]


def test_cifar10_on_two_ranks(tmp_path):
    arguments = ("--width", 4, "--depth", 8, "--factor-steps", 1, "--inv-steps", 2)
    results = run(tmp_path, "cifar10_resnet.py", *arguments, "--batch-size", 8, "--steps", 4,
                  "--report", 1, "--device", "cpu", ranks=2)  # fmt: skip
    assert [r["steps"] for r in results] == [4, 4]


@pytest.mark.parametrize("algorithm", ["osgp", "dpsgd", "adpsgd"])
def test_cifar10_by_gossip(tmp_path, algorithm):
    arguments = ("--width", 4, "--depth", 8, "--factor-steps", 1, "--inv-steps", 2)
    results = run(tmp_path, "cifar10_resnet.py", *arguments, "--batch-size", 8, "--steps", 4,
                  "--report", 1, "--device", "cpu", "--consensus", algorithm, ranks=2)  # fmt: skip
    assert [r["name"] for r in results] == ["SGD", "K-FAC"]


def test_cifar10_by_gossip_resumes(tmp_path):
    arguments = (*SMALL, "--steps", 4, "--report", 1, "--kfac", "--device", "cpu",
                 "--consensus", "sgp")  # fmt: skip
    pattern = str(tmp_path / "at{step}.pt")
    (whole,) = run(tmp_path, "cifar10_resnet.py", *arguments, "--checkpoint", pattern,
                   "--checkpoint-every", 2, ranks=2)  # fmt: skip
    (rest,) = run(tmp_path, "cifar10_resnet.py", *arguments, "--resume", tmp_path / "at2.pt",
                  ranks=2)  # fmt: skip
    assert [c[1:] for c in rest["curve"]] == [c[1:] for c in whole["curve"][2:]]


def test_unet(tmp_path):
    plain, kfac = run(tmp_path, "unet_isbi.py", "--steps", 3, "--report", 1, "--width", 4,
                      "--levels", 2, "--crop", 32, "--inv-steps", 2)  # fmt: skip
    assert plain["curve"][0][2] == kfac["curve"][0][2]
    assert 0 <= kfac["pixel_error"] <= 1 and 0 <= kfac["dice"] <= 1


@needs("transformers")
@pytest.mark.parametrize("tokens", ["bytes", "words"])
def test_bert(tmp_path, tokens):
    plain, kfac = run(tmp_path, "bert_mlm.py", "--steps", 3, "--report", 1, "--tokens", tokens,
                      "--hidden", 16, "--layers", 1, "--heads", 2, "--length", 32, "--dropout", 0,
                      "--batch-size", 4, "--factor-steps", 1, "--inv-steps", 2)  # fmt: skip
    assert plain["curve"][0][2] == kfac["curve"][0][2]
    assert 0 <= kfac["validation_accuracy"] <= 1


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="transformers is installed"
)
def test_bert_names_what_is_missing(tmp_path):
    with pytest.raises(AssertionError, match="needs the package transformers"):
        run(tmp_path, "bert_mlm.py", "--steps", 1)


@needs("torchvision")
def test_mask_rcnn(tmp_path):
    plain, kfac = run(tmp_path, "mask_rcnn.py", "--steps", 2, "--report", 1, "--size", 64,
                      "--batch-size", 1, "--images", 4, "--inv-steps", 1)  # fmt: skip
    assert plain["steps"] == kfac["steps"] == 2
    assert 0 <= kfac["mask_overlap"] <= 1
