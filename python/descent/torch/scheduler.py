"""Schedulers of K-FAC's hyper-parameters."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

from ..errors import InvalidError
from .kfac import KFAC

Lambda = Optional[Callable[[int], float]]


class LambdaParamScheduler:
    """Multiplies hyper-parameters by the results of functions each time step() is called.

    A function gets the number of steps that the preconditioner has done, or the number passed to
    step(). Hyper-parameters that are functions themselves cannot be scheduled.
    """

    def __init__(
        self,
        preconditioner: KFAC,
        *,
        factor_update_steps_lambda: Lambda = None,
        inv_update_steps_lambda: Lambda = None,
        damping_lambda: Lambda = None,
        factor_decay_lambda: Lambda = None,
        kl_clip_lambda: Lambda = None,
        lr_lambda: Lambda = None,
    ) -> None:
        self._preconditioner = preconditioner
        given = {
            "factor_update_steps": factor_update_steps_lambda,
            "inv_update_steps": inv_update_steps_lambda,
            "damping": damping_lambda,
            "factor_decay": factor_decay_lambda,
            "kl_clip": kl_clip_lambda,
            "lr": lr_lambda,
        }
        self._lambdas: Dict[str, Callable[[int], float]] = {
            name: function for name, function in given.items() if function is not None
        }
        for name in self._lambdas:
            if callable(preconditioner.param_groups[0][name]):
                raise InvalidError(
                    f"LambdaParamScheduler: {name} of the preconditioner is already a function of "
                    "the step; give it a number, or leave out the lambda"
                )

    def step(self, step: Optional[int] = None) -> None:
        """Multiplies each scheduled value by its factor."""
        k = self._preconditioner
        at = k.steps if step is None else step
        for name, function in self._lambdas.items():
            value = k.param_groups[0][name]
            if value is None:
                continue
            factor = function(at)
            new = max(1, int(value * factor)) if name.endswith("_steps") else value * factor
            setattr(k, name, new)


class KFACParamScheduler:
    """The scheduler of the SC'20 program: from each epoch of a schedule on, the damping and the
    frequencies of updates are multiplied by their alpha. Call step() once per epoch."""

    def __init__(
        self,
        kfac: KFAC,
        damping_alpha: float = 1,
        damping_schedule: Optional[Sequence[int]] = None,
        update_freq_alpha: float = 1,
        update_freq_schedule: Optional[Sequence[int]] = None,
        start_epoch: int = 0,
    ) -> None:
        self._kfac = kfac
        group = kfac.param_groups[0]
        names = ("damping", "factor_update_steps", "inv_update_steps")
        self._base: Dict[str, Any] = {name: group[name] for name in names}
        for name, value in self._base.items():
            if callable(value):
                raise InvalidError(f"KFACParamScheduler: {name} is a function of the step already")
        self._damping = (damping_alpha, sorted(damping_schedule or []))
        self._freq = (update_freq_alpha, sorted(update_freq_schedule or []))
        self.epoch = start_epoch
        self._apply()

    @staticmethod
    def _factor(rule: Any, epoch: int) -> float:
        alpha, schedule = rule
        return float(alpha) ** sum(1 for start in schedule if epoch >= start)

    def _apply(self) -> None:
        k = self._kfac
        k.damping = self._base["damping"] * self._factor(self._damping, self.epoch)
        frequency = self._factor(self._freq, self.epoch)
        k.factor_update_steps = int(self._base["factor_update_steps"] * frequency)
        k.inv_update_steps = int(self._base["inv_update_steps"] * frequency)

    def step(self, epoch: Optional[int] = None) -> None:
        """Moves on to the next epoch, or to the one given."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self._apply()
