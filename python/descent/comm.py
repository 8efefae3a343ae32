"""Communicators: the ranks that K-FAC and gossip work with."""

from __future__ import annotations

import atexit
import weakref
from ctypes import byref, c_void_p
from typing import Any, List, Optional

from ._library import CommOptions, initialised, lib
from .errors import CommError


class Communicator:
    """A communicator of the library. Made by `default`."""

    def __init__(self, handle: c_void_p) -> None:
        self._handle = handle
        self._device: Any = None
        _open.add(self)

    @property
    def handle(self) -> c_void_p:
        """The library's object; an error when the communicator is closed."""
        if not self._handle:
            raise CommError("the communicator is closed")
        return self._handle

    @property
    def rank(self) -> int:
        return int(lib.dsc_comm_rank(self.handle))

    @property
    def size(self) -> int:
        return int(lib.dsc_comm_size(self.handle))

    def use(self, device: Any) -> None:
        """Makes operations on GPU tensors follow this device's queue (descent.torch)."""
        if self._device is not device:
            lib.dsc_comm_use_queue(self.handle, device.queue)
            self._device = device

    def close(self) -> None:
        """Frees it. Collective."""
        lib.dsc_comm_destroy(byref(self._handle))


_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()
_default: Optional[Communicator] = None


def default(group: Any = None) -> Communicator:
    """The communicator of all ranks."""
    global _default
    if _default is None or not _default._handle:
        options = initialised(CommOptions, "comm_options")
        handle = c_void_p()
        lib.dsc_comm_create(byref(options), byref(handle))
        _default = Communicator(handle)
    return _default


def as_communicator(comm: Any = None) -> Communicator:
    """`comm` itself, or the default."""
    return comm if isinstance(comm, Communicator) else default(comm)


_users: List["weakref.ref[Any]"] = []


def close_at_exit(user: Any) -> None:
    """Notes an object that uses a communicator: its close() is called before communicators are
    closed at the end of the process, the newest first."""
    _users.append(weakref.ref(user))


@atexit.register
def _close_all() -> None:
    for reference in reversed(_users):
        user = reference()
        if user is not None:
            user.close()
    for communicator in list(_open):
        communicator.close()
