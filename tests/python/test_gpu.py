"""What only a GPU has: streams, GradScaler, graphs, no waits of the host; and torch.compile."""

from __future__ import annotations

import time

import pytest
import torch
from reference import Reference, compare
from test_kfac_use import Net, backward, batch, every_step, gradients, make
from torch import nn

import descent
import descent.comm
from descent.torch import KFAC


@pytest.fixture
def gpu(device):
    if device.type != "cuda":
        pytest.skip("needs a GPU (DESCENT_TEST_DEVICE=cuda)")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return device


def test_side_stream(gpu):
    """All work follows torch's current stream: a slow stream must not be overtaken."""
    model, truth = make(gpu)
    kfac = KFAC(model, **every_step())
    for step in range(4):
        stream = torch.cuda.Stream() if step % 2 == 0 else torch.cuda.current_stream()
        data = batch(gpu)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            model.zero_grad(set_to_none=True)
            backward(model, *data)
            torch.cuda._sleep(50_000_000)
            plain = gradients(model)
            kfac.step()
            result = gradients(model)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        after = gradients(model)
        for p, g in zip(model.parameters(), plain):
            p.grad.copy_(g)
        expected = truth.step()
        for p, g in zip(model.parameters(), after):
            p.grad.copy_(g)
        compare(expected, 1e-9)
        assert all(torch.equal(a, b) for a, b in zip(result, after))


def test_host_does_not_wait(gpu):
    """Without a decomposition step() returns while the GPU is still busy with earlier work."""
    model = Net().to(gpu)
    kfac = KFAC(model, factor_update_steps=2, inv_update_steps=100, damping=0.003)
    for step in range(6):
        data = batch(gpu, torch.float32)
        torch.cuda.synchronize()
        began = time.perf_counter()
        if step >= 3:
            torch.cuda._sleep(2_000_000_000)  # about a second
        model.zero_grad(set_to_none=True)
        backward(model, *data)
        kfac.step()
        seconds = time.perf_counter() - began
        assert step < 3 or seconds < 0.3, f"step {step}: the host waited for {seconds:.2f} s"
        torch.cuda.synchronize()
        assert step < 3 or time.perf_counter() - began > 0.5


def test_current_device_stays(gpu):
    before = torch.cuda.current_device()
    model = Net().to(gpu)
    kfac = KFAC(model, **every_step())
    backward(model, *batch(gpu, torch.float32))
    kfac.step()
    assert torch.cuda.current_device() == before


def test_grad_scaler(gpu):
    model, truth = make(gpu, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0**10)
    kfac = KFAC(model, grad_scaler=scaler, **every_step())
    truth.loss_scale = 2.0**10
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch(gpu, torch.float32)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        expected = truth.step()
        kfac.step()
        compare(expected, 5e-3)
        scaler.step(optimizer)
        scaler.update()


def test_overflow_is_survived(gpu):
    """A scale that overflows: the step is skipped by the scaler, factors stay finite."""
    model = Net().to(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0**40, growth_interval=1000)
    kfac = KFAC(model, grad_scaler=scaler, **every_step())
    for _ in range(40):
        optimizer.zero_grad()
        x, y = batch(gpu, torch.float32)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        kfac.step()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**30
    assert all(torch.isfinite(p).all() for p in model.parameters())
    insight = kfac.insight()
    assert insight["rejected_factors"] > 0 and insight["nu"] == insight["nu"]


