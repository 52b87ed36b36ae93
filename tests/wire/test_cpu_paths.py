"""The instruction-set paths: the best is chosen, a person may choose, none leaks into the portable one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.wire.cpu_paths import VARIABLE, cpu_path, cpu_paths, use_cpu_path
from tests import DEADLINE_S
from tests.daemons import P2PSGD
from tests.wire.native_build import compile_kernels, path_flags, why_no_compiler

SAY_PATH = "from p2psgd.wire.cpu_paths import cpu_path; print(cpu_path())"


def run(*command: str, forced: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, VARIABLE: forced},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_the_portable_path_runs_everywhere() -> None:
    first, *_ = cpu_paths()
    assert (first.name, first.demand, first.runs_here) == ("portable", "nothing", True)


def test_any_path_that_runs_here_can_be_used_and_no_other() -> None:
    for path in cpu_paths():
        before = cpu_path()
        if path.runs_here:
            use_cpu_path(path.name)
            assert cpu_path() == path.name
        else:
            with pytest.raises(ValueError, match="there is no path"):
                use_cpu_path(path.name)
            assert cpu_path() == before
    with pytest.raises(ValueError, match='there is no path "AVX2"'):
        use_cpu_path("AVX2")


@pytest.mark.parametrize("path", [path.name for path in cpu_paths() if path.runs_here])
def test_the_path_that_the_environment_names_is_used(path: str) -> None:
    assert run(sys.executable, "-c", SAY_PATH, forced=path).stdout == f"{path}\n"


def test_an_empty_name_leaves_the_best() -> None:
    best = [path.name for path in cpu_paths() if path.runs_here][-1]
    assert run(sys.executable, "-c", SAY_PATH, forced="").stdout == f"{best}\n"


def test_a_path_that_is_not_there_is_refused_in_one_sentence() -> None:
    done = run(*P2PSGD, "status", "--state", "nowhere", forced="sse9")
    assert done.returncode == ExitCode.CONFIGURATION
    assert done.stderr.startswith(
        'p2psgd: P2PSGD_CPU: there is no path "sse9" of the kernels on this processor; there are: portable'
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_the_kernels_of_a_path_define_nothing_that_others_would_share(tmp_path: Path) -> None:
    """The linker keeps one of equal weak symbols: were it one with AVX2 in it, `portable` would run that."""
    missing = why_no_compiler(tmp_path) or (None if shutil.which("nm") else "needs nm, of the binutils")
    if missing:
        pytest.skip(missing)
    paths = [name for name in path_flags() if name != "portable"]
    if not paths:
        pytest.skip("this build has the portable path only")
    for name in paths:
        for file in compile_kernels(tmp_path, ["-O3", "-fPIC"], [name]):
            listing = subprocess.run(
                ["nm", "-C", "--defined-only", str(file)], capture_output=True, text=True, check=True
            ).stdout
            symbols = [line.split(maxsplit=2)[1:] for line in listing.splitlines()]
            assert any(kind == "T" for kind, _ in symbols), file.name
            code = [symbol for kind, symbol in symbols if kind in "TW"]  # weak data (V) holds no instructions
            assert [symbol for symbol in code if f"p2psgd::{name}::" not in symbol] == [], file.name
