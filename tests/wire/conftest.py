"""Tests here that use the native core run on each of its instruction-set paths that runs here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from p2psgd.wire import codec
from p2psgd.wire.cpu_paths import cpu_path, cpu_paths, use_cpu_path

PATHS = [path.name for path in cpu_paths() if path.runs_here]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test module that imports the core's face uses the core."""
    if getattr(metafunc.module, "codec", None) is codec:
        metafunc.parametrize("native_path", PATHS, indirect=True)


@pytest.fixture(autouse=True)
def native_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The path that the test runs on; the one before is back in use afterwards."""
    before = cpu_path()
    use_cpu_path(getattr(request, "param", before))
    yield cpu_path()
    use_cpu_path(before)
