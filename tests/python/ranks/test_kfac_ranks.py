"""K-FAC on several ranks, started by mpirun or torchrun: p ranks of a batch equal one of p batches."""

from __future__ import annotations

import os
from ctypes import byref, c_void_p

import numpy as np
import pytest
import torch
from torch import nn

import descent
from descent import _library as L
from descent import comm as descent_comm
from descent.torch import KFAC
from descent.torch._device import device_of

TORCHRUN = os.environ.get("DESCENT_TEST_LAUNCHER") == "torchrun"
WORLD = descent_comm.default()
ROWS = 4


def alone():
    """A communicator of this rank only."""
    options = L.initialised(L.CommOptions, "comm_options")
    options.kind = b"self"
    handle = c_void_p()
    L.lib.dsc_comm_create(byref(options), byref(handle))
    return descent_comm.Communicator(handle)


def average(tensor):
    """The mean over all ranks, in place."""
    view = device_of(torch.device("cpu")).view(tensor, list(tensor.shape))
    L.lib.dsc_comm_allreduce(WORLD.handle, 5, 0, byref(view))
    tensor /= WORLD.size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(5, 4, 3, stride=2)
        self.linear = nn.Linear(4, 3)
        self.extra = nn.Linear(3, 3)

    def forward(self, x, extra=False):
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(x)))).mean(dim=(2, 3))
        x = self.linear(x)
        return self.extra(x) if extra else x


def whole_batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(WORLD.size * ROWS, 2, 7, 7, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (len(x),), generator=generator)


def mine(x):
    return x[WORLD.rank * ROWS : (WORLD.rank + 1) * ROWS]


def build(**more):
    torch.manual_seed(7)
    model = Net().double()
    more = {"damping": 0.003, "factor_update_steps": 1, "inv_update_steps": 2, **more}
    return model, KFAC(model, **more)


def local_step(model, kfac, x, y, passes=1, extra=False):
    model.zero_grad(set_to_none=True)
    for part, labels in zip(x.chunk(passes), y.chunk(passes)):
        loss = nn.functional.cross_entropy(model(part, extra), labels) / passes
        loss.backward()
    for p in model.parameters():
        if p.grad is not None and kfac._comm.size > 1:
            average(p.grad)
    kfac.step()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def fractions():
    known = ["comm_opt", "mem_opt"]
    return known + ([1 / 3] if WORLD.size == 3 else [0.5])


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("method", ["eigen", "inverse"])
@pytest.mark.parametrize("fraction", fractions())
def test_equals_one_rank(fraction, method, passes):
    one, kfac_one = build(compute_method=method, comm=alone())
    many, kfac = build(
        compute_method=method, grad_worker_fraction=fraction, accumulation_steps=passes
    )
    for step in range(4):
        x, y = whole_batch(step)
        expected = local_step(one, kfac_one, x, y)
        got = local_step(many, kfac, mine(x), mine(y), passes)
        for a, b in zip(expected, got):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-7, atol=1e-12)
    kfac.close()


