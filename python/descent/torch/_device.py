"""Devices and tensors of torch as those of the library, without copies.

Each torch device has one device and one queue of the library. The queue wraps torch's current
stream, and `follow` switches it when the current stream changes, so that the library's work runs in
the order of torch's own.
"""

from __future__ import annotations

import threading
from ctypes import byref, c_void_p
from typing import Dict, Mapping, Sequence

import torch

from .._library import (
    BF16, F16, F32, F64, I32, I64, U8, DeviceOptions, Tensor, initialised, lib,
)  # fmt: skip
from .._nvidia import with_libraries
from ..errors import InvalidError, UnsupportedError

DTYPES = {
    torch.float32: F32,
    torch.float64: F64,
    torch.bfloat16: BF16,
    torch.float16: F16,
    torch.int32: I32,
    torch.int64: I64,
    torch.uint8: U8,
}
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
TORCH_DTYPES = {number: dtype for dtype, number in DTYPES.items()}


class Device:
    """A device of the library with a queue in the order of torch's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self._is_cuda = device.type == "cuda"
        options = initialised(DeviceOptions, "device_options")
        if device.type == "cuda":
            options.name = b"cuda"
            options.ordinal = device.index
        else:
            options.name = b"cpu"
            options.threads = torch.get_num_threads()
        self.handle = c_void_p()
        with_libraries(lambda: lib.dsc_device_create(byref(options), byref(self.handle)))
        self.queue = c_void_p()
        self._stream = self._current_stream()
        lib.dsc_queue_wrap(self.handle, self._stream, byref(self.queue))

    def _current_stream(self) -> int:
        if self.torch_device.type != "cuda":
            return 0
        if _raw_stream is not None:  # avoids creating a stream object
            return int(_raw_stream(self.torch_device.index))
        return int(torch.cuda.current_stream(self.torch_device).cuda_stream)

    def follow(self) -> c_void_p:
        """The queue, now in the order of torch's current stream."""
        if self._is_cuda:
            stream = self._current_stream()
            if stream != self._stream:
                lib.dsc_queue_rewrap(self.queue, stream)
                self._stream = stream
        return self.queue

    def view(self, tensor: torch.Tensor, shape: Sequence[int]) -> Tensor:
        """The memory of a contiguous torch tensor as a tensor of the library of this shape."""
        result = Tensor()
        self.fill(result, tensor, shape)
        return result

    def fill(self, result: Tensor, tensor: torch.Tensor, shape: Sequence[int]) -> None:
        """`view` into an existing struct."""
        result.data = tensor.data_ptr()
        result.device = self.handle
        result.dtype = DTYPES[tensor.dtype]
        result.ndim = len(shape)
        result.dim[: len(shape)] = shape


_devices: Dict[torch.device, Device] = {}
_lock = threading.Lock()


def device_of(device: torch.device) -> Device:
    """The library's device for a torch device; made at the first call, and kept."""
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"device '{device}': descent works on 'cpu' and 'cuda'; move the model there with "
            "model.to(...)"
        )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with _lock:
        if device not in _devices:
            _devices[device] = Device(device)
        return _devices[device]


def single_device(tensors: Mapping[str, torch.Tensor], what: str) -> torch.device:
    """The device of all these tensors; raises an error that names two on different devices."""
    first = None
    for name, tensor in tensors.items():
        if first is None:
            first = (name, tensor.device)
        elif tensor.device != first[1]:
            raise InvalidError(
                f"{what}: '{first[0]}' is on {first[1]} and '{name}' on {tensor.device}: all "
                "parameters must be on one device"
            )
    if first is None:
        raise InvalidError(f"{what}: there are no parameters")
    return first[1]
