"""Links in sparse rings of real control servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.wire.ring_messages import ContributionMade
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
    wait_until,
)
from tests.ipc.rings import Ring

SPARSE = {"mode": "ring", "payload": "sparse"}


def follow(daemon: Daemon) -> Link:
    return attach(ZEROS, control=daemon.path, **SPARSE)  # type: ignore[arg-type]


@pytest.fixture
def link_options() -> dict[str, str]:
    return SPARSE


@pytest.fixture
def ring(daemon: Daemon, link: Link) -> Ring:
    """Of one daemon, whose trainer is attached."""
    assert link.mode.word == "ring-sparse"
    ring = Ring([daemon])
    ring.open()
    return ring


class CountingRing(Ring):
    """A ring that counts the updates of all shares of each round."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        super().__init__(daemons)
        self.updates: list[list[int]] = []

    def complete(self) -> None:
        shares = [daemon.host.shares[0] for daemon in self.daemons]
        self.updates.append([len(share.updates) for share in shares if isinstance(share, ContributionMade)])
        super().complete()


def test_a_share_of_a_large_model_has_several_updates(start_daemon: StartDaemon) -> None:
    zeros = np.zeros(5_000_000, np.float32)
    daemons = [start_daemon(node) for node in (1, 2)]
    options: dict[str, Any] = SPARSE
    with (
        attach(zeros, control=daemons[0].path, **options) as first,
        attach(zeros, control=daemons[1].path, **options) as second,
    ):
        ring = CountingRing(daemons)
        ring.open()
        for _ in range(2):
            assert first.send(zeros + np.float32(2 * QUANTUM), 1) == 312_500  # a sixteenth
            assert second.send(zeros, 1) == 0
            first.receive()
            second.receive()
        assert ring.updates == [[2, 0], [2, 0]]
        assert np.count_nonzero(first.weights) == 625_000
        np.testing.assert_array_equal(first.weights, second.weights)


def test_links_that_give_different_shares_have_the_same_weights_after_each_round(
    start_daemon: StartDaemon,
) -> None:
    daemons = [start_daemon(node) for node in (1, 2, 3)]
    with follow(daemons[0]) as first, follow(daemons[1]) as second, follow(daemons[2]) as third:
        ring = Ring(daemons)
        ring.open()
        histories: list[list[bytes]] = [[], [], []]

        def train(node: int, link: Link) -> None:
            random = np.random.default_rng(node)
            for _ in range(20):
                link.receive()
                histories[node].append(link.weights.tobytes())
                link.send(random.normal(0, 3 * QUANTUM, WEIGHTS).astype(np.float32), 5)
            link.receive()
            histories[node].append(link.weights.tobytes())

        with ThreadPoolExecutor() as pool:
            list(pool.map(train, range(3), (first, second, third)))
        assert histories[0] == histories[1] == histories[2]
        assert len(set(histories[0])) == 21
        assert ring.rounds == 20
        assert first.peer_steps == {2: 20, 3: 20}
        assert all((daemon.weights() == first.weights).all() for daemon in daemons)
        assert first.waited_s > 0
        assert (first.adding_s, first.sending_s) == (1.0, 2.0)


def test_a_share_comes_whole_also_with_several_steps_or_with_nothing_in_it(
    daemon: Daemon,
) -> None:
    initial = {"low": np.zeros(1000, np.float32), "high": np.zeros(2000, np.float32)}
    with attach(initial, mode="ring", payload="sparse", control=daemon.path) as link:
        ring = Ring([daemon])
        ring.held.set()
        ring.open()
        assert link.send(spike(1, 3) + spike(2000, 9), {"low": 2, "high": 5}) == 2
        daemon.until(lambda: bool(daemon.host.shares), "a share")
        (share,) = daemon.host.shares
        assert [(update.magnitude, update.steps) for update in share.updates] == [(2, 1), (5, 1)]  # type: ignore[union-attr]
        ring.held.clear()
        daemon.call(ring.look)
        assert link.receive() == 0
        ring.held.set()
        assert link.send(ZEROS, 5) == 0
        daemon.until(lambda: bool(daemon.host.shares), "an empty share")
        (share,) = daemon.host.shares
        assert (share.steps, share.updates) == (2, ())  # type: ignore[union-attr]


