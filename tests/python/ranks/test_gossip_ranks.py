"""Gossip on ranks started by mpirun or torchrun, against a simulation of all ranks in float64 with
the matrices of the graph."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import torch
from torch import nn

import descent
from descent import comm as descent_comm
from descent.torch import BilatGossipDataParallel, GossipDataParallel, GossipOptimizer, average
from descent.torch import graphs

WORLD = descent_comm.default()
RANK, RANKS = WORLD.rank, WORLD.size
DEVICE = torch.device(os.environ.get("DESCENT_TEST_DEVICE", "cpu"))
STEPS = 7
LR, DECAY, MOMENTUM = 0.1, 0.05, 0.9


class Net(nn.Module):
    """The loss of rank r pulls every value to a target of its own."""

    def __init__(self, rank=RANK):
        super().__init__()
        generator = torch.Generator().manual_seed(3 + rank)
        self.a = nn.Parameter(torch.randn(4, 3, generator=generator))
        self.b = nn.Parameter(torch.randn(5, generator=generator))
        self.register_buffer("seen", torch.tensor([float(rank)]))
        self.to(DEVICE)

    def forward(self, step, rank=RANK):
        return sum(((p - target(p, rank, step)) ** 2).sum() / 4 for p in (self.a, self.b))


def target(p, rank, step):
    generator = torch.Generator().manual_seed(1000 * (step + 1) + 10 * rank + p.dim())
    return torch.randn(p.shape, generator=generator, dtype=torch.float32).to(p)


def values(module):
    return np.concatenate([p.detach().double().cpu().numpy().ravel() for p in module.parameters()])


def targets(rank, step):
    net = Net()
    parts = [target(p, rank, step).double().cpu().numpy().ravel() for p in (net.a, net.b)]
    return np.concatenate(parts)


def matrix(topology, step):
    """W of a step: column r holds the shares of rank r."""
    w = np.zeros((topology.ranks, topology.ranks))
    for r in range(topology.ranks):
        kept, out = topology.out(r, step)
        w[r, r] = kept
        for to, share in out:
            w[to, r] += share
    return w


class Sgd:
    """SGD with momentum and decay of torch, in float64, for all ranks."""

    def __init__(self, shape):
        self.m = np.zeros(shape)

    def __call__(self, z, g):
        self.m = MOMENTUM * self.m + g + DECAY * z
        return LR * self.m


class AdamW:
    def __init__(self, shape):
        self.m, self.v, self.t = np.zeros(shape), np.zeros(shape), 0

    def __call__(self, z, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return LR * DECAY * z + LR * m / (np.sqrt(v) + 1e-8)


def simulate(kind, topology, make, steps=STEPS, group=1):
    """The values z of all ranks before each forward pass, and after everything is settled."""
    nodes = RANKS // group
    x = np.tile(values(Net(0)), (RANKS, 1))
    w = np.ones(RANKS)
    update = make(x.shape)
    seen = []

    def mix(step):
        full = np.kron(matrix(topology, step), np.eye(group)) if nodes > 1 else np.eye(RANKS)
        return full

    pending = None
    for t in range(steps):
        if kind == "osgp":
            if pending is not None:
                x, w = x + pending[0], w + pending[1]
            full = mix(t)
            kept, sent = np.diag(np.diag(full)), full - np.diag(np.diag(full))
            pending = (sent @ x, sent @ w)
            x, w = kept @ x, kept @ w
        z = x / w[:, None]
        seen.append(z)
        g = np.stack([(z[r] - targets(r, t)) / 2 for r in range(RANKS)])
        for first in range(0, RANKS, group):
            g[first : first + group] = g[first : first + group].mean(axis=0)
        x = x - update(z, g)
        if kind in ("sgp", "dpsgd"):
            x, w = mix(t) @ x, mix(t) @ w
        if kind == "allreduce":
            x = x + 0
    if pending is not None:
        x, w = x + pending[0], w + pending[1]
    return seen, x / w[:, None], x


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def torch_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


def torch_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)


def has(graph):
    return RANKS % 2 == 0 or RANKS == 1 or "bipartite" not in graph


CASES = [
    ("sgp", "exponential"), ("sgp", "ring"), ("sgp", "complete"), ("osgp", "exponential"),
    ("osgp", "exponential-pm"), ("dpsgd", "base-2"), ("dpsgd", "bipartite-exponential"),
]  # fmt: skip


@pytest.mark.parametrize("kind, graph", CASES)
@pytest.mark.parametrize("make, simulated", [(torch_sgd, Sgd), (torch_adamw, AdamW)])
def test_wrapper_equals_simulation(kind, graph, make, simulated):
    if not has(graph):
        pytest.skip("the graph needs an even number of ranks")
    topology = graphs.Topology(graph, RANKS)
    seen, final, _ = simulate(kind, topology, simulated)
    model = GossipDataParallel(
        Net(), graph=graph, push_sum=kind != "dpsgd", overlap=kind == "osgp"
    )
    optimizer = make(model)
    assert float(model.module.seen) == 0  # buffers start as rank 0's
    for t in range(STEPS):
        loss = model(t)
        close(values(model.module), seen[t][RANK])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.sync_comms()
    close(values(model.module), final[RANK])
    with model.averaged():
        close(values(model.module), final.mean(axis=0))
    close(values(model.module), final[RANK])
    found = model.distance()
    mean = final.mean(axis=0)
    expected = np.sqrt(((final - mean) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(found["distance"], expected, rtol=1e-3, atol=1e-6)
    model.close()
    close(values(model.module), final[RANK])


@pytest.mark.parametrize("kind, graph", CASES + [("allreduce", None)])
@pytest.mark.parametrize("make, simulated", [(torch_sgd, Sgd), (torch_adamw, AdamW)])
def test_optimizer_equals_simulation(kind, graph, make, simulated):
    if graph and not has(graph):
        pytest.skip("the graph needs an even number of ranks")
    topology = graphs.Topology(graph or "complete", RANKS)
    group = RANKS if kind == "allreduce" else 1
    seen, final, _ = simulate(kind, topology, simulated, group=group)
    model = Net()
    optimizer = GossipOptimizer(make(model), model, kind, graph)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    for t in range(STEPS):
        optimizer.zero_grad()
        loss = model(t)
        close(values(model), seen[t][RANK])
        loss.backward()
        optimizer.step()
        scheduler.step()
    optimizer.settle()
    close(values(model), final[RANK])
    with optimizer.averaged():
        close(values(model), final.mean(axis=0))
    optimizer.close()


def test_irregular_graph(tmp_path_factory):
    """On a graph whose weights are not 1 between steps, z differs from x all the time."""
    if RANKS < 3:
        pytest.skip("every graph of two ranks is regular")
    path = f"/tmp/descent-python-{os.getppid()}.graph"
    if RANK == 0:
        with open(path, "w") as file:
            file.write(f"ranks {RANKS}\nstep\n")
            for r in range(1, RANKS):
                file.write(f"0 {r} {0.5 / (RANKS - 1):.17g}\n")
            file.write("step\n")
            for r in range(RANKS):
                file.write(f"{r} {(r + 1) % RANKS} 0.25\n")
    descent.torch._consensus.lib.dsc_comm_barrier(WORLD.handle)
    for kind in ("sgp", "osgp"):
        topology = graphs.Topology(path, RANKS)
        seen, final, x = simulate(kind, topology, AdamW)
        model = Net()
        optimizer = GossipOptimizer(torch_adamw(model), model, kind, path)
        for t in range(STEPS):
            optimizer.zero_grad()
            model(t).backward()
            close(values(model), seen[t][RANK])
            optimizer.step()
            if t == 3:
                model.eval()
                model(t)  # this rank's own values
                model.train()
        optimizer.settle()
        close(values(model), final[RANK])  # z, although the weight is not 1
        with optimizer.averaged():
            close(values(model), x.mean(axis=0))
        close(values(model), final[RANK])
        model(0).backward()
        close(values(model), final[RANK] if kind == "sgp" else values(model))
        optimizer.close()
    descent.torch._consensus.lib.dsc_comm_barrier(WORLD.handle)
    if RANK == 0:
        os.remove(path)


def test_accumulation_and_skipped_updates():
    """Several passes for an update, and passes without one, change nothing about the exchange."""
    results = []
    for passes in (1, 3):
        model = GossipDataParallel(Net(), overlap=True)
        optimizer = torch_sgd(model)
        for t in range(STEPS):
            if passes > 1:
                model(t).backward()  # no update follows
                optimizer.zero_grad()
            for _ in range(passes):
                (model(t) / passes).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.sync_comms()
        results.append(values(model.module))
        model.close()
    close(results[0], results[1])


@pytest.mark.parametrize("synch_freq", [0, 3])
def test_mass_is_conserved(synch_freq):
    """Whatever is late or changed by hand, the mean over the ranks is that of all changes."""
    model = GossipDataParallel(Net(), overlap=True, synch_freq=synch_freq)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for t in range(9):
        model(t).backward()
        optimizer.step()
        if t == 4:
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(RANK)
    with model.averaged():
        close(values(model.module), values(Net(0)) + (RANKS - 1) / 2)
    model.close()


def test_transfer_at_once():
    """transfer_params sends before the next forward pass; the values are the same."""
    topology = graphs.Topology("exponential", RANKS)
    seen, final, _ = simulate("sgp", topology, Sgd)
    graph = graphs.NPeerDynamicDirectedExponentialGraph(RANK, RANKS)
    model = GossipDataParallel(Net(), graph=graph)
    optimizer = torch_sgd(model)
    for t in range(STEPS):
        model(t).backward()
        close(values(model.module), seen[t][RANK])
        optimizer.step()
        model.transfer_params()
        optimizer.zero_grad()
        if t == 2:
            model.eval()
            model(t)
            close(values(model.module), seen[t + 1][RANK])
            model.train()
    model.sync_comms()
    close(values(model.module), final[RANK])
    model.close()


def test_numerators_and_unbias():
    model = GossipDataParallel(Net(), overlap=True)
    model(0)
    z = values(model.module)
    weight = float(model.ps_weight)
    model.ps_numerator()
    close(values(model.module), z * weight)
    model.unbias()
    close(values(model.module), z)
    assert weight == (0.5 if RANKS > 1 else 1)
    model.close()


def test_state_dict_continues():
    """Save, load into new objects, go on: the same bits as without a stop."""
    for overlap in (False, True):
        straight, resumed = run_and_resume(overlap, False), run_and_resume(overlap, True)
        assert np.array_equal(straight, resumed)


def run_and_resume(overlap, stop):
    model = GossipDataParallel(Net(), overlap=overlap)
    optimizer = torch_sgd(model)
    for t in range(6):
        model(t).backward()
        optimizer.step()
        optimizer.zero_grad()
        if t == 2:
            state = model.state_dict()
            assert set(state) >= {"state_dict", "ps_weight", "is_ps_numerator"}
            assert float(state["ps_weight"]) == 1
            moments = copy.deepcopy(optimizer.state_dict())
            if stop:
                model.close()
                model = GossipDataParallel(Net(RANK + 5), overlap=overlap)
                optimizer = torch_sgd(model)
                model.load_state_dict(state)
                optimizer.load_state_dict(moments)
    model.sync_comms()
    found = values(model.module)
    model.close()
    return found


def test_optimizer_state_continues():
    model = Net()
    optimizer = GossipOptimizer(torch_adamw(model), model, "sgp")
    for t in range(3):
        optimizer.zero_grad()
        model(t).backward()
        optimizer.step()
    optimizer.settle()
    state = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    assert state["gossip"]["steps"] == 3 and state["gossip"]["weight"] == 1
    results = []
    for fresh in (False, True):
        if fresh:
            optimizer.close()
            model = Net()
            optimizer = GossipOptimizer(torch_adamw(model), model, "sgp")
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
        for t in range(3, 6):
            optimizer.zero_grad()
            model(t).backward()
            optimizer.step()
        optimizer.settle()
        results.append(values(model))
    assert np.array_equal(*results)
    optimizer.close()


def test_peers_change():
    if RANKS < 3:
        pytest.skip("two ranks have one peer each")
    model = GossipDataParallel(Net())
    optimizer = torch_sgd(model)
    before = None
    for t in range(4):
        if t == 2:
            model.update_gossiper("peers_per_itr", 2)
            before = values(model.module)
        model(t).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before is not None
    model.sync_comms()
    assert float(model.ps_weight) == pytest.approx(1)
    with pytest.raises(descent.InvalidError, match="only peers_per_itr"):
        model.update_gossiper("lr", 2)
    model.close()


def test_groups():
    """nprocs_per_node ranks average their gradients and gossip as one."""
    group = RANKS if RANKS % 2 else 2
    if RANKS == 1:
        group = 1
    nodes = RANKS // group
    topology = graphs.Topology("exponential", nodes)
    seen, final, _ = simulate("sgp", topology, Sgd, group=group)
    model = GossipDataParallel(Net(), nprocs_per_node=group)
    optimizer = torch_sgd(model)
    for t in range(STEPS):
        if group > 1:
            with model.no_sync():  # a pass whose gradient does not count
                (0 * model(t)).backward()
        model(t).backward()
        close(values(model.module), seen[t][RANK])
        optimizer.step()
        optimizer.zero_grad()
    model.sync_comms()
    close(values(model.module), final[RANK])
    model.close()


def test_asynchronous():
    """AD-PSGD: any order of events; the ranks come together, and every rank is alone with one."""
    if RANKS % 2 and RANKS > 1:
        with pytest.raises(descent.InvalidError, match="must be even"):
            BilatGossipDataParallel(Net())
        return
    model = BilatGossipDataParallel(
        Net(), lr=LR, momentum=0, weight_decay=0, graph_class=graphs.DynamicBipartiteLinearGraph
    )
    for t in range(60):
        model.update_lr(LR if t < 40 else 0)
        loss = model(0)
        loss.backward()
        assert float(model.module.a.grad.abs().sum()) == 0
    model.sync_comms()
    assert float(loss) > 0 and np.isfinite(values(model.module)).all()
    if RANKS == 1:
        start, goal = values(Net(0)), targets(0, 0)
        close(values(model.module), goal + (start - goal) * (1 - LR / 2) ** 40)
    model.disable_gossip()
    model(0).backward()
    model.enable_gossip()
    model(0).backward()
    model.close()


def test_asynchronous_optimizer():
    if RANKS % 2 and RANKS > 1:
        pytest.skip("an even number of ranks")
    model = Net()
    optimizer = GossipOptimizer(torch_adamw(model), model, "adpsgd")
    for t in range(20):
        optimizer.zero_grad()
        loss = model(t)
        loss.backward()
        optimizer.step()
    optimizer.settle()
    assert np.isfinite(values(model)).all()
    optimizer.close()


def test_average_of_tensors():
    own = {"a": torch.full((3, 2), float(RANK)), "b": torch.arange(4.0) * RANK}
    mean = (RANKS - 1) / 2
    found = average(own, graph="complete")
    close(found["a"].numpy(), np.full((3, 2), mean))
    close(found["b"].numpy(), np.arange(4.0) * mean)
    assert float(own["a"][0, 0]) == RANK
    close(average(own["b"], pairwise=True, graph="base-2").numpy(), np.arange(4.0) * mean)
    half = average([own["a"].bfloat16()], graph="base-2")[0]
    assert half.dtype == torch.bfloat16
    close(half.float().numpy(), np.full((3, 2), mean))
    topology = graphs.Topology("ring", RANKS)
    x = np.arange(RANKS, dtype=float)
    for step in range(2):
        x = matrix(topology, step) @ x
    close(average(own["a"], "ring", 2).numpy(), np.full((3, 2), x[RANK]))
    close(average(own["a"], "ring", 0).numpy(), own["a"].numpy())


def test_different_formats_are_refused():
    """Equal sizes in another memory format would average to garbage."""
    if RANKS == 1:
        pytest.skip("needs ranks that differ")
    weight = nn.Conv2d(4, 6, 3)
    if RANK == RANKS - 1:
        weight = weight.to(memory_format=torch.channels_last)
    with pytest.raises(descent.InvalidError, match=r"'weight'.*strides \[36,1,12,4\]"):
        GossipDataParallel(weight)
    model = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model.weight.fill_(RANK)
        model.weight[0, 1] = 5 + RANK
    found = average(model.weight, graph="complete")
    assert found.stride() == model.weight.stride()
    close(found[0, 1].numpy(), np.full((3, 3), 5 + (RANKS - 1) / 2))


@pytest.mark.gpu
def test_side_stream():
    """Everything on another stream than the default one, and from one to the other."""
    if DEVICE.type != "cuda":
        pytest.skip("needs a GPU")
    seen, final, _ = simulate("osgp", graphs.Topology("exponential", RANKS), Sgd)
    streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()]
    model = GossipDataParallel(Net(), overlap=True)
    optimizer = torch_sgd(model)
    for t in range(STEPS):
        stream = streams[t % 3]
        stream.wait_stream(streams[(t + 2) % 3])
        with torch.cuda.stream(stream):
            model(t).backward()
            close(values(model.module), seen[t][RANK])
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    model.sync_comms()
    close(values(model.module), final[RANK])
    model.close()


def test_batch_norm():
    torch.manual_seed(1)
    model = GossipDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    optimizer = torch_sgd(model)
    for t in range(3):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(RANK * 10 + t))
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    own = model.module[1].running_mean.clone()
    everywhere = average(own, graph="complete")
    with model.averaged():
        close(model.module[1].running_mean.numpy(), everywhere.numpy())
    assert torch.equal(model.module[1].running_mean, own)
    with model.averaged(buffers=False):
        assert torch.equal(model.module[1].running_mean, own)
    model.close()


def test_failure_of_the_optimiser():
    """An exception inside the optimiser leaves everything usable."""
    model = Net()
    optimizer = GossipOptimizer(torch_sgd(model), model, "sgp")

    def closure():
        raise KeyError("no data")

    model(0).backward()
    with pytest.raises(KeyError):
        optimizer.step(closure)
    optimizer.step()
    model(1).backward()
    optimizer.step(lambda: model(1))
    optimizer.settle()
    optimizer.close()


def test_garbage():
    """An object that is not closed is freed without the other ranks."""
    model = GossipDataParallel(Net())
    model(0).backward()
    del model
    descent.torch._consensus.lib.dsc_comm_barrier(WORLD.handle)
