"""The benches run, with small sizes, and say what they computed."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks import BENCHES
from benchmarks.__main__ import run_bench
from tests.wide import widely

pytestmark = pytest.mark.long

COSTLY = ("tls", "floods", "allreduce", "closure", "large_model")


@pytest.mark.parametrize("name", widely([name for name in BENCHES if name not in COSTLY], COSTLY))
def test_a_bench_gives_figures_and_the_checksum_of_its_result(name: str) -> None:
    figures = run_bench(name, large=False)
    assert figures
    assert all(math.isfinite(figure.value) and figure.name and figure.unit for figure in figures)
    assert any(re.search(r"result [0-9a-f]{8}", figure.note) for figure in figures)


@pytest.mark.parametrize("name", ["codec", "residual"])
def test_the_result_of_a_bench_is_the_same_every_time(name: str) -> None:
    first, second = (
        [re.search(r"result [0-9a-f]{8}", figure.note) for figure in run_bench(name, large=False)]
        for _ in range(2)
    )
    assert [found and found.group() for found in first] == [found and found.group() for found in second]