def test_who_skips_follows_and_its_mini_batches_do_not_count(ring: Ring, daemon: Daemon, link: Link) -> None:
    for _ in range(3):
        link.receive()
        assert link.skip() == 0
    link.receive()
    assert (link.steps, ring.rounds) == (0, 3)
    link.send(spike(1, 3), 2)
    link.receive()
    assert (link.steps, link.weights[1]) == (1, 2 * QUANTUM)
    link.skip()
    link.receive()
    np.testing.assert_array_equal(link.weights, daemon.weights())


def test_nothing_is_given_or_received_before_the_round_is_open(daemon: Daemon, link: Link) -> None:
    ring = Ring([daemon])
    assert not link.wait(0.01)
    threading.Timer(0.05, ring.open).start()
    link.send(spike(1, 3), 2)
    assert link.waited_s > 0.01
    daemon.until(lambda: ring.rounds == 1, "the round")
    ring.held.set()
    assert link.receive() == 0
    assert link.receive() == 0  # still that round: nothing waits, nothing new
    link.send(spike(2, 3), 2)
    daemon.peer_update(make_update(make_words(np.array([7]), np.array([0])), WEIGHTS))
    assert not link.wait(0.01)
    assert not link.weights[7]
    ring.held.clear()
    daemon.call(ring.look)
    assert link.receive() == 1
    assert link.weights[7] == QUANTUM
    assert link.wait(0)


def test_a_trainer_that_waits_for_a_round_ends_when_asked_to(ring: Ring, daemon: Daemon, link: Link) -> None:
    ring.held.set()
    link.receive()
    link.send(spike(1, 3), 2)
    threading.Timer(0.02, lambda: daemon.call(daemon.server.session.finish)).start()
    assert link.receive() == 0
    assert link.stopping
    assert link.send(spike(2, 3), 2) == 0
    assert link.skip() == 0
    assert link.steps == 1
    assert link.wait(0)


def test_a_trainer_that_waits_for_a_round_hears_that_its_daemon_is_gone(
    ring: Ring, daemon: Daemon, link: Link
) -> None:
    ring.held.set()
    link.send(spike(1, 3), 2)
    stopping = threading.Timer(0.02, daemon.stop)
    stopping.start()
    with pytest.raises(DaemonLost):
        link.receive()
    stopping.join()


