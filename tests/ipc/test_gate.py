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

from p2psgd.errors import TrainerError
from p2psgd.ipc import gate
from p2psgd.trainer.attaching import attach
from p2psgd.trainer.link import Link
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
    daemon.call(daemon.server.readiness_changed)


def test_a_trainer_waits_until_the_node_is_ready_and_gets_the_replica_as_it_is_then(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        assert daemon.host.proposal is not None  # the run is known at once
        status = daemon.trainer_status()
        assert (status["attached"], status["waits"]) == (False, WHY)
        daemon.peer_update(make_update(make_words(np.array([3]), np.array([0])), WEIGHTS))
        time.sleep(1.2)  # longer than it would wait for a daemon
        set_ready(daemon, "")
        out, error = process.communicate(timeout=60)
        assert (out, error, process.returncode) == ("attached 1.0\n", "", 0)
    assert daemon.host.attached == [process.pid]
    assert daemon.trainer_status()["refused_requests"] == 0


def test_what_it_waits_for_is_said_when_it_changes_but_not_more_often_than_it_may(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "SAY_EVERY_S", 0.3)
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        begun = time.monotonic()
        percent = 40
        while time.monotonic() < begun + 1:
            percent += 1
            set_ready(daemon, f"taking a snapshot: {percent} %")
            time.sleep(0.01)
        daemon.call(daemon.server.readiness_changed)
        assert process.stderr is not None
        lines = []
        while f" {percent} %" not in (line := process.stderr.readline()):
            lines.append(line)
        assert 1 <= len(lines) <= 4 + (time.monotonic() - begun - 1) / 0.3
        assert all(re.fullmatch(r"p2psgd: taking a snapshot: \d+ %\n", line) for line in lines)
        set_ready(daemon, "")
        assert process.communicate(timeout=60) == ("attached 0.0\n", "")


def test_nobody_else_may_attach_meanwhile_and_a_waiting_trainer_that_dies_makes_room(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        with pytest.raises(TrainerError, match=rf"another trainer \(pid {process.pid}\) waits to attach"):
            attach(ZEROS, control=daemon.path)
        process.kill()
        process.wait()
    with waiting_trainer(daemon) as process:
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    set_ready(daemon, "")
    with attach(ZEROS, control=daemon.path):
        pass
    assert len(daemon.host.attached) == 1


def test_a_waiting_trainer_notices_the_end_of_its_daemon(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        time.sleep(0.3)
        daemon.stop()
        _, error = process.communicate(timeout=60)
        assert "the daemon has stopped" in error or "no daemon answers" in error
        assert process.returncode == 1


def test_a_node_that_becomes_unready_again_before_it_looks_lets_nobody_in(daemon: Daemon) -> None:
    daemon.host.unready = WHY
    links: list[Link] = []
    trainer = threading.Thread(target=lambda: links.append(attach(ZEROS, control=daemon.path)))
    trainer.start()
    daemon.until(lambda: daemon.server.trainer_status()["waits"] == WHY, "it waits")

    def flicker() -> None:
        daemon.host.unready = ""
        daemon.server.readiness_changed()
        daemon.host.unready = WHY

    daemon.call(flicker)
    time.sleep(0.05)
    assert not links
    set_ready(daemon, "")
    trainer.join(60)
    wait_until(lambda: bool(links), "it is attached")
    links[0].close()


def test_a_stopped_trainer_is_not_told_more_than_it_reads(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "SAY_EVERY_S", 0.0)
    daemon.host.unready = WHY
    with waiting_trainer(daemon) as process:
        process.send_signal(signal.SIGSTOP)
        for number in range(2000):
            set_ready(daemon, f"{number} {'x' * 400}")
        process.send_signal(signal.SIGCONT)
        set_ready(daemon, "")
        out, error = process.communicate(timeout=60)
        assert (out, process.returncode) == ("attached 0.0\n", 0)
        assert len(error.splitlines()) < 100
