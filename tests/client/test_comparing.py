"""A trainer's copy of the weights is compared with its node's replica when it gives its state, and mended."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client import verify
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.client.dense_links import both, random_delta
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
from tests.ipc.rings import DenseRing, Ring


def flip(link: Link, weight: int, bit: int) -> None:
    """Change one bit of the memory that the copy lies in."""
    link._compute._replica.view(np.uint32)[weight] ^= np.uint32(1 << bit)  # type: ignore[attr-defined]


def ask_for_state(daemon: Daemon) -> None:
    daemon.call(daemon.server.session.request_state)


def mended(daemon: Daemon) -> tuple[int, int]:
    """How often the copy of the attached trainer was wrong, and how often it was taken anew."""
    status = daemon.trainer_status()
    return status["copies_mended"], status["reloads"]


def one_update(index: int = 5) -> bytes:
    return make_update(make_words(np.array([index]), np.array([0])), WEIGHTS)


@pytest.mark.parametrize("bit", [0, 22, 23, 30, 31])
def test_a_changed_bit_is_found_and_mended_with_a_sentence(
    daemon: Daemon, link: Link, bit: int, capfd: pytest.CaptureFixture[str]
) -> None:
    link.send(spike(1, 300), 200)
    for weight in (1, 2):  # 200 quanta, and 0
        flip(link, weight, bit)
        link.receive()  # nobody has asked
        assert mended(daemon) == (weight - 1, weight - 1)
        ask_for_state(daemon)
        link.receive()
        assert mended(daemon) == (weight, weight)
        assert link.weights.tobytes() == daemon.weights().tobytes()
        assert capfd.readouterr().err == f"p2psgd: {verify.DIFFERS}\n"
    ask_for_state(daemon)
    link.receive()
    assert mended(daemon) == (2, 2)
    assert not capfd.readouterr().err


def test_what_lies_in_inbox_and_outbox_is_no_difference(
    daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(link._memory._wake_daemon, "signal", lambda: None)
        link.send(spike(1, 3), 2)  # published, and the daemon not woken
    ask_for_state(daemon)
    ask = verify.ask_digest

    def ask_between_two_updates(client: object) -> object:
        daemon.peer_update(one_update())
        answer = ask(client)  # type: ignore[arg-type]
        daemon.peer_update(one_update(6))
        return answer

    monkeypatch.setattr("p2psgd.client.link.ask_digest", ask_between_two_updates)
    daemon.peer_update(one_update())
    assert link.receive() == 2
    assert mended(daemon) == (0, 0)
    assert (link.weights[[1, 5, 6]] / QUANTUM).tolist() == [2, 2, 0]
    assert link.receive() == 1
    assert link.weights.tobytes() == daemon.weights().tobytes()


@pytest.mark.parametrize("before", [True, False])
def test_an_inbox_that_overflows_meanwhile_is_no_difference(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    words = make_words(np.arange(0, WEIGHTS, 4), np.zeros(WEIGHTS // 4, bool))
    ask = verify.ask_digest

    def overflow() -> None:
        for _ in range(50):
            daemon.peer_update(make_update(words, WEIGHTS))

    def ask_and_overflow(client: object) -> object:
        if before:
            overflow()
        answer = ask(client)  # type: ignore[arg-type]
        if not before:
            overflow()
        assert (answer.digest is None) == before
        return answer

    monkeypatch.setattr("p2psgd.client.link.ask_digest", ask_and_overflow)
    with attach(ZEROS, control=daemon.path) as link:
        ask_for_state(daemon)
        link.receive()
        link.receive()
        assert mended(daemon) == (0, 1)
        assert link.weights.tobytes() == daemon.weights().tobytes()


def test_a_copy_that_is_wrong_again_at_once_ends_the_trainer(
    daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory with a bit that cannot be changed, or arithmetic that is wrong."""
    copy_from = link._compute.copy_from

    def copy_and_flip(replica: int) -> None:
        copy_from(replica)
        flip(link, 7, 3)

    monkeypatch.setattr(link._compute, "copy_from", copy_and_flip)
    flip(link, 7, 3)
    ask_for_state(daemon)
    with pytest.raises(TrainerError, match=r"cannot be trusted$"):
        link.receive()
    monkeypatch.undo()
    link.receive()
    assert mended(daemon) == (1, 2)
    assert link.weights.tobytes() == daemon.weights().tobytes()