def test_a_trainer_that_waits_for_a_round_gives_its_state(ring: Ring, daemon: Daemon, link: Link) -> None:
    ring.held.set()
    link.keep(lambda: {"n": link.steps})
    link.send(spike(1, 3.5), 2)
    waiting = threading.Thread(target=link.receive)
    waiting.start()
    daemon.call(daemon.server.session.request_state)
    daemon.until(lambda: bool(daemon.host.states), "a state")
    (state,) = daemon.host.states
    assert (state.steps, state.script) == (1, {"n": 1})
    assert state.residual is not None
    assert state.residual[1] == 1.5 * QUANTUM
    ring.held.clear()
    daemon.call(ring.look)
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_a_full_inbox_leads_to_the_weights_of_the_round(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    with follow(daemon) as link:
        ring = Ring([daemon])
        ring.open()
        link.receive()
        random = np.random.default_rng(1)
        for _ in range(50):
            indices = np.sort(random.choice(WEIGHTS, 700, replace=False))
            daemon.peer_update(make_update(make_words(indices, random.integers(0, 2, 700)), WEIGHTS))
        link.send(spike(1, 3), 2)
        link.receive()
        assert daemon.trainer_status()["reloads"] == 1
        np.testing.assert_array_equal(link.weights, daemon.weights())


def test_a_share_that_was_pending_reaches_the_next_trainer(daemon: Daemon) -> None:
    ring = Ring([daemon])
    ring.held.set()
    with follow(daemon) as link:
        ring.open()
        link.send(spike(1, 3), 2)
    daemon.until(lambda: bool(daemon.host.shares), "a share")
    with follow(daemon) as link:
        assert not link.weights.any()
        ring.held.clear()
        daemon.call(ring.look)
        link.receive()
        assert link.weights[1] == 2 * QUANTUM
        np.testing.assert_array_equal(link.weights, daemon.weights())


def test_a_refused_share_ends_the_trainer_with_its_sentence(ring: Ring, daemon: Daemon, link: Link) -> None:
    ring.held.set()
    link.send(spike(1, 3), 2)
    daemon.call(daemon.server.session.reject_contribution, "tensor 'a' is (3,) here and (4,) at beta")
    for call in (
        link.receive,
        link.receive,
        link.skip,
        lambda: link.wait(1),
    ):  # a script may go on and ask again
        with pytest.raises(TrainerError, match=r"^tensor 'a' is \(3,\) here and \(4,\) at beta$") as caught:
            call()
        assert not isinstance(caught.value, DaemonLost)
    daemon.until(lambda: bool(daemon.host.left), "the trainer has left")
    assert daemon.host.left == [(False, "gave what does not fit: tensor 'a' is (3,) here and (4,) at beta")]
    assert daemon.trainer_status()["refused_trainers"] == 1


def test_an_interrupted_wait_leaves_the_share_given_once(
    ring: Ring, daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.held.set()
    link.send(spike(1, 3), 2)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(link._waiting, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            link.receive()
    ring.held.clear()
    daemon.call(ring.look)
    link.receive()
    link.send(spike(2, 3), 2)
    wait_until(lambda: ring.rounds == 2, "the second round")
    link.receive()
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("send needs a threshold", lambda link: link.send(ZEROS)),
        ('allreduce needs a run in ring mode with payload = "dense"', lambda link: link.allreduce(ZEROS)),
        ('this one is in ring mode with payload = "sparse"', lambda link: link.allreduce_wait()),
        ("allreduce_begin needs", lambda link: link.allreduce_begin("weights")),
        ("proposed needs", lambda link: link.proposed),
    ],
)
def test_what_is_for_dense_rings_is_refused_and_says_why(
    ring: Ring, link: Link, words: str, call: Callable[[Link], object]
) -> None:
    with pytest.raises(TrainerError, match=words):
        call(link)
    assert link.steps == 0


def test_in_async_mode_calls_for_rings_say_what_they_need(daemon: Daemon) -> None:
    with attach(ZEROS, control=daemon.path) as link:
        with pytest.raises(
            TrainerError,
            match=r'^allreduce needs a run in ring mode with payload = "dense": this one is async$',
        ):
            link.allreduce(ZEROS)
        with pytest.raises(TrainerError, match="skip is for a run in ring mode"):
            link.skip()
        assert link.waited_s == link.adding_s == link.sending_s == 0


@pytest.mark.parametrize(
    ("mode", "payload", "words"),
    [
        ("sync", None, "the modes are 'async', 'owners', 'ring' and 'closure'"),
        ("ring", "quaternary", "payload 'quaternary' is refused: give 'sparse', 'dense' or 'dense-float16'"),
        ("async", "dense", "payload='dense' is for a ring: give mode='ring'"),
    ],
)
def test_a_mode_that_is_none_is_refused(daemon: Daemon, mode: str, payload: str | None, words: str) -> None:
    with pytest.raises(TrainerError, match=words):
        attach(ZEROS, mode=mode, payload=payload, control=daemon.path)
    assert daemon.host.run() is None


def test_a_ring_without_a_payload_is_sparse(daemon: Daemon) -> None:
    with attach(ZEROS, mode="ring", control=daemon.path) as link:
        assert link.mode.word == "ring-sparse"
