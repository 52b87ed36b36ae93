from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import uvloop

# A shared machine may stall for seconds: no example fails for its time.
hypothesis.settings.register_profile("p2psgd", deadline=None)
hypothesis.settings.load_profile("p2psgd")

# Started in the background or under nohup, a process ignores these, and so do its children. Tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SMALL_DISK_BYTES: Final = 600_000

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """Both loops on which the daemon runs."""
    factory: LoopFactory = request.param
    return factory


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _namespaces_available() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"p2psgd-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs root as long; skip it visibly where it cannot run, unless the caller insists on it."""
    marked = [item for item in items if item.get_closest_marker("root")]
    for item in marked:
        item.add_marker(pytest.mark.long)
    if marked and not _namespaces_available():
        if os.environ.get("P2PSGD_REQUIRE_NAMESPACES"):
            raise pytest.UsageError(
                "network namespaces cannot be made here, but P2PSGD_REQUIRE_NAMESPACES is set"
            )
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs root, ip and tc to make network namespaces"))
