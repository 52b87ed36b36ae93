"""The link against real daemons: what it receives, and its life from attach to close."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc.client import ControlClient
from tests import DEADLINE_S
from tests.ipc.daemons import (
    QUANTUM,
    WEIGHTS,
    ZEROS,
    Daemon,
    StartDaemon,
    make_update,
    make_words,
    smallest_rings,
    spike,
)
from tests.ipc.doomed_trainer import delta_of


def test_receive_applies_peers_updates_and_remembers_their_mini_batches(daemon: Daemon, link: Link) -> None:
    assert link.receive() == 0
    words = make_words(np.array([3, 70, 2999]), np.array([0, 1, 0]))
    daemon.peer_update(make_update(words, WEIGHTS, node=7, steps=5, magnitude=4))
    daemon.peer_update(make_update(words, WEIGHTS, node=2**64 - 1, steps=2, magnitude=1))
    daemon.peer_update(make_update(words[1:], WEIGHTS, node=7, steps=4, magnitude=1))
    assert link.receive() == 3
    assert link.receive() == 0
    assert link.peer_steps == {7: 5, 2**64 - 1: 2}
    assert (link.weights[[3, 70, 2999]] / QUANTUM).tolist() == [5, -6, 6]
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(("updates_max", "words_max"), [(64, 2**20), (7, 2**20), (64, WEIGHTS), (1, 1)])
def test_receive_applies_any_number_of_updates_in_batches(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, updates_max: int, words_max: int
) -> None:
    monkeypatch.setattr("p2psgd.client.compute.BATCH_UPDATES_MAX", updates_max)
    monkeypatch.setattr("p2psgd.client.compute.BATCH_WORDS_MAX", words_max)
    random = np.random.default_rng(2)
    with attach(ZEROS, control=daemon.path) as link:
        for number in range(150):
            indices = np.sort(random.choice(WEIGHTS, random.integers(1, 500), replace=False))
            words = make_words(indices, random.integers(0, 2, len(indices)))
            daemon.peer_update(make_update(words, WEIGHTS, steps=number + 1, magnitude=number + 1))
        assert link.receive() == 150
        assert link.peer_steps == {7: 150}
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert link.weights.any()


def test_what_peers_sent_before_the_first_receive_is_there(daemon: Daemon, link: Link) -> None:
    link.close()
    words = make_words(np.array([1]), np.array([0]))
    daemon.peer_update(make_update(words, WEIGHTS, steps=8))
    with attach(control=daemon.path) as second:
        daemon.peer_update(make_update(words, WEIGHTS, steps=9))
        assert second.weights[1] == QUANTUM
        assert second.peer_steps == {7: 8}
        assert second.receive() == 1
        assert second.weights[1] == 2 * QUANTUM
        assert second.peer_steps == {7: 9}


def test_a_full_inbox_leads_to_a_reload_with_the_own_updates_in_it(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    with attach(ZEROS, control=daemon.path) as link:
        random = np.random.default_rng(1)
        link.send(spike(9, 3), 2)
        daemon.take_all()
        with monkeypatch.context() as patch:
            patch.setattr(link._memory._wake_daemon, "signal", lambda: None)
            link.send(spike(8, 6), 5)  # published, and the daemon not woken
        for number in range(50):
            indices = np.sort(random.choice(WEIGHTS, 700, replace=False))
            words = make_words(indices, random.integers(0, 2, 700))
            daemon.peer_update(make_update(words, WEIGHTS, steps=number + 1))
        assert len(daemon.host.updates) == 1
        assert link.receive() == 0
        assert len(daemon.host.updates) == 2
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert link.peer_steps == {7: 50}
        assert daemon.trainer_status()["reloads"] == 1
        assert [update.steps for update in daemon.host.updates] == [1, 2]
        daemon.peer_update(make_update(make_words(np.array([1]), np.array([0])), WEIGHTS, steps=51))
        assert link.receive() == 1
        np.testing.assert_array_equal(link.weights, daemon.weights())


def test_wait_ends_when_something_comes(daemon: Daemon, link: Link) -> None:
    assert not link.wait(0)
    words = make_words(np.array([1]), np.array([0]))
    waker = threading.Timer(0.05, daemon.peer_update, [make_update(words, WEIGHTS)])
    waker.start()
    assert link.wait(DEADLINE_S)
    assert link.receive() == 1
    waker.join()
    assert not link.wait(0.01)
    with ControlClient(daemon.path) as client:
        client.request("finish")
    assert link.wait(DEADLINE_S)
    assert link.stopping


@pytest.mark.parametrize("rings", ["usual", "smallest"])
def test_three_nodes_in_any_interleaving_end_with_equal_bits(start_daemon: StartDaemon, rings: str) -> None:
    """Own and peers' updates in whatever order, with reloads and waits in between: weights == quantum *
    replica, everywhere.
    """
    sizes = smallest_rings(WEIGHTS) if rings == "smallest" else {}
    daemons = [start_daemon(node, **sizes) for node in (1, 2, 3)]
    for sender in daemons:
        for receiver in daemons:
            if receiver is not sender:
                sender.send_to(receiver)
    initial = np.random.default_rng(0).normal(size=WEIGHTS)
    links = [attach({"w": initial}, control=daemon.path) for daemon in daemons]
    random = np.random.default_rng(3)
    for number in range(300):
        link = links[random.integers(3)]
        if random.random() < 0.1:
            link.receive()
        link.send(delta_of(number, WEIGHTS) * np.float32(0.3), int(random.integers(1, 9)))
    for daemon in daemons:
        daemon.take_all()
    for daemon in daemons:
        daemon.call(lambda: None)  # after what the others have sent it
    replica = daemons[0].weights()
    assert sum(len(daemon.host.updates) for daemon in daemons) > 200
    for daemon, link in zip(daemons, links, strict=True):
        link.receive()
        np.testing.assert_array_equal(daemon.weights(), replica)
        np.testing.assert_array_equal(link.weights, replica)
        others = {other.host.node: other.host.updates[-1].steps for other in daemons if other is not daemon}
        assert link.peer_steps == others
        link.close(finished=True)
    if rings == "smallest":
        assert sum(daemon.trainer_status()["reloads"] for daemon in daemons) > 0


def test_an_inbox_with_rubbish_is_an_error_and_not_a_change(daemon: Daemon, link: Link) -> None:
    daemon.peer_update(bytes(100))
    with pytest.raises(TrainerError, match="the daemon's inbox holds an update that does not check"):
        link.receive()
    assert not link.weights.any()
    assert link.receive() == 0  # it was reloaded


@pytest.mark.parametrize(
    "figures", [{"speed": 1}, {"samples": "1"}, {"samples_per_s": float("nan")}, {"waits": "x" * 501}]
)
def test_a_report_of_anything_else_is_refused_here(
    daemon: Daemon, link: Link, figures: dict[str, Any]
) -> None:
    with pytest.raises(TrainerError, match="report: "):
        link.report(**figures)
    assert daemon.trainer_status()["refused_requests"] == 0


def test_a_figure_that_a_report_does_not_have_is_named_with_those_that_it_has(link: Link) -> None:
    with pytest.raises(TrainerError, match="there is no figure 'speed', only samples, samples_per_s, loss"):
        link.report(loss=1.0, speed=1)


def test_reports_never_wait_for_a_busy_daemon(daemon: Daemon, link: Link) -> None:
    busy = threading.Event()
    waiting = threading.Thread(target=daemon.call, args=[busy.wait])
    waiting.start()
    for number in range(2000):
        link.report(samples=number)
    busy.set()
    waiting.join()
    assert link.send(spike(1, 2), 1) == 1


def test_a_closed_link_says_so(link: Link) -> None:
    link.close()
    link.close()
    for call in (
        link.receive,
        lambda: link.send(ZEROS, 1),
        lambda: link.wait(0),
        lambda: link.report(samples=1),
    ):
        with pytest.raises(TrainerError, match="this link is closed"):
            call()
    assert link.weights.shape == link.residual.shape == (WEIGHTS,)


def test_an_exception_in_the_with_block_is_no_finish(daemon: Daemon) -> None:
    with pytest.raises(ZeroDivisionError), attach(ZEROS, control=daemon.path):
        raise ZeroDivisionError
    assert daemon.host.left == [(False, "has detached before its end")]


def test_a_daemon_that_stops_is_told_apart_from_a_quiet_one(daemon: Daemon) -> None:
    link = attach(ZEROS, control=daemon.path)
    assert link.receive() == 0
    daemon.stop()
    for call in (link.receive, lambda: link.send(ZEROS, 1), lambda: link.wait(DEADLINE_S)):
        with pytest.raises(DaemonLost, match=r"closed this connection: the daemon has stopped|is gone"):
            call()
    link.close(finished=True)
