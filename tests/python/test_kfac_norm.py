"""Scale and shift of normalisation layers, preconditioned: against float64 NumPy."""

from __future__ import annotations

import pytest
import torch
from reference import ConvReference, LinearReference, NormReference, Reference, compare
from torch import nn

import descent
from descent.torch import KFAC


class Net(nn.Module):
    """A convolution and a linear layer with every kind of normalisation that is known."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.images = nn.BatchNorm2d(4)
        self.rows = nn.LayerNorm(4)
        self.sequences = nn.BatchNorm1d(4)
        self.volumes = nn.BatchNorm3d(2)
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        x = self.images(self.conv(x))
        x = self.volumes(torch.tanh(x).unflatten(1, (2, 2))).flatten(1, 2)
        x = self.sequences(x.flatten(2))
        return self.linear(torch.tanh(self.rows(x.mean(dim=2))))

    @property
    def norms(self):
        return [self.images, self.rows, self.sequences, self.volumes]

    def references(self, diagonal=False):
        norms = [NormReference(m, diagonal) for m in self.norms]
        return [ConvReference(self.conv, ((1, 1), (1, 1))), LinearReference(self.linear), *norms]


def make(device, dtype=torch.float64):
    """A net whose scales and shifts are not those that it starts with."""
    model = Net()
    with torch.no_grad():
        for m in model.norms:
            m.weight.uniform_(0.5, 1.5)
            m.bias.uniform_(-0.5, 0.5)
    return model.to(device=device, dtype=dtype)


def backward(model, device, dtype=torch.float64, n=6, scale=1.0):
    x = torch.randn(n, 3, 5, 4, dtype=dtype, device=device)
    y = torch.randint(0, 5, (n,), device=device)
    (nn.functional.cross_entropy(model(x), y) * scale).backward()


def run(model, kfac, truth, device, tolerance, dtype=torch.float64, steps=5):
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        backward(model, device, dtype)
        expected = truth.step()
        assert len(expected) == 11
        kfac.step()
        compare(expected, tolerance)
    assert kfac.insight()["nu"] == pytest.approx(truth.nu, rel=tolerance)
    kfac.close()


@pytest.mark.parametrize("clip", [0.001, None])
@pytest.mark.parametrize("norm", ["full", "diagonal"])
def test_steps(device, norm, clip):
    """Also in steps that do not update the factors, in which nothing is captured."""
    model = make(device)
    truth = Reference(model.references(norm == "diagonal"), factor_every=2, update_every=4, kl_clip=clip)
    kfac = KFAC(model, damping=0.003, kl_clip=clip, factor_update_steps=2, inv_update_steps=4, norm=norm)
    run(model, kfac, truth, device, 1e-9)
    assert clip is None or truth.nu < 1


def test_channels_last(device):
    model = make(device, torch.float32).to(memory_format=torch.channels_last)
    truth = Reference(model.references())
    kfac = KFAC(model, damping=0.003, factor_update_steps=1, inv_update_steps=1, norm="full")
    run(model, kfac, truth, device, 2e-4 if device.type == "cpu" else 3e-3, torch.float32)


def test_running_statistics(device):
    """A batch norm in evaluation mode normalises with other numbers than those of the batch."""
    model = make(device)
    for m in model.norms:
        if hasattr(m, "running_mean"):
            m.running_mean.uniform_(-0.5, 0.5)
            m.running_var.uniform_(0.5, 2.0)
    truth = Reference(model.references())
    kfac = KFAC(model, damping=0.003, factor_update_steps=1, inv_update_steps=1, norm="full")
    model.eval()
    run(model, kfac, truth, device, 1e-9)


def test_passes_and_scales(device):
    """Accumulated passes, a scaled loss."""
    model = make(device)
    truth = Reference(model.references(), loss_scale=8.0)
    kfac = KFAC(
        model, damping=0.003, factor_update_steps=1, inv_update_steps=1, norm="full",
        accumulation_steps=2, grad_scaler=lambda: 8.0,
    )  # fmt: skip
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        for _ in range(2):
            backward(model, device, scale=8.0 / 2)
        expected = truth.step(passes=2)
        kfac.step()
        compare(expected, 1e-9)


def test_half_precision(device):
    """Inputs and gradients in bf16 are computed with in float32."""
    model = make(device, torch.float32)
    model.rows = nn.Identity()  # which autocast of old versions does not know on CPUs
    norms = [model.images, model.sequences, model.volumes]
    truth = Reference([NormReference(m) for m in norms], kl_clip=None)
    kfac = KFAC(
        model, damping=0.003, kl_clip=None, factor_update_steps=1, inv_update_steps=1, norm="full",
        unsupported="error",
    )  # fmt: skip
    with torch.autocast(device.type, dtype=torch.bfloat16):
        backward(model, device, torch.float32)
    expected = truth.step()
    kfac.step()
    compare(expected, 0.02)


def test_what_is_left_out(device):
    """Norms that are skipped, half frozen or without parameters keep their gradients."""
    model = make(device)
    model.images.bias.requires_grad_(False)
    kfac = KFAC(
        model, damping=0.003, factor_update_steps=1, inv_update_steps=1, norm="full",
        skip_layers=["^rows$", "BatchNorm3d"],
    )  # fmt: skip
    backward(model, device)
    left = [model.images.weight, model.rows.weight, model.rows.bias, model.volumes.bias]
    before = [p.grad.clone() for p in left]
    kfac.step()
    assert all(torch.equal(p.grad, b) for p, b in zip(left, before))
    names = [layer.name for layer in kfac._layers]
    assert names == ["conv", "sequences", "linear"]
    kfac.close()


def test_resume(device):
    """Loaded between two updates: the same bits, though nothing was captured since."""
    models, objects = [], []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(make(device, torch.float32))
        objects.append(KFAC(models[-1], damping=0.003, factor_update_steps=4, inv_update_steps=4,
                            norm="full"))  # fmt: skip

    def step(i, seed):
        torch.manual_seed(seed)
        models[i].zero_grad(set_to_none=True)
        backward(models[i], device, torch.float32)
        objects[i].step()
        return [p.grad.clone() for p in models[i].parameters()]

    step(0, 20)
    step(0, 21)
    models[1].load_state_dict(models[0].state_dict())
    objects[1].load_state_dict(objects[0].state_dict())
    for seed in range(22, 26):
        assert all(torch.equal(a, b) for a, b in zip(step(0, seed), step(1, seed)))


def test_refusals(device):
    model = make(device)
    with pytest.raises(descent.InvalidError, match="known are off, full, diagonal"):
        KFAC(model, norm="both")
    with pytest.raises(descent.InvalidError, match="none for norms"):
        KFAC(model, norm="full", clip="layer")
    with pytest.raises(descent.InvalidError, match="no trainable linear or convolution"):
        KFAC(nn.BatchNorm2d(3), norm="full")
