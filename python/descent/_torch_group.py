"""Communicators on the ranks of a process group of torch.distributed.

With a group for CPU tensors (gloo) the library's operations are functions in this file. They do not
run on the caller's group: a separate gloo group is made of the same ranks and the same store, so
that the library's messages cannot be confused with the caller's, and subgroups can be made without
the other ranks. A group for CUDA tensors only (NCCL) is just used to connect the ranks, and the
library makes its own NCCL communicators.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import socket
import threading
from ctypes import byref, c_void_p
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from . import _library
from ._library import CommContact, CommFunctions, CommOptions, initialised, lib
from .errors import InvalidError, UnsupportedError

c10d = dist.distributed_c10d

# dsc_comm_op
ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, SEND, RECV, BARRIER = range(8)

_DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64,
    torch.uint8,
]  # fmt: skip
_ITEM = [4, 8, 2, 2, 4, 8, 1]
_HALVES = (torch.bfloat16, torch.float16)
_REDUCTIONS = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN]
_TIMEOUT = timedelta(minutes=30)  # of collective operations; the default of torch.distributed
_FOREVER = timedelta(days=3650)  # a message may be awaited for as long as the program runs


def _memory(address: int, dtype: torch.dtype, count: int, item: int) -> torch.Tensor:
    """The memory at an address as a tensor, without a copy."""
    return torch.frombuffer((ctypes.c_char * (count * item)).from_address(address), dtype=dtype)


# ---- operations under way ----


class _Waiters:
    """Threads that wait for messages. A message of gloo cannot be tested for completion, only
    waited for; so the first test of a message starts, or wakes, a thread that waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._queue: "SimpleQueue[_Message]" = SimpleQueue()

    def add(self, message: "_Message") -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._queue.put(message)
                return
        threading.Thread(target=self._run, args=(message,), daemon=True).start()

    def _run(self, message: "_Message") -> None:
        while True:
            message.run()
            del message  # this thread must not keep its memory alive
            with self._lock:
                self._idle += 1
            message = self._queue.get()


_waiters = _Waiters()


class _Collective:
    """A collective operation; `finish` copies the result to its destination."""

    def __init__(self, work: Any, finish: Optional[Callable[[], None]] = None) -> None:
        self._work = work
        self._finish = finish

    def is_done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> None:
        self._work.wait()
        if self._finish:
            self._finish()


