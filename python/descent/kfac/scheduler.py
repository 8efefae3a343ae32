"""The scheduler under kfac-pytorch's name."""

from ..torch.scheduler import LambdaParamScheduler

__all__ = ["LambdaParamScheduler"]
