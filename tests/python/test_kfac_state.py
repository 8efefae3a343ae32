"""Saving and loading: a run that goes on from a state has the bits of the one that never stopped."""

from __future__ import annotations

import io

import pytest
import torch
from test_kfac_use import Net, backward, batch, gradients

import descent
from descent.torch import KFAC


def train(model, kfac, batches):
    results = []
    for x, y in batches:
        model.zero_grad(set_to_none=True)
        backward(model, x, y)
        kfac.step()
        results.append(gradients(model))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
    return results


def build(device, **more):
    torch.manual_seed(5)
    model = Net().to(device)
    return model, KFAC(model, damping=0.003, factor_update_steps=2, inv_update_steps=4, **more)


@pytest.mark.parametrize("method", ["eigen", "inverse"])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_same_bits(device, method, stop):
    batches = [batch(device, torch.float32) for _ in range(10)]
    model, kfac = build(device, compute_method=method)
    train(model, kfac, batches[:stop])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "kfac": kfac.state_dict()}, file)
    expected = train(model, kfac, batches[stop:])
    file.seek(0)
    saved = torch.load(file)
    other, again = build(device, compute_method=method)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["kfac"])
    assert again.steps == stop
    got = train(other, again, batches[stop:])
    for one, two in zip(expected, got):
        assert all(torch.equal(a, b) for a, b in zip(one, two))


def test_half_factors(device):
    batches = [batch(device, torch.float32) for _ in range(6)]
    half = {"factor_dtype": torch.bfloat16, "inv_dtype": torch.float16}
    model, kfac = build(device, **half)
    train(model, kfac, batches[:3])
    state, weights = kfac.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
    expected = train(model, kfac, batches[3:])
    other, again = build(device, **half)
    other.load_state_dict(weights)
    again.load_state_dict(state)
    got = train(other, again, batches[3:])
    assert all(torch.equal(a, b) for a, b in zip(expected[-1], got[-1]))


def test_without_factors(device):
    model, kfac = build(device)
    train(model, kfac, [batch(device, torch.float32) for _ in range(3)])
    kfac.damping = 0.01
    state = kfac.state_dict(include_factors=False)
    assert "entries" not in state
    _, again = build(device)
    again.load_state_dict(state)
    assert again.steps == 3 and again.damping == 0.01


def test_functions_are_not_saved(device):
    _, kfac = build(device, lr=lambda step: 0.1)
    assert "lr" not in kfac.state_dict()
    assert kfac.state_dict()["damping"] == 0.003


def test_bad_states(device):
    model, kfac = build(device)
    train(model, kfac, [batch(device, torch.float32)])
    state = kfac.state_dict()
    with pytest.raises(descent.InvalidError, match="steps"):
        kfac.load_state_dict({})
    broken = dict(state, entries={k: v for k, v in state["entries"].items() if k != "conv1.A"})
    with pytest.raises(descent.InvalidError, match="conv1.A"):
        kfac.load_state_dict(broken)
    broken = dict(state, entries=dict(state["entries"], **{"conv1.A": torch.zeros(3)}))
    with pytest.raises(descent.InvalidError, match="shape"):
        kfac.load_state_dict(broken)
    nan = torch.full_like(state["entries"]["conv1.A"], float("nan"))
    broken = dict(state, entries=dict(state["entries"], **{"conv1.A": nan}))
    with pytest.raises(descent.Error, match="not finite"):
        kfac.load_state_dict(broken)
    kfac.load_state_dict(state)
    train(model, kfac, [batch(device, torch.float32)])


def test_memory_format_does_not_matter(device):
    """A state saved with channels_last loads into a contiguous model."""
    batches = [batch(device, torch.float32) for _ in range(4)]
    model, kfac = build(device)
    model.to(memory_format=torch.channels_last)
    train(model, kfac, batches[:3])
    other, again = build(device)
    other.load_state_dict(model.state_dict())
    again.load_state_dict(kfac.state_dict())
    for one, two in zip(train(model, kfac, batches[3:])[0], train(other, again, batches[3:])[0]):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_not_pickled(device):
    _, kfac = build(device)
    import copy

    with pytest.raises(descent.UnsupportedError, match="state_dict"):
        copy.deepcopy(kfac)
