"""The base class under kfac-pytorch's name, for annotations and isinstance."""

from ..torch.kfac import KFAC as BaseKFACPreconditioner

__all__ = ["BaseKFACPreconditioner"]
