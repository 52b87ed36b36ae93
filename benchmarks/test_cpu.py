"""`python -m benchmarks.cpu`: which path runs and why, and rates of each that runs here."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from benchmarks.cpu import Rate, measure, render_paths, render_rates
from p2psgd.wire.cpu_paths import VARIABLE, CpuPath, cpu_path, cpu_paths
from tests import DEADLINE_S

PATHS = (CpuPath("portable", "nothing", True), CpuPath("avx2", "AVX2", True), CpuPath("x", "more", False))


def test_every_path_has_a_line_and_the_one_in_use_says_why() -> None:
    assert render_paths(PATHS, "avx2", None).splitlines() == [
        "instruction-set paths of the native core",
        "  portable   needs nothing: runs here",
        "  avx2       needs AVX2: runs here and is in use, as it is the best that does",
        "  x          needs more: does not run here",
    ]
    forced = render_paths(PATHS, "portable", "portable").splitlines()
    assert forced[1] == "  portable   needs nothing: runs here and is in use, as P2PSGD_CPU says so"


def test_rates_stand_beside_their_multiple_of_the_portable_paths() -> None:
    rates = [Rate("decode", "M indices/s", {"portable": 500.0, "avx2": 1250.0}), Rate("CRC-32C", "GB/s", {})]
    head, row, empty = render_rates(rates).splitlines()
    assert head.split() == ["portable", "avx2"]
    assert row.split() == ["decode", "M", "indices/s", "500.0", "1.0x", "1,250.0", "2.5x"]
    assert empty.split() == ["CRC-32C", "GB/s"]


def test_everything_is_measured_on_every_path_that_runs_here_and_the_path_stays() -> None:
    before = cpu_path()
    rates = measure(0.0)
    assert cpu_path() == before
    here = [path.name for path in cpu_paths() if path.runs_here]
    for rate in rates:
        assert list(rate.by_path) == here
        assert all(value > 0 for value in rate.by_path.values())
    names = [rate.name for rate in rates]
    assert names == ["encode", "decode", "residual pass", "apply", "digest", "CRC-32C"]


def test_the_command_obeys_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu"],
        env={**os.environ, VARIABLE: "portable"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "is in use, as P2PSGD_CPU says so" in done.stdout
    assert re.search(r"decode +M indices/s +[\d,.]+ +1\.0x", done.stdout)
