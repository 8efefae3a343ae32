"""Gossip in one process: the interface, wrong input, and what one rank can show."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import descent
from descent.torch import BilatGossipDataParallel, GossipDataParallel, GossipOptimizer, KFAC
from descent.torch import average, graphs


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batches(count=5):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def train(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


MAKERS = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.01),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("how", ["sgp", "osgp", "dpsgd", "adpsgd", "allreduce"])
def test_one_rank_is_plain_training(make, how, device):
    """With one rank every algorithm is the optimiser alone, bit for bit."""
    results = []
    for gossip in (False, True):
        torch.manual_seed(2)
        model = net().to(device)
        optimizer = make(model.parameters())
        if gossip:
            optimizer = GossipOptimizer(optimizer, model, how)
        train(model, optimizer, [(x.to(device), y.to(device)) for x, y in batches()])
        results.append(flat(model))
    assert torch.equal(*results)


def test_wrapper_is_plain_training(device):
    results = []
    for gossip in (False, True):
        torch.manual_seed(2)
        model = net().to(device)
        if gossip:
            model = GossipDataParallel(model, overlap=True)
        data = [(x.to(device), y.to(device)) for x, y in batches()]
        train(model, MAKERS[0](model.parameters()), data)
        results.append(flat(model))
    assert torch.equal(*results)


def test_lbfgs():
    """An optimiser that evaluates the model several times in a step."""
    results = []
    for gossip in (False, True):
        torch.manual_seed(2)
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        if gossip:
            optimizer = GossipOptimizer(optimizer, model)
        x, y = batches()[0]

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        results.append(flat(model))
    assert torch.equal(*results)


def test_optimizer_looks_like_the_wrapped_one():
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = GossipOptimizer(inner, model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, batches(1))
    scheduler.step()
    assert inner.param_groups[0]["lr"] == pytest.approx(0.05)
    assert "GossipOptimizer(sgp" in repr(optimizer)
    state = optimizer.state_dict()
    assert state["gossip"]["algorithm"] == "sgp"
    other = GossipOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, "osgp")
    with pytest.raises(descent.InvalidError, match="the state is of sgp"):
        other.load_state_dict(state)
    inner.load_state_dict({k: v for k, v in state.items() if k != "gossip"})


def test_grad_scaler(device):
    """GradScaler sees the optimiser; a step that it leaves out is none."""
    cuda = device.type == "cuda"
    scaler = torch.cuda.amp.GradScaler(enabled=cuda)
    model = net().to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = GossipOptimizer(inner, model)
    x, y = (t.to(device) for t in batches()[0])
    for step in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if step == 1 and cuda:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    model(x)
    assert optimizer.state_dict()["gossip"]["steps"] == (2 if cuda else 3)


def test_with_kfac():
    """K-FAC inside of gossip: the wrapper is looked through."""
    model = GossipDataParallel(net())
    kfac = KFAC(model, damping=0.01, factor_update_steps=1, inv_update_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        kfac.step()
        optimizer.step()
    assert kfac.steps == 5
    kfac.close()


def test_states():
    model = GossipDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    state = model.state_dict()
    assert not state["is_ps_numerator"] and float(state["ps_weight"]) == 1
    assert "1.running_mean" in state["state_dict"]
    model.load_state_dict(state)
    model.load_state_dict(model.module.state_dict())  # a plain one, too
    numerators = dict(state, ps_weight=torch.tensor([1.0]), is_ps_numerator=True)
    model.load_state_dict(numerators)
    model.block()
    assert float(model.ps_weight) == 1


def test_graphs():
    for name in graphs.__all__:
        kind = getattr(graphs, name)
        if name in ("GraphManager", "UniformMixing"):
            continue
        graph = kind(1, 8)
        out, into = graph.get_peers()
        assert out and into and 1 not in out
        assert graph.is_regular_graph() and graph.peers_per_itr == 1
        assert graph.is_bipartite_graph() == ("Bipartite" in name)
        graph.get_peers(rotate=True)
    graph = graphs.NPeerDynamicDirectedExponentialGraph(0, 8)
    assert graph.get_peers()[0] == [1]
    assert [graph.get_peers(rotate=True)[0] for _ in range(3)] == [[2], [4], [1]]
    graph.peers_per_itr = 2
    assert graph.get_peers()[0] == [3, 6]
    nodes = graphs.RingGraph(5, 8, nprocs_per_node=2, local_rank=1)
    assert nodes.get_peers() == ([7], [3])
    assert graphs.DynamicBipartiteExponentialGraph(0, 4).is_passive()
    assert not graphs.DynamicBipartiteExponentialGraph(1, 4).is_passive()
    with pytest.raises(descent.InvalidError, match="cannot be divided"):
        graphs.RingGraph(0, 5, nprocs_per_node=2)
    with pytest.raises(descent.InvalidError):
        graphs.DynamicBipartiteExponentialGraph(0, 3)
    assert graphs.name_of(graphs.RingGraph, "x") == ("ring", 0)
    foreign = type("RingGraph", (), {"peers_per_itr": 2})()
    assert graphs.name_of(foreign, "x") == ("ring", 2)


def test_wrong_arguments():
    cases = [
        (dict(push_sum=False, overlap=True), descent.UnsupportedError, "needs push_sum"),
        (dict(synch_freq=3), descent.InvalidError, "needs overlap"),
        (dict(graph="spiral"), descent.InvalidError, "spiral"),
        (dict(graph=7), descent.InvalidError, "a name, a graph"),
        (dict(mixing=object()), descent.UnsupportedError, "UniformMixing"),
        (dict(rank=3), descent.InvalidError, "rank=3, but the communicator has rank 0"),
        (dict(world_size=2), descent.InvalidError, "world_size=2"),
        (dict(device_ids=[0, 1]), descent.UnsupportedError, "one device"),
    ]
    for arguments, error, text in cases:
        with pytest.raises(error, match=text):
            GossipDataParallel(net(), **arguments)
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(descent.InvalidError, match="known are allreduce, sgp"):
        GossipOptimizer(inner, model, "gossip")
    with pytest.raises(descent.InvalidError, match="not the model's"):
        GossipOptimizer(inner, net())
    with pytest.raises(descent.InvalidError, match="an optimiser of torch.optim"):
        GossipOptimizer(model, inner)
    with pytest.raises(descent.InvalidError, match="allreduce with graph"):
        GossipOptimizer(inner, model, "allreduce", "ring")
    with pytest.raises(descent.InvalidError, match="steps=-1"):
        average(torch.zeros(3), steps=-1)
    with pytest.raises(descent.UnsupportedError, match="int64"):
        average(torch.arange(3))


def test_wrong_models():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

    with pytest.raises(descent.UnsupportedError, match="FullyShardedDataParallel"):
        GossipDataParallel(FullyShardedDataParallel())
    sharded = net()
    sharded[0].weight.ds_id = 4
    with pytest.raises(descent.UnsupportedError, match="DeepSpeed ZeRO-3"):
        BilatGossipDataParallel(sharded)
    mixed = net()
    mixed[2].double()
    with pytest.raises(descent.InvalidError, match="all parameters must have one type"):
        GossipDataParallel(mixed)
    with pytest.raises(descent.UnsupportedError, match="fp32 can be averaged"):
        GossipDataParallel(net().double())
    strided = nn.Linear(3, 4)
    strided.weight = nn.Parameter(torch.zeros(4, 6)[:, ::2])
    with pytest.raises(descent.UnsupportedError, match="'weight'.*make it contiguous"):
        GossipDataParallel(strided)
    with pytest.raises(descent.InvalidError, match="no parameters"):
        GossipDataParallel(nn.Tanh())


def test_parameters_that_move():
    model = GossipDataParallel(net())
    model(torch.zeros(1, 4))
    model.module[0].weight.data = model.module[0].weight.data.clone()
    with pytest.raises(descent.InvalidError, match="'0.weight' has moved"):
        model(torch.zeros(1, 4))


def test_closed():
    model = GossipDataParallel(net())
    model.close()
    model.close()
    with pytest.raises(descent.InvalidError, match="closed"):
        model(torch.zeros(1, 4))
    plain = net()
    optimizer = GossipOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1), plain)
    optimizer.close()
    plain(torch.zeros(1, 4))
    with pytest.raises(descent.InvalidError, match="closed"):
        optimizer.step()


def test_garbage():
    model = GossipDataParallel(net())
    model(torch.zeros(1, 4)).sum().backward()
    reference = weakref.ref(model._consensus)
    module = model.module
    del model
    gc.collect()
    assert reference() is None
    module(torch.zeros(1, 4)).sum().backward()


def test_frozen_parameters_and_missing_gradients():
    model = GossipDataParallel(net())
    model.module[0].weight.requires_grad_(False)
    before = model.module[0].weight.clone()
    trained = [p for p in model.parameters() if p.requires_grad]
    train(model, torch.optim.SGD(trained, lr=0.1), batches(2))
    assert torch.equal(model.module[0].weight, before)


def test_evaluation_mode(device):
    """Passes of evaluation exchange nothing."""
    model = GossipDataParallel(net().to(device), overlap=True)
    x = torch.zeros(2, 4, device=device)
    with torch.no_grad():
        model(x)
    model.eval()
    model(x)
    assert model.consensus.rounds == 0
    model.train()
    model(x)
    assert model.consensus.rounds == 1


def test_average_of_one():
    x = torch.randn(3, 4)
    assert torch.equal(average(x), x)
    assert average([]) == []
    assert list(average({"a": x})) == ["a"]
    np.testing.assert_array_equal(average([x.half()], "ring", 3)[0], x.half())
