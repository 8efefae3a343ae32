"""descent's K-FAC under the names of kfac-pytorch: a script that imports `kfac` runs after that
import is changed to `descent.kfac`.

    from descent import kfac
    preconditioner = kfac.preconditioner.KFACPreconditioner(model, ...)
"""

from . import base_preconditioner, enums, preconditioner, scheduler

__all__ = ["base_preconditioner", "enums", "preconditioner", "scheduler"]
