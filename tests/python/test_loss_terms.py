"""The scale of G for losses that average over something else than images or rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import ConvReference, LinearReference, Reference, compare
from torch import nn
from torch.nn import functional as F

import descent
from descent.torch import KFAC

ONE = ((1, 1), (1, 1))


class Terms:
    """A reference layer with G by the rule M sum g g', where M is a number of terms per sample."""

    def __init__(self, layer, terms):
        self.layer, self.terms = layer, terms

    def __getattr__(self, name):
        return getattr(self.layer, name)

    def pass_factors(self, a, g):
        return [(x, self.terms * y) for x, y in self.layer.pass_factors(a, g)]


def every_step(**more):
    return {"factor_update_steps": 1, "inv_update_steps": 1, "damping": 0.003, **more}


def test_pixels_are_rows(device):
    """Per-pixel losses: convolutions of 1 x 1 are linear layers whose rows are the pixels. Without
    old averages both must have the same product of factors, and so the same result."""
    n, h, w = 3, 4, 5
    conv = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Tanh(), nn.Conv2d(4, 1, 1)).double().to(device)
    rows = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double().to(device)
    for a, b in ((0, 0), (2, 2)):
        rows[b].weight.data.copy_(conv[a].weight.data.flatten(1))
        rows[b].bias.data.copy_(conv[a].bias.data)
    x = torch.randn(n, 2, h, w, dtype=torch.float64, device=device)
    y = torch.randint(0, 2, (n, 1, h, w), device=device).double()
    options = every_step(factor_decay=1e-12, kl_clip=None)
    by_pixels = KFAC(conv, loss_terms=h * w, **options)
    by_rows = KFAC(rows, **options)
    F.binary_cross_entropy_with_logits(conv(x), y).backward()
    F.binary_cross_entropy_with_logits(
        rows(x.permute(0, 2, 3, 1).reshape(-1, 2)), y.reshape(-1, 1)
    ).backward()
    by_pixels.step()
    by_rows.step()
    for a, b in ((0, 0), (2, 2)):
        torch.testing.assert_close(
            conv[a].weight.grad.flatten(1), rows[b].weight.grad, rtol=1e-6, atol=1e-12
        )
        torch.testing.assert_close(conv[a].bias.grad, rows[b].bias.grad, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_terms_of_each_layer(dtype, device):
    """Two heads: one predicts a class, one a value for each pixel."""
    body = nn.Conv2d(2, 4, 3, padding=1).to(device, dtype)
    pixels = nn.Conv2d(4, 1, 3, padding=1).to(device, dtype)
    classes = nn.Linear(4, 3).to(device, dtype)
    model = nn.ModuleDict({"body": body, "pixels": pixels, "classes": classes})
    truth = Reference([
        Terms(ConvReference(body, ONE), 30), Terms(ConvReference(pixels, ONE), 42),
        LinearReference(classes),
    ])  # fmt: skip
    kfac = KFAC(model, loss_terms={"body": lambda: 30, "pix": 42}, **every_step())
    for _ in range(2):
        model.zero_grad()
        x = torch.randn(3, 2, 6, 7, dtype=dtype, device=device)
        y = torch.tanh(body(x))
        loss = F.cross_entropy(classes(y.mean((2, 3))), torch.tensor([0, 2, 1], device=device))
        (loss + (pixels(y) ** 2).mean()).backward()
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9 if dtype == torch.float64 else 2e-4)


def test_masked_tokens(device):
    """A loss over some of the tokens: M of R rows."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double().to(device)
    truth = Reference([Terms(LinearReference(model[i]), 0.25) for i in (0, 2)])
    kfac = KFAC(model, loss_terms=lambda: 0.25, **every_step())
    x = torch.randn(2, 8, 4, dtype=torch.float64, device=device)
    labels = torch.full((16,), -100, device=device)
    labels[::4] = 1
    F.cross_entropy(model(x).view(16, 3), labels).backward()
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_with_passes_and_scaler(device):
    """The terms, gradient accumulation and a loss scale are independent of each other."""
    model = nn.Conv2d(2, 3, 3).double().to(device)
    truth = Reference([Terms(ConvReference(model, ((0, 0), (0, 0))), 9)], loss_scale=64.0)
    kfac = KFAC(model, loss_terms=9, accumulation_steps=2, grad_scaler=lambda: 64.0, **every_step())
    for _ in range(2):
        x = torch.randn(2, 2, 5, 5, dtype=torch.float64, device=device)
        ((model(x) ** 2).mean() / 2 * 64).backward()
    for p in model.parameters():
        p.grad /= 64
    expected = truth.step(passes=2)
    kfac.step()
    compare(expected, 1e-9)


def test_bad_terms(device):
    model = nn.Linear(2, 2).to(device)
    for bad in (0, -1, float("nan"), float("inf"), {"linear": 0}):
        with pytest.raises(descent.InvalidError, match="loss_terms.*positive"):
            KFAC(model, loss_terms=bad)
    with pytest.raises(descent.InvalidError, match="no layer's name matches 'mask'.*linear"):
        KFAC(model, loss_terms={"mask": 4})
    kfac = KFAC(model, loss_terms=lambda: np.nan, factor_update_steps=1)
    with pytest.raises(Exception, match="positive"):
        model(torch.ones(1, 2, device=device)).sum().backward()
    kfac.close()
