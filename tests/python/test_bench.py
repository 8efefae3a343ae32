"""bench/pytorch: a run with tiny models on the CPU, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(os.path.dirname(os.path.dirname(HERE)), "bench", "pytorch", "kfac")


def run(*arguments):
    import descent

    package = os.path.dirname(os.path.dirname(descent.__file__))
    path = os.pathsep.join([package] + [p for p in [os.environ.get("PYTHONPATH")] if p])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, BENCH, *map(str, arguments)], env=env, timeout=300,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def test_toy(tmp_path):
    out = tmp_path / "results.json"
    done = run("--toy", "--device", "cpu", "--no-peer", "--cases", "resnet32", "--steps", 1,
               "--rounds", 1, "--decompositions", 1, "--json", out)  # fmt: skip
    assert done.returncode == 0, done.stdout
    results = json.loads(out.read_text())["results"]
    assert [r["format"] for r in results] == ["contiguous", "channels_last"]
    for result in results:
        assert result["plain_ms"] > 0 and result["peak_bytes"] > 0
        assert set(result["added_ms"]) == {"no update", "factors", "decomposition"}
    assert "ResNet-32, batch 128" in done.stdout


def test_peer_is_missing(tmp_path):
    done = run("--toy", "--device", "cpu", "--peer", tmp_path)
    assert done.returncode != 0
    assert "there is no package kfac in this folder" in done.stdout
