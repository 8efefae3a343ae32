"""The layers that K-FAC preconditions: which modules they are, and how their memory is laid out.

A layer has weights [out, in, positions] (one position for linear layers, kernel_h * kernel_w for
convolutions) in the memory order of the module. Strides describe that order, so that gradients are
read and written in place.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import byref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from .._library import (
    F32, NCHW, NHWC, Conv2dShape, KfacGradients, KfacLayer, KfacSample, Tensor, initialised, lib,
)  # fmt: skip
from ..errors import InvalidError
from ._device import DTYPES, Device

LINEAR, CONV2D, BATCH_NORM = range(3)  # dsc_kfac_kind

HALVES = (torch.bfloat16, torch.float16)


def _pair(value: Any) -> Tuple[int, int]:
    if isinstance(value, (tuple, list)):
        return (1, int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
    return int(value), int(value)


def _not_empty(x: torch.Tensor) -> torch.Tensor:
    return x if x.numel() else x.new_zeros([max(1, n) for n in x.shape])


class Layer:
    """One module and its place in the library's list of layers."""

    kind = LINEAR

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self._parameters = module._parameters
        bias = self._parameters.get("bias")
        self.has_bias = bias is not None and bias.requires_grad
        self.index = -1
        self.pending = 0  # uses in forward passes of this step that were not captured yet
        self.several_uses = False
        self.sample = initialised(KfacSample, "kfac_sample")
        self._sample_a, self._sample_g = self.sample.a, self.sample.g  # parts of its memory
        self._form: Any = None
        self._strides: Optional[Tuple[int, ...]] = None
        self._copies: Dict[str, torch.Tensor] = {}

    @property
    def weight(self) -> nn.Parameter:
        return self._parameters["weight"]  # type: ignore[return-value]

    @property
    def bias(self) -> nn.Parameter:
        return self._parameters["bias"]  # type: ignore[return-value]

    @property
    def in_features(self) -> int:
        return int(self.weight.shape[1])

    @property
    def out_features(self) -> int:
        return int(self.weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the arithmetic: that of the gradients, or float32 for 16-bit types."""
        return torch.float32 if self.weight.dtype in HALVES else self.weight.dtype

    # -- description --

    def describe(self, struct: KfacLayer, device: Device, keep: List[Any]) -> None:
        """Fills in the library's description. `keep` holds what it points to."""
        lib.dsc_kfac_layer_init_sized(byref(struct), ctypes.sizeof(struct))
        name = self.name.encode()
        keep.append(name)
        struct.name = name
        struct.kind = self.kind
        struct.in_c, struct.out_c = self.in_features, self.out_features
        struct.late_gradients = 1
        self._describe_gradient(struct.weight_grad, self.weight, device)
        if self.has_bias:
            self._describe_gradient(struct.bias_grad, self.bias, device)

    def _describe_gradient(self, out: Tensor, parameter: torch.Tensor, device: Device) -> None:
        device.fill(out, parameter, list(parameter.shape))
        out.dtype = DTYPES.get(self.dtype, F32)

    # -- captures --

    def reader(self) -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
        """Called after a forward pass. Returns a function that turns the input into the captured
        tensor, with the module's settings of that pass. None: the input itself is captured."""
        return None

    def point_sample(self, device: Device, a: torch.Tensor, g: torch.Tensor) -> Any:
        """Points the sample at the layer's input and at the gradient of its output. Returns the
        objects that must stay alive until the call. If the tensors have the same form as the last
        ones, and those were used in place, only the addresses are set."""
        form = (a.shape, g.shape, a.stride(), g.stride(), a.dtype, g.dtype)
        if form == self._form:
            self._sample_a.data = a.data_ptr()
            self._sample_g.data = g.data_ptr()
            return a, g
        used = self.fill_sample(device, a, g)
        in_place = all(x.data_ptr() == y.data_ptr() for x, y in zip(used, (a, g)))
        self._form = form if in_place and a.numel() > 0 else None
        return used

    def fill_sample(self, device: Device, a: torch.Tensor, g: torch.Tensor) -> Any:
        """`point_sample` for tensors of any form. An empty batch counts as one row of zeros."""
        a, g = _not_empty(a).contiguous(), _not_empty(g).contiguous()
        rows = a.numel() // self.in_features
        device.fill(self.sample.a, a, (rows, self.in_features))
        device.fill(self.sample.g, g, (rows, self.out_features))
        return a, g

    # -- gradients --

    def _normal_strides(self, grad: torch.Tensor) -> Optional[Tuple[int, int, int]]:
        """Distances between outputs, inputs and positions; None when there are no such numbers."""
        return grad.stride(0), grad.stride(1), 0

    def fill_gradients(self, out: KfacGradients) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Points the struct at the gradients. Returns pairs (gradient, copy) for gradients that the
        library cannot use where they are: the copies must be written back after the step."""
        grad = self.weight.grad
        if grad is None:
            out.weight = out.bias = None
            return []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        key = (*grad.stride(), grad.dtype) if grad.layout == torch.strided else (grad.layout,)
        if key != self._strides or grad.dtype in HALVES:
            grad = self._read_strides(out, grad, key, copies)
        out.weight = grad.data_ptr()
        if self.has_bias:
            bias = self.bias.grad
            if bias is None:  # frozen since creation: its preconditioned part is dropped
                bias = self._copy("bias", self.bias).zero_()
            elif bias.dtype in HALVES or not bias.is_contiguous():
                copy = self._copy("bias", bias)
                copy.copy_(bias)
                copies.append((bias, copy))
                bias = copy
            out.bias = bias.data_ptr()
        return copies

    def _read_strides(
        self,
        out: KfacGradients,
        grad: torch.Tensor,
        key: Tuple[Any, ...],
        copies: List[Tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        if grad.layout != torch.strided:
            raise InvalidError(
                f"K-FAC: layer '{self.name}': its gradient is {grad.layout}; only dense gradients "
                "can be preconditioned: leave the layer out with skip_layers"
            )
        strides = self._normal_strides(grad)
        if grad.dtype in HALVES or strides is None:
            copy = self._copy("weight", grad)
            copy.copy_(grad)
            copies.append((grad, copy))
            grad = copy
            strides = self._normal_strides(grad)
            self._strides = None  # look again in the next step
        else:
            self._strides = key
        assert strides is not None
        out.out_stride, out.in_stride, out.position_stride = strides
        return grad

    def _copy(self, what: str, like: torch.Tensor) -> torch.Tensor:
        copy = self._copies.get(what)
        if copy is None or copy.shape != like.shape:
            copy = torch.empty(like.shape, dtype=self.dtype, device=like.device)
            self._copies[what] = copy
        return copy


class TransposedLinear(Layer):
    """Hugging Face's Conv1D: a linear layer whose weight is [in, out]."""

    @property
    def in_features(self) -> int:
        return int(self.weight.shape[0])

    @property
    def out_features(self) -> int:
        return int(self.weight.shape[1])

    def _normal_strides(self, grad: torch.Tensor) -> Optional[Tuple[int, int, int]]:
        return grad.stride(1), grad.stride(0), 0


class Conv(Layer):
    """nn.Conv2d, and nn.Conv1d as a convolution of images of height 1."""

    kind = CONV2D

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.dims = 2 if isinstance(module, nn.Conv2d) else 1
        kernel: Any = module.kernel_size
        self.kernel = _pair(kernel) if self.dims == 2 else (1, int(kernel[0]))
        self.shape = self._shape()

    @property
    def in_features(self) -> int:
        return int(self.module.in_channels)  # type: ignore[arg-type]

    def _shape(self) -> Conv2dShape:
        """The geometry, for images of any size."""
        m: Any = self.module
        shape = initialised(Conv2dShape, "conv2d_shape")
        shape.in_c, shape.out_c, shape.groups = m.in_channels, m.out_channels, m.groups
        shape.kernel_h, shape.kernel_w = self.kernel
        one_high = self.dims == 1
        shape.stride_h, shape.stride_w = (1, m.stride[0]) if one_high else _pair(m.stride)
        shape.dilation_h, shape.dilation_w = (1, m.dilation[0]) if one_high else _pair(m.dilation)
        if m.padding_mode == "zeros":
            for axis, (left, right) in zip("hw", self._padding()):
                setattr(shape, f"pad_{axis}", left)
                setattr(shape, f"extra_{axis}", right - left)
        return shape

    def _padding(self) -> List[Tuple[int, int]]:
        """Zeros before and after, in each direction; torch's "same" puts the odd one after."""
        m: Any = self.module
        if isinstance(m.padding, str):
            if m.padding == "valid":
                return [(0, 0), (0, 0)]
            dilation = (1, m.dilation[0]) if self.dims == 1 else _pair(m.dilation)
            total = [d * (k - 1) for d, k in zip(dilation, self.kernel)]
            return [(t // 2, t - t // 2) for t in total]
        pad = (0, m.padding[0]) if self.dims == 1 else _pair(m.padding)
        return [(p, p) for p in pad]

    def describe(self, struct: KfacLayer, device: Device, keep: List[Any]) -> None:
        super().describe(struct, device, keep)
        struct.conv = ctypes.pointer(self.shape)
        keep.append(struct.conv)

    def fill_sample(self, device: Device, a: torch.Tensor, g: torch.Tensor) -> Any:
        if self.module.padding_mode != "zeros":  # the library pads with zeros: do it here
            padding = self.module._reversed_padding_repeated_twice  # type: ignore
            a = nn.functional.pad(a, padding, mode=self.module.padding_mode)  # type: ignore
        a, self.sample.a_layout = self._fill_image(device, self.sample.a, _not_empty(a))
        g, self.sample.g_layout = self._fill_image(device, self.sample.g, _not_empty(g))
        return a, g

    def _fill_image(self, device: Device, out: Tensor, x: torch.Tensor) -> Tuple[torch.Tensor, int]:
        if x.dim() == self.dims + 1:  # one image without a batch
            x = x.unsqueeze(0)
        if self.dims == 1:
            x = x.unsqueeze(2)
        n, c, h, w = x.shape
        if x.is_contiguous(memory_format=torch.channels_last):
            device.fill(out, x, (n, h, w, c))
            return x, NHWC
        x = x.contiguous()
        if c == 1 or h * w == 1:  # both orders are one
            device.fill(out, x, (n, h, w, c))
            return x, NHWC
        device.fill(out, x, (n, c, h, w))
        return x, NCHW

    def _normal_strides(self, grad: torch.Tensor) -> Optional[Tuple[int, int, int]]:
        channels, positions = grad.shape[1], self.kernel[0] * self.kernel[1]
        by_row = grad.stride(-2) if self.dims == 2 else 0
        by_column = grad.stride(-1)
        position = by_column if self.kernel[1] > 1 else by_row
        if self.kernel[0] > 1 and self.kernel[1] > 1 and by_row != self.kernel[1] * by_column:
            return None
        # The stride of a dimension of size 1 means nothing: take the one that makes D contiguous.
        inner = grad.stride(1) if channels > 1 else 1
        position = position if positions > 1 else int(channels)
        outer = grad.stride(0) if grad.shape[0] > 1 else int(channels * positions)
        return outer, inner, position


class BatchNorm(Layer):
    """Scale and shift of nn.BatchNorm1d, 2d or 3d. The normalised input, computed again from the
    input, is captured."""

    kind = BATCH_NORM

    @property
    def in_features(self) -> int:
        return int(self.weight.numel())

    @property
    def out_features(self) -> int:
        return self.in_features

    def reader(self) -> Callable[[torch.Tensor], torch.Tensor]:
        m: Any = self.module
        mean, var = m.running_mean, m.running_var
        of_batch = m.training or mean is None or var is None
        if of_batch:
            mean = var = None
        else:  # copies of the present statistics: a later pass may change them
            mean, var = mean.to(self.dtype, copy=True), var.to(self.dtype, copy=True)

        def normalise(x: torch.Tensor) -> torch.Tensor:
            x = x.to(self.dtype)
            return nn.functional.batch_norm(x, mean, var, training=of_batch, eps=m.eps)

        return normalise

    def _by_sample(self, x: torch.Tensor) -> torch.Tensor:
        """x as [samples, positions, channels], in the type of the gradients."""
        x = x.to(self.dtype).movedim(1, -1).contiguous()
        return x.view(x.shape[0], -1, self.in_features)

    def fill_sample(self, device: Device, a: torch.Tensor, g: torch.Tensor) -> Any:
        a, g = self._by_sample(_not_empty(a)), self._by_sample(_not_empty(g))
        device.fill(self.sample.a, a, list(a.shape))
        device.fill(self.sample.g, g, list(g.shape))
        return a, g

    def _normal_strides(self, grad: torch.Tensor) -> Optional[Tuple[int, int, int]]:
        return (1, 0, 0) if grad.is_contiguous() else None


class LayerNorm(BatchNorm):
    """Scale and shift of nn.LayerNorm. Every row is a sample, as for linear layers."""

    def reader(self) -> Callable[[torch.Tensor], torch.Tensor]:
        m: Any = self.module

        def normalise(x: torch.Tensor) -> torch.Tensor:
            return nn.functional.layer_norm(x.to(self.dtype), m.normalized_shape, eps=m.eps)

        return normalise

    def _by_sample(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype).reshape(-1, 1, self.in_features).contiguous()


def _is_transposed_linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__ == "Conv1D"
        and isinstance(weight, torch.Tensor)
        and weight.dim() == 2
        and hasattr(module, "nf")
    )


def layer_for(name: str, module: nn.Module) -> Optional[Layer]:
    """The layer of a module; None when K-FAC does not know its kind.

    A subclass with a `forward` of its own is not known: it may compute something else.
    """
    if not isinstance(getattr(module, "weight", None), nn.Parameter):
        return None  # no weight, or one that is computed (weight_norm, parametrizations)
    if type(module).__name__ == "NonDynamicallyQuantizableLinear":
        return None  # nn.MultiheadAttention reads its weight and never calls it
    known: List[Tuple[Any, Any]] = [(nn.Linear, Layer), (nn.Conv2d, Conv), (nn.Conv1d, Conv)]
    for cls, kind in known:
        if isinstance(module, cls) and type(module).forward is cls.forward:
            return kind(name, module)
    return TransposedLinear(name, module) if _is_transposed_linear(module) else None


def norm_for(name: str, module: nn.Module) -> Optional[Layer]:
    """The layer of a normalisation whose scale and shift are both trained; else None."""
    parameters = [module._parameters.get(key) for key in ("weight", "bias")]
    if not all(p is not None and p.requires_grad for p in parameters):
        return None
    known: List[Tuple[Any, Any]] = [
        (nn.BatchNorm1d, BatchNorm), (nn.BatchNorm2d, BatchNorm), (nn.BatchNorm3d, BatchNorm),
        (nn.LayerNorm, LayerNorm),
    ]  # fmt: skip
    for cls, kind in known:
        if isinstance(module, cls) and type(module).forward is cls.forward:
            return kind(name, module)
    return None


def find_layers(
    model: nn.Module, skip_layers: Sequence[str], norms: bool = False
) -> Tuple[List[Layer], List[str], List[str]]:
    """All layers of a model, in the order of named_modules; norms: also normalisations.

    Returns also the modules with weights that K-FAC does not know, and those that share their
    weight with another module, both as "name (class)". Modules that a pattern of skip_layers
    matches, by name or class name, and frozen ones are in none of the lists.
    """
    layers: List[Layer] = []
    unknown: List[str] = []
    shared: List[str] = []
    owners: Dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for name, module in model.named_modules():
        weights = [p for p in module.parameters(recurse=False) if p.requires_grad and p.dim() > 1]
        cls = type(module).__name__
        name = name or cls.lower()
        layer = norm_for(name, module) if norms else None
        if not weights and layer is None:
            continue
        if any(re.search(pattern, name) or re.search(pattern, cls) for pattern in skip_layers):
            continue
        layer = layer or layer_for(name, module)
        if layer is None:
            if any(p.numel() > max(p.shape) for p in weights):  # not a vector written as [c, 1, 1]
                unknown.append(f"{name} ({cls})")
        elif owners[id(layer.weight)] > 1:
            shared.append(f"{name} ({cls})")
        elif not layer.weight.requires_grad:
            continue
        else:
            layer.index = len(layers)
            layers.append(layer)
    return layers, unknown, shared
