"""The version of the package, which must be that of the library."""

__version__ = "0.4.0"
