"""The core under the address and undefined-behaviour sanitizers: inside its buffers, nothing undefined."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from p2psgd.wire.cpu_paths import cpu_paths
from tests.wire.native_build import SANITIZERS, build_program, why_no_compiler

DRIVER = Path(__file__).parent / "hostile_bytes.cpp"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile_bytes.cpp and the core with all paths, built with sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    if missing := why_no_compiler(folder, SANITIZERS):
        pytest.skip(missing)
    (program,) = build_program(folder, [DRIVER], ["-O1", "-g1", *SANITIZERS])
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("path", [path.name for path in cpu_paths() if path.runs_here])
def test_the_core_stays_inside_its_buffers_whatever_it_is_given(driver: Path, path: str, seed: int) -> None:
    run = subprocess.run(
        [driver, path, str(seed), "2000"], capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, f"{path}, seed {seed}: {run.stdout}{run.stderr}"
