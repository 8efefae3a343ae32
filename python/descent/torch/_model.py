"""A torch model without its wrappers: its parameters, and wrappers that are not supported."""

from __future__ import annotations

from typing import Dict

import torch
from torch import nn

from ..errors import UnsupportedError

# Wrappers whose attribute holds the model that the user wrote.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "GossipDataParallel": "module",
    "BilatGossipDataParallel": "module",
}


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, torch.compile and the gossip wrappers, so that
    layers have the same names with and without them."""
    while True:
        attribute = _WRAPPERS.get(type(model).__name__)
        inner = getattr(model, attribute, None) if attribute else None
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def refuse_sharded(model: nn.Module, what: str) -> None:
    """Raises an error that names the wrapper when not every rank has whole parameters."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in ("FullyShardedDataParallel", "DataParallel", "FSDPModule", "DeepSpeedEngine"):
            raise UnsupportedError(
                f"{what}: the model is wrapped in {kind}"
                + (f" (module '{name}')" if name else "")
                + ", where a rank does not hold whole parameters and gradients; use "
                "DistributedDataParallel"
            )
    for name, parameter in model.named_parameters():
        kind = type(parameter).__name__
        sharded = kind in ("FlatParameter", "DTensor") or type(parameter.data).__name__ == "DTensor"
        if sharded or hasattr(parameter, "ds_id"):
            system = "DeepSpeed ZeRO-3" if hasattr(parameter, "ds_id") else f"FSDP ({kind})"
            raise UnsupportedError(
                f"{what}: parameter '{name}' is sharded by {system}; K-FAC and gossip need whole "
                "parameters and gradients on every rank: use DistributedDataParallel"
            )
        if parameter.device.type == "meta" or isinstance(
            parameter, nn.parameter.UninitializedParameter
        ):
            raise UnsupportedError(
                f"{what}: parameter '{name}' has no memory yet (meta device or lazy module); "
                "initialise the model first"
            )


def parameters_by_name(model: nn.Module) -> Dict[str, torch.Tensor]:
    """All parameters, each once."""
    return dict(model.named_parameters())
