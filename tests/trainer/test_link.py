"""The link against real daemons, in this process and in others that are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from p2psgd.errors import DaemonLost, TrainerError
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.counters import Counter
from p2psgd.trainer.link import Link, attach
from p2psgd.wire import codec
from tests.ipc.conftest import loop_factory, start_daemon
from tests.ipc.daemons import (
    QUANTUM,
    WEIGHTS,
    ZEROS,
    Daemon,
    make_update,
    make_words,
    smallest_rings,
    spike,
)
from tests.ipc.doomed_trainer import delta_of

__all__ = ["loop_factory", "start_daemon"]  # fixtures

StartDaemon = Callable[..., Daemon]


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    return start_daemon()


@pytest.fixture
def link(daemon: Daemon) -> Iterator[Link]:
    with attach(ZEROS, control=daemon.path) as link:
        yield link


def test_send_follows_strom_step_by_step(daemon: Daemon, link: Link) -> None:
    random = np.random.default_rng(0)
    residual, weights = ZEROS.astype(np.float64), ZEROS.astype(np.float64)
    for mini_batch in range(1, 6):
        delta = (np.round(random.normal(size=WEIGHTS) * 5) * 0.5 * QUANTUM).astype(np.float32)
        step = 3 + mini_batch
        residual += delta
        emitted = np.where(np.abs(residual) > step * QUANTUM, np.sign(residual), 0) * step * QUANTUM
        residual -= emitted
        weights += emitted
        assert link.send(delta, step) == np.count_nonzero(emitted)
        np.testing.assert_array_equal(link.residual, residual)
        np.testing.assert_array_equal(link.weights, weights)
        assert link.mini_batches == mini_batch
    daemon.take_all()
    np.testing.assert_array_equal(daemon.weights(), weights)
    assert [update.mini_batch for update in daemon.host.updates] == [1, 2, 3, 4, 5]
    assert daemon.trainer_status()["mini_batches"] == 5


def test_a_mini_batch_without_an_index_counts_and_sends_nothing(daemon: Daemon, link: Link) -> None:
    assert link.send(spike(5, 0.75), 1) == 0
    assert link.send(spike(5, 0.75), 1) == 1
    daemon.take_all()
    assert [update.mini_batch for update in daemon.host.updates] == [2]
    assert link.residual[5] == 0.5 * QUANTUM
    assert daemon.trainer_status()["mini_batches"] == 2


def test_a_delta_may_be_read_only_and_strided(daemon: Daemon, link: Link) -> None:
    delta = np.repeat(spike(5, 2), 2)
    delta.flags.writeable = False
    assert link.send(delta[::2], 1) == 1
    assert link.send(delta[:WEIGHTS], 1) == 2  # weights 10 and 11
    daemon.take_all()
    assert (daemon.weights()[[5, 10, 11]] == QUANTUM).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_delta_may_be_of_half_precision(daemon: Daemon, dtype: type[np.floating[Any]]) -> None:
    quantum = 2.0**-10
    with attach(ZEROS, quantum=quantum, control=daemon.path) as link:
        delta = np.random.default_rng(2).normal(0, 3 * quantum, WEIGHTS).astype(dtype)
        sent = link.send(delta, 4)
        expected = delta.astype(np.float32)
        over = np.abs(expected) > 4 * quantum
        np.testing.assert_array_equal(link.weights, over * np.sign(expected) * np.float32(4 * quantum))
        np.testing.assert_array_equal(link.residual, expected - link.weights)
        assert sent == np.count_nonzero(over) > 100


def test_every_tensor_may_have_a_step_of_its_own(daemon: Daemon) -> None:
    shapes = {"in": (40, 10), "bias": (40,), "out": (5, 40)}
    with attach(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, control=daemon.path
    ) as link:
        assert link.sent == {"in": 0, "bias": 0, "out": 0}
        delta = np.full(640, 10 * QUANTUM, np.float32)
        delta[[0, 410, 420]] = 0
        steps: dict[str, Any] = {"in": 3, "bias": np.int64(7), "out": 3}
        assert link.send(delta, steps) == 637
        assert link.sent == {"in": 399, "bias": 38, "out": 200}
        assert (link.tensors["out"] == 3 * QUANTUM).all()
        assert np.unique(link.tensors["bias"]).tolist() == [0, 7 * QUANTUM]
        assert link.tensors["in"][0, :2].tolist() == [0, 3 * QUANTUM]
        np.testing.assert_array_equal(link.residual + link.weights, delta)
        assert link.send(np.zeros(640, np.float32), {"in": 6, "bias": 9, "out": 8}) == 399
        assert link.sent == {"in": 399, "bias": 0, "out": 0}
        daemon.take_all()
        assert [(update.mini_batch, update.step, update.count) for update in daemon.host.updates] == [
            (1, 3, 599),
            (1, 7, 38),
            (2, 6, 399),
        ]
        np.testing.assert_array_equal(link.weights, daemon.weights()[:640])


def test_more_steps_than_the_outbox_can_hold_are_refused_and_nothing_changes(
    start_daemon: StartDaemon,
) -> None:
    names = [f"tensor {number}" for number in range(300)]
    one = np.zeros(1, np.float32)
    daemon = start_daemon(**smallest_rings(len(names)))
    with attach(dict.fromkeys(names, one), control=daemon.path) as link:
        delta = np.full(len(names), 1000 * QUANTUM, np.float32)
        steps = {name: 1 + number for number, name in enumerate(names)}
        with pytest.raises(TrainerError, match=r"the 300 updates of this send take \d+ bytes and .* holds"):
            link.send(delta, steps)
        assert link.mini_batches == 0
        assert not link.residual.any()
        assert not link.weights.any()
        assert link.send(delta, dict.fromkeys(names, 1)) == 300


def test_the_residual_is_a_view_of_what_is_current(link: Link) -> None:
    link.send(spike(5, 0.75), 1)
    residual = link.residual
    assert not residual.flags.writeable
    link.send(spike(5, 0.125), 1)
    assert residual[5] == 0.75 * QUANTUM
    assert link.residual[5] == 0.875 * QUANTUM


def test_more_indices_than_an_update_may_hold_go_with_the_next_ones(daemon: Daemon, link: Link) -> None:
    link._sweep._indices_max = 1024
    delta = np.full(WEIGHTS, 1.5 * QUANTUM, dtype=np.float32)
    assert [link.send(delta * (n == 0), 1) for n in range(4)] == [1024, 1024, WEIGHTS - 2048, 0]
    daemon.take_all()
    assert (daemon.weights() == QUANTUM).all()
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(
    ("delta", "step", "words"),
    [
        (ZEROS.astype(np.float64), 1, r"it is float64 \(3000,\)"),
        (ZEROS[:-1], 1, r"\(3000,\) of float32, float16, bfloat16; it is float32 \(2999,\)"),
        (ZEROS.astype(">f2"), 1, "it is >f2"),
        (ZEROS.reshape(2, 1500), 1, "delta must be"),
        ([0.0] * WEIGHTS, 1, "it is list"),
        (ZEROS, 0, "step must be a whole number of quanta from 1 to 1048576, it is 0"),
        (ZEROS, 2**20 + 1, "step must be"),
        (ZEROS, 1.0, "step must be"),
        (ZEROS, True, "step must be"),
        (ZEROS, {"weights": 0}, "step of 'weights' must be .* it is 0"),
        (ZEROS, {}, "step must name every tensor, 'weights'; there is no step for 'weights'"),
        (ZEROS, {"weights": 1, "bias": 1}, "there is a step for a tensor that there is not"),
        (spike(17, np.nan), 1, "delta is refused: .*17"),
        (spike(17, np.inf), 1, "delta is refused: .*17"),
        (spike(17, -np.inf), 1, "delta is refused: .*17"),
    ],
)
def test_a_delta_that_will_not_do_is_refused_and_nothing_changes(
    daemon: Daemon, link: Link, delta: Any, step: Any, words: str
) -> None:
    link.send(spike(3, 2.5), 1)
    residual, weights = link.residual.copy(), link.weights.copy()
    with pytest.raises(TrainerError, match=words):
        link.send(delta, step)
    np.testing.assert_array_equal(link.residual, residual)
    np.testing.assert_array_equal(link.weights, weights)
    assert link.mini_batches == 1
    daemon.take_all()
    assert len(daemon.host.updates) == 1
    numpy_step: Any = np.int64(1)
    assert link.send(spike(4, 2.5), numpy_step) == 2  # what was left of weight 3, and weight 4
    assert link.mini_batches == 2


def test_a_full_outbox_makes_the_trainer_wait_visibly_until_there_is_room(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    with attach(ZEROS, control=daemon.path) as link:
        daemon.server.outbox_closed = True
        sender = threading.Thread(target=lambda: [link.send(delta_of(n, WEIGHTS), 1) for n in range(40)])
        sender.start()
        daemon.until(lambda: "outbox is full" in daemon.server.trainer_status()["waits"], "the trainer waits")
        assert not daemon.host.updates
        sent = daemon.trainer_status()["mini_batches"]
        assert sent < 40
        daemon.server.outbox_closed = False
        daemon.call(daemon.server.drain_outbox)
        sender.join(60)
        assert not sender.is_alive()
        link.send(ZEROS, 1)  # says that it no longer waits, should the socket have been too full for that
        daemon.until(lambda: not daemon.server.trainer_status()["waits"], "the wait is over")
        daemon.take_all()
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert len(daemon.host.updates) == 41


def test_a_daemon_that_dies_while_the_trainer_waits_for_room_loses_nothing_of_the_residual(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    link = attach(ZEROS, control=daemon.path)
    daemon.server.outbox_closed = True

    def stop() -> None:
        daemon.until(lambda: bool(daemon.server.trainer_status()["waits"]), "the trainer waits")
        daemon.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    expected = ZEROS.astype(np.float64)
    number = 0
    with pytest.raises(DaemonLost, match=r"closed this connection: the daemon has stopped|is gone"):  # noqa: PT012
        while True:
            number += 1
            delta = (np.round(delta_of(number, WEIGHTS) / QUANTUM) * QUANTUM).astype(np.float32)
            link.send(delta, 1)
            expected += delta
    np.testing.assert_array_equal(link.residual + link.weights, expected)
    assert link.mini_batches == number - 1
    stopper.join(60)
    link.close()


def test_receive_applies_peers_updates_and_remembers_their_mini_batches(daemon: Daemon, link: Link) -> None:
    assert link.receive() == 0
    words = make_words(np.array([3, 70, 2999]), np.array([0, 1, 0]))
    daemon.peer_update(make_update(words, WEIGHTS, node=7, mini_batch=5, step=4))
    daemon.peer_update(make_update(words, WEIGHTS, node=2**64 - 1, mini_batch=2, step=1))
    daemon.peer_update(make_update(words[1:], WEIGHTS, node=7, mini_batch=4, step=1))
    assert link.receive() == 3
    assert link.receive() == 0
    assert link.peer_mini_batches == {7: 5, 2**64 - 1: 2}
    assert (link.weights[[3, 70, 2999]] / QUANTUM).tolist() == [5, -6, 6]
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(("updates_max", "words_max"), [(64, 2**20), (7, 2**20), (64, WEIGHTS), (1, 1)])
def test_receive_applies_any_number_of_updates_in_batches(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, updates_max: int, words_max: int
) -> None:
    monkeypatch.setattr("p2psgd.trainer.link.BATCH_UPDATES_MAX", updates_max)
    monkeypatch.setattr("p2psgd.trainer.link.BATCH_WORDS_MAX", words_max)
    random = np.random.default_rng(2)
    with attach(ZEROS, control=daemon.path) as link:
        for number in range(150):
            indices = np.sort(random.choice(WEIGHTS, random.integers(1, 500), replace=False))
            words = make_words(indices, random.integers(0, 2, len(indices)))
            daemon.peer_update(make_update(words, WEIGHTS, mini_batch=number + 1, step=number + 1))
        assert link.receive() == 150
        assert link.peer_mini_batches == {7: 150}
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert link.weights.any()


def test_what_peers_sent_before_the_first_receive_is_there(daemon: Daemon, link: Link) -> None:
    link.close()
    words = make_words(np.array([1]), np.array([0]))
    daemon.peer_update(make_update(words, WEIGHTS, mini_batch=8))
    with attach(control=daemon.path) as second:
        daemon.peer_update(make_update(words, WEIGHTS, mini_batch=9))
        assert second.weights[1] == QUANTUM
        assert second.peer_mini_batches == {7: 8}
        assert second.receive() == 1
        assert second.weights[1] == 2 * QUANTUM
        assert second.peer_mini_batches == {7: 9}


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
            daemon.peer_update(make_update(words, WEIGHTS, mini_batch=number + 1))
        assert len(daemon.host.updates) == 1
        assert link.receive() == 0
        assert len(daemon.host.updates) == 2
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert link.peer_mini_batches == {7: 50}
        assert daemon.trainer_status()["reloads"] == 1
        assert [update.mini_batch for update in daemon.host.updates] == [1, 2]
        daemon.peer_update(make_update(make_words(np.array([1]), np.array([0])), WEIGHTS, mini_batch=51))
        assert link.receive() == 1
        np.testing.assert_array_equal(link.weights, daemon.weights())


def test_wait_ends_when_something_comes(daemon: Daemon, link: Link) -> None:
    assert not link.wait(0)
    words = make_words(np.array([1]), np.array([0]))
    waker = threading.Timer(0.05, daemon.peer_update, [make_update(words, WEIGHTS)])
    waker.start()
    assert link.wait(60)
    assert link.receive() == 1
    waker.join()
    assert not link.wait(0.01)
    with ControlClient(daemon.path) as client:
        client.request("finish")
    assert link.wait(60)
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
        others = {
            other.host.node: other.host.updates[-1].mini_batch for other in daemons if other is not daemon
        }
        assert link.peer_mini_batches == others
        link.close(finished=True)
    if rings == "smallest":
        assert sum(daemon.trainer_status()["reloads"] for daemon in daemons) > 0


@pytest.mark.parametrize(
    "where", ["residual_pass", "encode", "apply_weights", "decode_into", "apply_weights_together"]
)
def test_after_an_interruption_the_next_call_makes_the_weights_whole_again(
    daemon: Daemon, link: Link, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As when somebody presses Ctrl+C in a notebook and goes on."""
    daemon.peer_update(make_update(make_words(np.array([1]), np.array([0])), WEIGHTS))
    with monkeypatch.context() as patch:
        patch.setattr(codec, where, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            link.receive()
            link.send(spike(2, 3), 2)
    link.receive()
    np.testing.assert_array_equal(link.weights, daemon.weights())
    assert link.weights[1] == QUANTUM
    link.send(spike(4, 3), 2)
    daemon.take_all()
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize(
    ("call", "counter", "done"),
    [
        ("_outbox.put", None, False),
        ("_counters.store", Counter.MINI_BATCH, False),
        ("_counters.store", Counter.OUTBOX_HEAD, True),
        ("_wake_daemon.signal", None, True),
    ],
)
def test_an_interrupted_send_has_been_done_or_not_been_done(
    daemon: Daemon, link: Link, *, call: str, counter: Counter | None, done: bool
) -> None:
    """Interrupted at the end of this call, it leaves nothing that the next send would build on or repeat."""
    link.send(spike(1, 3.5), 2)
    part, name = call.split(".")
    owner = getattr(link._memory, part)
    function = getattr(owner, name)

    def call_and_interrupt(*arguments: Any) -> Any:
        function(*arguments)
        if counter in (None, arguments[0] if arguments else None):
            raise KeyboardInterrupt

    setattr(owner, name, call_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        link.send(spike(2, 3), 2)
    delattr(owner, name)
    assert link.send(spike(3, 3), 2) == 1
    assert link.mini_batches == 2 + done
    daemon.take_all()
    assert [update.mini_batch for update in daemon.host.updates] == [*range(1, 3 + done)]
    np.testing.assert_array_equal(link.weights, daemon.weights())
    expected = spike(1, 3.5) + spike(2, 3) * done + spike(3, 3)
    np.testing.assert_array_equal(link.weights + link.residual, expected)


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
    for call in (link.receive, lambda: link.send(ZEROS, 1), lambda: link.wait(60)):
        with pytest.raises(DaemonLost, match=r"closed this connection: the daemon has stopped|is gone"):
            call()
    link.close(finished=True)
