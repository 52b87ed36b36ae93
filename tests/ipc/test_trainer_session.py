"""The daemon and the one trainer that may attach, good or bad."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc import layout
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.ring_buffer import Counter
from p2psgd.ipc.trainer_session import SessionState
from tests import DEADLINE_S
from tests.ipc.daemons import (
    QUANTUM,
    WEIGHTS,
    ZEROS,
    Daemon,
    make_update,
    make_words,
    spike,
    wait_until,
)

RUBBISH = layout.OUTBOX_ENTRY.pack(2, 1, 5, 0.0) + b"\xff" * 40


def test_reports_reach_the_status_and_stay_until_the_next(daemon: Daemon, link: Link) -> None:
    link.report(samples=512, samples_per_s=np.float32(100.5), loss=1.5, epoch=0.25)
    link.report(timed_steps=3, computing_s=1.5, waiting_s=0.25)
    link.report(loss=np.float64("nan"), test_accuracy=0.5, waits="it waits for data")
    daemon.until(lambda: daemon.server.session.status()["test_accuracy"] == 0.5, "both reports have come")
    status = daemon.trainer_status()
    assert {**status, "pid": 0} == {
        "attached": True,
        "pid": 0,
        "finished": False,
        "steps": 0,
        "samples": 512,
        "samples_per_s": 100.5,
        "loss": None,
        "test_accuracy": 0.5,
        "epoch": 0.25,
        "step": 0,
        "of": 0,
        "batch": 0,
        "iteration": 0,
        "gradient_norm": None,
        "step_length": None,
        "waits": "it waits for data",
        "timed_steps": 3,
        "computing_s": 1.5,
        "waiting_s": 0.25,
        "adding_s": 0.0,
        "sending_s": 0.0,
        "daemon_adding_s": 0.0,
        "daemon_sending_s": 0.0,
        "reloads": 0,
        "copies_mended": 0,
        "refused_trainers": 0,
        "refused_requests": 0,
    }
    link.close(finished=True)
    status = daemon.trainer_status()
    assert (status["attached"], status["pid"], status["finished"]) == (False, None, True)
    assert (status["samples"], status["samples_per_s"], status["waits"]) == (512, 0.0, "")


def test_from_one_report_on_the_daemon_counts_the_steps_of_a_training_and_its_samples(
    daemon: Daemon, link: Link
) -> None:
    link.send(spike(1, 2), 1)
    link.report(step=10, of=13, batch=8)
    daemon.until(lambda: daemon.server.session.status()["of"] == 13, "the report has come")
    for steps, done in ((2, 11), (6, 13)):  # it may have more steps in it than the script has said
        while link.steps < steps:
            link.send(spike(1, 2), 1)
        daemon.take_all()
        status = daemon.trainer_status()
        assert (status["steps"], status["step"], status["of"]) == (steps, done, 13)
        assert status["samples"] == 8 * (steps - 1)
    link.close()
    assert daemon.trainer_status()["samples"] == 40
    with attach(control=daemon.path) as second:
        second.send(spike(1, 2), 1)
        daemon.take_all()
        status = daemon.trainer_status()
        assert (status["step"], status["of"], status["batch"], status["samples"]) == (0, 0, 0, 40)
        for batch, samples in ((8, 48), (2, 50)):
            second.report(batch=batch)
            daemon.until(lambda: daemon.server.session.status()["batch"] == batch, "the report")  # noqa: B023
            second.send(spike(1, 2), 1)
            daemon.take_all()
            assert daemon.trainer_status()["samples"] == samples


def test_finish_stops_the_trainer_and_also_the_one_that_takes_over_from_a_crash(
    daemon: Daemon, link: Link
) -> None:
    with ControlClient(daemon.path) as client:
        client.request("finish")
    assert link.stopping
    link.close(finished=False)
    assert daemon.host.left == [(False, "has detached before its end")]
    with attach(control=daemon.path) as second:
        assert second.stopping
    with attach(control=daemon.path) as third:
        assert not third.stopping


def test_a_trainer_that_writes_rubbish_is_refused_and_the_next_one_works(daemon: Daemon) -> None:
    link = attach(ZEROS, control=daemon.path)
    link.send(spike(1, 2), 1)
    daemon.take_all()
    link._memory.publish([RUBBISH], link._memory.mark)
    daemon.until(lambda: bool(daemon.host.left), "the trainer is refused")
    assert daemon.host.left[0][0] is False
    assert daemon.host.left[0][1].startswith(
        "wrote an outbox entry that does not check: its payload does not decode"
    )
    with pytest.raises(DaemonLost, match="the daemon refused this trainer: it wrote an outbox entry"):
        link.receive()
    status = daemon.trainer_status()
    assert (status["refused_trainers"], status["attached"]) == (1, False)
    link._memory.publish([RUBBISH], link._memory.mark)  # it lives on and writes where nobody reads
    with attach(ZEROS, control=daemon.path) as second:
        assert second.steps == 2
        second.send(spike(1, 2), 1)
    link.close()
    assert daemon.weights()[1] == 2 * QUANTUM
    assert len(daemon.host.updates) == 2


@pytest.mark.parametrize("counter", [Counter.OUTBOX_HEAD, Counter.INBOX_TAIL])
@pytest.mark.parametrize("value", [4, 2**20, 2**63, 2**64 - 8])
def test_a_trainer_that_lies_about_positions_is_refused(daemon: Daemon, counter: Counter, value: int) -> None:
    link = attach(ZEROS, control=daemon.path)
    link._memory._counters.store(counter, value)
    link._memory._wake_daemon.signal()
    daemon.peer_update(make_update(make_words(np.array([1]), np.array([0])), WEIGHTS))
    daemon.until(lambda: bool(daemon.host.left), "the trainer is refused")
    assert "was moved" in daemon.host.left[0][1]
    assert daemon.trainer_status()["refused_trainers"] == 1
    link.close()
    assert not daemon.host.updates


def test_attaching_again_waits_for_nobody_when_the_last_trainer_is_already_gone(daemon: Daemon) -> None:
    """Its end may lie unread in the daemon's loop behind the request of the next one."""
    first = attach(ZEROS, control=daemon.path)
    first.send(spike(1, 2), 1)
    blocked = threading.Event()
    holder = threading.Thread(target=daemon.call, args=[blocked.wait])
    holder.start()
    second: list[Link] = []
    attacher = threading.Thread(target=lambda: second.append(attach(control=daemon.path)))
    attacher.start()
    first._client.close()
    blocked.set()
    holder.join()
    attacher.join(DEADLINE_S)
    wait_until(lambda: bool(second), "the second trainer is attached")
    assert second[0].steps == 1
    assert second[0].weights[1] == QUANTUM
    second[0].close(finished=True)
    first._memory.close()


def test_a_session_goes_from_state_to_state_and_closes_for_good(daemon: Daemon) -> None:
    session = daemon.server.session
    before = session.state
    assert before is SessionState.DETACHED
    daemon.host.unready = "not yet"
    attacher = threading.Thread(target=lambda: attach(ZEROS, control=daemon.path).close())
    attacher.start()
    daemon.until(lambda: session.state is SessionState.WAITING, "a trainer waits")
    daemon.host.unready = ""
    daemon.call(session.readiness_changed)
    attacher.join(DEADLINE_S)
    daemon.until(lambda: session.state is SessionState.DETACHED, "it has left")
    with attach(control=daemon.path):
        daemon.until(lambda: session.state is SessionState.ATTACHED, "another one is attached")
        daemon.call(session.reject_contribution, "of another shape")
        daemon.until(lambda: session.state is SessionState.DETACHED, "the refused trainer is let go")
    daemon.stop()
    after = session.state
    assert after is SessionState.CLOSED
