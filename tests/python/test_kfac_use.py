"""K-FAC in the training loops that people write: each trap of a real loop is a test."""

from __future__ import annotations

import copy
import gc
import warnings

import numpy as np
import pytest
import torch
from reference import ConvReference, LinearReference, Reference, compare
from torch import nn

import descent
from descent.torch import KFAC, KFACParamScheduler, LambdaParamScheduler


class Net(nn.Module):
    """Two convolutions, a batch norm, pooling to any image size, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 6, 3, stride=2, padding=1)
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv1(x)))
        x = torch.relu(self.conv2(x)).mean(dim=(2, 3))
        return self.linear(x)

    def references(self):
        one = ((1, 1), (1, 1))
        return [
            ConvReference(self.conv1, one),
            ConvReference(self.conv2, one),
            LinearReference(self.linear),
        ]


def batch(device, dtype=torch.float64, n=4, size=8):
    x = torch.randn(n, 3, size, size, dtype=dtype, device=device)
    return x, torch.randint(0, 5, (n,), device=device)


def backward(model, x, y, scale=1.0):
    loss = nn.functional.cross_entropy(model(x), y)
    (loss * scale).backward()
    return loss


def every_step(**more):
    return {"factor_update_steps": 1, "inv_update_steps": 1, "damping": 0.003, **more}


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def make(device, dtype=torch.float64):
    model = Net().to(device=device, dtype=dtype)
    return model, Reference(model.references())


def test_whole_model(device):
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    for _ in range(3):
        model.zero_grad()
        backward(model, *batch(device))
        plain = model.norm.weight.grad.clone()
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)
        assert torch.equal(plain, model.norm.weight.grad)
    assert kfac.steps == 3


def test_empty_batch(device):
    """A detector's head may get no region: its factors stay as they are."""
    torch.manual_seed(3)
    model = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Linear(2, 3), nn.Linear(3, 2)])
    model = model.to(device).double()
    kfac = KFAC(model, **every_step())

    def step(rows):
        model.zero_grad()
        image = torch.randn(rows, 2, 5, 5, dtype=torch.float64, device=device)
        row = torch.randn(rows, 2, dtype=torch.float64, device=device)
        other = torch.randn(4, 3, dtype=torch.float64, device=device)
        parts = (model[0](image) ** 2).sum() + (model[1](row) ** 2).sum()
        (parts + (model[2](other) ** 2).mean()).backward()
        kfac.step()
        return kfac.state_dict()["entries"]

    before, after, last = step(2), step(0), step(2)
    for name, stays in (("0.A", True), ("0.G", True), ("1.A", True), ("2.A", False)):
        assert torch.equal(before[name], after[name]) == stays, name
        assert not torch.equal(after[name], last[name])
    assert all(torch.isfinite(g).all() for g in gradients(model))
    kfac.close()


def test_frequencies(device):
    model, truth = make(device)
    truth.factor_every, truth.update_every = 2, 4
    kfac = KFAC(model, fac_update_freq=2, kfac_update_freq=4, damping=0.003)
    for step in range(9):
        assert kfac.updates_factors == (step % 2 == 0)
        model.zero_grad(set_to_none=True)
        backward(model, *batch(device))
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)


def test_set_to_none_and_zeros(device):
    """Gradients lie elsewhere in every step, or stay where they are."""
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    for step in range(4):
        model.zero_grad(set_to_none=step % 2 == 0)
        if step == 2:  # other memory for the same gradients
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
        backward(model, *batch(device))
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)


