"""Exceptions. Each carries the message of the C library, which names the value and the remedy."""

from __future__ import annotations

from typing import Dict, Type

__all__ = ["Error", "InvalidError", "UnsupportedError", "CommError", "NumericError", "LibraryError"]


class Error(RuntimeError):
    """A call of the library has failed. `status` is its code, `status_name` such as "DSC_E_COMM"."""

    status = -1
    status_name = ""


class InvalidError(Error, ValueError):
    """An argument is wrong (DSC_E_INVALID), or something with that name does not exist."""


class UnsupportedError(Error):
    """This build, machine or combination of options cannot do it (DSC_E_UNSUPPORTED)."""


class CommError(Error):
    """Communication has failed, or a peer was lost (DSC_E_COMM, DSC_E_LOST)."""


class NumericError(Error, ArithmeticError):
    """A result is not finite, or a factor cannot be decomposed (DSC_E_NUMERIC)."""


class LibraryError(Error, ImportError):
    """The shared library was not found, or it is not the version of this package."""


# In the order of DSC_STATUS_LIST in descent/status.h.
STATUS_NAMES = [
    "DSC_OK", "DSC_E_INVALID", "DSC_E_NOT_FOUND", "DSC_E_FORMAT", "DSC_E_UNSUPPORTED",
    "DSC_E_MEMORY", "DSC_E_IO", "DSC_E_NUMERIC", "DSC_E_DEVICE", "DSC_E_COMM", "DSC_E_LOST",
    "DSC_E_INTERRUPTED", "DSC_E_INTERNAL",
]  # fmt: skip

_CLASSES: Dict[str, Type[Error]] = {
    "DSC_E_INVALID": InvalidError,
    "DSC_E_NOT_FOUND": InvalidError,
    "DSC_E_UNSUPPORTED": UnsupportedError,
    "DSC_E_COMM": CommError,
    "DSC_E_LOST": CommError,
    "DSC_E_NUMERIC": NumericError,
}


def from_status(status: int, message: str) -> Error:
    """The exception for a status of the C library."""
    name = STATUS_NAMES[status] if 0 <= status < len(STATUS_NAMES) else f"status {status}"
    error = _CLASSES.get(name, Error)(message or name)
    error.status = status
    error.status_name = name
    return error
