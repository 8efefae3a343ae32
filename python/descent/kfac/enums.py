"""The choices of KFACPreconditioner, under the names of kfac-pytorch."""

from __future__ import annotations

import enum


class AllreduceMethod(enum.Enum):
    """How factors are averaged. descent always uses buckets."""

    ALLREDUCE = 1
    ALLREDUCE_BUCKETED = 2


class AssignmentStrategy(enum.Enum):
    """The cost by which layers are distributed over ranks: n^3 or n^2 for a factor of n rows."""

    COMPUTE = 1
    MEMORY = 2


class ComputeMethod(enum.Enum):
    """Eigendecomposition, or inverse of the damped factors."""

    EIGEN = 1
    INVERSE = 2


class DistributedStrategy(enum.Enum):
    """The fraction of ranks that precondition each layer: all, one, or half of them."""

    COMM_OPT = 1
    MEM_OPT = 2
    HYBRID_OPT = 3
