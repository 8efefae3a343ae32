"""`python -m descent ...` runs the program descent with these arguments."""

from __future__ import annotations

import os
import shutil
import sys

from . import _openmp


def program() -> str:
    """The path of the program: the package's own, that of DESCENT_PROGRAM, or one on the PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    own = os.path.join(here, "bin", "descent")
    for path in (os.environ.get("DESCENT_PROGRAM"), own, shutil.which("descent")):
        if path and os.access(path, os.X_OK):
            return path
    sys.exit(
        f"descent: the program was not found: neither {own} nor a program `descent` on the PATH; "
        "install the package with `pip install .`, or set DESCENT_PROGRAM"
    )


def main() -> None:
    """Replaces this process by the program."""
    path = program()
    os.execve(path, [path, *sys.argv[1:]], _openmp.environment())


if __name__ == "__main__":
    main()
