"""Exchanges that were interrupted or timed out: what is left of them misleads nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import DaemonLost, ExitCode, UsageError
from p2psgd.client.attach import attach
from p2psgd.ipc.client import ControlClient
from tests import DEADLINE_S
from tests.ipc.daemons import ZEROS, Daemon

Interrupt = Callable[[str], None]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[ControlClient]:
    with attach(ZEROS, control=daemon.path), ControlClient(daemon.path) as client:
        yield client


@pytest.fixture
def interrupt(client: ControlClient, monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Make a request of this client and interrupt it once it is sent."""

    def interrupt(op: str) -> None:
        def raise_interrupt() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(client, "_await_answer", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.request(op)

    return interrupt


@contextmanager
def busy(daemon: Daemon) -> Iterator[None]:
    """The daemon's loop does nothing meanwhile."""
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        end.wait()

    waiting = threading.Thread(target=daemon.call, args=[hold])
    waiting.start()
    assert held.wait(DEADLINE_S)
    try:
        yield
    finally:
        end.set()
        waiting.join()


def answered(daemon: Daemon) -> None:
    """Wait until the daemon has read and answered what was sent to it."""
    for _ in range(3):
        daemon.call(lambda: None)


def test_a_stale_answer_is_no_farewell(daemon: Daemon, client: ControlClient, interrupt: Interrupt) -> None:
    with busy(daemon):
        interrupt("status")
        client.check_daemon()
    answered(daemon)
    for _ in range(2):
        client.check_daemon()
    assert client.request("compression") == {"compression": {"total": {"updates": 0}}}


def test_a_stale_answer_is_not_the_next_ones(
    daemon: Daemon, client: ControlClient, interrupt: Interrupt
) -> None:
    for _ in range(3):
        interrupt("status")
    answered(daemon)
    assert client.request("compression") == {"compression": {"total": {"updates": 0}}}
    assert daemon.trainer_status()["refused_requests"] == 0


def test_the_next_request_waits_for_an_answer_that_is_still_to_come(
    daemon: Daemon, client: ControlClient, interrupt: Interrupt
) -> None:
    with busy(daemon):
        interrupt("status")
        answers: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: answers.append(client.request("compression")))
        asking.start()
        asking.join(0.05)
        assert asking.is_alive()
    asking.join()
    assert answers == [{"compression": {"total": {"updates": 0}}}]
    assert daemon.trainer_status()["refused_requests"] == 0


def test_an_answer_after_the_timeout_is_not_the_next_ones(daemon: Daemon, client: ControlClient) -> None:
    with busy(daemon):
        client.timeout_s = 0.01
        for _ in range(2):
            with pytest.raises(DaemonLost, match=r"has not answered for 0\.01 s"):
                client.request("status")
        client.timeout_s = 30.0
    assert client.request("compression") == {"compression": {"total": {"updates": 0}}}


def test_the_descriptors_of_a_stale_answer_are_closed(
    daemon: Daemon, client: ControlClient, interrupt: Interrupt
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        interrupt("replica")
        answered(daemon)
        if number % 2:
            client.check_daemon()
        else:
            client.request("status")
    # fewer: garbage of other tests; a few more: the daemon at work in another thread; a leak would be 20
    assert len(os.listdir("/proc/self/fd")) < before + 5


def test_why_the_daemon_has_closed_is_told_again_also_when_it_was_an_answer(daemon: Daemon) -> None:
    with ControlClient(daemon.path) as client:
        client.request("status")
        daemon.stop()
        # Its last words are there before the request: they are what it gets.
        with pytest.raises(UsageError, match=r"^the daemon has stopped$") as caught:
            client.request("status")
        assert caught.value.exit_code is ExitCode.TEMPORARY
        for ask in (client.check_daemon, lambda: client.request("status")):
            with pytest.raises(DaemonLost, match="closed this connection: the daemon has stopped"):
                ask()


def test_after_a_stale_answer_a_daemon_that_stops_is_lost(
    daemon: Daemon, client: ControlClient, interrupt: Interrupt
) -> None:
    interrupt("status")
    answered(daemon)
    daemon.stop()
    with pytest.raises(DaemonLost, match="closed this connection: the daemon has stopped"):
        client.check_daemon()


def test_the_directory_of_several_nodes_is_answered_with_the_one_of_a_node(tmp_path: Path) -> None:
    for name in ("node-1", "node-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control.sock").touch()
    with pytest.raises(
        UsageError, match=f"or name the state directory of one that runs with --state {tmp_path}/node-0$"
    ):
        ControlClient(tmp_path / "control.sock")
