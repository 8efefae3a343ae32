"""Preconditioned gradients of every layer kind against float64 NumPy, by both methods."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import ConvReference, LinearReference, Reference, compare
from torch import nn

from descent.torch import KFAC



def tolerance(dtype, device):
    """GPUs form the products of preconditioning in TF32 (10 bits) for float32."""
    if dtype == torch.float64:
        return 1e-9
    return 2e-4 if device.type == "cpu" else 3e-3


class Conv1D(nn.Module):
    """Hugging Face's transposed linear layer, in its essentials."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.3)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(
            x.size()[:-1] + (self.nf,)
        )


def conv_case(pads=((0, 0), (0, 0)), size=(6, 7), **kwargs):
    module = nn.Conv2d(4, 6, **kwargs)
    return module, torch.randn(3, 4, *size), ConvReference(module, pads)


def same(kernel, dilation=1):
    total = dilation * (kernel - 1)
    return (total // 2, total - total // 2)


CASES = {
    "linear": lambda: (lambda m: (m, torch.randn(5, 4), LinearReference(m)))(nn.Linear(4, 3)),
    "linear-no-bias": lambda: (lambda m: (m, torch.randn(5, 4), LinearReference(m)))(
        nn.Linear(4, 3, bias=False)
    ),
    "linear-one-output": lambda: (lambda m: (m, torch.randn(5, 4), LinearReference(m)))(
        nn.Linear(4, 1)
    ),
    "linear-sequence": lambda: (lambda m: (m, torch.randn(2, 3, 2, 4), LinearReference(m)))(
        nn.Linear(4, 3)
    ),
    "linear-vector": lambda: (lambda m: (m, torch.randn(4), LinearReference(m)))(nn.Linear(4, 3)),
    "transposed": lambda: (lambda m: (m, torch.randn(2, 3, 4), LinearReference(m, True)))(
        Conv1D(3, 4)
    ),
    "conv": lambda: conv_case(((1, 1), (1, 1)), kernel_size=3, padding=1),
    "conv-no-bias": lambda: conv_case(((1, 1), (1, 1)), kernel_size=3, padding=1, bias=False),
    "conv-1x1": lambda: conv_case(kernel_size=1, bias=False),
    "conv-stride": lambda: conv_case(((2, 2), (0, 0)), kernel_size=(5, 3), stride=(2, 3), padding=(2, 0)),
    "conv-dilation": lambda: conv_case(((2, 2), (1, 1)), kernel_size=(3, 2), dilation=(2, 1), padding=(2, 1)),
    "conv-groups": lambda: conv_case(((1, 1), (1, 1)), kernel_size=3, padding=1, groups=2),
    "conv-depthwise": lambda: conv_case(((1, 1), (1, 1)), kernel_size=3, padding=1, groups=2, bias=False),
    "conv-same-odd": lambda: conv_case((same(3), same(5)), kernel_size=(3, 5), padding="same"),
    "conv-same-even": lambda: conv_case((same(2), same(4)), kernel_size=(2, 4), padding="same"),
    "conv-same-even-dilated": lambda: conv_case(
        (same(4, 3), same(2, 3)), size=(12, 9), kernel_size=(4, 2), dilation=3, padding="same"
    ),
    "conv-valid": lambda: conv_case(kernel_size=2, padding="valid"),
}  # fmt: skip


def run(case, dtype, device, method, channels_last, steps=3):
    module, x, reference = CASES[case]()
    module.to(device=device, dtype=dtype)
    x = x.to(device=device, dtype=dtype)
    if channels_last:
        module.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    truth = Reference([reference], method=method, factor_every=2, update_every=2, lr=0.3)
    kfac = KFAC(
        module, lr=0.3, damping=0.003, compute_method=method,
        factor_update_steps=2, inv_update_steps=2,
    )  # fmt: skip
    for _ in range(steps):
        module.zero_grad(set_to_none=True)
        (module(x) ** 2).mean().backward()
        expected = truth.step()
        kfac.step()
        compare(expected, tolerance(dtype, device))
        x = x * 1.25 + 0.1
    assert kfac.insight()["nu"] == pytest.approx(truth.nu, rel=tolerance(dtype, device))
    kfac.close()


@pytest.mark.parametrize("method", ["eigen", "inverse"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", sorted(CASES))
def test_layer(case, dtype, method, device):
    run(case, dtype, device, method, channels_last=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", [c for c in sorted(CASES) if c.startswith("conv")])
def test_channels_last(case, dtype, device):
    run(case, dtype, device, "eigen", channels_last=True)


def test_conv1d_module(device):
    """nn.Conv1d is a convolution of images of height 1."""
    module = nn.Conv1d(3, 4, 3, padding=1, stride=2, dilation=2).double().to(device)
    twin = nn.Conv2d(3, 4, (1, 3), padding=(0, 1), stride=(1, 2), dilation=(1, 2))
    twin = twin.double().to(device)
    with torch.no_grad():
        twin.weight.copy_(module.weight.unsqueeze(2))
        twin.bias.copy_(module.bias)
    x = torch.randn(2, 3, 11, dtype=torch.float64, device=device)
    for m, y in ((module, x), (twin, x.unsqueeze(2))):
        kfac = KFAC(m, factor_update_steps=1, inv_update_steps=1)
        (m(y) ** 2).mean().backward()
        kfac.step()
    np.testing.assert_allclose(
        module.weight.grad.cpu().numpy(), twin.weight.grad.squeeze(2).cpu().numpy(), rtol=1e-9
    )


def test_padding_modes(device):
    """Padding other than zeros is applied before the library sees the input."""
    for mode in ("reflect", "replicate", "circular"):
        padded = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode).double().to(device)
        plain = nn.Conv2d(2, 3, 3).double().to(device)
        plain.load_state_dict(padded.state_dict())
        x = torch.randn(2, 2, 5, 5, dtype=torch.float64, device=device)
        by_hand = nn.functional.pad(x, (1, 1, 1, 1), mode=mode)
        for module, y in ((padded, x), (plain, by_hand)):
            kfac = KFAC(module, factor_update_steps=1, inv_update_steps=1)
            (module(y) ** 2).mean().backward()
            kfac.step()
        torch.testing.assert_close(padded.weight.grad, plain.weight.grad, rtol=1e-9, atol=0)


def test_attention_of_torch():
    """nn.MultiheadAttention never calls its output layer: that is reported, and not a layer."""
    with pytest.warns(UserWarning, match=r"attn \(Multihead.*attn\.out_proj \(NonDynamically"):
        kfac = KFAC(nn.TransformerEncoderLayer(8, 2, 16))
    assert [layer.name for layer in kfac._layers] == ["linear1", "linear2"]
    kfac.close()


def test_subclass_is_not_taken_for_its_base():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(nn.Linear(3, 3), Doubled(3, 2))
    with pytest.warns(UserWarning, match=r"1 \(Doubled\)"):
        kfac = KFAC(model)
    assert len(kfac._layers) == 1
