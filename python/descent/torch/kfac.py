"""K-FAC for PyTorch: rewrites the gradients of linear, convolution and (with `norm`) normalisation
layers between `loss.backward()` and `optimizer.step()`.

A forward hook on every layer, active only in steps that update the factors, puts a hook on the
layer's output; that hook sees the gradient and hands it, with the layer's input, to the library. In
all other steps the library only needs to know where the gradients are.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
import weakref
from ctypes import byref, c_int, c_void_p
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn

from .. import comm as _comm

from .._library import (
    MIN, TRAFFIC_OTHER, KfacGradients, KfacHealthReport, KfacHyper, KfacLayer, KfacMemory,
    KfacOptions, KfacReport, Tensor, initialised, lib,
)  # fmt: skip
from ..errors import InvalidError, UnsupportedError
from ._choices import STRATEGIES, choice, stored_dtype
from ._device import TORCH_DTYPES, device_of, single_device
from ._hooks import Switch, make_hook
from ._model import refuse_sharded, unwrap
from ._terms import LossTerms, Terms
from .layers import BATCH_NORM, CONV2D, Layer, find_layers

_log = logging.getLogger("descent")

Value = Union[float, Callable[[int], float]]

_ALARMS = (None, "parallel", "refused", "clipped")  # in the order of dsc_kfac_alarm
_HYPER = ("factor_update_steps", "inv_update_steps", "damping", "factor_decay", "kl_clip", "lr")


def _hyper_property(name: str) -> Any:
    """A hyper-parameter: reading gives its value in the coming step, schedules applied."""

    def get(self: "KFAC") -> Any:
        return self._value(name)

    def set_(self: "KFAC", value: Any) -> None:
        self._set_value(name, value)

    return property(get, set_, doc=f"The value of {name} in the coming step.")


class KFAC(torch.optim.Optimizer):
    """Distributed K-FAC preconditioner.

        kfac = KFAC(model, lr=0.1, damping=0.003, factor_update_steps=10, inv_update_steps=100)
        ...
        loss.backward()
        kfac.step()
        optimizer.step()

    The gradients must be averaged over the ranks before `step()`, as DistributedDataParallel does.
    Every rank must create the object with the same arguments. It is a torch.optim.Optimizer only so
    that learning rate schedulers accept it; it does not change parameters.

    lr, damping, factor_decay, kl_clip, factor_update_steps and inv_update_steps may be functions of
    the step number. Arguments have the names of kfac-pytorch or of the SC'20 program:

    lr: learning rate of the optimiser, which the KL clip needs.
    factor_decay: weight of the old value in the running averages of the factors.
    damping, kl_clip: as in the papers; kl_clip None or 0: no clip.
    factor_update_steps (fac_update_freq): steps between updates of the factors (default 10).
    inv_update_steps (kfac_update_freq): steps between decompositions (default 100).
    batch_averaged: False when the loss is summed, not averaged, over the samples of a batch.
    loss_terms: terms of the loss's average for each image of a convolution and each row of a linear
        layer: 1 for classifiers and language models, height * width for a loss averaged over the
        pixels of a label image, .15 where 15 % of the tokens are predicted; or a function that
        returns it, or a dict from patterns of layer names to them.
    diag_blocks, diag_warmup: diagonal blocks per factor of a convolution, from this epoch on.
    distribute_layer_factors: True: A and G of a layer are decomposed by different ranks.
    accumulation_steps: backward passes before each step(); each loss must be divided by it.
    compute_method: "eigen" or "inverse".
    refresh: "exact", or "warm" to rotate the last eigenvectors instead of solving anew.
    async_steps: decompositions run concurrently with the next steps and are used this number of
        steps later; 0: step() waits for them.
    damping_split: "none", or "pi" to divide the damping of inverses between the two factors.
    warmup_factors: True: averages start as plain means of the first batches, not as the identity.
    kl_clip_scaling: "none", or "ranks" to multiply kl_clip by ranks and accumulation_steps.
    clip: "global", or "layer" to give each layer an equal share of kl_clip and its own factor.
    factor_samples: number of samples (images, rows of linear layers) at the start of a batch that
        factors are computed from; the order of samples must be random; 0: all.
    ekfac: "batch" or "samples": eigenvalues of a layer from second moments of the batch's
        gradient, or of those of single samples; "off": products of the factors' eigenvalues.
    norm: "full" or "diagonal": scale and shift of nn.BatchNorm1d to 3d and nn.LayerNorm are
        preconditioned, too, with or without the element that couples them; "off": they are not.
    rank: with "warm", the share of eigenvectors that is kept for factors of more than 128 rows.
    grad_worker_fraction: "comm_opt", "hybrid_opt", "mem_opt", or a fraction of the ranks.
    assignment_strategy: "compute", "memory" or "round_robin".
    symmetry_aware: factors and inverses are sent as triangles (default True).
    grad_scaler: the GradScaler of the loss, or a function that returns the scale.
    factor_dtype, inv_dtype: torch.bfloat16 or torch.float16: the types to store them in.
    skip_layers: regular expressions that are searched in module names and class names.
    scaling: "paper", or "kfac-pytorch" for that program's scale of convolution factors, which is
        wrong by the square of the number of output positions.
    unsupported: what to do about modules with weights that K-FAC does not know: "warn", "error" or
        "ignore". They keep their plain gradients.
    comm: a descent.comm.Communicator, an mpi4py communicator or a torch.distributed process group;
        None: the ranks of whatever started the program.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: Value = 0.1,
        factor_decay: Value = 0.95,
        damping: Value = 0.001,
        kl_clip: Optional[Value] = 0.001,
        fac_update_freq: Optional[Value] = None,
        kfac_update_freq: Optional[Value] = None,
        batch_averaged: bool = True,
        diag_blocks: int = 1,
        diag_warmup: int = 0,
        distribute_layer_factors: Optional[bool] = None,
        *,
        factor_update_steps: Optional[Value] = None,
        inv_update_steps: Optional[Value] = None,
        accumulation_steps: int = 1,
        allreduce_bucket_cap_mb: float = 25.0,
        assignment_strategy: Any = "compute",
        colocate_factors: Optional[bool] = None,
        compute_method: Any = "eigen",
        refresh: Any = "exact",
        async_steps: int = 0,
        damping_split: Any = "none",
        warmup_factors: bool = False,
        kl_clip_scaling: Any = "none",
        factor_samples: int = 0,
        rank: float = 1.0,
        ekfac: Any = "off",
        clip: Any = "global",
        norm: Any = "off",
        compute_eigenvalue_outer_product: bool = False,
        grad_worker_fraction: Any = "comm_opt",
        symmetry_aware: bool = True,
        grad_scaler: Any = None,
        factor_dtype: Optional[torch.dtype] = None,
        inv_dtype: Optional[torch.dtype] = None,
        skip_layers: Union[str, Sequence[str], None] = None,
        update_factors_in_hook: bool = True,
        loglevel: int = logging.DEBUG,
        scaling: str = "paper",
        unsupported: str = "warn",
        comm: Any = None,
        loss_terms: Union[Terms, Dict[str, Terms]] = 1.0,
    ) -> None:
        self._handle = c_void_p()
        refuse_sharded(model, "KFAC")
        inner = unwrap(model)
        patterns = [skip_layers] if isinstance(skip_layers, str) else list(skip_layers or [])
        norm_choice = choice("norm", norm)
        self._layers, unknown, shared = find_layers(inner, patterns, norms=norm_choice > 0)
        self._report_unsupported(unsupported, unknown, shared)
        if all(layer.kind == BATCH_NORM for layer in self._layers):
            raise InvalidError(
                "KFAC: the model has no trainable linear or convolution layer that is not skipped"
            )
        super().__init__([layer.weight for layer in self._layers], {"lr": 0.0})
        factor_steps = self._one_of(
            factor_update_steps, fac_update_freq, "factor_update_steps", "fac_update_freq", 10
        )
        inv_steps = self._one_of(
            inv_update_steps, kfac_update_freq, "inv_update_steps", "kfac_update_freq", 100
        )
        self.param_groups[0].update(
            lr=lr,
            damping=damping,
            factor_decay=factor_decay,
            kl_clip=kl_clip,
            factor_update_steps=factor_steps,
            inv_update_steps=inv_steps,
        )
        if accumulation_steps < 1:
            raise InvalidError(f"KFAC: accumulation_steps={accumulation_steps}: must be at least 1")
        self._steps = 0
        self._epoch: Optional[int] = None
        self._batch_averaged = batch_averaged
        self._loss_terms = LossTerms(loss_terms, [layer.name for layer in self._layers])
        self._diag_blocks, self._diag_warmup = int(diag_blocks), int(diag_warmup)
        self._accumulation_steps = int(accumulation_steps)
        self._grad_scaler = grad_scaler
        self._scale_memory: Optional[torch.Tensor] = None
        self._scale_tensor: Optional[Tensor] = None
        self._begun = False
        self._captures = 0
        self._warned_alarms: Set[str] = set()
        self._batch = 1
        self._switch = Switch()

        parameters = {f"{layer.name}.weight": layer.weight for layer in self._layers}
        self._device = device_of(single_device(parameters, "KFAC"))
        self._check_dtypes()
        self._comm = _comm.as_communicator(comm)
        self._alone = self._comm.size == 1
        self._options = self._make_options(
            method=choice("compute_method", compute_method),
            refresh=choice("refresh", refresh),
            async_steps=int(async_steps),
            damping_split=choice("damping_split", damping_split),
            warmup_factors=int(warmup_factors),
            kl_clip_scaling=choice("kl_clip_scaling", kl_clip_scaling),
            factor_samples=int(factor_samples),
            rank=float(rank),
            ekfac=choice("ekfac", ekfac),
            clip=choice("clip", clip),
            norm=norm_choice,
            scaling=choice("scaling", scaling),
            placement=choice("assignment_strategy", assignment_strategy),
            outer_product=int(compute_eigenvalue_outer_product),
            symmetric=int(symmetry_aware),
            factor_dtype=stored_dtype("factor_dtype", factor_dtype),
            inverse_dtype=stored_dtype("inv_dtype", inv_dtype),
            passes=self._accumulation_steps,
            diag_blocks=self._diag_blocks,
            bucket_bytes=max(1, int(allreduce_bucket_cap_mb * (1 << 20))),
            late_factors=int(not update_factors_in_hook),
            colocate_factors=self._colocate(colocate_factors, distribute_layer_factors),
        )
        self._set_strategy(grad_worker_fraction)
        self._create()
        _log.log(loglevel, "%r", self)

    # ---- creation ----

    @staticmethod
    def _one_of(new: Any, old: Any, new_name: str, old_name: str, default: int) -> Any:
        if new is not None and old is not None and new != old:
            raise InvalidError(f"KFAC: {new_name}={new} and {old_name}={old}: give one of them")
        return new if new is not None else old if old is not None else default

    @staticmethod
    def _report_unsupported(action: str, unknown: List[str], shared: List[str]) -> None:
        if action not in ("warn", "error", "ignore"):
            raise InvalidError(f"KFAC: unsupported={action!r}: known are warn, error, ignore")
        parts = []
        if unknown:
            parts.append("K-FAC knows no such layer: " + ", ".join(unknown))
        if shared:
            parts.append("the weight is shared with another module: " + ", ".join(shared))
        if not parts or action == "ignore":
            return
        text = "KFAC: modules that keep their plain gradients: " + "; ".join(parts)
        text += ". Name them in skip_layers to silence this."
        if action == "error":
            raise UnsupportedError(text)
        warnings.warn(text, stacklevel=4)

    def _check_dtypes(self) -> None:
        first = self._layers[0]
        for layer in self._layers:
            if layer.dtype not in (torch.float32, torch.float64):
                raise UnsupportedError(
                    f"KFAC: layer '{layer.name}' has parameters of type {layer.weight.dtype}"
                )
            if layer.dtype != first.dtype:
                raise InvalidError(
                    f"KFAC: layer '{first.name}' is {first.dtype} and layer '{layer.name}' "
                    f"{layer.dtype}: all layers must have one type"
                )

    def _colocate(self, colocate: Optional[bool], distribute: Optional[bool]) -> int:
        if colocate is not None:
            return int(colocate)
        return int(not distribute) if distribute is not None else 1

    @staticmethod
    def _make_options(**values: Any) -> KfacOptions:
        options = initialised(KfacOptions, "kfac_options")
        for name, value in values.items():
            setattr(options, name, value)
        return options

    def _set_strategy(self, fraction: Any) -> None:
        if isinstance(fraction, (int, float)) and not isinstance(fraction, bool):
            if not 0 <= fraction <= 1:
                raise InvalidError(f"KFAC: grad_worker_fraction={fraction}: must be in [0, 1]")
            ranks = self._comm.size
            fraction = float(fraction) or 1.0 / ranks
            if fraction == 1:
                self._options.strategy = STRATEGIES["comm_opt"]
            elif fraction <= 1 / ranks:
                self._options.strategy = STRATEGIES["mem_opt"]
            else:
                self._options.strategy = STRATEGIES["hybrid_opt"]
                self._options.grad_worker_fraction = fraction
        else:
            self._options.strategy = choice("grad_worker_fraction", fraction)
        if self._options.strategy in (1, 3) and not self._options.colocate_factors:
            warnings.warn(
                "KFAC: with mem_opt A and G of a layer are on one rank: colocate_factors=True",
                stacklevel=4,
            )
            self._options.colocate_factors = 1

    def _describe_layers(self) -> Any:
        self._keep: List[Any] = []
        structs = (KfacLayer * len(self._layers))()
        for struct, layer in zip(structs, self._layers):
            layer.describe(struct, self._device, self._keep)
        return structs

    def _create(self) -> None:
        count = len(self._layers)
        hyper = self._hyper_now()
        options = self._options
        options.damping, options.stat_decay = hyper.damping, hyper.stat_decay
        options.kl_clip = hyper.kl_clip
        options.factor_freq, options.update_freq = hyper.factor_freq, hyper.update_freq
        self._structs = self._describe_layers()
        self._gradients = (KfacGradients * count)()
        for gradients in self._gradients:
            lib.dsc_kfac_gradients_init_sized(byref(gradients), ctypes.sizeof(gradients))
        queue = self._device.follow()
        self._comm.use(self._device)
        lib.dsc_kfac_create(
            self._comm.handle, queue, self._structs, count, byref(options), byref(self._handle)
        )
        self._finalizer = weakref.finalize(self, _abandon, self._handle)
        _comm.close_at_exit(self)
        # A weak reference: the model must not keep the preconditioner alive.
        this = weakref.ref(self)
        self._hooks = [
            layer.module.register_forward_hook(make_hook(self._switch, this, layer))
            for layer in self._layers
        ]
        self._look_ahead()

    def close(self) -> None:
        """Removes the hooks and frees the library's memory. Collective; the object cannot be used
        afterwards. If it is not called, the memory is freed by garbage collection."""
        if not self._handle:
            return
        self._switch.on = False
        for hook in self._hooks:
            hook.remove()
        self._finalizer.detach()
        lib.dsc_kfac_destroy(byref(self._handle))

    @property
    def _kfac(self) -> c_void_p:
        if not self._handle:
            raise InvalidError("KFAC: the object is closed")
        return self._handle

    # ---- hyper-parameters ----

    lr = _hyper_property("lr")
    damping = _hyper_property("damping")
    factor_decay = _hyper_property("factor_decay")
    kl_clip = _hyper_property("kl_clip")
    factor_update_steps = _hyper_property("factor_update_steps")
    inv_update_steps = _hyper_property("inv_update_steps")

    def _value(self, name: str) -> Any:
        value = self.param_groups[0][name]
        return value(self._steps) if callable(value) else value

    def _hyper_now(self) -> KfacHyper:
        warm = self._diag_warmup == 0 or (self._epoch or 0) >= self._diag_warmup
        return KfacHyper(
            damping=float(self._value("damping")),
            stat_decay=float(self._value("factor_decay")),
            kl_clip=float(self._value("kl_clip") or 0.0),
            factor_freq=int(self._value("factor_update_steps")),
            update_freq=int(self._value("inv_update_steps")),
            diag_blocks=self._diag_blocks if warm else 1,
        )

    def _look_ahead(self) -> None:
        """Decides whether layers have to hand over their tensors in the coming step."""
        every = int(self._value("factor_update_steps"))
        self._switch.on = bool(self._handle) and every > 0 and self._steps % every == 0

    def _set_value(self, name: str, value: Any) -> None:
        self.param_groups[0][name] = value
        if not self._begun:
            self._look_ahead()

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._steps

    @property
    def updates_factors(self) -> bool:
        """True when the coming step updates the factors: it needs a forward and backward pass in
        which the hooks run, not the replay of a CUDA graph."""
        return self._switch.on

    # ---- passes ----

    def _loss_scale(self) -> float:
        """The factor that the loss was multiplied by, if the host knows it."""
        scale = self._loss_terms.loss_scale() / self._accumulation_steps
        if not self._batch_averaged:
            scale *= self._batch
        scaler = self._grad_scaler
        self._scale_tensor = None
        if scaler is None:
            return scale
        on_device = getattr(scaler, "_scale", None)
        if isinstance(on_device, torch.Tensor) and on_device.is_cuda and scaler.is_enabled():
            # Read on the device, so that the host does not wait.
            if self._scale_memory is None:
                self._scale_memory = torch.empty(1, dtype=torch.float64, device=on_device.device)
            self._scale_memory.copy_(on_device).pow_(-2)
            self._scale_tensor = self._device.view(self._scale_memory, (1,))
            return scale
        return scale * float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler())

    def _begin(self) -> None:
        """Starts a step of the library, at the first capture or in step()."""
        self._device.follow()
        kfac = self._kfac
        scale = self._loss_scale()
        lib.dsc_kfac_set_hyper(kfac, byref(self._hyper_now()))
        lib.dsc_kfac_scale_g(kfac, byref(self._scale_tensor) if self._scale_tensor else None)
        lib.dsc_kfac_begin(kfac, scale)
        self._begun = True
        self._captures = 0

    def _captured(self, layer: Layer, a: torch.Tensor, reader: Any, g: torch.Tensor) -> None:
        """Called with the gradient at a layer's output. reader: the result of Layer.reader()."""
        if not self._switch.on or not self._handle or (a.numel() == 0 and self._alone):
            return  # with several ranks the others may have rows: see fill_sample
        if not self._begun:
            if g.is_cuda and torch.cuda.is_current_stream_capturing():
                raise UnsupportedError(
                    "KFAC: a step that updates the factors cannot be captured in a CUDA graph: "
                    "capture the graph while kfac.updates_factors is False, and run steps for "
                    "which it is True without the graph"
                )
            self._batch = a.shape[0] if a.dim() > 1 else 1
            self._begin()
        if layer.pending > 1 and not layer.several_uses:
            layer.several_uses = True
            lib.dsc_kfac_set_uses(self._handle, layer.index, 0)
        layer.pending = max(0, layer.pending - 1)
        if reader is not None and a.numel() > 0:
            a = reader(a)
        g = self._loss_terms.adjust(layer.index, g.detach())
        keep = layer.point_sample(self._device, a, g)
        lib.dsc_kfac_capture_sample(
            self._handle, self._device.follow(), layer.index, byref(layer.sample)
        )
        self._captures += 1
        del keep

    def reset_batch(self) -> None:
        """Drops the notes of forward passes since the last step(), for example after a pass that is
        not followed by a backward pass."""
        for layer in self._layers:
            layer.pending = 0

    # ---- a step ----

    def _find_gradients(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Points the library's structs at the gradients. Returns pairs (gradient, copy) for those
        of which the library uses a copy."""
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        found = False
        for layer, gradients in zip(self._layers, self._gradients):
            copies += layer.fill_gradients(gradients)
            found = found or gradients.weight is not None
        if not found:
            raise InvalidError(
                "KFAC: step() without a backward pass: no layer has a gradient; call "
                "loss.backward() before it, and zero_grad() after the optimiser's step"
            )
        if self._switch.on and not (self._begun and self._captures):
            raise InvalidError(
                f"KFAC: step {self._steps} updates the factors, but no layer has handed over its "
                "input and output gradient since the last step: run the model itself, not the "
                "replay of a CUDA graph, while kfac.updates_factors is True"
            )
        return copies

    @torch.no_grad()
    def step(self, epoch: Optional[int] = None) -> None:  # type: ignore[override]
        """Preconditions the gradients in place. Call it after backward() and before the optimiser.

        Collective. With a GradScaler call scaler.unscale_(optimizer) before it. `epoch` is only
        needed for diag_warmup.
        """
        kfac = self._kfac
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "KFAC: step() cannot be captured in a CUDA graph; call it after graph.replay()"
            )
        if epoch is not None:
            self._epoch = int(epoch)
        elif self._diag_warmup > 0 and self._epoch is None:
            warnings.warn("KFAC: diag_warmup needs step(epoch=...); epoch 0 is assumed")
            self._epoch = 0
        copies = self._find_gradients()
        if not self._begun:
            self._begin()
        lib.dsc_kfac_set_gradients(kfac, 0, len(self._layers), self._gradients)
        try:
            lib.dsc_kfac_step(kfac, self._device.follow(), float(self._value("lr")))
        finally:
            self._begun = False
            self.reset_batch()
        for gradient, copy in copies:
            gradient.copy_(copy)
        self._steps += 1
        if lib.dsc_kfac_decomposed(kfac):
            self._check_health()
        self._look_ahead()

    def _check_health(self) -> None:
        """Logs a warning once for each alarm."""
        health = self.health()
        if health["message"] and health["alarm"] not in self._warned_alarms:
            self._warned_alarms.add(health["alarm"])
            warnings.warn(health["message"] + ".", stacklevel=3)

    # ---- insight ----

    def health(self) -> Dict[str, Any]:
        """Whether K-FAC has the effect that it is meant to have.

        `alarm` is None, "parallel" (for 100 steps K-FAC has only scaled gradients), "refused" (half
        of the refreshed decompositions were refused) or "clipped" (nu was below 0.05), and
        `message` says what to do. `smallest_cosine` between plain and preconditioned gradients of
        all convolutions, and `nu`, are those of the last decomposition; `degenerate` is true with
        "parallel", and `since` the first step of that or None. Not collective.
        """
        report = KfacHealthReport(size=ctypes.sizeof(KfacHealthReport))
        lib.dsc_kfac_health(self._kfac, self._device.follow(), byref(report))
        return {
            "degenerate": bool(report.degenerate),
            "smallest_cosine": report.smallest_cosine,
            "since": report.since if report.since >= 0 else None,
            "alarm": _ALARMS[report.alarm],
            "message": report.message.decode() if report.message else None,
            "nu": report.nu,
        }

    def insight(self) -> Dict[str, Any]:
        """Numbers about the last step and the last decomposition, for a program to log: `nu`, the
        hyper-parameters, counters of failed and retried solves, bytes held by this rank, and for
        every layer its cosine, its own `nu` and the extreme eigenvalues of its factors. Collective;
        waits for the device."""
        pointer = ctypes.POINTER(KfacReport)()
        lib.dsc_kfac_get_report(self._kfac, self._device.follow(), byref(pointer))
        report = pointer.contents
        hyper = report.hyper.contents
        layers = {}
        for i in range(report.layer_count):
            one = report.layers[i]
            layers[one.name.decode()] = {
                "cosine": one.cosine,
                "nu": report.layer_nus[i] if report.layer_nus else report.nu,
                "a_min": one.a_min,
                "a_max": one.a_max,
                "g_min": one.g_min,
                "g_max": one.g_max,
                "condition": one.condition,
            }
        names = ["nu", "failed_solves", "retried_solves", "rejected_factors", "factor_bytes"]
        names += ["refreshed_factors", "extra_iterations", "exact_fallbacks"]
        names += ["decomposition_bytes", "exchange_bytes", "work_bytes"]
        result: Dict[str, Any] = {name: getattr(report, name) for name in names}
        result.update(
            step=report.step,
            damping=hyper.damping,
            factor_decay=hyper.stat_decay,
            kl_clip=hyper.kl_clip,
            solve_ms=[report.solve_ms[r] for r in range(report.ranks)],
            layers=layers,
        )
        return result

    def _plan(self) -> Tuple[List[Any], List[Any]]:
        """Units and items of the assignment, as plain tuples."""
        plan = c_void_p()
        lib.dsc_kfac_plan_create(
            self._structs, len(self._layers), self._comm.size, byref(self._options), 1, byref(plan)
        )
        try:
            units = lib.dsc_kfac_plan_units(plan)
            items = lib.dsc_kfac_plan_items(plan)
            columns = lib.dsc_kfac_plan_columns(plan)
            return (
                [
                    (units[i].name.decode(), units[i].kind, units[i].a_n, units[i].g_n,
                     units[i].column, columns)
                    for i in range(lib.dsc_kfac_plan_unit_count(plan))
                ],
                [
                    (items[i].unit, items[i].side, items[i].n, items[i].owner)
                    for i in range(lib.dsc_kfac_plan_item_count(plan))
                ],
            )  # fmt: skip
        finally:
            lib.dsc_kfac_plan_destroy(byref(plan))

    def memory_usage(self) -> Dict[str, int]:
        """Bytes that this rank holds at present, by purpose: a_factors, g_factors, a_batch,
        g_batch, a_inverses, g_inverses; outer_products, moments (EKFAC) and norms where there are
        any; and their total. Not collective."""
        memory = KfacMemory(size=ctypes.sizeof(KfacMemory))
        lib.dsc_kfac_get_memory(self._kfac, byref(memory))
        parts = {
            "factors": memory.factors,
            "batch": memory.batches,
            "inverses": memory.decompositions,
        }
        usage = {f"{side}_{what}": parts[what][i] for what in parts for i, side in enumerate("ag")}
        for name in ("outer_products", "moments", "norms"):
            if getattr(memory, name) > 0:
                usage[name] = getattr(memory, name)
        usage["total"] = sum(usage.values())
        return usage

    def __repr__(self) -> str:
        if not self._handle:
            return "KFAC(closed)"
        units, items = self._plan()
        owners: Dict[int, Dict[int, int]] = {}
        for unit, side, _, owner in items:
            owners.setdefault(unit, {})[side] = owner
        lines = [
            f"KFAC({len(self._layers)} layers on {self._device.torch_device}, "
            f"{self._comm.size} rank{'s' if self._comm.size > 1 else ''}, step {self._steps}"
        ]
        for i, (name, kind, a_n, g_n, column, columns) in enumerate(units):
            what = "conv2d" if kind == CONV2D else "linear"
            place = ""
            if self._comm.size > 1:
                place = f", A decomposed by rank {owners[i][0]}, G by rank {owners[i][1]}"
                if columns > 1:
                    place += f", column {column}"
            lines.append(f"  {name}: {what}, A {a_n} x {a_n}, G {g_n} x {g_n}{place}")
        return "\n".join(lines) + ")"

    # ---- state ----

    def state_dict(self, include_factors: bool = True) -> Dict[str, Any]:
        """The state that a run needs to continue with the same bits.

        With comm_opt the call is not collective, and every rank returns the whole state. With other
        strategies it is collective, and only rank 0 returns the whole state. include_factors=False:
        only the hyper-parameters and the number of steps.
        """
        group = self.param_groups[0]
        state: Dict[str, Any] = {"steps": self._steps}
        state.update({name: group[name] for name in _HYPER if not callable(group[name])})
        if include_factors:
            state["entries"] = self._read_entries()
        return state

    @property
    def _holds_everything(self) -> bool:
        """True when every rank holds the factors and decompositions of all layers."""
        return self._options.strategy == STRATEGIES["comm_opt"] or self._comm.size == 1

    def _read_entries(self, alone: bool = False) -> Dict[str, torch.Tensor]:
        """Factors and decompositions by their names, in host memory. alone: those of this rank
        only, which is not collective."""
        kfac, queue = self._kfac, self._device.follow()
        own = alone or self._holds_everything
        result = {}
        entries = lib.dsc_kfac_state_entries(kfac)
        for i in range(lib.dsc_kfac_state_count(kfac)):
            entry = entries[i]
            shape = [entry.dim[d] for d in range(entry.ndim)]
            memory = torch.zeros(shape, dtype=TORCH_DTYPES[entry.dtype])
            held = c_int(self._comm.rank == 0)
            if own:
                lib.dsc_kfac_state_get_own(kfac, queue, i, memory.data_ptr(), byref(held))
            else:
                lib.dsc_kfac_state_get(kfac, queue, i, memory.data_ptr())
            if held.value:
                result[entry.name.decode()] = memory
        if "decomposed" in result and not int(result["decomposed"]):
            result = {
                name: value
                for name, value in result.items()
                if not any(part in name for part in (".vectors", ".values", ".inverse"))
            }
        return result

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Dict[str, Any], compute_inverses: bool = True
    ) -> None:
        """Continues from a state of `state_dict`, which must have been saved with the same layers;
        the number of ranks and the strategy may differ. Collective; the state is read on rank 0.

        compute_inverses=False: decompositions are not loaded, the next step makes them.
        """
        if self._begun:
            raise InvalidError("KFAC: load_state_dict() between backward() and step()")
        if "steps" not in state_dict:
            raise InvalidError("KFAC: this is no state of KFAC: it has no entry 'steps'")
        group = self.param_groups[0]
        for name in _HYPER:
            if name in state_dict and not callable(group[name]):
                group[name] = state_dict[name]
        entries = state_dict.get("entries")
        if entries is None:
            entries = self._read_entries()
            entries["step"] = torch.tensor(int(state_dict["steps"]), dtype=torch.int64)
            compute_inverses = False
        self._write_entries(entries, compute_inverses)
        self._steps = int(lib.dsc_kfac_steps(self._kfac))
        self._look_ahead()

    def _write_entries(self, entries: Dict[str, torch.Tensor], with_decompositions: bool) -> None:
        kfac, queue = self._kfac, self._device.follow()
        reads = self._comm.rank == 0
        for decompositions in (False, True):
            listed = lib.dsc_kfac_state_entries(kfac)
            names = [
                (i, listed[i].name.decode())
                for i in range(lib.dsc_kfac_state_count(kfac))
                if (listed[i].optional == 1) == decompositions
            ]
            if decompositions:
                complete = not reads or all(name in entries for _, name in names)
                with_decompositions = self._agree(with_decompositions and complete)
                if not with_decompositions:
                    break
            for i, name in names:
                memory = self._entry_memory(listed[i], name, entries) if reads else None
                address = None if memory is None else memory.data_ptr()
                lib.dsc_kfac_state_set(kfac, queue, i, address)
        lib.dsc_kfac_state_done(kfac, queue, int(with_decompositions))

    def _agree(self, yes: bool) -> bool:
        """True when the argument is true on all ranks. Collective."""
        flag = torch.tensor([int(yes)], dtype=torch.int64)
        host = device_of(torch.device("cpu"))
        view = host.view(flag, (1,))
        lib.dsc_comm_allreduce(self._comm.handle, TRAFFIC_OTHER, MIN, byref(view))
        return bool(flag.item())

    @staticmethod
    def _entry_memory(entry: Any, name: str, entries: Dict[str, Any]) -> torch.Tensor:
        shape = [entry.dim[d] for d in range(entry.ndim)]
        if name not in entries and entry.optional == 2:  # an earlier version saved it
            return torch.zeros(shape, dtype=TORCH_DTYPES[entry.dtype])
        if name not in entries:
            raise InvalidError(
                f"KFAC: the state has no entry '{name}': it was saved with other layers"
            )
        value = torch.as_tensor(entries[name], dtype=TORCH_DTYPES[entry.dtype])
        if list(value.shape) != shape:
            raise InvalidError(
                f"KFAC: the state's entry '{name}' has shape {list(value.shape)}, not {shape}: it "
                "was saved with other layers"
            )
        return value.detach().cpu().contiguous()

    def __getstate__(self) -> Dict[str, Any]:
        raise UnsupportedError("KFAC cannot be pickled or copied; save kfac.state_dict() instead")


def _abandon(handle: c_void_p) -> None:
    """Frees the memory of an object that was not closed, without waiting for other ranks."""
    lib.dsc_kfac_abandon(byref(handle))
