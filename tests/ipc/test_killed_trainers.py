"""Trainers in processes of their own that are killed at the worst moments."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.client.attach import attach
from tests import DEADLINE_S
from tests.ipc.daemons import (
    WEIGHTS,
    Daemon,
    StartDaemon,
    smallest_rings,
)
from tests.ipc.doomed_trainer import STEPS, delta_of


@contextlib.contextmanager
def doomed_trainer(daemon: Daemon, ending: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A trainer in a process of its own, when it has said that it is where it should die."""
    command = [sys.executable, "-m", "tests.ipc.doomed_trainer", str(daemon.path), str(WEIGHTS), ending]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def expected_after(steps: int) -> NDArray[np.float64]:
    """residual + weights after these mini-batches, if nothing is lost."""
    total: NDArray[np.float64] = np.sum(
        [delta_of(n + 1, WEIGHTS).astype(np.float64) for n in range(steps)], axis=0
    )
    return total


@pytest.mark.parametrize(
    ("ending", "published"),
    [("sweep", 3), ("encode", 3), ("write", 3), ("count", 3), ("publish", 4), ("apply", 4)],
)
def test_a_trainer_killed_anywhere_in_a_send_has_sent_all_of_it_or_nothing(
    daemon: Daemon, ending: str, published: int
) -> None:
    with doomed_trainer(daemon, ending) as (process, said):
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")
        assert daemon.host.left == [(False, "ended without detaching")]
        assert daemon.host.attached == [said["pid"]]
    assert [update.steps for update in daemon.host.updates] == [
        told for number in range(published) for told in (*[number] * (len(STEPS) - 1), number + 1)
    ]
    assert daemon.trainer_status()["steps"] == published
    with attach(control=daemon.path) as link:
        assert link.steps == published
        np.testing.assert_array_equal(link.weights, daemon.weights())
        np.testing.assert_array_equal(link.residual + link.weights, expected_after(published))
        link.send(delta_of(published + 1, WEIGHTS), 8)
        np.testing.assert_array_equal(link.residual + link.weights, expected_after(published + 1))
    assert daemon.host.updates[-1].steps == published + 1


def test_a_trainer_killed_while_it_waits_for_room_has_lost_nothing(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    daemon.server.session.outbox_closed = True
    with doomed_trainer(daemon, "wait") as (process, said):
        process.kill()
        daemon.until(lambda: not daemon.server.session.status()["attached"], "the trainer's end is seen")
    # The daemon was stopping and took nothing; a living one would have taken what was published, see below.
    assert daemon.trainer_status()["steps"] == said["steps"]
    assert not daemon.host.updates


def test_what_a_killed_trainer_had_published_is_taken_before_the_next_one_attaches(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    daemon.server.session.outbox_closed = True
    with doomed_trainer(daemon, "wait") as (process, said):
        process.send_signal(signal.SIGSTOP)  # so that it sends no more
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        daemon.server.session.outbox_closed = False
        process.kill()
        daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")
    assert [update.steps for update in daemon.host.updates[len(STEPS) - 1 :: len(STEPS)]] == list(
        range(1, said["steps"] + 1)
    )
    with attach(control=daemon.path) as link:
        assert link.steps == said["steps"]
        np.testing.assert_array_equal(link.residual + link.weights, expected_after(said["steps"]))


def test_a_killed_trainer_is_seen_even_if_a_child_of_it_keeps_the_connection(daemon: Daemon) -> None:
    with doomed_trainer(daemon, "orphan") as (process, said):
        try:
            assert process.wait(DEADLINE_S) == -signal.SIGKILL
            daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")
            with attach(control=daemon.path) as link:
                assert link.steps == 3
        finally:
            os.kill(said["child"], signal.SIGKILL)
