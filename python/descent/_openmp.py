"""One OpenMP library in a process.

A wheel of this package contains no OpenMP library: instead it has a library without functions
(`libdescent-openmp.so`), and the functions are looked up in all libraries that the process has
loaded. So `load` loads an OpenMP library, with its symbols visible to all, before the C library. It
is PyTorch's, if PyTorch has one (as the wheels of PyPI do), else the system's libgomp; PyTorch,
whether loaded before or after, then uses the same one. Outside of wheels the system's loader does
all this.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from typing import List, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))
_STAND_IN = os.path.join(_HERE, "lib", "libdescent-openmp.so")
_SYSTEM = "libgomp.so.1"


def is_needed() -> bool:
    """Whether this is a package that was made by scripts/wheel."""
    return os.path.exists(_STAND_IN)


def _torch_libraries() -> List[str]:
    """The OpenMP libraries in PyTorch's package, found without importing PyTorch."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return []
    found: List[str] = []
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in (os.path.join(folder, "lib"), os.path.abspath(folder) + ".libs"):
            for name in ("libgomp*.so*", "libiomp5.so", "libomp*.so*"):
                found += sorted(glob.glob(os.path.join(place, name)))
    return found


def candidates() -> List[str]:
    """The libraries to try, in order."""
    return [*_torch_libraries(), _SYSTEM]


def load() -> Optional[str]:
    """Loads an OpenMP library with its symbols visible to all libraries. Returns the library that
    was loaded; None if there was one already, or none is needed. OSError when none is found."""
    if not is_needed() or hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return None
    tried = []
    for path in candidates():
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
            return path
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise OSError(
        "no OpenMP library: PyTorch carries none, and the system has none; tried "
        + "; ".join(tried)
        + "; install libgomp1 (Debian, Ubuntu) or libgomp (Fedora)"
    )


def environment() -> "dict[str, str]":
    """The environment for a program of the package, which makes it load the same library first."""
    result = dict(os.environ)
    if is_needed():
        present = [path for path in _torch_libraries() if os.path.exists(path)]
        library = present[0] if present else _SYSTEM
        result["LD_PRELOAD"] = " ".join(filter(None, (library, result.get("LD_PRELOAD"))))
    return result
