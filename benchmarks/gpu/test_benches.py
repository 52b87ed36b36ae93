"""The benches of the GPU run, with small sizes and the host in the place of a device."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import Figure
from benchmarks.gpu import BENCHES
from tests import DEADLINE_S
from tests.gpu import backends
from tests.gpu.backends import why_no_device
from tests.wire.native_build import why_no_compiler


@pytest.mark.long
@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_gives_figures_and_the_checksum_of_its_result(name: str, tmp_path: Path) -> None:
    if missing := why_no_compiler(tmp_path):
        pytest.skip(missing)
    with backends.stand_in() as gpu:
        figures: list[Figure] = importlib.import_module(f"benchmarks.gpu.{name}").run(gpu, large=False)
    assert all(math.isfinite(figure.value) and figure.name and figure.unit for figure in figures)
    assert any(re.search(r"result [0-9a-f]{8}", figure.note) for figure in figures)


@pytest.mark.skipif(why_no_device() is None, reason="there is a device")
def test_without_a_device_the_benches_say_so() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert re.fullmatch(r"no figures: the benches of the GPU need .*\n", run.stdout)
