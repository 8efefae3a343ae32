"""Finds the package and the library of the build that is tested, and ends a job of several ranks
when one of them fails."""

from __future__ import annotations

import glob
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if not os.environ.get("DESCENT_TEST_INSTALLED"):
    sys.path.insert(0, os.path.join(ROOT, "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
if "DESCENT_BINARY_DIR" in os.environ and "DESCENT_LIBRARY" not in os.environ:
    found = glob.glob(os.path.join(os.environ["DESCENT_BINARY_DIR"], "libdescent.so.*.*"))
    if found and not os.environ.get("DESCENT_TEST_INSTALLED"):
        os.environ["DESCENT_LIBRARY"] = sorted(found, key=len)[0]

RANKS = int(os.environ.get("DESCENT_TEST_RANKS", "1"))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    if RANKS > 1 and os.environ.get("DESCENT_TEST_LAUNCHER") == "torchrun":
        import torch

        torch.distributed.init_process_group("gloo")


def pytest_runtest_makereport(item, call):
    """The other ranks would wait for ever for one whose test has failed."""
    if RANKS > 1 and call.excinfo is not None and not call.excinfo.errisinstance(
        pytest.skip.Exception
    ):
        print(f"{item.nodeid} failed on one rank:", flush=True)
        call.excinfo.getrepr().toterminal(_Terminal())
        sys.stdout.flush()
        os._exit(1)


class _Terminal:
    """As much of pytest's terminal writer as a report needs."""

    hasmarkup = False
    fullwidth = 100

    def line(self, text="", **_):
        print(text)

    def write(self, text, **_):
        print(text, end="")

    def sep(self, char, title="", **_):
        print(char * 3, title)

    def _write_source(self, lines, indents=()):
        print("\n".join(lines))


@pytest.fixture(autouse=True)
def seeded():
    import torch

    torch.manual_seed(1)


@pytest.fixture
def device():
    """The device of the tests: DESCENT_TEST_DEVICE, by default the CPU."""
    import torch

    return torch.device(os.environ.get("DESCENT_TEST_DEVICE", "cpu"))
