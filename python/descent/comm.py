"""Communicators: the ranks that K-FAC and gossip work with.

`default` connects the ranks in the way they were started: an initialised process group of
torch.distributed, MPI under its launchers, or one process. Objects of this package take a `comm`
argument: a Communicator, an mpi4py communicator, or a process group.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from ctypes import addressof, byref, c_int64, c_void_p
from typing import Any, List, Optional, Tuple

from ._library import (
    I64, MAX, MAX_DIMS, TRAFFIC_OTHER, CommOptions, DeviceOptions, Tensor, initialised, lib,
)  # fmt: skip
from .errors import CommError, Error, InvalidError, UnsupportedError

__all__ = ["Communicator", "as_communicator", "default"]


class Communicator:
    """The ranks of a job, or of a part of it. Made by `default` and by `split`.

    A context manager: `with descent.comm.default() as comm: ...` closes it at the end.
    """

    def __init__(self, handle: c_void_p, mpi_comm: Optional[int] = None, group: Any = None) -> None:
        self._handle = handle
        self._mpi_comm = mpi_comm  # address of an MPI_Comm, 0 for all ranks; None: not given
        self._group = group  # the process group that it was made of
        self._host: Optional[Communicator] = None  # the same ranks, without NCCL
        self._device: Any = None
        _open.append(self)

    @property
    def handle(self) -> c_void_p:
        """The library's object; an error when the communicator is closed."""
        if not self._handle:
            raise CommError("the communicator is closed")
        return self._handle

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return int(lib.dsc_comm_rank(self.handle))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(lib.dsc_comm_size(self.handle))

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its node."""
        return int(lib.dsc_comm_local_rank(self.handle))

    @property
    def local_size(self) -> int:
        """The number of ranks on this node."""
        return int(lib.dsc_comm_local_size(self.handle))

    @property
    def name(self) -> str:
        """What moves the messages: "self", "mpi", "nccl" or "functions"."""
        return str(lib.dsc_comm_name(self.handle).decode())

    def barrier(self) -> None:
        """Waits for all ranks. Collective."""
        lib.dsc_comm_barrier(self.handle)

    def split(self, colour: int, key: int = 0) -> Optional["Communicator"]:
        """The communicator of all ranks that pass the same colour, ordered by key, then by rank;
        None for a negative colour. Collective."""
        handle = c_void_p()
        lib.dsc_comm_split(self.handle, colour, key, byref(handle))
        return Communicator(handle) if handle else None

    def use(self, device: Any) -> None:
        """Makes operations on GPU tensors follow this device's queue (descent.torch). Collective
        at the first call: ranks of MPI that have a GPU each then exchange GPU tensors by NCCL."""
        if self._device is device:
            return
        if self._device is None and self._mpi_comm is not None and self.size > 1:
            if self._has_gpu_each(device):
                by_nccl = _create(self._mpi_comm, b"nccl")
                self._host = Communicator(self._handle)  # others may use it already
                self._handle = by_nccl
        lib.dsc_comm_use_queue(self.handle, device.queue)
        self._device = device

    def over_host(self) -> "Communicator":
        """A communicator of the same ranks that copies GPU tensors over the host and may be used by
        several threads, as AD-PSGD needs; this one, if it does so itself. Collective."""
        if self._host is not None and not self._host._handle:
            self._host = None  # it was closed
        if self._host is not None:
            return self._host
        if self.name == "nccl":
            if self._group is None:
                raise UnsupportedError(
                    "this communicator exchanges GPU tensors by NCCL only: pass the one of all "
                    "ranks, a process group of gloo, or an mpi4py communicator"
                )
            from . import _torch_group

            self._host = Communicator(_torch_group.from_group(self._group, over_host=True))
        elif self._mpi_comm is not None and self.size > 1:
            self._host = self.split(0, self.rank)  # `use` may switch this one to NCCL later
        return self._host or self

    def _has_gpu_each(self, device: Any) -> bool:
        """Whether NCCL can connect the ranks: each has a GPU that no other rank has. Collective."""
        try:
            lib.dsc_comm_check_kind(b"nccl")
            identity = lib.dsc_device_identity(device.handle)
        except UnsupportedError:
            identity = 0
        all_ = (c_int64 * self.size)()
        all_[self.rank] = identity >> 1  # a number of 64 bits without a sign
        host = initialised(DeviceOptions, "device_options")
        host.name = b"ref"
        ref = c_void_p()
        lib.dsc_device_create(byref(host), byref(ref))
        dim = (c_int64 * MAX_DIMS)(self.size)
        tensor = Tensor(data=addressof(all_), device=ref, dtype=I64, ndim=1, dim=dim)
        lib.dsc_comm_allreduce(self.handle, TRAFFIC_OTHER, MAX, byref(tensor))
        lib.dsc_device_destroy(byref(ref))
        return 0 not in all_ and len(set(all_)) == self.size

    def close(self) -> None:
        """Frees the communicator. Objects that use it must be closed before. Collective. Does
        nothing when it is closed already."""
        if self._handle:
            lib.dsc_comm_destroy(byref(self._handle))
        if self in _open:
            _open.remove(self)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._handle:
            return "Communicator(closed)"
        text = lib.dsc_comm_description(self._handle).decode()
        return f"Communicator(rank {self.rank} of {self.size}, {text})"


_open: List[Communicator] = []  # in the order of their creation
_default: Optional[Communicator] = None
_default_world: Any = None  # the process group that it was made of; None: it was not
_of_groups: List[Tuple[Any, Communicator]] = []


# ---- making communicators ----


def _create(mpi_comm: int = 0, kind: bytes = b"auto") -> c_void_p:
    """dsc_comm_create. Several threads may communicate (adpsgd) where MPI allows it."""
    options = initialised(CommOptions, "comm_options")
    options.kind = kind
    options.mpi_comm = mpi_comm or None
    options.thread_multiple = int(kind != b"nccl")  # with NCCL one thread, and one order of all
    handle = c_void_p()
    try:
        lib.dsc_comm_create(byref(options), byref(handle))
    except UnsupportedError as error:
        if "thread level" not in str(error):
            raise
        options.thread_multiple = 0
        lib.dsc_comm_create(byref(options), byref(handle))
    return handle


def _torch_world() -> Any:
    """The process group of all ranks of torch.distributed; None where it is not initialised."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.group.WORLD


