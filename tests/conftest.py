from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import islice
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
    """Mark what needs root as long; skip it visibly where it cannot run, unless the caller insists on it.

    Under xdist long tests begin first.
    """
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
    if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = long_tests_first(items, processes)


def long_tests_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return all tests in an order by which each process begins with its share of those marked long.

    With worksteal a process gets a contiguous part of the list, of the same length as the others', and steals
    from the ends of theirs when it has none left. By name tests/torch is deep in such a part, so its tests of
    up to a minute each ran as a tail of four minutes. Now the files with long tests are dealt to the
    processes in turn, tests/torch first, and short tests follow. A file's long tests stay together, since
    they may share a costly fixture. To see the order: PYTEST_XDIST_WORKER_COUNT=6 pytest --collect-only -q.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            files.setdefault(item.path, []).append(item)
    torch = Path(__file__).with_name("torch")
    turns = sorted(files, key=lambda path: torch not in path.parents)
    short = iter([item for item in items if not item.get_closest_marker("long")])
    ordered: list[pytest.Item] = []
    for place in range(processes):
        ordered += [item for path in turns[place::processes] for item in files[path]]
        end = (place + 1) * len(items) // processes
        ordered += islice(short, max(0, end - len(ordered)))
    return [*ordered, *short]
