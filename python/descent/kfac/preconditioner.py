"""KFACPreconditioner with the arguments and defaults of kfac-pytorch."""

from __future__ import annotations

import logging
import warnings
from typing import Any, Callable, Dict, Optional, Sequence, Union

import torch
from torch import nn

from ..torch.kfac import KFAC, Value
from .enums import AssignmentStrategy, ComputeMethod, DistributedStrategy

_said_scaling = False


class KFACPreconditioner(KFAC):
    """K-FAC under the interface of kfac-pytorch 0.4.

    Differences: convolution factors are scaled as in the paper (scaling="kfac-pytorch" gives that
    program's scale); factors and inverses are always sent as triangles unless symmetry_aware=False
    is given; the outer product of eigenvalues is formed in advance only when
    compute_eigenvalue_outer_product=True is given; further arguments of descent.torch.KFAC may be
    given by name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        factor_update_steps: Value = 1,
        inv_update_steps: Value = 1,
        damping: Value = 0.001,
        factor_decay: Value = 0.95,
        kl_clip: Optional[Value] = 0.001,
        lr: Value = 0.1,
        accumulation_steps: int = 1,
        allreduce_bucket_cap_mb: float = 25.0,
        assignment_strategy: Union[AssignmentStrategy, str] = AssignmentStrategy.COMPUTE,
        colocate_factors: bool = True,
        compute_method: Union[ComputeMethod, str] = ComputeMethod.EIGEN,
        compute_eigenvalue_outer_product: bool = False,
        grad_worker_fraction: Union[DistributedStrategy, float] = DistributedStrategy.COMM_OPT,
        symmetry_aware: bool = True,
        grad_scaler: Union[Any, Callable[[], float], None] = None,
        factor_dtype: Optional[torch.dtype] = None,
        inv_dtype: Optional[torch.dtype] = torch.float32,
        skip_layers: Optional[Sequence[str]] = None,
        update_factors_in_hook: bool = True,
        loglevel: int = logging.DEBUG,
        scaling: Optional[str] = None,
        **more: Any,
    ) -> None:
        global _said_scaling
        if scaling is None:
            scaling = "paper"
            if not _said_scaling and any(isinstance(m, nn.Conv2d) for m in model.modules()):
                _said_scaling = True
                warnings.warn(
                    "descent.kfac scales the factors of convolutions as in the paper; kfac-pytorch "
                    "makes them smaller by the square of the number of output positions, so that "
                    'damping outweighs them. scaling="kfac-pytorch" gives its numbers, '
                    'scaling="paper" silences this.',
                    stacklevel=2,
                )
        super().__init__(
            model,
            lr=lr,
            factor_decay=factor_decay,
            damping=damping,
            kl_clip=kl_clip,
            factor_update_steps=factor_update_steps,
            inv_update_steps=inv_update_steps,
            accumulation_steps=accumulation_steps,
            allreduce_bucket_cap_mb=allreduce_bucket_cap_mb,
            assignment_strategy=assignment_strategy,
            colocate_factors=colocate_factors,
            compute_method=compute_method,
            compute_eigenvalue_outer_product=compute_eigenvalue_outer_product,
            grad_worker_fraction=grad_worker_fraction,
            symmetry_aware=symmetry_aware,
            grad_scaler=grad_scaler,
            factor_dtype=factor_dtype,
            inv_dtype=inv_dtype,
            skip_layers=skip_layers,
            update_factors_in_hook=update_factors_in_hook,
            loglevel=loglevel,
            scaling=scaling,
            **more,
        )

    def state_dict(self, include_factors: bool = True, collective: bool = False) -> Dict[str, Any]:
        """The state. May be called on one rank alone, as in kfac-pytorch.

        With strategies other than COMM_OPT a rank holds the factors of some layers only. It then
        returns those, with a warning; collective=True, on all ranks, returns all of them on rank 0.
        """
        if collective or not include_factors or self._holds_everything:
            return super().state_dict(include_factors)
        state = super().state_dict(include_factors=False)
        state["entries"] = self._read_entries(alone=True)
        state["partial"] = True
        warnings.warn(
            "KFACPreconditioner.state_dict(): this rank holds the factors of some layers only, and "
            "returns those; call state_dict(collective=True) on all ranks for all of them",
            stacklevel=2,
        )
        return state

    def load_state_dict(self, state_dict: Dict[str, Any], compute_inverses: bool = True) -> None:
        """Continues from a state. Factors that a state of one rank does not have start anew."""
        if not self._agree(not state_dict.get("partial")):
            entries = self._read_entries()
            entries.update(state_dict.get("entries") or {})
            state_dict = {**state_dict, "entries": entries}
        super().load_state_dict(state_dict, compute_inverses)
