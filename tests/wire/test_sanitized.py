"""The core under the address and undefined-behaviour sanitizers: inside its buffers, nothing undefined."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "p2psgd" / "wire" / "native"
COMPILER = os.environ.get("CXX", "c++")
FLAGS = [
    "-std=c++20",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile_bytes.cpp and the core, built with sanitizers."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"needs the C++ compiler {COMPILER}")
    folder = tmp_path_factory.mktemp("sanitized")
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    if subprocess.run(
        [COMPILER, *FLAGS, probe, "-o", folder / "probe"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"{COMPILER} has no sanitizers here")
    sources = [HERE / "hostile_bytes.cpp", *(path for path in CORE.glob("*.cpp") if path.stem != "module")]
    program = folder / "hostile_bytes"
    command: list[str | Path] = [COMPILER, *FLAGS, f"-I{CORE}", *sources, "-o", program]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_core_stays_inside_its_buffers_whatever_it_is_given(driver: Path, seed: int) -> None:
    run = subprocess.run(
        [driver, str(seed), "3000"], capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, f"seed {seed}: {run.stdout}{run.stderr}"
