"""A trainer that attaches to a node that is not ready waits, is told why, and is let in later."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from p2psgd.base.errors import P2psgdError, TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc import trainer_session
from p2psgd.ipc.residual_segment import ResidualSegment
from p2psgd.ipc.trainer_session import SessionState
from tests import DEADLINE_S
from tests.ipc.daemons import WEIGHTS, ZEROS, Daemon, make_update, make_words, wait_until

WHY = "taking a snapshot from host2: 40 %"
SCRIPT = """
import sys, numpy as np, p2psgd
with p2psgd.attach(np.zeros(int(sys.argv[2]), np.float32), control=sys.argv[1], timeout_s=1) as link:
    print("attached", link.weights[3] / link.quantum, flush=True)
"""


@contextlib.contextmanager
def waiting_trainer(daemon: Daemon) -> Iterator[subprocess.Popen[str]]:
    """A process that attaches, once it has been told why it waits."""
    command = [sys.executable, "-c", SCRIPT, str(daemon.path), str(WEIGHTS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"p2psgd: {WHY}\n"
            yield process
        finally:
            process.kill()


def set_ready(daemon: Daemon, words: str) -> None:
    daemon.host.unready = words
    daemon.call(daemon.server.session.readiness_changed)


def test_a_trainer_waits_until_the_node_is_ready_and_gets_the_replica_as_it_is_then(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        assert daemon.host.proposal is not None  # the run is known at once
        status = daemon.trainer_status()
        assert (status["attached"], status["waits"]) == (False, WHY)
        daemon.peer_update(make_update(make_words(np.array([3]), np.array([0])), WEIGHTS))
        time.sleep(1.2)  # longer than it would wait for a daemon
        set_ready(daemon, "")
        out, error = process.communicate(timeout=DEADLINE_S)
        assert (out, error, process.returncode) == ("attached 1.0\n", "", 0)
    assert daemon.host.attached == [process.pid]
    assert daemon.trainer_status()["refused_requests"] == 0


def test_what_it_waits_for_is_said_when_it_changes_but_not_more_often_than_it_may(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_session, "SAY_EVERY_S", 0.3)
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        begun = time.monotonic()
        percent = 40
        while time.monotonic() < begun + 1:
            percent += 1
            set_ready(daemon, f"taking a snapshot: {percent} %")
            time.sleep(0.01)
        daemon.call(daemon.server.session.readiness_changed)
        assert process.stderr is not None
        lines = []
        while f" {percent} %" not in (line := process.stderr.readline()):
            lines.append(line)
        assert 1 <= len(lines) <= 4 + (time.monotonic() - begun - 1) / 0.3
        assert all(re.fullmatch(r"p2psgd: taking a snapshot: \d+ %\n", line) for line in lines)
        set_ready(daemon, "")
        assert process.communicate(timeout=DEADLINE_S) == ("attached 0.0\n", "")


def test_nobody_else_may_attach_meanwhile_and_a_waiting_trainer_that_dies_makes_room(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        with pytest.raises(TrainerError, match=rf"another trainer \(pid {process.pid}\) waits to attach"):
            attach(ZEROS, control=daemon.path)
        process.kill()
        process.wait()
    with waiting_trainer(daemon) as process:
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=DEADLINE_S)[1]
    set_ready(daemon, "")
    with attach(ZEROS, control=daemon.path):
        pass
    assert len(daemon.host.attached) == 1


def test_a_waiting_trainer_notices_the_end_of_its_daemon(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        time.sleep(0.3)
        daemon.stop()
        _, error = process.communicate(timeout=DEADLINE_S)
        assert "the daemon has stopped" in error or "no daemon answers" in error
        assert process.returncode == 1


def test_a_node_that_becomes_unready_again_before_it_looks_lets_nobody_in(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    links: list[Link] = []
    trainer = threading.Thread(target=lambda: links.append(attach(ZEROS, control=daemon.path)))
    trainer.start()
    daemon.until(lambda: daemon.server.session.status()["waits"] == WHY, "it waits")

    def flicker() -> None:
        daemon.host.unready = ""
        daemon.server.session.readiness_changed()
        daemon.host.unready = WHY

    daemon.call(flicker)
    time.sleep(0.05)
    assert not links
    set_ready(daemon, "")
    trainer.join(DEADLINE_S)
    wait_until(lambda: bool(links), "it is attached")
    links[0].close()


def test_a_stopped_trainer_is_not_told_more_than_it_reads(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_session, "SAY_EVERY_S", 0.0)
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        process.send_signal(signal.SIGSTOP)
        for number in range(2000):
            set_ready(daemon, f"{number} {'x' * 400}")
        process.send_signal(signal.SIGCONT)
        set_ready(daemon, "")
        out, error = process.communicate(timeout=DEADLINE_S)
        assert (out, process.returncode) == ("attached 0.0\n", 0)
        assert len(error.splitlines()) < 100


@pytest.fixture
def looking_through(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set: the residual of the next trainer is found finite; before, it takes one turn of the loop more."""
    through = threading.Event()
    check = ResidualSegment.check
    monkeypatch.setattr(ResidualSegment, "check", lambda residual: through.is_set() and check(residual))
    return through


