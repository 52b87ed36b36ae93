"""Tests that take `gpu` run on the host, and once more on a device where there is one."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.gpu import backends
from tests.gpu.backends import Backend
from tests.wire.native_build import why_no_compiler


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """In use for the length of a test."""
    if request.param == "host":
        request.getfixturevalue("host_compiler")
    with backends.stand_in() if request.param == "host" else backends.device() as backend:
        yield backend
        if request.param == "host":
            assert_all_is_done()


@pytest.fixture
def host_gpu(host_compiler: None) -> Iterator[Backend]:
    """For what is about the host alone."""
    with backends.stand_in() as backend:
        yield backend
        assert_all_is_done()


def assert_all_is_done() -> None:
    """What a test leaves on a stream would touch memory that is gone by then, in whatever test comes next."""
    assert importlib.import_module("cupy._stream").at_work() == []


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """p2psgd.gpu.attach may set one; this process is to have its own again."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def host_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    if missing := why_no_compiler(tmp_path_factory.mktemp("compiler")):
        pytest.skip(missing)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a device visibly, unless the caller insists on it."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (missing := backends.why_no_device()):
        if os.environ.get("P2PSGD_REQUIRE_GPU"):
            raise pytest.UsageError(
                f"the tests on a GPU cannot run, but P2PSGD_REQUIRE_GPU is set: {missing}"
            )
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=missing))
