"""Graphs of gossip: which rank sends to which in each step.

The classes have the names and arguments of the Stochastic Gradient Push program; everything else is
the C library's (descent/topology.h), where each graph has a name. Wherever a graph is expected, the
name, an object or a class of this file, or the path of a graph file will do.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_int64, c_void_p
from typing import Any, List, Optional, Tuple, Type

from .._library import Edge, TopologyOptions, initialised, lib
from ..errors import InvalidError, UnsupportedError

__all__ = [
    "Base2Graph",
    "CompleteGraph",
    "DynamicBipartiteExponentialGraph",
    "DynamicBipartiteLinearGraph",
    "DynamicDirectedExponentialGraph",
    "DynamicDirectedLinearGraph",
    "GraphManager",
    "HypercubeGraph",
    "NPeerDynamicDirectedExponentialGraph",
    "RingGraph",
    "StaticExponentialGraph",
    "UniformMixing",
]


class Topology:
    """A graph of the library for a number of ranks."""

    def __init__(self, name: str, ranks: int, peers: int = 1) -> None:
        options = initialised(TopologyOptions, "topology_options")
        options.peers = peers
        self._handle = c_void_p()
        lib.dsc_topology_create(name.encode(), ranks, byref(options), byref(self._handle))
        self.ranks = ranks
        self._edges = (Edge * max(1, lib.dsc_topology_most_peers(self._handle)))()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.dsc_topology_destroy(byref(self._handle))

    @property
    def period(self) -> int:
        """Steps after which the graph repeats."""
        return int(lib.dsc_topology_period(self._handle))

    @property
    def is_regular(self) -> bool:
        return bool(lib.dsc_topology_is_regular(self._handle))

    @property
    def is_matching(self) -> bool:
        return bool(lib.dsc_topology_is_matching(self._handle))

    def out(self, rank: int, step: int) -> Tuple[float, List[Tuple[int, float]]]:
        """The share that a rank keeps, and (receiver, share) for each rank that it sends to."""
        kept = c_double()
        count = lib.dsc_topology_out(self._handle, rank, step, self._edges, byref(kept))
        return kept.value, [(edge.rank, edge.share) for edge in self._edges[:count]]

    def into(self, rank: int, step: int) -> List[Tuple[int, float]]:
        """(sender, share) for each rank that a rank receives from."""
        count = lib.dsc_topology_in(self._handle, rank, step, self._edges)
        return [(edge.rank, edge.share) for edge in self._edges[:count]]

    def exact(self) -> int:
        """Steps after which every rank has the exact average; 0: never."""
        steps, rho = c_int64(), c_double()
        lib.dsc_topology_rate(self._handle, byref(steps), byref(rho))
        return steps.value


class GraphManager:
    """A graph between nodes, each of nprocs_per_node processes, as seen by one process."""

    name = ""
    bipartite = False

    def __init__(
        self,
        rank: int,
        world_size: int,
        nprocs_per_node: int = 1,
        local_rank: int = 0,
        peers_per_itr: int = 1,
    ) -> None:
        if not self.name:
            raise InvalidError(f"{type(self).__name__} is not a graph: take one of its subclasses")
        if world_size < 1 or not 0 <= rank < world_size:
            raise InvalidError(f"{type(self).__name__}: rank {rank} of {world_size}")
        if nprocs_per_node < 1 or world_size % nprocs_per_node:
            raise InvalidError(
                f"{type(self).__name__}: {world_size} ranks cannot be divided into nodes of "
                f"{nprocs_per_node}"
            )
        self.rank, self.world_size = rank, world_size
        self.nprocs_per_node, self.local_rank = nprocs_per_node, local_rank
        self._step = 0
        self._peers = peers_per_itr
        self._topology = self._make()

    def _make(self) -> Topology:
        return Topology(self.name, self.world_size // self.nprocs_per_node, self._peers)

    @property
    def peers_per_itr(self) -> int:
        return self._peers

    @peers_per_itr.setter
    def peers_per_itr(self, peers: int) -> None:
        self._peers, before = int(peers), self._peers
        try:
            self._topology = self._make()
        except Exception:
            self._peers = before
            raise

    def get_peers(self, rotate: bool = False) -> Tuple[List[int], List[int]]:
        """The ranks that this one sends to and receives from in the present step; rotate: the step
        after it, which becomes the present one."""
        if rotate:
            self._step += 1
        size = self.nprocs_per_node
        node, place = divmod(self.rank, size)
        _, out = self._topology.out(node, self._step)
        into = self._topology.into(node, self._step)
        return [r * size + place for r, _ in out], [r * size + place for r, _ in into]

    def is_regular_graph(self) -> bool:
        return self._topology.is_regular

    def is_bipartite_graph(self) -> bool:
        return self.bipartite

    def is_dynamic_graph(self) -> bool:
        return self._topology.period > 1

    def is_passive(self, rank: Optional[int] = None) -> bool:
        """Whether this node only answers: in a bipartite graph even nodes do, and odd ones ask."""
        node = (self.rank if rank is None else rank) // self.nprocs_per_node
        return self.bipartite and node % 2 == 0


class NPeerDynamicDirectedExponentialGraph(GraphManager):
    """`exponential`: peers at distances j (k + 1)^i, j = 1 .. k, in step i. The default."""

    name = "exponential"


class DynamicDirectedExponentialGraph(GraphManager):
    """`exponential-pm`: distances +1, -1, +2, -2, +4, -4, ..."""

    name = "exponential-pm"


class DynamicBipartiteExponentialGraph(GraphManager):
    """`bipartite-exponential`: pairs of an odd and an even rank; for an even number of ranks."""

    name = "bipartite-exponential"
    bipartite = True


class DynamicDirectedLinearGraph(GraphManager):
    """`linear`: distances +1, -1, +3, -3, +5, -5, ..."""

    name = "linear"


class DynamicBipartiteLinearGraph(GraphManager):
    """`bipartite-linear`: pairs of an odd and an even rank; for an even number of ranks."""

    name = "bipartite-linear"
    bipartite = True


class RingGraph(GraphManager):
    """`ring`: the next rank; with two peers both neighbours."""

    name = "ring"


class StaticExponentialGraph(GraphManager):
    """`static-exponential`: distances 1, 2, 4, ... all in every step."""

    name = "static-exponential"


class CompleteGraph(GraphManager):
    """`complete`: all other ranks."""

    name = "complete"


class HypercubeGraph(GraphManager):
    """`hypercube`: pairs; for a power of two of ranks."""

    name = "hypercube"


class Base2Graph(GraphManager):
    """`base-2`: pairs, exact after one period for any number of ranks."""

    name = "base-2"


class UniformMixing:
    """A rank keeps as much as each of its peers gets. No other mixing is supported."""

    def __init__(self, graph: Optional[GraphManager] = None, device: Any = None) -> None:
        self.graph, self.device = graph, device

    def is_uniform(self) -> bool:
        return True

    def is_regular(self) -> bool:
        return self.graph is None or self.graph.is_regular_graph()


def check_mixing(mixing: Any, what: str) -> None:
    """Refuses a mixing object that is not uniform."""
    if mixing is None or isinstance(mixing, UniformMixing) or mixing is UniformMixing:
        return
    if getattr(mixing, "__name__", type(mixing).__name__) == "UniformMixing":
        return
    raise UnsupportedError(
        f"{what}: mixing {type(mixing).__name__}: shares are uniform (UniformMixing); write other "
        "ones to a graph file and pass its path as graph"
    )


def name_of(graph: Any, what: str) -> Tuple[Optional[str], int]:
    """The library's name of a graph, and the peers per step that it was made for (0: unknown)."""
    if graph is None:
        return None, 0
    if isinstance(graph, str):
        return graph, 0
    if isinstance(graph, GraphManager):
        return graph.name, graph.peers_per_itr
    kind: Type[Any] = graph if isinstance(graph, type) else type(graph)
    if issubclass(kind, GraphManager):
        return kind.name, 0
    ours = globals().get(kind.__name__)  # an object of the original program's class
    if isinstance(ours, type) and issubclass(ours, GraphManager):
        return ours.name, int(getattr(graph, "peers_per_itr", 0) or 0)
    if hasattr(graph, "__fspath__"):
        return str(graph.__fspath__()), 0
    raise InvalidError(
        f"{what}: graph {graph!r}: a name, a graph of descent.torch.graphs or a file is expected"
    )
