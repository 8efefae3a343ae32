"""CUDA's libraries from the packages of NVIDIA that PyTorch's wheels install.

On a machine without a CUDA toolkit PyTorch brings the libraries in site-packages/nvidia, where the
system's loader does not look. When a call has failed because a CUDA library was missing,
`with_libraries` loads that library from there and repeats the call.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
from typing import Callable, List

from .errors import UnsupportedError

_MISSING = re.compile(r"(lib[\w+.-]+\.so[.0-9]*): cannot open shared object file")


def _folders() -> List[str]:
    """Folders with libraries in the namespace package `nvidia`."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [
        folder for root in roots for folder in sorted(glob.glob(os.path.join(root, "*", "lib")))
    ]


def with_libraries(call: Callable[[], None]) -> None:
    """Calls the function; repeats the call after loading each missing library from a package."""
    loaded: List[str] = []
    while True:
        try:
            return call()
        except UnsupportedError as error:
            match = _MISSING.search(str(error))
            if not match or match.group(1) in loaded:
                raise
            paths = [os.path.join(folder, match.group(1)) for folder in _folders()]
            found = [path for path in paths if os.path.exists(path)]
            if not found:
                raise
            ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL)
            loaded.append(match.group(1))
