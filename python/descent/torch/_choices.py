"""The arguments of KFAC that take one of several names, and the library's numbers for the names."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from .._library import BF16, F16, F32
from ..errors import InvalidError

STRATEGIES = {"comm_opt": 0, "mem_opt": 1, "hybrid_opt": 2, "layer_wise": 3}

# By the name of the argument.
_KNOWN: Dict[str, Dict[str, int]] = {
    "compute_method": {"eigen": 0, "inverse": 1},
    "refresh": {"exact": 0, "warm": 1},
    "damping_split": {"none": 0, "pi": 1},
    "kl_clip_scaling": {"none": 0, "ranks": 1},
    "clip": {"global": 0, "layer": 1},
    "norm": {"off": 0, "full": 1, "diagonal": 2},
    "ekfac": {"off": 0, "batch": 1, "samples": 2},
    "scaling": {"paper": 0, "kfac-pytorch": 1},
    "grad_worker_fraction": STRATEGIES,
    "assignment_strategy": {"round_robin": 0, "compute": 1, "memory": 2},
}


def choice(name: str, value: Any) -> int:
    """The number of a choice that is given as a text or as a member of an enum."""
    text = str(getattr(value, "name", value)).lower().replace("-", "_")
    known = _KNOWN[name]
    for key, number in known.items():
        if key.replace("-", "_") == text:
            return number
    raise InvalidError(f"KFAC: {name}={value!r}: known are {', '.join(known)}")


def stored_dtype(name: str, value: Optional[torch.dtype]) -> int:
    known = {None: F32, torch.float32: F32, torch.float64: F32, torch.bfloat16: BF16}
    known[torch.float16] = F16
    if value not in known:
        raise InvalidError(f"KFAC: {name}={value}: known are float32, bfloat16 and float16")
    return known[value]
