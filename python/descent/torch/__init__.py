"""K-FAC and gossip training for PyTorch."""

from .kfac import KFAC
from .scheduler import KFACParamScheduler, LambdaParamScheduler

__all__ = ["KFAC", "KFACParamScheduler", "LambdaParamScheduler"]
