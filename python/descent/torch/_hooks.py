"""The hooks by which layers hand their tensors to K-FAC, in a form that torch.compile accepts."""

from __future__ import annotations

import functools
from typing import Any, Callable, Tuple

import torch
from torch import nn

from .layers import Layer


class Switch:
    """Whether layers hand their tensors to K-FAC in this step. torch.compile compiles the model
    once for each value, so that steps without captures are not split into several graphs."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


def _never() -> bool:
    return False


# Tells whether torch.compile is tracing the caller.
_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", _never
)


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps torch.compile from tracing a function."""
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and hasattr(compiler, "disable"):
        return compiler.disable(function)
    dynamo = getattr(torch, "_dynamo", None)
    return dynamo.disable(function) if dynamo is not None else function


def make_hook(switch: Switch, kfac: Any, layer: Layer) -> Callable[..., None]:
    """The forward hook of a layer's module."""

    def captured(a: torch.Tensor, reader: Any, g: torch.Tensor) -> None:
        this = kfac()
        if this is not None:
            this._captured(layer, a, reader, g)

    def note(inputs: Tuple[Any, ...], output: Any) -> None:
        if not (isinstance(output, torch.Tensor) and output.requires_grad):
            return
        if not inputs or not isinstance(inputs[0], torch.Tensor) or not torch.is_grad_enabled():
            return
        layer.pending += 1
        output.register_hook(functools.partial(captured, inputs[0].detach(), layer.reader()))

    note_outside = outside_graphs(note)

    def hook(module: nn.Module, inputs: Tuple[Any, ...], output: Any) -> None:
        if switch.on:
            if _is_compiling():
                note_outside(inputs, output)
            else:
                note(inputs, output)

    return hook
