from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable

import hypothesis
import pytest
import uvloop

# A shared machine may stall for seconds: no example fails for its time.
hypothesis.settings.register_profile("p2psgd", deadline=None)
hypothesis.settings.load_profile("p2psgd")

# Started in the background or under nohup, a process ignores these, and so do its children. Tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """Both loops on which the daemon runs."""
    factory: LoopFactory = request.param
    return factory


def _namespaces_available() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"p2psgd-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs root visibly, unless the caller insists on it."""
    marked = [item for item in items if item.get_closest_marker("root")]
    if marked and not _namespaces_available():
        if os.environ.get("P2PSGD_REQUIRE_NAMESPACES"):
            raise pytest.UsageError(
                "network namespaces cannot be made here, but P2PSGD_REQUIRE_NAMESPACES is set"
            )
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs root, ip and tc to make network namespaces"))