def test_gradients_in_one_buffer(device):
    """DistributedDataParallel makes gradients views of its buckets."""
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    bucket = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64).to(device)
    first = 0
    for p in model.parameters():
        p.grad = bucket[first : first + p.numel()].view_as(p)
        first += p.numel()
    backward(model, *batch(device))
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_odd_strides(device):
    """A gradient whose memory has no order that the library knows is copied and written back."""
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    backward(model, *batch(device))
    grad = model.conv2.weight.grad
    model.conv2.weight.grad = grad.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    model.linear.weight.grad = torch.cat([model.linear.weight.grad] * 2, 1)[:, :6]
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_image_size_changes(device):
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    for size in (8, 12, 6, 9):
        model.zero_grad()
        backward(model, *batch(device, size=size, n=size // 2))
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)


def test_accumulation(device):
    model, truth = make(device)
    kfac = KFAC(model, accumulation_steps=3, **every_step())
    for _ in range(2):
        model.zero_grad()
        for _ in range(3):
            backward(model, *batch(device), scale=1 / 3)
        expected = truth.step(passes=3)
        kfac.step()
        compare(expected, 1e-9)


def test_accumulation_cut_short(device):
    """The last step of an epoch may have fewer passes."""
    model, truth = make(device)
    kfac = KFAC(model, accumulation_steps=4, **every_step())
    truth.loss_scale = 0.5
    for _ in range(2):
        backward(model, *batch(device), scale=1 / 4)
    expected = truth.step(passes=2)
    kfac.step()
    compare(expected, 1e-9)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        big = self.conv(torch.randn(2, 1, 6, 6).to(x)).mean()
        small = self.conv(torch.randn(2, 1, 4, 4).to(x)).mean()
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x))))) + big * small


def test_module_used_several_times(device):
    model = Twice().double().to(device)
    one = ((1, 1), (1, 1))
    truth = Reference(
        [LinearReference(model.inner), ConvReference(model.conv, one), LinearReference(model.out)]
    )
    kfac = KFAC(model, **every_step())
    for _ in range(3):
        model.zero_grad()
        (model(torch.randn(5, 4, dtype=torch.float64, device=device)) ** 2).mean().backward()
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.always = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)

    def forward(self, x, both):
        x = torch.tanh(self.always(x))
        return self.sometimes(x) if both else x


def test_module_that_did_not_run(device):
    model = Sometimes().double().to(device)
    truth = Reference([LinearReference(model.always), LinearReference(model.sometimes)])
    kfac = KFAC(model, **every_step())
    for both in (True, False, True, False):
        model.zero_grad(set_to_none=True)
        (model(torch.randn(5, 4, dtype=torch.float64, device=device), both) ** 2).mean().backward()
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)
        assert (model.sometimes.weight.grad is None) == (not both)


def test_frozen(device):
    """Frozen parameters are left out, whether frozen before or after creation."""
    model = Net().double().to(device)
    model.conv1.weight.requires_grad_(False)
    kfac = KFAC(model, **every_step())
    assert [layer.name for layer in kfac._layers] == ["conv2", "linear"]
    backward(model, *batch(device))
    kfac.step()
    model.linear.requires_grad_(False)
    model.zero_grad(set_to_none=True)
    backward(model, *batch(device))
    kfac.step()
    assert model.linear.weight.grad is None
    assert torch.isfinite(model.conv2.weight.grad).all()


