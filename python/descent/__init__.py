"""Distributed K-FAC and gossip training for PyTorch, over the C library libdescent.

    from descent.torch import KFAC, GossipDataParallel

`descent.torch` needs PyTorch; `descent.comm` does not. `python -m descent` runs the program.
"""

from ._version import __version__
from .errors import (
    CommError,
    Error,
    InvalidError,
    LibraryError,
    NumericError,
    UnsupportedError,
)

__all__ = [
    "CommError",
    "Error",
    "InvalidError",
    "LibraryError",
    "NumericError",
    "UnsupportedError",
    "__version__",
    "library_info",
]


def library_info() -> str:
    """One line that describes the loaded C library: version, compiler and libraries."""
    from ._library import lib

    return f"libdescent {lib.dsc_version().decode()}: {lib.dsc_build_info().decode()}"