class _Message:
    """A message to or from another rank. wait() is called after is_done() has returned true, or
    instead of it."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor  # must live as long as the work
        self._ended: Optional[threading.Event] = None
        self._error: Optional[BaseException] = None

    def run(self) -> None:
        assert self._ended is not None
        try:
            self._work.wait(_FOREVER)
        except BaseException as error:  # wait() reports it
            self._error = error
        self._ended.set()

    def is_done(self) -> bool:
        if self._ended is None:
            self._ended = threading.Event()
            _waiters.add(self)
            return False
        return self._ended.is_set()

    def wait(self) -> None:
        if self._ended is None:
            self._work.wait(_FOREVER)
            return
        self._ended.wait()
        if self._error is not None:
            raise self._error


class _OwnMessages:
    """Messages of a rank to itself, which gloo does not have: matched by tag, in order."""

    def __init__(self) -> None:
        self._sent: Dict[int, List[torch.Tensor]] = {}
        self._awaited: Dict[int, List["_OwnMessage"]] = {}

    def send(self, tag: int, tensor: torch.Tensor) -> "_OwnMessage":
        awaited = self._awaited.get(tag)
        if awaited:
            awaited.pop(0).deliver(tensor)
        else:
            self._sent.setdefault(tag, []).append(tensor.clone())
        return _OwnMessage(None)

    def receive(self, tag: int, tensor: torch.Tensor) -> "_OwnMessage":
        message = _OwnMessage(tensor)
        sent = self._sent.get(tag)
        if sent:
            message.deliver(sent.pop(0))
        else:
            self._awaited.setdefault(tag, []).append(message)
        return message


class _OwnMessage:
    def __init__(self, awaited: Optional[torch.Tensor]) -> None:
        self._awaited = awaited

    def deliver(self, tensor: torch.Tensor) -> None:
        assert self._awaited is not None
        if len(tensor) != len(self._awaited):
            raise InvalidError(
                f"a message of {len(tensor)} bytes for a receive of {len(self._awaited)} bytes"
            )
        self._awaited.copy_(tensor)
        self._awaited = None

    def is_done(self) -> bool:
        return self._awaited is None

    def wait(self) -> None:
        if self._awaited is not None:
            raise InvalidError("a message from the only rank was awaited before it was sent")


# ---- a group of gloo ----


class _Place(NamedTuple):
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int


class _Gloo:
    """A separate gloo group. `name` is the same on its ranks and differs from all other groups'."""

    def __init__(self, store: Any, name: str, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._name = store, name
        self._splits = 0
        prefixed = dist.PrefixStore(f"descent/{name}", store)
        self._group = c10d.ProcessGroupGloo(prefixed, rank, ranks, timeout=_TIMEOUT)
        self._own = _OwnMessages()
        self._operations: Dict[int, Any] = {}
        self._numbers = itertools.count(1)

    # The functions that the library calls; see dsc_comm_functions.

    def start(self, m: Any) -> int:
        number = next(self._numbers)
        self._operations[number] = self._begin(m)
        return number

    def test(self, number: int) -> bool:
        if not self._operations[number].is_done():
            return False
        self.wait(number)
        return True

    def wait(self, number: int) -> None:
        self._operations.pop(number).wait()

    def split(self, colour: int, key: int) -> Optional["_Gloo"]:
        self._splits += 1
        cards = self.gather([colour, key])
        if colour < 0:
            return None
        members = sorted((k, r) for r, (c, k) in enumerate(cards) if c == colour)
        ranks = [r for _, r in members]
        name = f"{self._name}.{self._splits}-{colour}"
        return _Gloo(self._store, name, ranks.index(self.rank), len(ranks))

    # Their implementation.

    def _begin(self, m: Any) -> Any:
        if m.op in (SEND, RECV):
            return self._begin_message(m)
        if m.op in (ALLREDUCE, REDUCE, REDUCE_SCATTER):
            return self._begin_reduction(m)
        if m.op == BARRIER:
            return _Collective(self._group.allreduce([torch.zeros(1)], c10d.AllreduceOptions()))
        bytes_ = m.count * _ITEM[m.dtype]
        if m.op == BROADCAST:
            options = c10d.BroadcastOptions()
            options.rootRank = m.peer
            return _Collective(
                self._group.broadcast([_memory(m.recv, torch.uint8, bytes_, 1)], options)
            )
        everything = _memory(m.recv, torch.uint8, bytes_ * self.ranks, 1)
        own = _memory(m.send, torch.uint8, bytes_, 1).clone()  # may be a part of `everything`
        return _Collective(self._group.allgather([list(everything.split(bytes_))], [own]))

    def _begin_message(self, m: Any) -> Any:
        sends = m.op == SEND
        bytes_ = m.count * _ITEM[m.dtype]
        tensor = _memory(m.send if sends else m.recv, torch.uint8, bytes_, 1)
        if m.peer == self.rank:
            return self._own.send(m.tag, tensor) if sends else self._own.receive(m.tag, tensor)
        begin = self._group.send if sends else self._group.recv
        return _Message(begin([tensor], m.peer, m.tag), tensor)

    def _begin_reduction(self, m: Any) -> _Collective:
        dtype, item = _DTYPES[m.dtype], _ITEM[m.dtype]
        parts = self.ranks if m.op == REDUCE_SCATTER else 1
        given = _memory(m.send, dtype, m.count * parts, item)
        in_place = m.op == ALLREDUCE and dtype not in _HALVES
        # Sums of 16-bit values are computed in float32. gloo has no reduce-scatter, and its reduce
        # overwrites the memory of all ranks.
        sum_type = torch.float32 if dtype in _HALVES else dtype
        work_on = given if in_place else given.to(sum_type, copy=True)
        options: Any
        if m.op == REDUCE:
            options = c10d.ReduceOptions()
            options.rootRank = m.peer
            options.reduceOp = _REDUCTIONS[m.reduction]
            work = self._group.reduce([work_on], options)
        else:
            options = c10d.AllreduceOptions()
            options.reduceOp = _REDUCTIONS[m.reduction]
            work = self._group.allreduce([work_on], options)
        if in_place or (m.op == REDUCE and m.peer != self.rank):
            return _Collective(work)
        result = _memory(m.recv, dtype, m.count, item)
        first = self.rank * m.count if m.op == REDUCE_SCATTER else 0

        count = m.count  # the message struct is gone when the operation ends

        def finish() -> None:
            result.copy_(work_on[first : first + count])

        return _Collective(work, finish)

    def gather(self, numbers: List[int]) -> List[Tuple[int, ...]]:
        """The numbers of all ranks. Collective."""
        own = torch.tensor(numbers, dtype=torch.int64)
        outputs = [torch.empty_like(own) for _ in range(self.ranks)]
        self._group.allgather([outputs], [own]).wait()
        return [tuple(int(x) for x in output) for output in outputs]

    def place(self) -> _Place:
        """Where this rank is. Collective."""
        return _place(self.rank, [node for node, in self.gather([_node()])])


def _node() -> int:
    """A number that is equal on all ranks of a node."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            name += file.read()
    except OSError:
        pass
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _place(rank: int, nodes: List[int]) -> _Place:
    near = [r for r, node in enumerate(nodes) if node == nodes[rank]]
    return _Place(rank, len(nodes), near.index(rank), len(near))


# ---- functions for the library ----

# Objects by number; the library passes the number as the context of every call.
_contexts: Dict[int, Any] = {}
_numbers = itertools.count(1)


def _register(thing: Any) -> int:
    number = next(_numbers)
    _contexts[number] = thing
    return number


def _start(context: int, message: Any, handle: Any) -> None:
    handle[0] = _contexts[context].start(message.contents)


def _test(context: int, handle: int, done: Any) -> None:
    done[0] = int(_contexts[context].test(handle))


def _wait(context: int, handle: int) -> None:
    _contexts[context].wait(handle)


def _split(context: int, colour: int, key: int, child: Any) -> None:
    made = _contexts[context].split(colour, key)
    if made is not None:
        _fill(child.contents, made)


def _close(context: int) -> None:
    _contexts.pop(context, None)


def _exchange(context: int, own: int, count: int, everything: int) -> None:
    _contexts[context].exchange(own, count, everything)


# Made once and never freed: the library may be inside one of them when a communicator is closed.
_START = _library.CommStart(_library.callback(_start))
_TEST = _library.CommTest(_library.callback(_test))
_WAIT = _library.CommWait(_library.callback(_wait))
_SPLIT = _library.CommSplit(_library.callback(_split))
_CLOSE = _library.CommClose(_close)
_EXCHANGE = _library.CommExchange(_library.callback(_exchange))


def _fill(functions: CommFunctions, gloo: _Gloo) -> None:
    place = gloo.place()
    functions.context = _register(gloo)
    functions.rank, functions.ranks = place.rank, place.ranks
    functions.local_rank, functions.local_ranks = place.local_rank, place.local_ranks


# ---- making communicators ----


def _devices_of(group: Any) -> Tuple[bool, bool]:
    """Whether a group moves CPU tensors, and whether it moves CUDA tensors by NCCL."""
    config = getattr(c10d, "get_backend_config", None)  # since torch 2.0
    if config is None:
        by_nccl = str(dist.get_backend(group)).lower() == "nccl"
        return not by_nccl, by_nccl
    backends = dict(pair.split(":", 1) for pair in str(config(group)).lower().split(","))
    return "cpu" in backends, backends.get("cuda") == "nccl"


# The number of communicators made of the same ranks, for names that differ from each other but are
# equal on all ranks.
_made: Dict[Tuple[int, ...], int] = {}


def _members(group: Any) -> Tuple[int, ...]:
    if group is dist.group.WORLD:
        return tuple(range(dist.get_world_size()))
    ranks = getattr(dist, "get_process_group_ranks", None)
    if ranks is not None:
        return tuple(ranks(group))
    return tuple(c10d._pg_group_ranks[group])  # before torch 2.0


def _options(kind: bytes) -> CommOptions:
    options = initialised(CommOptions, "comm_options")
    options.kind = kind
    options.thread_multiple = int(kind == b"auto")  # with NCCL one thread, and one order of all
    return options


def _has_nccl() -> bool:
    try:
        lib.dsc_comm_check_kind(b"nccl")
    except UnsupportedError:
        return False
    return True


def from_group(group: Any = None, over_host: bool = False) -> c_void_p:
    """A communicator of the library on the ranks of a process group; None: all. `over_host`: it
    uses gloo even if the group is for CUDA tensors. Collective."""
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) < 0:
        raise InvalidError("this process is not a member of the process group")
    on_cpu, on_cuda = _devices_of(group)
    on_cuda = on_cuda and torch.cuda.is_available()
    if over_host:
        return _from_gloo(group, b"auto")
    if on_cpu:
        return _from_gloo(group, b"nccl" if on_cuda and _has_nccl() else b"auto")
    if not on_cuda:
        raise UnsupportedError(
            "the process group moves CUDA tensors only, and there is no GPU: initialise it with "
            "the backend gloo"
        )
    return _from_contact(group)


def _from_gloo(group: Any, kind: bytes) -> c_void_p:
    if not hasattr(c10d, "ProcessGroupGloo"):
        raise UnsupportedError("this build of torch has no gloo, which moves CPU tensors")
    store = c10d._get_default_store()
    if store is None:
        raise UnsupportedError(
            "the process group has no store; under MPI, pass an mpi4py communicator instead, or "
            "initialise torch.distributed with the backend gloo"
        )
    members = _members(group)
    _made[members] = _made.get(members, 0) + 1
    name = hashlib.sha256(repr((members, _made[members])).encode()).hexdigest()[:16]
    gloo = _Gloo(store, name, dist.get_rank(group), len(members))
    functions = initialised(CommFunctions, "comm_functions")
    functions.name = b"gloo of torch.distributed"
    functions.start, functions.test, functions.wait = _START, _TEST, _WAIT
    functions.split, functions.close = _SPLIT, _CLOSE
    _fill(functions, gloo)
    handle = c_void_p()
    try:
        lib.dsc_comm_create_from_functions(byref(functions), byref(_options(kind)), byref(handle))
    except BaseException:
        _close(functions.context)
        raise
    return handle


class _Contact:
    """The functions by which the library connects the ranks of a process group of CUDA tensors."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._ranks = dist.get_world_size(group)

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, one after the other. Collective."""
        mine = own.to(self._device)
        outputs = [torch.empty_like(mine) for _ in range(self._ranks)]
        dist.all_gather(outputs, mine, group=self._group)
        return torch.cat(outputs).cpu()

    def exchange(self, own: int, count: int, everything: int) -> None:
        """See dsc_comm_contact."""
        gathered = self.gather(_memory(own, torch.uint8, count, 1))
        _memory(everything, torch.uint8, count * self._ranks, 1).copy_(gathered)

    def place(self) -> _Place:
        """Where this rank is. Collective."""
        nodes = self.gather(torch.tensor([_node()], dtype=torch.int64))
        return _place(dist.get_rank(self._group), [int(n) for n in nodes])


def _from_contact(group: Any) -> c_void_p:
    ours = _Contact(group, torch.device("cuda", torch.cuda.current_device()))
    place = ours.place()
    contact = initialised(CommContact, "comm_contact")
    contact.context = _register(ours)
    contact.rank, contact.ranks = place.rank, place.ranks
    contact.local_rank, contact.local_ranks = place.local_rank, place.local_ranks
    contact.exchange, contact.close = _EXCHANGE, _CLOSE
    handle = c_void_p()
    try:
        lib.dsc_comm_create_from_contact(byref(contact), byref(_options(b"nccl")), byref(handle))
    except BaseException:
        _close(contact.context)
        raise
    return handle
