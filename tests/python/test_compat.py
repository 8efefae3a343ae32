"""A script written for kfac-pytorch or for the SC'20 program runs with our names."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_kfac_use import Net, backward, batch, gradients

from descent import kfac as peer
from descent.torch import KFAC


def test_names():
    assert peer.enums.DistributedStrategy["COMM_OPT"] is peer.enums.DistributedStrategy.COMM_OPT
    assert issubclass(
        peer.preconditioner.KFACPreconditioner, peer.base_preconditioner.BaseKFACPreconditioner
    )


def test_arguments(device):
    """All arguments of kfac-pytorch 0.4 under their names."""
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    preconditioner = peer.preconditioner.KFACPreconditioner(
        model,
        factor_update_steps=lambda step: 1,
        inv_update_steps=2,
        damping=lambda step: 0.003,
        factor_decay=0.9,
        kl_clip=0.001,
        lr=lambda step: optimizer.param_groups[0]["lr"],
        accumulation_steps=1,
        allreduce_bucket_cap_mb=25,
        assignment_strategy=peer.enums.AssignmentStrategy.MEMORY,
        colocate_factors=True,
        compute_method=peer.enums.ComputeMethod.EIGEN,
        compute_eigenvalue_outer_product=True,
        grad_worker_fraction=peer.enums.DistributedStrategy.HYBRID_OPT
        if False
        else peer.enums.DistributedStrategy.COMM_OPT,
        symmetry_aware=True,
        grad_scaler=None,
        factor_dtype=torch.float32,
        inv_dtype=torch.float32,
        skip_layers=["linear"],
        update_factors_in_hook=False,
        loglevel=10,
        scaling="paper",
    )
    assert [layer.name for layer in preconditioner._layers] == ["conv1", "conv2"]
    for _ in range(3):
        model.zero_grad()
        backward(model, *batch(device, torch.float32))
        preconditioner.step()
        optimizer.step()
    assert preconditioner.steps == 3
    assert preconditioner.factor_update_steps == 1 and preconditioner.damping == 0.003
    assert preconditioner.factor_decay == 0.9 and preconditioner.inv_update_steps == 2
    preconditioner.reset_batch()
    usage = preconditioner.memory_usage()
    assert usage["total"] == sum(v for k, v in usage.items() if k != "total")
    state = preconditioner.state_dict()
    assert "factor_update_steps" not in state and state["inv_update_steps"] == 2
    preconditioner.load_state_dict(state, compute_inverses=True)


def test_strings_for_enums(device):
    peer.preconditioner.KFACPreconditioner(
        Net().to(device), compute_method="inverse", assignment_strategy="compute", scaling="paper"
    )


def test_scaling_is_said_once(device):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peer.preconditioner._said_scaling = False
        for _ in range(2):
            peer.preconditioner.KFACPreconditioner(Net().to(device))
    assert len([w for w in caught if "as in the paper" in str(w.message)]) == 1


def test_positional_sc20(device):
    """KFAC(model, lr, factor_decay, damping, kl_clip, fac_update_freq, kfac_update_freq, ...)"""
    model = Net().to(device)
    kfac = KFAC(model, 0.2, 0.9, 0.003, 0.002, 1, 2, True, 2, 1, None)
    assert (kfac.lr, kfac.factor_decay, kfac.damping, kfac.kl_clip) == (0.2, 0.9, 0.003, 0.002)
    assert (kfac.factor_update_steps, kfac.inv_update_steps) == (1, 2)
    for epoch in range(3):
        model.zero_grad()
        backward(model, *batch(device, torch.float32))
        kfac.step(epoch=epoch)
    assert all(torch.isfinite(g).all() for g in gradients(model))


def test_diag_warmup_without_epoch(device):
    model = Net().to(device)
    kfac = KFAC(model, diag_blocks=2, diag_warmup=3, fac_update_freq=1, kfac_update_freq=1)
    backward(model, *batch(device, torch.float32))
    with pytest.warns(UserWarning, match="epoch"):
        kfac.step()