class NormNet(nn.Module):
    """With a normalisation that does not depend on the other samples of a batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(98, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x, extra=False):
        return self.head(torch.tanh(self.norm(self.linear(x.flatten(1)))))


@pytest.mark.parametrize("fraction", fractions())
def test_norm_equals_one_rank(fraction):
    models, objects = [], []
    for more in ({"comm": alone()}, {"grad_worker_fraction": fraction}):
        torch.manual_seed(7)
        models.append(NormNet().double())
        objects.append(KFAC(models[-1], damping=0.003, factor_update_steps=2, inv_update_steps=2,
                            norm="full", **more))  # fmt: skip
    for step in range(4):
        x, y = whole_batch(step)
        expected = local_step(models[0], objects[0], x, y)
        got = local_step(models[1], objects[1], mine(x), mine(y))
        for a, b in zip(expected, got):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-7, atol=1e-12)
    objects[1].close()


def test_assignment_is_printed():
    _, kfac = build(grad_worker_fraction="mem_opt")
    text = repr(kfac)
    assert f"{WORLD.size} ranks" in text and "A decomposed by rank" in text
    kfac.close()


def test_layer_on_some_ranks_only():
    """Every rank gets the error, and the next step works."""
    model, kfac = build()
    x, y = whole_batch(0)
    x, y = mine(x), mine(y)
    model.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x, extra=WORLD.rank == 0), y).backward()
    with pytest.raises(descent.Error, match="extra"):
        kfac.step()
    local_step(model, kfac, x, y)
    kfac.close()


def test_empty_batch_on_one_rank():
    """It counts as zeros, and no rank waits or fails."""
    torch.manual_seed(7)
    model = nn.Linear(3, 2, bias=False).double()
    kfac = KFAC(model, factor_update_steps=1, inv_update_steps=1, factor_decay=0.5)
    x = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    x = x if WORLD.rank else x[:0]
    (model(x) ** 2).sum().backward()
    average(model.weight.grad)
    kfac.step()
    expected = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    expected = expected.T @ expected / 4 * (WORLD.size - 1) / WORLD.size
    got = kfac.state_dict()["entries"]["linear.A"]
    rows = torch.tril_indices(3, 3)
    whole = (0.5 * torch.eye(3, dtype=torch.float64) + 0.5 * expected)[rows[0], rows[1]]
    np.testing.assert_allclose(np.sort(got.numpy().ravel()), np.sort(whole.numpy()), rtol=1e-12)
    kfac.close()


def test_state_moves_between_strategies():
    """Saved by one rank alone with comm_opt; loaded with another strategy."""
    model, kfac = build()
    for step in range(3):
        x, y = whole_batch(step)
        local_step(model, kfac, mine(x), mine(y))
    state = kfac.state_dict() if WORLD.rank == 0 else {"steps": 3, "entries": {}}
    other, again = build(grad_worker_fraction="mem_opt")
    other.load_state_dict(model.state_dict())
    again.load_state_dict(state)
    assert again.steps == 3
    for step in range(3, 6):
        x, y = whole_batch(step)
        for a, b in zip(
            local_step(model, kfac, mine(x), mine(y)), local_step(other, again, mine(x), mine(y))
        ):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-9, atol=1e-14)
    collective = again.state_dict()
    assert WORLD.rank != 0 or "conv1.A" in collective["entries"]
    kfac.close()
    again.close()


def test_state_of_one_rank():
    """Scripts for kfac-pytorch save on rank 0 alone, whatever the strategy."""
    from descent.kfac.preconditioner import KFACPreconditioner

    torch.manual_seed(7)
    model = Net().double()
    options = {"damping": 0.003, "grad_worker_fraction": 1 / WORLD.size, "scaling": "paper"}
    kfac = KFACPreconditioner(model, **options)
    for step in range(2):
        x, y = whole_batch(step)
        local_step(model, kfac, mine(x), mine(y))
    whole = kfac.state_dict(collective=True)["entries"]
    state = {"steps": 2, "partial": True}
    if WORLD.rank == 0:
        with pytest.warns(UserWarning, match="some layers only"):
            state = kfac.state_dict()
        assert 0 < len(state["entries"]) < len(whole)
    again = KFACPreconditioner(model, **options)
    again.load_state_dict(state)
    assert again.steps == 2
    loaded = again.state_dict(collective=True)["entries"]
    if WORLD.rank == 0:
        names = [name for name in whole if name.endswith((".A", ".G"))]
        equal = {name for name in names if torch.equal(loaded[name], whole[name])}
        assert {name for name in names if name in state["entries"]} <= equal < set(names)
    x, y = whole_batch(2)
    assert all(g.isfinite().all() for g in local_step(model, again, mine(x), mine(y)))
    kfac.close()
    again.close()


def test_lost_object():
    """An object that is garbage on every rank frees itself without the others."""
    import gc

    _, kfac = build()
    del kfac
    gc.collect()
    model, kfac = build()
    x, y = whole_batch(0)
    local_step(model, kfac, mine(x), mine(y))
    kfac.close()


@pytest.mark.skipif(not TORCHRUN, reason="needs a process group of torch.distributed")
@pytest.mark.parametrize("views", [False, True])
def test_distributed_data_parallel(views):
    """DDP averages the gradients in its buckets; no_sync() accumulates."""
    one, kfac_one = build(comm=alone())
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(
        Net().double(), gradient_as_bucket_view=views, find_unused_parameters=True
    )
    kfac = KFAC(model, damping=0.003, factor_update_steps=1, inv_update_steps=2,
                accumulation_steps=2)  # fmt: skip
    assert kfac._layers[0].name == "conv1"
    for step in range(3):
        x, y = whole_batch(step)
        expected = local_step(one, kfac_one, x, y)
        model.zero_grad(set_to_none=not views)
        x, y = mine(x), mine(y)
        with model.no_sync():
            (nn.functional.cross_entropy(model(x[:2]), y[:2]) / 2).backward()
        (nn.functional.cross_entropy(model(x[2:]), y[2:]) / 2).backward()
        kfac.step()
        got = [p.grad for p in model.module.parameters() if p.grad is not None]
        for a, b in zip(expected, got):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-7, atol=1e-12)
    kfac.close()