def test_graph_of_the_caller(gpu):
    """Forward and backward passes replayed as a CUDA graph, except in steps that update factors."""
    torch.manual_seed(2)
    model, twin = Net().to(gpu), Net().to(gpu)
    for module in (model.norm, twin.norm):
        module.momentum = 0.0
    twin.load_state_dict(model.state_dict())
    options = dict(factor_update_steps=3, inv_update_steps=3, damping=0.003)
    kfac, other = KFAC(model, **options), KFAC(twin, **options)
    x, y = batch(gpu, torch.float32)
    graph = None
    for step in range(7):
        new = batch(gpu, torch.float32)
        x.copy_(new[0])
        y.copy_(new[1])
        twin.zero_grad(set_to_none=True)
        backward(twin, x, y)
        other.step()
        if kfac.updates_factors:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()
            backward(model, x, y)
        else:
            if graph is None:
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    for p in model.parameters():
                        p.grad.zero_()
                    backward(model, x, y)
            graph.replay()
        kfac.step()
        for a, b in zip(gradients(model), gradients(twin)):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_capture_of_a_factor_step_is_refused(gpu):
    model = Net().to(gpu)
    kfac = KFAC(model, **every_step())
    data = batch(gpu, torch.float32)
    backward(model, *data)
    kfac.step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(Exception, match="CUDA graph|captur"):
        with torch.cuda.graph(graph):
            backward(model, *data)


def test_host_memory_is_refused(gpu):
    """A pointer that is not the GPU's is an error, not a crash."""
    from ctypes import byref

    from descent._library import lib
    from descent.torch._device import device_of

    host = torch.zeros(4)
    view = device_of(torch.device("cuda", 0)).view(host, (4,))
    with pytest.raises(descent.InvalidError):
        lib.dsc_tensor_check(byref(view))


def test_model_on_two_devices(gpu):
    model = nn.Sequential(nn.Linear(3, 3).to(gpu), nn.Linear(3, 3))
    with pytest.raises(descent.InvalidError, match="must be on one device"):
        KFAC(model)


@pytest.mark.parametrize("wrap_first", [True, False])
def test_compiled(device, wrap_first):
    """torch.compile: captures interrupt the graph in factor steps only."""
    if not hasattr(torch, "compile"):
        pytest.skip("this torch has no torch.compile")
    torch.manual_seed(4)
    model = Net().double().to(device)
    truth = Reference(model.references(), factor_every=2, update_every=2)
    for hook in truth.hooks:
        hook.remove()
    plain = Net().double().to(device)
    plain.load_state_dict(model.state_dict())
    truth = Reference(plain.references(), factor_every=2, update_every=2)
    options = dict(factor_update_steps=2, inv_update_steps=2, damping=0.003)
    try:
        if wrap_first:
            compiled = torch.compile(model, backend="aot_eager")
            kfac = KFAC(compiled, **options)
        else:
            kfac = KFAC(model, **options)
            compiled = torch.compile(model, backend="aot_eager")
        compiled(batch(device)[0])
    except RuntimeError as error:
        pytest.skip(f"torch.compile does not work here: {error}")
    assert kfac._layers[0].name == "conv1"
    for _ in range(5):
        x, y = batch(device)
        plain.zero_grad(set_to_none=True)
        backward(plain, x, y)
        expected = list(truth.step().values())
        model.zero_grad(set_to_none=True)
        backward(compiled, x, y)
        kfac.step()
        got = [model.conv1.weight.grad, model.conv2.weight.grad, model.conv2.bias.grad,
               model.linear.weight.grad, model.linear.bias.grad]  # fmt: skip
        for a, b in zip(got, expected):
            torch.testing.assert_close(a.cpu(), torch.from_numpy(b), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", "gloo"])
def test_process_groups(gpu, tmp_path, backend):
    """A process group of one rank: the library's communicator, and a K-FAC step on it."""
    import torch.distributed as dist

    if ":" in backend and not hasattr(dist.distributed_c10d, "get_backend_config"):
        pytest.skip("this torch has one backend in a group")
    if "nccl" in backend and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        try:
            comm = descent.comm.default(dist.group.WORLD)
        except descent.UnsupportedError as error:
            pytest.skip(str(error))
        assert comm.size == 1 and comm.name == ("functions" if backend == "gloo" else "nccl")
        assert comm.over_host().name == "functions"
        model, truth = make(gpu)
        kfac = KFAC(model, comm=comm, **every_step())
        backward(model, *batch(gpu))
        expected = truth.step()
        kfac.step()
        compare(expected, 1e-9)
        kfac.close()
        comm.over_host().close()
        comm.close()
    finally:
        dist.destroy_process_group()
