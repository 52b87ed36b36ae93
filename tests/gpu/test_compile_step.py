"""What .ci/compile-kernels refuses, where there is an nvcc."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("operation", ["a[0] + b", "a[0] * b", "a[0] - b"])
def test_plain_arithmetic_which_flushes_denormals_as_cupy_compiles_it_is_refused(
    tmp_path: Path, operation: str
) -> None:
    (tmp_path / "plain.cu").write_text(
        f'extern "C" __global__ void plain(float* a, float b) {{ a[0] = {operation}; }}'
    )
    step = [ROOT / ".ci" / "compile-kernels", tmp_path]
    run = subprocess.run(step, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"{tmp_path}/plain.cu flushes denormals where CuPy compiles it" in run.stderr
