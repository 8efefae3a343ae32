"""Gossip as a wrapper of an optimiser: update, then mix."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

import torch
from torch import nn

from .. import comm as _comm
from ..errors import InvalidError
from ._consensus import Consensus, broadcast, mean_over_ranks
from ._hooks import outside_graphs
from ._model import parameters_by_name, refuse_sharded, unwrap
from .graphs import check_mixing, name_of


class GossipOptimizer(torch.optim.Optimizer):
    """Any optimiser of torch, on ranks that gossip.

        optimizer = GossipOptimizer(torch.optim.AdamW(model.parameters()), model, graph="ring")
        ...
        loss.backward()
        optimizer.step()

    The optimiser runs on this rank's values z, which weight decay and norms read as well; its
    change is added to the numerators, which are mixed with the peers' when the model's next forward
    pass in training mode begins. Outside of that the parameters hold z. Learning rate schedulers
    and GradScaler accept the object like the optimiser itself.

    model: the model whose parameters are averaged; all of them, whatever the optimiser has.
    algorithm: "sgp", "osgp", "dpsgd", "adpsgd" or "allreduce" (of the gradients, in step()).
    graph: a name, an object or a class of descent.torch.graphs, or a graph file.
    peers_per_itr: peers per step. synch_freq: osgp: steps that messages may be late.
    nprocs_per_node: number of neighbouring ranks that average their gradients in step() and gossip
        as one.
    average_every: number of steps between exact averages; slow_momentum, slow_rate: SlowMo.
    dtype: torch.bfloat16 or torch.float16 to send in 16 bits. peer_timeout: seconds; 0: for ever.
    comm: a descent.comm.Communicator, an mpi4py communicator or a torch.distributed process group.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        algorithm: str = "sgp",
        graph: Any = None,
        *,
        mixing: Any = None,
        peers_per_itr: int = 0,
        synch_freq: int = 0,
        nprocs_per_node: int = 1,
        average_every: int = 0,
        slow_momentum: float = 0.0,
        slow_rate: float = 1.0,
        dtype: Optional[torch.dtype] = None,
        bucket_cap_mb: float = 4.0,
        peer_timeout: float = 0.0,
        comm: Any = None,
    ) -> None:
        what = "GossipOptimizer"
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidError(
                f"{what}: an optimiser of torch.optim is expected, not {type(optimizer).__name__}"
            )
        if not isinstance(model, nn.Module):
            raise InvalidError(f"{what}: a module is expected, not {type(model).__name__}")
        # Instead of Optimizer.__init__: groups and state are the wrapped optimiser's.
        self.__dict__["optimizer"] = optimizer
        refuse_sharded(model, what)
        check_mixing(mixing, what)
        name, peers = name_of(graph, what)
        inner = unwrap(model)
        parameters = parameters_by_name(inner)
        known = {id(p) for p in parameters.values()}
        for group in optimizer.param_groups:
            if any(id(p) not in known for p in group["params"]):
                raise InvalidError(f"{what}: the optimiser has a parameter that is not the model's")
        self.__dict__["module"] = inner
        self.__dict__["_averaged"] = False
        self.__dict__["_consensus"] = Consensus(
            what, parameters, algorithm=algorithm, graph=name, peers=peers_per_itr or peers or 1,
            synch_freq=synch_freq, group=nprocs_per_node, average_every=average_every,
            slow_momentum=slow_momentum, slow_rate=slow_rate, dtype=dtype,
            bucket_cap_mb=bucket_cap_mb, peer_timeout=peer_timeout, comm=comm,
        )  # fmt: skip
        broadcast(self._consensus.comm, list(inner.buffers()))
        self.__dict__["_hook"] = inner.register_forward_pre_hook(_make_hook(self._consensus))
        weakref.finalize(self, self._hook.remove)
        _comm.close_at_exit(self)

    # ---- the wrapped optimiser ----

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.optimizer.defaults

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        self.optimizer.zero_grad(*arguments, **named)

    def __repr__(self) -> str:
        c = self._consensus
        ranks = f"rank {c.comm.rank} of {c.comm.size}" if c.is_open else "closed"
        return f"GossipOptimizer({c.algorithm}, {ranks})\n{self.optimizer!r}"

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("GossipOptimizer cannot be pickled; save its state_dict()")

    # ---- a step ----

    def synchronize(self) -> None:
        """Averages the gradients now instead of in step(), with allreduce and inside groups. Needed
        before a function that reads the averaged gradients, such as KFAC.step(). Collective."""
        if self._consensus.averages_gradients and not self._averaged:
            self._consensus.average_gradients()
            self.__dict__["_averaged"] = True

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Runs the optimiser on this rank's values, like the wrapped optimiser's step. Not
        collective with gossip."""
        c = self._consensus
        c.begin()  # for a program whose first pass did not go through the model
        result: Any = None

        def run() -> None:
            nonlocal result
            if closure is None:
                self.synchronize()
                result = self.optimizer.step()
            else:
                result = self.optimizer.step(evaluate)

        def evaluate() -> Any:
            with torch.enable_grad():
                loss = closure()  # type: ignore[misc]
            self.synchronize()
            self.__dict__["_averaged"] = False
            return loss

        try:
            if c.algorithm == "adpsgd":
                c.update(run, self._rate())
            else:
                run()
                c.mark_updated(self._rate())
        finally:
            self.__dict__["_averaged"] = False
        return result

    def _rate(self) -> float:
        return float(self.param_groups[0].get("lr", 0.0)) if self.param_groups else 0.0

    # ---- between steps ----

    @contextlib.contextmanager
    def averaged(self, buffers: bool = True) -> Iterator[nn.Module]:
        """A context in which the parameters (and floating-point buffers) of the model hold the mean
        of all ranks, for evaluation or saving. Collective."""
        with self._consensus.mean():
            found = [b for b in self.module.buffers() if b.is_floating_point()] if buffers else []
            kept = [(b, b.detach().clone()) for b in found]
            mean_over_ranks(self._consensus.comm, found)
            try:
                yield self.module
            finally:
                with torch.no_grad():
                    for buffer, value in kept:
                        buffer.copy_(value)

    def settle(self) -> None:
        """Completes all messages, so that a state dict loses nothing. Collective."""
        self._consensus.settle()

    def distance(self) -> Dict[str, float]:
        """How far the ranks are from their mean. Collective."""
        return self._consensus.distance()

    def close(self) -> None:
        """Completes all messages and frees the library's memory. Collective."""
        self._hook.remove()
        self._consensus.close()

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """The wrapped optimiser's state, with "gossip": the push-sum weight and the position in the
        graph. Call settle() before; without it the state is one that starts from this rank's
        values."""
        c = self._consensus
        weight = 1.0 if c.in_flight else c.weight
        gossip = {"algorithm": c.algorithm, "weight": weight, "rounds": c.rounds, "steps": c.steps}
        return {**self.optimizer.state_dict(), "gossip": gossip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Loads the model's state dict first. Collective once training has begun."""
        c = self._consensus
        state = dict(state)
        gossip = state.pop("gossip", None)
        self.optimizer.load_state_dict(state)
        if gossip is None:
            return
        if gossip["algorithm"] != c.algorithm:
            raise InvalidError(
                f"GossipOptimizer: the state is of {gossip['algorithm']}, not {c.algorithm}"
            )
        if c.began:
            raise InvalidError("GossipOptimizer: load a state before the first step")
        c.restore(gossip["weight"], gossip["rounds"], gossip["steps"], numerators=False)


def _make_hook(consensus: Consensus) -> Callable[..., None]:
    this = weakref.ref(consensus)

    @outside_graphs
    def hook(module: nn.Module, _: Any) -> None:
        found = this()
        if found is None or not found.is_open:
            return
        if module.training and torch.is_grad_enabled():
            found.begin()
        else:
            found.show()

    return hook