def _mpi_of_others() -> Any:
    """mpi4py's module MPI, if the program has initialised MPI through it."""
    module = sys.modules.get("mpi4py.MPI")
    return module if module is not None and module.Is_initialized() else None


def _create_default() -> Communicator:
    if _torch_world() is not None:
        from . import _torch_group

        return Communicator(_torch_group.from_group(), group=_torch_world())
    ours = _mpi_of_others() is None
    handle = _create()
    if lib.dsc_comm_name(handle) != b"mpi":
        return Communicator(handle)
    if ours:
        _abort_on_exceptions()
    return Communicator(handle, mpi_comm=0)


def _create_from(group: Any) -> Communicator:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(group, mpi.Comm):
        address = mpi._addressof(group)
        return Communicator(_create(address), mpi_comm=address)
    if _torch_world() is not None:
        from . import _torch_group

        if isinstance(group, _torch_group.dist.ProcessGroup):
            return Communicator(_torch_group.from_group(group), group=group)
    raise InvalidError(
        "comm: a descent.comm.Communicator, an mpi4py communicator or an initialised process group "
        f"of torch.distributed is expected, not {type(group).__module__}.{type(group).__name__}"
    )


def default(group: Any = None) -> Communicator:
    """The communicator of all ranks, or of the ranks of an mpi4py communicator or of a process
    group of torch.distributed. Made at the first call, and kept for the next ones. Collective.

    Without an argument these are, in this order: the ranks of torch.distributed where it is
    initialised; those of MPI under its launcher (mpirun, srun), or in a program that has
    initialised MPI; this process alone. It is an error when torchrun, or another launcher that is
    not MPI's, has started several processes and torch.distributed is not initialised.
    """
    global _default, _default_world
    if group is not None:
        for known, communicator in _of_groups:
            if known is group and communicator._handle:
                return communicator
        communicator = _create_from(group)
        _of_groups[:] = [(g, c) for g, c in _of_groups if c._handle] + [(group, communicator)]
        return communicator
    world = _torch_world()
    if _default is None or not _default._handle or _is_outdated(_default, world):
        _default = _create_default()
        _default_world = world
    return _default


def _is_outdated(communicator: Communicator, world: Any) -> bool:
    """Whether torch.distributed was initialised again since the default was made, or for the first
    time since a default of one rank was made."""
    if world is None or world is _default_world:
        return False
    return _default_world is not None or communicator.size == 1


def as_communicator(comm: Any = None) -> Communicator:
    """`comm` itself, or the communicator that `default` makes of it."""
    return comm if isinstance(comm, Communicator) else default(comm)


# ---- the end of the process ----

_users: List["weakref.ref[Any]"] = []
_process = os.getpid()
_failed = False


def close_at_exit(user: Any) -> None:
    """Registers an object that uses a communicator: its close() is called at the end of the process
    before the communicators are closed, the newest object first. After an uncaught exception its
    abandon(), if it has one, is called instead, which must not wait for other ranks."""
    _users[:] = [known for known in _users if known() is not None]
    _users.append(weakref.ref(user))


def _note_exceptions() -> None:
    """Notes uncaught exceptions: after one the other ranks are at another point of the program, so
    nothing that waits for them may be called at exit."""
    previous = sys.excepthook

    def hook(kind: Any, value: Any, traceback: Any) -> None:
        global _failed
        _failed = True
        previous(kind, value, traceback)

    sys.excepthook = hook


def _abort_on_exceptions() -> None:
    """Makes an uncaught exception on one rank end the whole job, because the others would wait for
    this rank for ever. Only if the library has initialised MPI; otherwise the program decides."""
    previous = sys.excepthook

    def hook(kind: Any, value: Any, traceback: Any) -> None:
        previous(kind, value, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() == _process:
            lib.dsc_comm_abort(None, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = hook


_note_exceptions()


@atexit.register
def _close_all() -> None:
    if os.getpid() != _process:
        return
    users = [user for user in (reference() for reference in reversed(_users)) if user is not None]
    try:
        if _failed:
            for user in users:
                getattr(user, "abandon", lambda: None)()
            return
        for user in users:
            user.close()
        for communicator in reversed(list(_open)):
            communicator.close()
    except Error as error:
        print(f"descent: at the end of the process: {error}", file=sys.stderr)
