"""Gossip training for PyTorch: wrappers of a module with the interface of the Stochastic Gradient
Push program, and averaging of tensors.

The algorithms are the C library's; docs/gossip.md describes them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from ctypes import byref, c_char_p, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from .. import comm as _comm
from .._library import AverageOptions, Tensor, initialised, lib
from ..errors import InvalidError, UnsupportedError
from ._consensus import Consensus, broadcast, is_dense, layout_of, mean_over_ranks
from ._device import device_of, single_device
from ._hooks import outside_graphs
from ._model import parameters_by_name, refuse_sharded
from .graphs import Topology, check_mixing, name_of

_log = logging.getLogger("descent")


class _Wrapper(nn.Module):
    """The base of both wrappers: a module, and the consensus over its parameters."""

    def __init__(self, module: nn.Module, device_ids: Optional[Sequence[Any]]) -> None:
        super().__init__()
        what = type(self).__name__
        if device_ids is not None and len(device_ids) > 1:
            raise UnsupportedError(
                f"{what}: device_ids={list(device_ids)}: a process drives one device; start one "
                "process for each GPU, and use nprocs_per_node to average gradients inside a node"
            )
        refuse_sharded(module, what)
        if device_ids:
            first = device_ids[0]
            module = module.to(torch.device("cuda", first) if isinstance(first, int) else first)
        self.module = module

    def _open(
        self, comm: Any, rank: Optional[int], world_size: Optional[int], **options: Any
    ) -> None:
        what = type(self).__name__
        comm = _comm.as_communicator(comm)
        numbers = (("rank", rank, comm.rank), ("world_size", world_size, comm.size))
        for name, given, found in numbers:
            if given is not None and given != found:
                raise InvalidError(
                    f"{what}: {name}={given}, but the communicator has {name} {found}; leave it "
                    "out, or pass the communicator that it belongs to as comm"
                )
        self._consensus = Consensus(what, parameters_by_name(self.module), comm=comm, **options)
        broadcast(comm, list(self.module.buffers()))
        _comm.close_at_exit(self)
        _watch_optimizers(self._consensus)

    def close(self) -> None:
        """Completes all messages and frees the library's memory; the module keeps the values of
        this rank. Collective. If it is not called, the memory is freed by garbage collection."""
        self._consensus.close()

    @property
    def consensus(self) -> Consensus:
        return self._consensus

    # ---- evaluation ----

    @contextlib.contextmanager
    def averaged(self, buffers: bool = True) -> Iterator[nn.Module]:
        """A context in which the parameters, and floating-point buffers such as the statistics of
        batch norm, hold the mean of all ranks, for evaluation or saving; afterwards they hold this
        rank's own values again. Collective.

            with model.averaged():
                validate(model)
        """
        kept = None
        with self._consensus.mean():
            if buffers:
                found = [b for b in self.module.buffers() if b.is_floating_point()]
                kept = [(b, b.detach().clone()) for b in found]
                mean_over_ranks(self._consensus.comm, found)
            try:
                yield self.module
            finally:
                with torch.no_grad():
                    for buffer, value in kept or []:
                        buffer.copy_(value)

    def distance(self) -> Dict[str, float]:
        """Returns `distance`, sqrt(mean over ranks |z - mean|^2), and `norm`, the norm of the mean.
        Collective."""
        return self._consensus.distance()

    def block(self) -> None:
        """Waits for all ranks. Collective."""
        lib.dsc_comm_barrier(self._consensus.comm.handle)

    def sync_comms(self) -> None:
        """Completes all messages. Collective."""
        self._consensus.settle()

    # ---- states ----

    @property
    def ps_weight(self) -> torch.Tensor:
        """The push-sum weight w of this rank: its values are numerators / w."""
        return torch.tensor([self._consensus.weight])

    def state_dict(self, finish_gossip: bool = True) -> Dict[str, Any]:  # type: ignore[override]
        """{"state_dict": the module's, with the values of this rank, "ps_weight": w,
        "is_ps_numerator": False, and the position in the graph}.

        finish_gossip: completes all messages first, so that nothing is lost; collective. Otherwise
        the state is one that starts from this rank's own values; no other rank takes part.
        """
        c = self._consensus
        if finish_gossip:
            c.settle()
        return {
            "state_dict": self.module.state_dict(),
            "ps_weight": torch.tensor([c.weight if finish_gossip else 1.0], dtype=torch.float64),
            "is_ps_numerator": False,
            "rounds": c.rounds,
            "steps": c.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:  # type: ignore
        """Loads what state_dict has returned, or a state dict of the module. Collective."""
        c = self._consensus
        if c.began:
            c.settle()
        if "state_dict" not in state or "ps_weight" not in state:
            result = self.module.load_state_dict(state, strict)
            c.restore(1.0, c.rounds, c.steps, numerators=True)
            return result
        result = self.module.load_state_dict(state["state_dict"], strict)
        weight = float(torch.as_tensor(state["ps_weight"]).reshape(-1)[0])
        rounds = int(state.get("rounds", c.rounds))
        steps = int(state.get("steps", c.steps))
        c.restore(weight, rounds, steps, bool(state["is_ps_numerator"]))
        return result


class GossipDataParallel(_Wrapper):
    """Trains a module by gossip: every rank has its own parameters and exchanges them with a few.

        model = GossipDataParallel(module, graph="exponential")
        for x, y in batches:                 # of this rank
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The forward pass in training mode sends the last update, adds messages that have arrived and
    puts this rank's values z into the parameters, where the optimiser, any of torch's, changes
    them. Call transfer_params() after the optimiser to send at once, and always with an optimiser
    that changes parameters through `.data`, because such changes are not noticed.

    device_ids: None, or the one GPU that the module is moved to.
    rank, world_size: checked against the communicator.
    graph, mixing: an object, class or name of descent.torch.graphs; shares are uniform.
    push_sum: False: D-PSGD, ranks exchange in pairs. overlap: OSGP; synch_freq: steps that
        messages may be late.
    nprocs_per_node: number of neighbouring ranks that average their gradients, at the end of each
        backward pass, and gossip as one; `no_sync` skips the averaging. 0: the ranks of a node.
    peer_timeout: seconds to wait for a peer; 0: for ever.
    comm_device, use_streams, local_node_group: accepted, without effect.
    comm: a descent.comm.Communicator, an mpi4py communicator or a torch.distributed process group;
        None: the ranks of whatever started the program.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Optional[Sequence[Any]] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        graph: Any = None,
        mixing: Any = None,
        comm_device: Any = None,
        push_sum: bool = True,
        overlap: bool = False,
        synch_freq: int = 0,
        verbose: bool = False,
        use_streams: bool = True,
        nprocs_per_node: int = 1,
        local_node_group: Any = None,
        *,
        comm: Any = None,
        peer_timeout: float = 0.0,
    ) -> None:
        super().__init__(module, device_ids)
        what = type(self).__name__
        if overlap and not push_sum:
            raise UnsupportedError(
                f"{what}: overlap=True needs push_sum=True: while half of the mass is on its way, "
                "only the push-sum weight knows it"
            )
        if synch_freq and not overlap:
            raise InvalidError(f"{what}: synch_freq={synch_freq} needs overlap=True")
        check_mixing(mixing, what)
        name, peers = name_of(graph, what)
        self._peers = peers or 1
        self._sync = True
        self._queued = False
        self._open(
            comm, rank, world_size,
            algorithm="osgp" if overlap else "sgp" if push_sum else "dpsgd",
            graph=name, peers=self._peers, synch_freq=synch_freq, group=nprocs_per_node,
            peer_timeout=peer_timeout,
        )  # fmt: skip
        if self._consensus.averages_gradients:
            this = weakref.ref(self)
            for p in self.module.parameters():
                if p.requires_grad:
                    p.register_hook(_make_gradient_hook(this))
        _log.log(
            logging.INFO if verbose else logging.DEBUG, "%s: %s on graph %s, rank %d of %d", what,
            self._consensus.algorithm, name or "(default)", self._consensus.comm.rank,
            self._consensus.comm.size,
        )  # fmt: skip

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        self._prepare()
        return self.module(*inputs, **arguments)

    @outside_graphs
    def _prepare(self) -> None:
        if self.training and torch.is_grad_enabled():
            self._consensus.begin()
        else:
            self._consensus.show()

    def transfer_params(self) -> None:
        """After optimizer.step(): sends the update now, not at the next forward pass. Until that
        pass the parameters hold numerators."""
        if self._consensus._shown:
            self._consensus.commit()

    def ps_numerator(self) -> None:
        """Puts the numerators x into the parameters, until unbias() or the next forward pass."""
        self._consensus.numerators()

    def unbias(self) -> None:
        """Puts the values z = x / w into the parameters."""
        self._consensus.begin()

    def update_gossiper(self, attr: str, value: Any) -> None:
        """Changes peers_per_itr, the number of peers that a rank sends to in a step. Collective."""
        if attr != "peers_per_itr":
            raise InvalidError(f"update_gossiper: '{attr}': only peers_per_itr can be changed")
        if int(value) != self._peers:
            self._consensus.set_peers(int(value))
            self._peers = int(value)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward passes do not average gradients over the node; for all but
        the last pass of a step that accumulates gradients."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def _end_of_backward(self) -> None:
        self._queued = False
        self._consensus.average_gradients()


