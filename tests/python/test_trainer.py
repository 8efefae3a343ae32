"""A whole ResNet-20 step: PyTorch with our K-FAC against descent's own trainer, weights after each step."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

from descent.torch import KFAC

sys.path.insert(0, os.path.join(ROOT, "tests", "train"))
from torch_load import CifarResNet, read_safetensors  # noqa: E402

IMAGES = 40
LR = 0.1


def program():
    path = os.path.join(os.environ.get("DESCENT_BINARY_DIR", ""), "descent")
    if not os.access(path, os.X_OK):
        pytest.skip("needs the program of a build (DESCENT_BINARY_DIR)")
    return path


def write_images(folder):
    """A CIFAR-10 of few images: one batch, which every epoch trains on. Returns it normalised."""
    folder.mkdir()
    random = np.random.default_rng(3)
    labels = random.integers(0, 10, IMAGES).astype(np.uint8)
    pixels = random.integers(0, 256, (IMAGES, 3, 32, 32)).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(IMAGES, -1)], axis=1)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    for name, part in zip(names, np.split(records, 5)):
        (folder / name).write_bytes(part.tobytes())
    (folder / "test_batch.bin").write_bytes(records[:4].tobytes())
    mean = np.array([0.4914, 0.4822, 0.4465]).reshape(1, 3, 1, 1)
    std = np.array([0.2470, 0.2435, 0.2616]).reshape(1, 3, 1, 1)
    x = (pixels / 255.0 - mean) / std
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))


def train(out, data, steps, *options):
    subprocess.run(
        [
            program(), "train", "--model", "resnet20", "--data", f"cifar10:{data}", "--no-augment",
            "--batch-size", str(IMAGES), "--steps", str(steps), "--epochs", str(steps),
            "--device", "cpu", "--checkpoint-every", "1", "--keep", "9", "--out", str(out), *options,
        ],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["eigen", "inverse"])
def test_same_as_the_trainer(tmp_path, method):
    x, y = write_images(tmp_path / "data")
    start = tmp_path / "start"
    # With a rate of almost 0 the weights after a step are those that the trainer starts from.
    train(start, tmp_path / "data", 1, "--lr", "1e-30", "--momentum", "0", "--weight-decay", "0")
    run = tmp_path / "run"
    train(run, tmp_path / "data", 3, "--lr", str(LR), "--kfac-update-freq", "2", "--kfac-method", method)

    model = CifarResNet(3)
    tensors, _ = read_safetensors(start / "checkpoint-1.safetensors")
    model.load_state_dict(tensors)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    kfac = KFAC(
        model, lr=LR, damping=0.003, factor_update_steps=1, inv_update_steps=2, compute_method=method
    )
    # Different orders of sums differ by 3e-4 of the first change; training multiplies that by ten.
    for step, limit in ((1, 1e-3), (2, 1e-2), (3, 3e-2)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        kfac.step()
        optimizer.step()
        expected, _ = read_safetensors(run / f"checkpoint-{step}.safetensors")
        for name, value in model.named_parameters():
            moved = (expected[name] - tensors[name]).norm()
            error = float((value - expected[name]).norm() / moved)
            assert error < limit, f"step {step}: '{name}' differs by {error:.1e} of its change"