@contextlib.contextmanager
def attaching(daemon: Daemon) -> Iterator[list[Link | P2psgdError]]:
    """A thread that attaches, held at the gate; the list gets its link or what it raised."""
    got: list[Link | P2psgdError] = []

    def attach_here() -> None:
        try:
            got.append(attach(ZEROS, control=daemon.path))
        except P2psgdError as error:
            got.append(error)

    trainer = threading.Thread(target=attach_here)
    trainer.start()
    daemon.until(lambda: daemon.server.session.state is SessionState.WAITING, "it is held")
    yield got
    trainer.join(DEADLINE_S)
    assert not trainer.is_alive()
    for link in got:
        if isinstance(link, Link):
            link.close()


def test_the_loop_serves_others_and_lets_nobody_else_in_while_a_residual_is_looked_through(
    daemon: Daemon, looking_through: threading.Event
) -> None:
    with attaching(daemon) as got:
        with pytest.raises(TrainerError, match="waits to attach"):
            attach(ZEROS, control=daemon.path)
        set_ready(daemon, WHY)  # a node may become unready meanwhile
        daemon.until(lambda: daemon.server.session.status()["waits"] == WHY, "it waits for both")
        looking_through.set()
        assert not got
        set_ready(daemon, "")
    assert isinstance(got[0], Link)
    assert len(daemon.host.attached) == 1


def test_a_trainer_that_dies_while_its_residual_is_looked_through_makes_room(
    daemon: Daemon, looking_through: threading.Event
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(daemon.path), str(WEIGHTS)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        daemon.until(lambda: daemon.server.session.state is SessionState.WAITING, "it is held")
        process.kill()
    daemon.until(lambda: daemon.server.session.state is not SessionState.WAITING, "its end is seen")
    looking_through.set()
    with attach(ZEROS, control=daemon.path):
        pass
    assert len(daemon.host.attached) == 1


@pytest.mark.usefixtures("looking_through")
def test_a_daemon_may_stop_while_a_residual_is_looked_through(daemon: Daemon) -> None:
    with attaching(daemon) as got:
        daemon.stop()
    assert isinstance(got[0], P2psgdError)


def test_a_residual_that_cannot_be_looked_through_is_told_and_the_next_trainer_tries_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ResidualSegment) -> bool:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ResidualSegment, "check", fail)
        with pytest.raises(P2psgdError, match="the daemon cannot do that now: out of memory"):
            attach(ZEROS, control=daemon.path)
    with attach(ZEROS, control=daemon.path) as link:
        link.send(ZEROS, 1)
