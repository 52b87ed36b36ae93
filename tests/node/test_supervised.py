"""A real daemon under a service manager that the test is: what it tells, and when."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, until
from tests.node.test_node import calm, endless, steps
from tests.ports import free_ports
from tests.service_manager import ServiceManager

WATCHDOG_S = 2.0

# Of the real program, with one thing more: what hangs when a file appears.
HANGING = """
import sys, time
from pathlib import Path
from p2psgd.cli import app
from p2psgd.node import daemon
from p2psgd.core.replica import Replica
from p2psgd.storage.checkpoint_store import CheckpointStore
what, flag = sys.argv[1], Path(sys.argv[2])
del sys.argv[1:3]

def hang(*_):
    while flag.exists():
        time.sleep(0.05)

if what == "loop":
    handle = Replica.handle
    def slow(replica, event, now):
        hang()
        return handle(replica, event, now)
    Replica.handle = slow
else:
    daemon.DRAIN_TIMEOUT_S = 1.0
    write = CheckpointStore.write
    def held(*arguments):
        hang()
        return write(*arguments)
    CheckpointStore.write = held
app.main()
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with ServiceManager(tmp_path / "notify") as manager:
        yield manager


def start(
    tmp_path: Path, manager: ServiceManager, *options: str, program: list[str] = P2PSGD, peers: str = ""
) -> tuple[Daemon, int]:
    """A daemon with a watchdog of 2 s, and the port that it was told to listen on."""
    port = free_ports(1)[0]
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(peers)
    told = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
    places = ("--peers", str(hosts), "--listen", f"127.0.0.1:{port}", "--failure-timeout", "1")
    return Daemon(tmp_path / "node-0", *places, *options, environment=told, program=program), port


def test_it_is_ready_when_it_listens_and_answers_and_says_when_it_stops(
    tmp_path: Path, manager: ServiceManager
) -> None:
    daemon, port = start(tmp_path, manager)
    with all_stopped([daemon]):
        assert manager.until("STATUS").startswith("starting: looks for a checkpoint in ")
        manager.until("READY")
        # At once, without waiting for anything:
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
        with ControlClient(control_path(daemon.state)) as client:
            assert client.request("status")["status"]["state"] == "waiting for a trainer"
        waits = f"no trainer is attached; start one with P2PSGD_CONTROL={daemon.state}"
        assert manager.until("STATUS") == f"waiting for a trainer, 0 of 0 peers linked; {waits}"
        manager.until("WATCHDOG")
        daemon.process.terminate()
        manager.until("STOPPING")
        assert manager.told[-1]["STATUS"] == "stopped by SIGTERM"
        assert daemon.process.wait(DEADLINE_S) == 0
        assert sum("READY" in said for said in manager.told) == 1


def test_what_keeps_it_from_starting_is_its_last_status(tmp_path: Path, manager: ServiceManager) -> None:
    daemon, _ = start(tmp_path, manager, peers="not a host\n")
    with all_stopped([daemon]):
        assert daemon.process.wait(DEADLINE_S) == 78
        assert "hosts.txt line 1: 'not a host'" in manager.until("STATUS")
        manager.empty()
    assert not any("READY" in said for said in manager.told)


def test_its_trainer_cannot_speak_for_it_and_the_watchdog_is_fed_while_it_trains(
    tmp_path: Path, manager: ServiceManager
) -> None:
    daemon, _ = start(tmp_path, manager, *endless(calm(tmp_path)))
    with all_stopped([daemon]):
        until(lambda: steps(daemon) > 5, "training")
        trainer = (daemon.status() or {})["trainer"]["pid"]
        names = {line.split(b"=")[0] for line in Path(f"/proc/{trainer}/environ").read_bytes().split(b"\0")}
        assert b"P2PSGD_CONTROL" in names
        assert not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"}
        manager.until("STATUS", "training, step ")
        for _ in range(4):
            manager.until("WATCHDOG")


def test_a_stopped_process_feeds_no_watchdog(tmp_path: Path, manager: ServiceManager) -> None:
    daemon, _ = start(tmp_path, manager)
    with all_stopped([daemon]):
        manager.until("WATCHDOG")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: _is_stopped(daemon.process.pid), "it is stopped")
            manager.empty()
            assert manager.is_silent(WATCHDOG_S, "WATCHDOG")
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        manager.until("WATCHDOG")


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_it_ends_although_a_disk_hangs_and_says_that_its_last_checkpoint_is_missing(
    tmp_path: Path, manager: ServiceManager
) -> None:
    flag = tmp_path / "hang"
    program = [sys.executable, "-c", HANGING, "disk", str(flag)]
    daemon, _ = start(tmp_path, manager, *endless(calm(tmp_path)), program=program)
    with all_stopped([daemon]):
        until(lambda: steps(daemon) > 5, "training")
        flag.touch()
        daemon.process.terminate()
        assert daemon.process.wait(DEADLINE_S) == ExitCode.TEMPORARY
    assert "the disk has been at a checkpoint for" in daemon.words()
    assert "its last checkpoint is not on disk: it was not written within 1 s" in daemon.words()


@pytest.mark.parametrize("what", ["loop", "disk"])
def test_the_watchdog_is_fed_while_a_disk_hangs_and_not_while_the_loop_does(
    tmp_path: Path, manager: ServiceManager, what: str
) -> None:
    flag = tmp_path / "hang"
    program = [sys.executable, "-c", HANGING, what, str(flag)]
    options = (*endless(calm(tmp_path)), "--failure-timeout", "0.2")
    daemon, _ = start(tmp_path, manager, *options, program=program)
    with all_stopped([daemon]):
        until(lambda: steps(daemon) > 5, "training")
        flag.touch()
        try:
            if what == "disk":
                words = manager.until("STATUS", "; the disk has been at ")
                assert words.startswith("training, step ")
                manager.until("WATCHDOG")
                count = steps(daemon)
                until(lambda: steps(daemon) > count + 20, "it trains on")
                assert "in memory only" in (daemon.status() or {})["alarms"][-1]
            else:
                time.sleep(WATCHDOG_S / 4)  # for what was on its way
                manager.empty()
                assert manager.is_silent(WATCHDOG_S, "WATCHDOG")
                assert daemon.process.poll() is None
        finally:
            flag.unlink()
        manager.until("WATCHDOG")
