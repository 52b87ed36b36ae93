"""The kernels under the address and undefined-behaviour sanitizers, beside the native core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.wire.native_build import COMPILER, CORE, ROOT, SANITIZERS, compile_all, why_no_compiler

pytestmark = pytest.mark.long

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside_core")
    if missing := why_no_compiler(folder, SANITIZERS):
        pytest.skip(missing)
    flags = ["-O1", "-g1", *SANITIZERS, f"-I{HERE}", f"-I{ROOT / 'p2psgd' / 'gpu' / 'kernels'}"]
    flags += ["-fno-strict-aliasing", "-Wno-parentheses", "-Wno-unknown-pragmas", "-DP2PSGD_PATH=portable"]
    own = [HERE / name for name in ("beside_core.cpp", "launch.cpp")]
    core = [CORE / "kernels" / name for name in ("residual.cpp", "digest.cpp")]
    objects = compile_all({folder / f"{source.stem}.o": [*flags, str(source)] for source in own + core})
    subprocess.run([COMPILER, *flags, *objects, "-o", folder / "beside_core"], check=True)
    return folder / "beside_core"


@pytest.mark.parametrize("seed", [1, 2])
def test_the_kernels_stay_inside_their_buffers_and_give_the_cores_bits(program: Path, seed: int) -> None:
    run = subprocess.run([program, str(seed), "60"], capture_output=True, text=True, check=False, timeout=110)
    assert run.returncode == 0, f"seed {seed}: {run.stdout}{run.stderr}"
