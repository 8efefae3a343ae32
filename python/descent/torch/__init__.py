"""K-FAC and gossip training for PyTorch."""

from .gossip import BilatGossipDataParallel, GossipDataParallel, average
from .kfac import KFAC
from .optimizer import GossipOptimizer
from .scheduler import KFACParamScheduler, LambdaParamScheduler

__all__ = [
    "KFAC",
    "BilatGossipDataParallel",
    "GossipDataParallel",
    "GossipOptimizer",
    "KFACParamScheduler",
    "LambdaParamScheduler",
    "average",
]