def _make_gradient_hook(this: "weakref.ref[GossipDataParallel]") -> Callable[[torch.Tensor], None]:
    """A hook for every gradient: the first one of a backward pass queues a call at its end."""

    def hook(gradient: torch.Tensor) -> None:
        wrapper = this()
        if wrapper is None or wrapper._queued or not wrapper._sync or not wrapper.training:
            return
        if not wrapper._consensus.is_open:
            return
        wrapper._queued = True
        torch.autograd.Variable._execution_engine.queue_callback(wrapper._end_of_backward)

    return hook


class BilatGossipDataParallel(_Wrapper):
    """AD-PSGD: a thread averages the parameters with one peer at a time, at any moment, while this
    rank trains and waits for no other rank.

        model = BilatGossipDataParallel(module, lr=0.1)
        for x, y in batches:
            model.update_lr(lr)
            criterion(model(x), y).backward()

    The optimiser, SGD with lr, momentum, weight_decay and nesterov, is part of it, as in the
    original program: the end of the backward pass applies the gradient to the newest parameters and
    sets it to zero. For another optimiser use GossipOptimizer(..., algorithm="adpsgd").

    graph_class: a bipartite graph of descent.torch.graphs or its name; the number of ranks is even.
    master_addr, master_port, backend, network_interface_type, tcp_interface_name, comm_device:
        accepted, without effect; the ranks are those of `comm`.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Optional[Sequence[Any]] = None,
        master_addr: Optional[str] = None,
        master_port: Optional[str] = None,
        backend: Optional[str] = None,
        world_size: Optional[int] = None,
        rank: Optional[int] = None,
        graph_class: Any = None,
        mixing_class: Any = None,
        num_peers: int = 1,
        comm_device: Any = None,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        nesterov: bool = True,
        verbose: bool = True,
        network_interface_type: Optional[str] = None,
        tcp_interface_name: Optional[str] = None,
        *,
        comm: Any = None,
        peer_timeout: float = 0.0,
    ) -> None:
        super().__init__(module, device_ids)
        check_mixing(mixing_class, type(self).__name__)
        name, _ = name_of(graph_class, type(self).__name__)
        self._open(
            comm, rank, world_size,
            algorithm="adpsgd", graph=name, peers=num_peers, peer_timeout=peer_timeout,
        )  # fmt: skip
        trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            trained, lr=lr, momentum=momentum, weight_decay=weight_decay,
            nesterov=nesterov and momentum > 0,
        )  # fmt: skip
        self._gossips = True
        self._queued = False
        this = weakref.ref(self)
        for p in trained:
            p.register_hook(_make_update_hook(this))

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        self._prepare()
        return self.module(*inputs, **arguments)

    @outside_graphs
    def _prepare(self) -> None:
        if not self._gossips:
            return
        if self.training and torch.is_grad_enabled():
            self._consensus.begin()
        else:
            self._consensus.show()

    def update_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def disable_gossip(self) -> None:
        """Stops averaging; training goes on alone. Collective."""
        if self._gossips:
            self._consensus.settle()
        self._gossips = False

    def enable_gossip(self) -> None:
        """Resumes averaging at the next forward pass."""
        self._gossips = True

    def _end_of_backward(self) -> None:
        self._queued = False
        c = self._consensus
        if not self._gossips:
            self.optimizer.step()
        elif c._shown:
            c.update(self.optimizer.step)
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.detach_()
                    p.grad.zero_()


def _make_update_hook(
    this: "weakref.ref[BilatGossipDataParallel]",
) -> Callable[[torch.Tensor], None]:
    def hook(gradient: torch.Tensor) -> None:
        wrapper = this()
        if wrapper is None or wrapper._queued or not wrapper.training:
            return
        if not wrapper._consensus.is_open:
            return
        wrapper._queued = True
        torch.autograd.Variable._execution_engine.queue_callback(wrapper._end_of_backward)

    return hook


# ---- noticing the steps of optimisers ----

_watched: "weakref.WeakSet[Consensus]" = weakref.WeakSet()
_watching = False


def _watch_optimizers(consensus: Consensus) -> None:
    """Registers a hook for the steps of all optimisers (torch 2.0 and later), which also reports
    changes of parameters that version counters do not show."""
    global _watching
    _watched.add(consensus)
    module = sys.modules.get("torch.optim.optimizer")  # torch.optim has no such name in torch 1
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None and not _watching:
        register(_optimizer_stepped)
        _watching = True


def _optimizer_stepped(optimizer: Any, *_: Any) -> None:
    changed = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for consensus in list(_watched):
        if any(id(p) in changed for p in consensus._params):
            consensus.mark_updated()


# ---- averaging of tensors ----


@torch.no_grad()
def average(
    tensors: Union[torch.Tensor, Sequence[torch.Tensor], Mapping[str, torch.Tensor]],
    graph: Any = None,
    steps: Optional[int] = None,
    *,
    peers: Optional[int] = None,
    pairwise: bool = False,
    comm: Any = None,
) -> Any:
    """Averages tensors over the ranks by rounds of gossip; returns new ones, in the same structure.

    steps: rounds. None: as many as the graph needs for the exact average, or one period if it is
        never exact. peers: peers per round. pairwise: ranks exchange in pairs (the graph must be a
        matching) and no push-sum weight is needed.
    Collective; shapes and memory formats must be the same on all ranks. bfloat16 and float16 are
    averaged in float32.
    """
    if isinstance(tensors, torch.Tensor):
        given = [tensors]
    elif isinstance(tensors, Mapping):
        given = list(tensors.values())
    else:
        given = list(tensors)
    comm = _comm.as_communicator(comm)
    work = [_copy_of(t) for t in given]
    name, made_for = name_of(graph, "average")
    peers = peers or made_for or 1
    if steps is not None and steps < 0:
        raise InvalidError(f"average: steps={steps}: must be 0 or more")
    if work:
        _run_rounds(comm, work, name, steps, peers, pairwise)
    result = [w.to(t.dtype) for w, t in zip(work, given)]
    if isinstance(tensors, torch.Tensor):
        return result[0]
    return dict(zip(tensors, result)) if isinstance(tensors, Mapping) else result


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        raise UnsupportedError(f"average: a tensor of {tensor.dtype} has no average")
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    copy = tensor.detach().to(torch.float32) if half else tensor.detach().clone()
    return copy if is_dense(copy) else copy.contiguous()


def _run_rounds(
    comm: _comm.Communicator,
    work: List[torch.Tensor],
    name: Optional[str],
    steps: Optional[int],
    peers: int,
    pairwise: bool,
) -> None:
    device = device_of(single_device({str(i): t for i, t in enumerate(work)}, "average"))
    options = initialised(AverageOptions, "average_options")
    options.graph = name.encode() if name else None
    options.peers, options.pairwise = peers, int(pairwise)
    structs = (Tensor * len(work))()
    layouts = (c_char_p * len(work))()
    for i, t in enumerate(work):
        device.fill(structs[i], t, (t.numel(),))
        layouts[i] = layout_of(t)
    options.layouts = layouts
    queue = device.follow()
    if device.torch_device.type == "cuda":
        comm.use(device)
    handle = c_void_p()
    lib.dsc_average_create(comm.handle, queue, structs, len(work), byref(options), byref(handle))
    try:
        if steps is None:
            default = ("base-2" if comm.size % 2 else "bipartite-exponential") if pairwise else ""
            topology = Topology(name or default or "exponential", comm.size, peers)
            steps = topology.exact() or topology.period
        for _ in range(steps if comm.size > 1 else 0):
            lib.dsc_average_begin(handle, queue)
            lib.dsc_average_end(handle, queue)
        lib.dsc_average_settle(handle, queue)
        weight = lib.dsc_average_weight(handle)
        if weight != 1:
            torch._foreach_div_(work, weight)
    except BaseException:
        lib.dsc_average_abandon(byref(handle))
        raise
    lib.dsc_average_destroy(byref(handle))