def test_grad_scale_as_function(device):
    model, truth = make(device)
    truth.loss_scale = 1024.0
    kfac = KFAC(model, grad_scaler=lambda: 1024.0, **every_step())
    backward(model, *batch(device), scale=1024.0)
    for p in model.parameters():
        p.grad /= 1024.0  # what GradScaler.unscale_ does
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_loss_summed_over_samples(device):
    model, truth = make(device)
    truth.loss_scale = 4.0
    kfac = KFAC(model, batch_averaged=False, **every_step())
    x, y = batch(device, n=4)
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, dtype):
    if device.type == "cpu" and dtype == torch.float16:
        pytest.skip("float16 convolutions are not implemented on the CPU")
    model, truth = make(device, torch.float32)
    kfac = KFAC(model, **every_step())
    for _ in range(2):
        model.zero_grad()
        x, y = batch(device, torch.float32)
        with torch.autocast(device.type, dtype=dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        expected = truth.step()
        kfac.step()
        compare(expected, 5e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_model(device, dtype):
    """Parameters in a half type: K-FAC works in float32 on copies of the gradients."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(device=device)
    model = model.to(dtype)
    kfac = KFAC(model, **every_step())
    x = torch.randn(8, 4, device=device).to(dtype)
    try:
        out = model(x)
    except RuntimeError:
        pytest.skip(f"no {dtype} linear layers on {device}")
    out.float().pow(2).mean().backward()
    before = gradients(model)
    kfac.step()
    after = gradients(model)
    assert all(g.dtype == dtype and torch.isfinite(g).all() for g in after)
    assert any(not torch.equal(a, b) for a, b in zip(after, before))


def test_memory_formats_agree(device):
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(3)
        model = Net().to(device)
        model.to(memory_format=memory_format)
        kfac = KFAC(model, **every_step())
        x, y = batch(device, torch.float32)
        for _ in range(2):
            model.zero_grad()
            backward(model, x.to(memory_format=memory_format), y)
            kfac.step()
        results.append(gradients(model))
    for one, other in zip(*results):
        assert (one - other).norm() <= 3e-3 * one.norm()


def test_checkpointing(device):
    """Activation checkpointing runs forward passes twice, the first without gradients."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double().to(device)
    truth = Reference([LinearReference(model[0]), LinearReference(model[2])])
    kfac = KFAC(model, **every_step())
    x = torch.randn(6, 4, dtype=torch.float64, device=device, requires_grad=True)
    try:
        out = checkpoint(model, x, use_reentrant=True)
    except TypeError:
        out = checkpoint(model, x)
    out.pow(2).mean().backward()
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_in_place_activations(device):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3), nn.ReLU(inplace=True)
    )
    model = model.double().to(device)
    none = ((0, 0), (0, 0))
    kfac = KFAC(model, **every_step())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, device=device)
    model(x).pow(2).mean().backward()
    kfac.step()
    mine = gradients(model)
    twin = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU())
    twin = twin.double().to(device)
    twin.load_state_dict(model.state_dict())
    truth = Reference([ConvReference(twin[0], none), ConvReference(twin[2], none)], damping=0.003)
    twin(x).pow(2).mean().backward()
    expected = list(truth.step().values())
    for got, want in zip(mine, expected):
        np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-6, atol=1e-12)


def test_evaluation_between_steps(device):
    """Forward passes without a backward pass leave nothing behind."""
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    model.eval()
    with torch.no_grad():
        model(batch(device)[0])
    model.train()
    model(batch(device)[0])  # with gradients enabled, but never back-propagated
    for noted in truth.seen.values():
        noted.clear()
    backward(model, *batch(device))
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_schedulers(device):
    model = Net().to(device)
    kfac = KFAC(model, damping=0.01, factor_update_steps=2, inv_update_steps=4, lr=lambda s: 0.5 + s)
    scheduler = LambdaParamScheduler(
        kfac,
        damping_lambda=lambda step: 0.5 if step >= 1 else 1.0,
        factor_update_steps_lambda=lambda step: 2,
        inv_update_steps_lambda=lambda step: 2,
    )
    assert kfac.lr == 0.5
    scheduler.step(0)
    assert (kfac.damping, kfac.factor_update_steps, kfac.inv_update_steps) == (0.01, 4, 8)
    scheduler.step(1)
    assert kfac.damping == 0.005
    with pytest.raises(descent.InvalidError, match="lr"):
        LambdaParamScheduler(kfac, lr_lambda=lambda step: 1.0)
    kfac = KFAC(model, damping=0.01, fac_update_freq=10, kfac_update_freq=100)
    old = KFACParamScheduler(
        kfac, damping_alpha=0.5, damping_schedule=[2, 4], update_freq_alpha=10,
        update_freq_schedule=[3],
    )  # fmt: skip
    values = []
    for _ in range(5):
        values.append((kfac.damping, kfac.factor_update_steps))
        old.step()
    assert values == [(0.01, 10), (0.01, 10), (0.005, 10), (0.005, 100), (0.0025, 100)]


