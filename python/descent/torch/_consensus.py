"""The library's consensus around a model and an optimiser of torch.

Outside of this class the parameters always hold the values z of this rank, which forward passes,
evaluation and state dicts need. The optimiser of the program changes z; its change is added to the
numerators x when the next step begins: x + (new z - z). So every optimiser can be used, and weight
decay reads z.
"""

from __future__ import annotations

import contextlib
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch

from .. import comm as _comm
from .._library import (
    BF16, F16, F32, SUM, TRAFFIC_OTHER, ConsensusOptions, Param, Tensor, initialised, lib,
)  # fmt: skip
from ..errors import InvalidError, UnsupportedError
from ._device import DTYPES, device_of, single_device

KINDS = {"allreduce": 0, "sgp": 1, "osgp": 2, "dpsgd": 3, "adpsgd": 4}
_WIRES = {None: F32, torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}
_MEAN, _OWN = 0, 1  # dsc_values


def layout_of(tensor: torch.Tensor) -> bytes:
    """Shape and memory order of the elements, as a text that must be the same on all ranks."""
    shape = ",".join(map(str, tensor.shape))
    text = f"[{shape}]"
    if not tensor.is_contiguous():
        text += f" strides [{','.join(map(str, tensor.stride()))}]"
    return text.encode()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one range of memory, in any order."""
    if tensor.layout != torch.strided:
        return False
    expected = 1
    sizes = sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1
    )
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return True


def _view(comm: _comm.Communicator, tensor: torch.Tensor) -> Tensor:
    """A contiguous tensor as a vector of the library, for an operation of `comm`."""
    device = device_of(tensor.device)
    if tensor.is_cuda:
        comm.use(device)
    device.follow()
    return device.view(tensor, (tensor.numel(),))


@torch.no_grad()
def mean_over_ranks(comm: _comm.Communicator, tensors: Sequence[torch.Tensor]) -> None:
    """Replaces floating-point tensors by their means over all ranks. Collective."""
    if comm.size == 1:
        return
    for tensor in tensors:
        work = tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        work = work.contiguous().clone()
        if not work.numel():
            continue
        view = _view(comm, work)
        lib.dsc_comm_allreduce(comm.handle, TRAFFIC_OTHER, SUM, byref(view))
        tensor.copy_(work / comm.size)


@torch.no_grad()
def broadcast(comm: _comm.Communicator, tensors: Sequence[torch.Tensor]) -> None:
    """Replaces tensors by those of rank 0. Collective."""
    if comm.size == 1:
        return
    for tensor in tensors:
        work = tensor.detach().contiguous().clone()
        if not work.numel():
            continue
        view = _view(comm, work.view(-1).view(torch.uint8))
        lib.dsc_comm_broadcast(comm.handle, TRAFFIC_OTHER, 0, byref(view))
        tensor.copy_(work)


@torch.no_grad()
def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    together = getattr(torch, "_foreach_copy_", None)
    if together is not None:
        together(targets, sources)
        return
    for source, target in zip(sources, targets):
        target.copy_(source)


class Consensus:
    """A consensus of the library over the parameters of a model."""

    def __init__(
        self,
        what: str,
        parameters: Dict[str, torch.Tensor],
        *,
        algorithm: str = "sgp",
        graph: Optional[str] = None,
        peers: int = 1,
        synch_freq: int = 0,
        group: int = 1,
        average_every: int = 0,
        slow_momentum: float = 0.0,
        slow_rate: float = 1.0,
        dtype: Optional[torch.dtype] = None,
        bucket_cap_mb: float = 4.0,
        peer_timeout: float = 0.0,
        comm: Any = None,
    ) -> None:
        self._handle = c_void_p()
        self.what, self.algorithm = what, algorithm
        if algorithm not in KINDS:
            raise InvalidError(f"{what}: algorithm {algorithm!r}: known are {', '.join(KINDS)}")
        if dtype not in _WIRES:
            raise InvalidError(f"{what}: dtype {dtype}: known are float32, bfloat16 and float16")
        self._names = list(parameters)
        self._params = list(parameters.values())
        self._device = device_of(single_device(parameters, what))
        self._check_parameters()
        self.comm = _comm.as_communicator(comm)
        if algorithm == "adpsgd":
            self.comm = self.comm.over_host()  # NCCL needs one order of operations on all ranks
        options = initialised(ConsensusOptions, "consensus_options")
        options.kind = KINDS[algorithm]
        options.graph = graph.encode() if graph else None
        options.peers, options.synch_freq, options.group = peers, synch_freq, group
        options.average_every = average_every
        options.slow_momentum, options.slow_rate = slow_momentum, slow_rate
        options.wire = _WIRES[dtype]
        options.bucket_bytes = max(1, int(bucket_cap_mb * (1 << 20)))
        options.peer_timeout = peer_timeout
        self.averages_gradients = algorithm == "allreduce" or group != 1
        self._slow = slow_momentum != 0 or slow_rate != 1
        self._addresses = [p.data_ptr() for p in self._params]
        self._grads = (c_void_p * len(self._params))()
        self._z: List[torch.Tensor] = []  # the values before the optimiser
        self._z_valid = False
        self._versions: List[int] = []
        self._shown = False  # between before_forward and the update
        self._own_shown = False  # settled, and z = x / w swapped in
        self._began = False  # a step has begun since the creation or the last restore
        self._sent = False  # between an update and the next `begin`: parts of x may be on their way
        self._updated = False
        self._lr = 0.0
        self._create(options)

    # ---- creation ----

    def _check_parameters(self) -> None:
        for name, p in zip(self._names, self._params):
            if not is_dense(p):
                raise UnsupportedError(
                    f"{self.what}: parameter '{name}' with shape {tuple(p.shape)} and strides "
                    f"{tuple(p.stride()) if p.layout == torch.strided else p.layout} does not fill "
                    "one range of memory; make it contiguous"
                )
            if p.dtype not in DTYPES:
                raise UnsupportedError(f"{self.what}: parameter '{name}' has type {p.dtype}")
            if p.dtype != self._params[0].dtype:
                raise InvalidError(
                    f"{self.what}: parameter '{self._names[0]}' is {self._params[0].dtype} and "
                    f"'{name}' {p.dtype}: all parameters must have one type"
                )

    def _create(self, options: ConsensusOptions) -> None:
        count = len(self._params)
        structs = (Param * count)()
        layouts = (c_char_p * count)()
        for i, (name, p) in enumerate(zip(self._names, self._params)):
            structs[i].name = name.encode()
            self._device.fill(structs[i].value, p, (p.numel(),))
            self._device.fill(structs[i].grad, p, (p.numel(),))
            structs[i].grad.data = None
            layouts[i] = layout_of(p)
        options.layouts = layouts
        self._keep = structs  # the library keeps the names
        queue = self._device.follow()
        if self._device.torch_device.type == "cuda":
            self.comm.use(self._device)
        lib.dsc_consensus_create(
            self.comm.handle, queue, structs, count, byref(options), byref(self._handle)
        )
        self._finalizer = weakref.finalize(self, _abandon, self._handle)
        self._finalizer.atexit = False  # at the end of the process everything is closed in order
        lib.dsc_consensus_start(self._handle)

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise InvalidError(f"{self.what}: the object is closed")
        return self._handle

    def close(self) -> None:
        """Frees the object and leaves the values of this rank in the parameters. Collective."""
        if not self._handle:
            return
        if self._began:
            self.settle()
        self._leave_own()
        weight = self.weight
        if weight != 1:
            with torch.no_grad():
                torch._foreach_div_(self._params, weight)
        self._finalizer.detach()
        lib.dsc_consensus_destroy(byref(self._handle))

    # ---- values and numerators ----

    @property
    def weight(self) -> float:
        return float(lib.dsc_consensus_weight(self.handle))

    @property
    def rounds(self) -> int:
        return int(lib.dsc_consensus_rounds(self.handle))

    @property
    def steps(self) -> int:
        return int(lib.dsc_consensus_steps(self.handle))

    def _check_place(self) -> None:
        for name, p, address in zip(self._names, self._params, self._addresses):
            if p.data_ptr() != address:
                raise InvalidError(
                    f"{self.what}: parameter '{name}' has moved to other memory since this object "
                    "was created; move and convert the model first (model.to(...)), and create the "
                    "object afterwards"
                )

    def _note_versions(self) -> None:
        self._versions = [p._version for p in self._params]
        self._updated = False

    def mark_updated(self, lr: Optional[float] = None) -> None:
        """Notes that the optimiser has changed the parameters. In-place operations need no note."""
        self._updated = True
        if lr is not None:
            self._lr = lr

    def _is_updated(self) -> bool:
        if self._updated:
            return True
        return any(p._version != v for p, v in zip(self._params, self._versions))

    def _leave_own(self) -> None:
        """Puts the numerators back into the parameters, after _show_own."""
        if not self._own_shown:
            return
        changed = None
        if self._is_updated():
            changed = [p.detach().clone() for p in self._params]
        lib.dsc_consensus_swap_out(self.handle, self._device.follow())
        self._own_shown = False
        if changed is not None:
            with torch.no_grad():
                torch._foreach_mul_(changed, self.weight)
            _copy(changed, self._params)

    def _show_own(self) -> None:
        """After settling: puts z into the parameters."""
        if self.weight != 1:
            lib.dsc_consensus_swap_in(self.handle, self._device.follow(), _OWN)
            self._own_shown = True
        self._note_versions()

    def begin(self) -> None:
        """Before a forward pass of training: sends an update since the last one, adds messages that
        have arrived, and puts z into the parameters. Does nothing if it is called again before an
        update."""
        handle = self.handle
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                f"{self.what}: a forward pass of training exchanges messages and cannot be "
                "captured in a CUDA graph; capture the wrapped module instead"
            )
        self._check_place()
        if self._shown and self._is_updated():
            if self.algorithm == "adpsgd" and self.comm.size > 1:
                raise InvalidError(
                    f"{self.what}: parameters were changed between a forward pass and the "
                    "optimiser; with adpsgd only the optimiser's step may change them"
                )
            self.commit()
        if self._shown:
            return
        self._leave_own()
        lib.dsc_consensus_before_forward(handle, self._device.follow())
        self._shown = self._began = True
        self._sent = False
        self._z_valid = self.weight != 1
        if self._z_valid:
            if not self._z:
                self._z = [torch.empty_like(p, requires_grad=False) for p in self._params]
            _copy(self._params, self._z)
        self._note_versions()

    @torch.no_grad()
    def commit(self) -> None:
        """Ends an update: adds the optimiser's change to x, and sends x if the algorithm sends
        after the update. Afterwards the parameters hold x."""
        if not self._shown:
            raise InvalidError(
                f"{self.what}: an update without a forward pass in training mode before it"
            )
        handle = self.handle
        if self._slow:
            lib.dsc_consensus_set_rate(handle, self._lr)
        if self._z_valid:
            torch._foreach_sub_(self._z, self._params)  # z - new z
        read = POINTER(Tensor)()
        lib.dsc_consensus_update_begin(handle, self._device.follow(), byref(read))
        try:
            if self._z_valid:
                torch._foreach_sub_(self._params, self._z)
        except BaseException:
            lib.dsc_consensus_update_cancel(handle)
            raise
        lib.dsc_consensus_update_end(handle, self._device.follow())
        self._shown = self._z_valid = False
        self._sent = True
        self._note_versions()

    def update(self, step: Callable[[], Any], lr: Optional[float] = None) -> None:
        """For adpsgd: runs the optimiser on the newest values, while the averaging thread does not
        change them; the gradients belong to older values. Afterwards the parameters hold the new
        values."""
        handle = self.handle
        if not self._shown:
            raise InvalidError(
                f"{self.what}: an update without a forward pass in training mode before it"
            )
        if self._slow and lr is not None:
            lib.dsc_consensus_set_rate(handle, lr)
        read = POINTER(Tensor)()
        lib.dsc_consensus_update_begin(handle, self._device.follow(), byref(read))
        try:
            step()
        except BaseException:
            lib.dsc_consensus_update_cancel(handle)
            raise
        lib.dsc_consensus_update_end(handle, self._device.follow())
        self._shown = self._z_valid = False
        self._sent = True
        self._note_versions()

    @property
    def is_open(self) -> bool:
        return bool(self._handle)

    @property
    def began(self) -> bool:
        """Whether a step has begun since the creation or the last restore."""
        return self._began

    @property
    def in_flight(self) -> bool:
        """Whether parts of the values may be on their way to other ranks."""
        return self._shown or self._sent

    def numerators(self) -> None:
        """Puts x instead of z into the parameters, until the next `begin`."""
        self._leave_own()
        if not self._shown:
            return
        if self._is_updated():
            self.commit()
            return
        read = POINTER(Tensor)()
        lib.dsc_consensus_update_begin(self.handle, self._device.follow(), byref(read))
        lib.dsc_consensus_update_cancel(self.handle)
        self._shown = self._z_valid = False

    # ---- gradients ----

    def average_gradients(self) -> None:
        """Averages the gradients over all ranks (allreduce) or over those of the group. Collective
        among these ranks."""
        copies = []
        for i, (name, p) in enumerate(zip(self._names, self._params)):
            grad = p.grad
            if grad is None:
                self._grads[i] = None
                continue
            if grad.is_sparse or grad.dtype != p.dtype or grad.device != p.device:
                raise UnsupportedError(
                    f"{self.what}: the gradient of '{name}' is "
                    f"{'sparse' if grad.is_sparse else f'{grad.dtype} on {grad.device}'}; a dense "
                    f"one of {p.dtype} on {p.device} can be averaged"
                )
            if grad.stride() != p.stride():
                copy = torch.empty_like(p)
                copy.copy_(grad)
                copies.append((grad, copy))
                grad = copy
            self._grads[i] = grad.data_ptr()
        queue = self._device.follow()
        lib.dsc_consensus_set_gradients(self.handle, 0, len(self._params), self._grads)
        lib.dsc_consensus_after_backward(self.handle, queue)
        for grad, copy in copies:
            grad.copy_(copy)

    # ---- between steps ----

    def _settle(self) -> None:
        self._check_place()
        self.numerators()
        lib.dsc_consensus_settle(self.handle, self._device.follow())
        self._sent = False

    def show(self) -> None:
        """Before a forward pass outside of training: puts z into the parameters. Does nothing
        unless `commit` was called without a `begin` after it."""
        if self._sent:
            self.begin()

    def settle(self) -> None:
        """Completes all messages. Collective."""
        self._settle()
        self._show_own()

    @contextlib.contextmanager
    def mean(self) -> Iterator[None]:
        """Puts the mean over all ranks into the parameters. Collective."""
        self._settle()
        lib.dsc_consensus_swap_in(self.handle, self._device.follow(), _MEAN)
        try:
            yield
        finally:
            lib.dsc_consensus_swap_out(self.handle, self._device.follow())
            self._show_own()

    def distance(self) -> Dict[str, float]:
        """How far the ranks are from their mean. Collective."""
        distance, norm = c_double(), c_double()
        self._settle()
        lib.dsc_consensus_distance(self.handle, self._device.follow(), byref(distance), byref(norm))
        self._show_own()
        return {"distance": distance.value, "norm": norm.value}

    def set_peers(self, peers: int) -> None:
        """Sets the number of peers per step from now on. Collective."""
        self._settle()
        try:
            lib.dsc_consensus_set_peers(self.handle, int(peers))
        finally:
            self._show_own()

    @torch.no_grad()
    def restore(self, weight: float, rounds: int, steps: int, numerators: bool) -> None:
        """Continues from a checkpoint, whose values the parameters hold already. No messages may be
        in flight."""
        if self._own_shown:
            values = [p.detach().clone() for p in self._params]
            lib.dsc_consensus_swap_out(self.handle, self._device.follow())
            self._own_shown = False
            _copy(values, self._params)
        if not numerators and weight != 1:
            torch._foreach_mul_(self._params, weight)
        lib.dsc_consensus_restore(self.handle, weight, rounds, steps)
        self._show_own()


def _abandon(handle: c_void_p) -> None:
    lib.dsc_consensus_abandon(byref(handle))