def test_memory_of_the_daemon_that_has_changed_is_not_blamed_on_the_trainer(
    daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds that itself: its digest is that of the updates, not of the memory."""
    right = daemon.call(daemon.host.replica_digest)
    monkeypatch.setattr(daemon.host, "replica_digest", lambda: right)
    daemon.host.coordinates[9] += 1
    ask_for_state(daemon)
    link.receive()
    assert mended(daemon) == (0, 0)
    link._exact = False  # it takes the wrong weights for another reason
    link.receive()
    ask_for_state(daemon)
    link.receive()
    assert mended(daemon) == (1, 2)


@pytest.mark.parametrize("rings", ["usual", "smallest"])
def test_trainers_in_any_interleaving_differ_never(start_daemon: StartDaemon, rings: str) -> None:
    sizes = smallest_rings(WEIGHTS) if rings == "smallest" else {}
    daemons = [start_daemon(node, **sizes) for node in (1, 2)]
    daemons[0].send_to(daemons[1])
    daemons[1].send_to(daemons[0])
    links = [attach(ZEROS, control=daemon.path) for daemon in daemons]
    random = np.random.default_rng(3)
    for number in range(200):
        node = int(random.integers(2))
        if random.random() < 0.4:
            ask_for_state(daemons[node])
        if random.random() < 0.5:
            links[node].receive()
        links[node].send(delta_of(number, WEIGHTS), int(random.integers(1, 9)))
    for daemon, link in zip(daemons, links, strict=True):
        assert len(daemon.host.states) > 20
        assert mended(daemon)[0] == 0
        link.close()


def test_in_a_sparse_ring_an_own_share_on_its_way_is_no_difference(daemon: Daemon) -> None:
    with attach(ZEROS, mode="ring", payload="sparse", control=daemon.path) as link:
        Ring([daemon]).open()
        for turn in range(1, 5):
            link.send(spike(turn, 3), 2)
            ask_for_state(daemon)
            link.receive()
            assert mended(daemon) == (0, 0)
        flip(link, 1, 0)
        ask_for_state(daemon)
        link.receive()
        assert mended(daemon) == (1, 1)
        assert link.weights.tobytes() == daemon.weights().tobytes()


def test_in_a_dense_ring_rounds_make_no_difference_and_a_changed_bit_does(
    pair: tuple[DenseRing, Link, Link],
) -> None:
    ring, first, second = pair
    links = (first, second)
    for turn in range(4):
        both(lambda link, node, turn=turn: link.send(random_delta(10 * turn + node)), links)  # type: ignore[misc]
        for daemon in ring.daemons:
            ask_for_state(daemon)
        both(lambda link, _: link.receive(), links)
        assert [mended(daemon) for daemon in ring.daemons] == [(0, 0), (0, 0)]
    flip(first, 11, 1)
    for daemon in ring.daemons:
        ask_for_state(daemon)
    both(lambda link, _: link.receive(), links)
    assert [mended(daemon) for daemon in ring.daemons] == [(1, 1), (0, 0)]
    assert first.weights.tobytes() == second.weights.tobytes()


def test_in_a_dense_ring_a_round_that_was_missed_is_no_difference(alone: tuple[DenseRing, Link]) -> None:
    """It is in the replica, and the trainer hears of it with the next."""
    ring, link = alone
    daemon = ring.daemons[0]

    def complete_without_it() -> None:
        weights = daemon.host.coordinates.view(np.float32)
        weights += np.float32(1)

    daemon.call(complete_without_it)
    before = link.weights.copy()
    ask_for_state(daemon)
    link.receive()
    assert mended(daemon) == (0, 0)
    assert link.weights.tobytes() == before.tobytes()
    link._exact = False  # it happens to take the weights anew
    link.receive()
    ask_for_state(daemon)
    link.receive()
    assert mended(daemon) == (0, 1)
    assert link.weights.tobytes() == (before + np.float32(1)).tobytes()