def test_learning_rate_scheduler(device):
    """SC'20 scripts hand the preconditioner to torch's schedulers."""
    model = Net().to(device)
    kfac = KFAC(model, lr=0.2, **every_step())
    scheduler = torch.optim.lr_scheduler.LambdaLR(kfac, lambda epoch: 0.5**epoch)
    backward(model, *batch(device, torch.float32))
    kfac.step()
    scheduler.step()
    assert kfac.lr == pytest.approx(0.1)


def test_no_clip(device):
    model, truth = make(device)
    truth.kl_clip = 0
    kfac = KFAC(model, kl_clip=None, **every_step())
    backward(model, *batch(device))
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)


def test_insight(device):
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    backward(model, *batch(device))
    truth.step()
    kfac.step()
    insight = kfac.insight()
    assert insight["nu"] == pytest.approx(truth.nu, rel=1e-6)
    assert set(insight["layers"]) == {"conv1", "conv2", "linear"}
    values = np.linalg.eigvalsh(truth.layers[2].units[0].average[0])
    assert insight["layers"]["linear"]["a_max"] == pytest.approx(values[-1], rel=1e-5)
    assert 0 < insight["layers"]["conv1"]["cosine"] <= 1 + 1e-6
    assert not kfac.health()["degenerate"]


def test_degenerated_to_plain_gradients(device):
    """With a damping that outweighs the factors, a warning says so once."""
    model = Net().to(device)
    kfac = KFAC(model, damping=1e6, factor_update_steps=5, inv_update_steps=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(125):
            model.zero_grad()
            backward(model, *batch(device, torch.float32, n=2, size=4))
            kfac.step()
    texts = [str(w.message) for w in caught if "nothing but the length" in str(w.message)]
    assert len(texts) == 1
    health = kfac.health()
    assert health["degenerate"] and health["alarm"] == "parallel"
    assert texts[0].startswith(health["message"])


def test_factor_samples(device):
    """The first samples of a batch alone, scaled: their factors are those of a batch of them."""
    factors, first = [], make(device)[0]
    x, y = batch(device, n=8)
    for samples, rows in ((2, 8), (0, 2)):
        model = copy.deepcopy(first).eval()  # batch norm would make samples depend on each other
        kfac = KFAC(model, factor_samples=samples, **every_step())
        backward(model, x[:rows], y[:rows])
        kfac.step()
        factors.append(kfac.state_dict()["entries"])
    for name in ("conv1.A", "conv2.A", "linear.A", "conv1.G", "conv2.G", "linear.G"):
        assert torch.allclose(factors[0][name], factors[1][name], rtol=1e-10)


def test_variants(device):
    """Options that the library checks and applies."""
    model, _ = make(device)
    options = dict(every_step(), compute_method="inverse", damping_split="pi", warmup_factors=True)
    kfac = KFAC(model, kl_clip_scaling="ranks", clip="layer", **options)
    backward(model, *batch(device))
    kfac.step()
    assert int(kfac.state_dict()["entries"]["linear.updates"]) == 1
    with pytest.raises(descent.InvalidError, match="choose method inverse"):
        KFAC(make(device)[0], damping_split="pi")


@pytest.mark.parametrize("options", [{"ekfac": "batch"}, {"ekfac": "samples"}, {"async_steps": 2}])
def test_state_of_variants(device, options):
    """A run that goes on from a state has the same bits, and the option has an effect."""
    first, _ = make(device)
    models = [copy.deepcopy(first) for _ in range(3)]
    steps = dict(factor_update_steps=1, inv_update_steps=3)
    kfacs = [KFAC(model, **steps, **more) for model, more in zip(models, (options, options, {}))]
    for step in range(8):
        if step == 4:
            models[1].load_state_dict(models[0].state_dict())
            kfacs[1].load_state_dict(kfacs[0].state_dict())
        x, y = batch(device)
        for model, kfac in zip(models, kfacs):
            model.zero_grad()
            backward(model, x, y)
            kfac.step()
    grads = [[p.grad for p in model.parameters()] for model in models]
    assert all(torch.equal(a, b) for a, b in zip(grads[0], grads[1]))
    assert not all(torch.allclose(a, b) for a, b in zip(grads[0], grads[2]))


def test_clip_alarm(device):
    """A clip that leaves next to nothing of the steps is reported once, with what to do."""
    model = Net().to(device)
    kfac = KFAC(model, kl_clip=1e-12, factor_update_steps=5, inv_update_steps=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(125):
            model.zero_grad()
            backward(model, *batch(device, torch.float32, n=2, size=4))
            kfac.step()
    texts = [str(w.message) for w in caught if "raise the clip" in str(w.message)]
    assert len(texts) == 1
    health = kfac.health()
    assert health["alarm"] == "clipped" and health["nu"] < 0.05 and not health["degenerate"]


def test_memory_usage_and_repr(device):
    model = Net().to(device)
    kfac = KFAC(model, **every_step())
    usage = kfac.memory_usage()
    assert list(usage) == [
        "a_factors", "g_factors", "a_batch", "g_batch", "a_inverses", "g_inverses", "total",
    ]  # fmt: skip
    insight = kfac.insight()
    assert usage["a_factors"] + usage["g_factors"] == insight["factor_bytes"]
    assert usage["a_inverses"] + usage["g_inverses"] == insight["decomposition_bytes"]
    assert usage["a_batch"] + usage["g_batch"] == insight["exchange_bytes"]
    text = repr(kfac)
    assert "conv1: conv2d, A 27 x 27, G 8 x 8" in text and "linear: linear, A 7 x 7" in text


class Wide(nn.Module):
    """Factors of more than 128 rows, which may be cut."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 150, 3, padding=1)
        self.norm = nn.BatchNorm2d(150)
        self.linear = nn.Linear(150, 5)

    def forward(self, x):
        return self.linear(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


@pytest.mark.parametrize("more", [
    {"refresh": "warm", "rank": 0.25},
    {"ekfac": "samples"},
    {"norm": "full"},
    {"compute_eigenvalue_outer_product": True},
    {"accumulation_steps": 2},
    {"diag_blocks": 2},
])  # fmt: skip
def test_memory_usage_of_options(device, more):
    """The sizes of what a state holds, which is what a single rank keeps."""
    model = Wide().to(device)
    kfac = KFAC(model, **every_step(**more))
    whole = KFAC(Wide().to(device), **every_step()).memory_usage()
    for _ in range(3):
        model.zero_grad()
        for _ in range(more.get("accumulation_steps", 1)):
            backward(model, *batch(device, torch.float32, n=8))
        kfac.step()
    usage, entries = kfac.memory_usage(), kfac.state_dict()["entries"]
    assert usage["total"] == sum(v for k, v in usage.items() if k != "total")
    for side in "AG":
        parts = {name: t.numel() * t.element_size() for name, t in entries.items()}
        factors = sum(n for name, n in parts.items() if name.endswith(f".{side}"))
        bases = sum(n for name, n in parts.items() if f".{side}.v" in name)
        assert usage[f"{side.lower()}_factors"] == factors
        if "diag_blocks" not in more:  # memory of whole factors is kept beside the blocks
            assert usage[f"{side.lower()}_inverses"] == bases
    insight = kfac.insight()
    held = [usage[f"{side}_inverses"] for side in "ag"]
    assert sum(held) + usage.get("outer_products", 0) + usage.get("moments", 0) // 2 == (
        insight["decomposition_bytes"]
    )
    if "rank" in more:
        assert usage["g_inverses"] < whole["g_inverses"]
    if "norm" in more:
        assert usage["norms"] == 2 * 3 * 150 * 4
    if "ekfac" in more:
        assert usage["moments"] == 2 * 4 * (150 * 28 + 5 * 151)


def test_garbage(device):
    """A lost object frees its memory and leaves no hook that works."""
    model = Net().to(device)
    kfac = KFAC(model, **every_step())
    del kfac
    gc.collect()
    backward(model, *batch(device, torch.float32))
    kfac = KFAC(model, **every_step())
    backward(model, *batch(device, torch.float32))
    kfac.step()
    kfac.close()
    kfac.close()
    with pytest.raises(descent.InvalidError, match="closed"):
        kfac.step()


# ---- bad input ----


def test_step_without_backward(device):
    model = Net().to(device)
    kfac = KFAC(model)
    with pytest.raises(descent.InvalidError, match="without a backward pass"):
        kfac.step()
    backward(model, *batch(device, torch.float32))
    kfac.step()


def test_factor_step_without_hooks(device):
    """Gradients that did not come from the model's own backward pass."""
    model = Net().to(device)
    kfac = KFAC(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(descent.InvalidError, match="updates_factors"):
        kfac.step()


def test_unsupported_layers():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.ConvTranspose2d(1, 1, 3))
    with pytest.warns(UserWarning, match=r"0 \(Embedding\), 2 \(ConvTranspose2d\)"):
        KFAC(model)
    with pytest.raises(descent.UnsupportedError, match="Embedding"):
        KFAC(model, unsupported="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KFAC(model, skip_layers=["Embedding", "Transpose"])
        KFAC(model, unsupported="ignore")
        KFAC(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.inner = nn.Linear(4, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

    with pytest.warns(UserWarning, match="shared with another module: head"):
        kfac = KFAC(Tied())
    assert [layer.name for layer in kfac._layers] == ["inner"]


def test_nothing_to_do():
    with pytest.raises(descent.InvalidError, match="no trainable linear or convolution"):
        KFAC(nn.BatchNorm2d(3))
    with pytest.raises(descent.InvalidError, match="no trainable"):
        KFAC(Net(), skip_layers=[".*"])


def test_bad_arguments():
    for arguments, text in (
        ({"damping": -1.0}, "damping"),
        ({"factor_decay": 2.0}, "decay"),
        ({"grad_worker_fraction": 1.5}, "grad_worker_fraction"),
        ({"compute_method": "qr"}, "eigen"),
        ({"accumulation_steps": 0}, "accumulation_steps"),
        ({"factor_dtype": torch.int32}, "factor_dtype"),
        ({"scaling": "none"}, "paper"),
        ({"factor_update_steps": 2, "fac_update_freq": 3}, "give one of them"),
    ):
        with pytest.raises(descent.InvalidError, match=text):
            KFAC(Net(), **arguments)


def test_mixed_types():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())
    with pytest.raises(descent.InvalidError, match="must have one type"):
        KFAC(model)


def test_sharded_is_refused():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

    with pytest.raises(descent.UnsupportedError, match="FullyShardedDataParallel"):
        KFAC(FullyShardedDataParallel())
    model = nn.Linear(2, 2)
    model.weight.ds_id = 1
    with pytest.raises(descent.UnsupportedError, match="DeepSpeed ZeRO-3"):
        KFAC(model)


def test_meta_device():
    with pytest.raises(descent.UnsupportedError, match="has no memory yet"):
        KFAC(nn.Linear(3, 3, device="meta"))


def test_sparse_gradient(device):
    model = nn.Linear(3, 3).to(device)
    kfac = KFAC(model)
    model(torch.randn(2, 3, device=device)).sum().backward()
    model.weight.grad = model.weight.grad.to_sparse()
    with pytest.raises(descent.InvalidError, match="dense"):
        kfac.step()


def test_not_a_number(device):
    """A gradient that is not finite is left alone, and K-FAC goes on."""
    model, truth = make(device)
    kfac = KFAC(model, **every_step())
    backward(model, *batch(device))
    expected = truth.step()
    kfac.step()
    compare(expected, 1e-9)
    model.zero_grad()
    backward(model, *batch(device))
    for noted in truth.seen.values():
        noted.clear()
    model.linear.weight.grad[0, 0] = float("nan")
    if device.type == "cpu":
        with pytest.raises(descent.NumericError, match="not finite"):
            kfac.step()
    else:
        kfac.step()
    assert torch.isfinite(model.conv1.weight.grad).all()
    model.zero_grad()
    backward(model, *batch(device))
    kfac.step()
    assert torch.isfinite(model.conv1.weight.grad).all()
