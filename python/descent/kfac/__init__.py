"""The names of kfac-pytorch over descent's K-FAC: a script that imports `kfac` runs after changing
that import to `descent.kfac`.

    from descent import kfac
    preconditioner = kfac.preconditioner.KFACPreconditioner(model, ...)
"""

from . import base_preconditioner, enums, preconditioner, scheduler

__all__ = ["base_preconditioner", "enums", "preconditioner", "scheduler"]
