"""A running node opens no file on its loop: neither a package that is being replaced under it nor a slow disk
can stop it there.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import DEADLINE_S
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place, calm, endless, steps
from tests.ports import free_ports
from tests.service_manager import ServiceManager

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Watched:
    """A node that trains and notes which files its loop opens, in `opened`."""

    daemon: Daemon
    manager: ServiceManager
    page: str
    opened: Path

    def is_asked(self) -> dict[str, Any]:
        """StatusSender for a command and over HTTP, and two that ticks make for the service manager."""
        self.manager.empty()
        for _ in range(2):
            self.manager.until("STATUS")
            assert self.daemon.status() is not None
            with urllib.request.urlopen(f"{self.page}/status.json", timeout=DEADLINE_S) as answer:
                status: dict[str, Any] = json.load(answer)
        return status


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    place, opened = Place(tmp_path, 1), tmp_path / "opened"
    [port] = free_ports(1)
    with ServiceManager(tmp_path / "notify") as manager:
        daemon = Daemon(
            tmp_path / "node-0",
            *(
                "--peers",
                str(place.hosts),
                "--listen",
                f"127.0.0.1:{place.ports[0]}",
                "--failure-timeout",
                "1",
            ),
            *("--http", f"127.0.0.1:{port}", *endless(calm(tmp_path))),
            environment={"OPENED": str(opened), "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000"},
            program=[sys.executable, "-m", "tests.node.opening_daemon"],
        )
        watched = Watched(daemon, manager, f"http://127.0.0.1:{port}", opened)
        with all_stopped([daemon]):
            until(lambda: steps(daemon) > 5, "it trains")
            watched.is_asked()  # what is imported with the first answer
            yield watched
            assert daemon.stop() == 0


def test_neither_ticks_nor_statuses_open_a_file(watched: Watched) -> None:
    before = watched.opened.read_text()
    assert "import 'p2psgd." in before  # so both are seen
    assert "open '" in before
    watched.is_asked()
    assert watched.opened.read_text()[len(before) :].splitlines() == []


def test_a_node_whose_package_is_being_replaced_goes_on(watched: Watched) -> None:
    """As `pip install --upgrade` does: for a moment nothing of it can be read, its version neither."""
    version, made = watched.is_asked()["version"], steps(watched.daemon)
    broken = Path(f"{watched.opened}.broken")
    broken.touch()
    assert watched.is_asked()["version"] == version
    until(lambda: steps(watched.daemon) > made, "it trains on")
    broken.unlink()
