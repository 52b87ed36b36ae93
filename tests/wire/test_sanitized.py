"""The core under the address and undefined-behaviour sanitizers: inside its buffers, nothing undefined."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from p2psgd.wire.cpu_paths import cpu_paths
from tests.fuzz import CORPUS, REPLAY, TARGETS, source_of
from tests.wire.native_build import SANITIZERS, build_programs, why_no_compiler

pytestmark = pytest.mark.long

DRIVER = Path(__file__).parent / "hostile_bytes.cpp"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """hostile_bytes and the fuzz targets, each with the core and all its paths, built with sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    if missing := why_no_compiler(folder, SANITIZERS):
        pytest.skip(missing)
    sources = {"hostile_bytes": [DRIVER]} | {target: [source_of(target), REPLAY] for target in TARGETS}
    return build_programs(folder, sources, ["-O1", "-g1", *SANITIZERS])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("path", [path.name for path in cpu_paths() if path.runs_here])
def test_the_core_stays_inside_its_buffers_whatever_it_is_given(
    programs: dict[str, Path], path: str, seed: int
) -> None:
    command = [str(programs["hostile_bytes"]), path, str(seed), "2000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, f"{path}, seed {seed}: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_found_stays_mended(programs: dict[str, Path], target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    run = subprocess.run([programs[target], *files], capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr[-5000:]  # after the name of the file at fault
