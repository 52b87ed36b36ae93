"""What the link sends, against real daemons."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests import DEADLINE_S
from tests.ipc.daemons import (
    QUANTUM,
    WEIGHTS,
    ZEROS,
    Daemon,
    StartDaemon,
    smallest_rings,
    spike,
)
from tests.ipc.doomed_trainer import delta_of


def test_send_follows_strom_step_by_step(daemon: Daemon, link: Link) -> None:
    random = np.random.default_rng(0)
    residual, weights = ZEROS.astype(np.float64), ZEROS.astype(np.float64)
    for steps in range(1, 6):
        delta = (np.round(random.normal(size=WEIGHTS) * 5) * 0.5 * QUANTUM).astype(np.float32)
        step = 3 + steps
        residual += delta
        emitted = np.where(np.abs(residual) > step * QUANTUM, np.sign(residual), 0) * step * QUANTUM
        residual -= emitted
        weights += emitted
        assert link.send(delta, step) == np.count_nonzero(emitted)
        np.testing.assert_array_equal(link.residual, residual)
        np.testing.assert_array_equal(link.weights, weights)
        assert link.steps == steps
    daemon.take_all()
    np.testing.assert_array_equal(daemon.weights(), weights)
    assert [update.steps for update in daemon.host.updates] == [1, 2, 3, 4, 5]
    assert daemon.trainer_status()["steps"] == 5


def test_a_mini_batch_without_an_index_counts_and_sends_nothing(daemon: Daemon, link: Link) -> None:
    assert link.send(spike(5, 0.75), 1) == 0
    assert link.send(spike(5, 0.75), 1) == 1
    daemon.take_all()
    assert [update.steps for update in daemon.host.updates] == [2]
    assert link.residual[5] == 0.5 * QUANTUM
    assert daemon.trainer_status()["steps"] == 2


def test_a_send_may_hold_several_mini_batches(daemon: Daemon, link: Link) -> None:
    for steps in (2, 3, 1000, 1):
        link.send(spike(5, 2), 1, steps=steps)
    daemon.take_all()
    assert [update.steps for update in daemon.host.updates] == [2, 5, 1005, 1006]
    assert link.steps == daemon.trainer_status()["steps"] == 1006
    link.close()
    with attach(ZEROS, quantum=QUANTUM, control=daemon.path) as again:
        assert again.steps == 1006
        np.testing.assert_array_equal(again.residual, link.residual)


@pytest.mark.parametrize("steps", [0, -1, 1001, 1.0, True, None])
def test_other_numbers_of_mini_batches_are_refused(link: Link, steps: Any) -> None:
    with pytest.raises(TrainerError, match=r"steps .* is refused: give a whole number from 1 to 1,000"):
        link.send(spike(5, 2), 1, steps=steps)
    assert link.steps == 0


def test_whether_the_links_are_busy_is_shown(daemon: Daemon, link: Link) -> None:
    assert not link.busy
    for busy in (True, False):
        daemon.call(daemon.server.session.show_links, busy=busy)
        assert link.busy is busy


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
        assert [(update.steps, update.magnitude, len(update.words)) for update in daemon.host.updates] == [
            (0, 3, 599),  # who has only this one must not take the step for made
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
        assert link.steps == 0
        assert not link.residual.any()
        assert not link.weights.any()
        assert link.send(delta, dict.fromkeys(names, 1)) == 300


@pytest.mark.parametrize("count", [34, 2000])
def test_as_many_tiny_tensors_as_one_likes_may_have_a_step_each(daemon: Daemon, count: int) -> None:
    steps = {str(number): 1 + number for number in range(count)}
    with attach(dict.fromkeys(steps, np.zeros(1, np.float32)), control=daemon.path) as link:
        for _ in range(3):
            assert link.send(np.full(count, 10_000 * QUANTUM, np.float32), steps) == count
        daemon.take_all()
        np.testing.assert_array_equal(link.weights, daemon.weights())


def test_the_residual_is_a_view_of_what_is_current(link: Link) -> None:
    link.send(spike(5, 0.75), 1)
    residual = link.residual
    assert not residual.flags.writeable
    link.send(spike(5, 0.125), 1)
    assert residual[5] == 0.75 * QUANTUM
    assert link.residual[5] == 0.875 * QUANTUM


def test_more_indices_than_an_update_may_hold_go_with_the_next_ones(daemon: Daemon, link: Link) -> None:
    link._residual_pass._indices_max = 1024
    delta = np.full(WEIGHTS, 1.5 * QUANTUM, dtype=np.float32)
    assert [link.send(delta * (n == 0), 1) for n in range(4)] == [1024, 1024, WEIGHTS - 2048, 0]
    daemon.take_all()
    assert (daemon.weights() == QUANTUM).all()
    np.testing.assert_array_equal(link.weights, daemon.weights())


@pytest.mark.parametrize("parted", [False, True])
def test_a_send_of_a_large_model_makes_several_updates_that_count_once(daemon: Daemon, parted: bool) -> None:
    shapes = {"low": (2**12, 2**11), "high": (77,)}
    weights = 2**23 + 77
    with attach(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, control=daemon.path
    ) as link:
        delta = np.zeros(weights, np.float32)
        delta[::10] = 3 * QUANTUM
        delta[10::20] *= -1
        delta[-77:] = 9 * QUANTUM
        steps = {"low": 1, "high": 2} if parted else 1
        assert link.send(delta, steps) == (524_287 + 4 if parted else 524_292)  # a sixteenth
        assert link.steps == 1
        daemon.take_all()
        updates = daemon.host.updates
        assert [update.steps for update in updates] == [0, 0, 1]  # the last one tells the step
        assert [len(update.words) for update in updates] == [2**18, 2**18 - 1 if parted else 2**18, 4]
        np.testing.assert_array_equal(link.weights, daemon.weights())
        np.testing.assert_array_equal(link.weights + link.residual, delta)
        assert link.send(np.zeros(weights, np.float32), steps) > 0  # what found no room
        daemon.take_all()
        np.testing.assert_array_equal(link.weights, daemon.weights())
        np.testing.assert_array_equal(link.weights + link.residual, delta)


@pytest.mark.parametrize(
    ("delta", "step", "words"),
    [
        (ZEROS.astype(np.float64), 1, r"it is float64 \(3000,\)"),
        (ZEROS[:-1], 1, r"\(3000,\) of float32, float16, bfloat16; it is float32 \(2999,\)"),
        (ZEROS.astype(">f2"), 1, "it is >f2"),
        (ZEROS.reshape(2, 1500), 1, "delta must be"),
        ([0.0] * WEIGHTS, 1, "it is list"),
        (ZEROS, 0, "threshold must be an int, a number of quanta"),
        (ZEROS, 2**20 + 1, "threshold must be"),
        (ZEROS, 1.0, "threshold must be"),
        (ZEROS, True, "threshold must be"),
        (ZEROS, {"weights": 0}, "threshold of 'weights' must be .* it is 0"),
        (ZEROS, {}, "threshold must name every tensor, 'weights', and no other: 'weights' has none"),
        (ZEROS, {"weights": 1, "bias": 1}, "there is no tensor .bias."),
        (
            spike(17, np.nan),
            1,
            "^delta is refused: .*17 .* infinity: lower the learning rate, or look in the",
        ),
        (spike(17, np.inf), 1, "^delta is refused: .*17"),
        (spike(17, -np.inf), 1, "^delta is refused: .*17"),
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
    assert link.steps == 1
    daemon.take_all()
    assert len(daemon.host.updates) == 1
    numpy_step: Any = np.int64(1)
    assert link.send(spike(4, 2.5), numpy_step) == 2  # what was left of weight 3, and weight 4
    assert link.steps == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_residual_that_something_has_spoilt_is_not_blamed_on_the_delta(
    daemon: Daemon, link: Link, value: float
) -> None:
    link.send(spike(3, 0.5), 1)
    link._memory.residual[17] = value
    words = (
        r"^every delta is refused while the residual itself is NaN or infinite \(at weight 17 .*: end this"
    )
    with pytest.raises(TrainerError, match=words):
        link.send(ZEROS, 1)
    link.close()
    with attach(control=daemon.path) as after:
        assert after.steps == 1
        np.testing.assert_array_equal(after.residual, spike(3, 0.5))
        after.send(ZEROS, 1)
    assert len(daemon.host.alarms) == 1


def test_a_full_outbox_makes_the_trainer_wait_visibly_until_there_is_room(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    with attach(ZEROS, control=daemon.path) as link:
        daemon.server.session.outbox_closed = True
        sender = threading.Thread(target=lambda: [link.send(delta_of(n, WEIGHTS), 1) for n in range(40)])
        sender.start()
        daemon.until(lambda: "outbox is full" in daemon.server.session.status()["waits"], "the trainer waits")
        assert not daemon.host.updates
        sent = daemon.trainer_status()["steps"]
        assert sent < 40
        daemon.server.session.outbox_closed = False
        daemon.call(daemon.server.session.drain)
        sender.join(DEADLINE_S)
        assert not sender.is_alive()
        link.send(ZEROS, 1)  # says that it no longer waits, should the socket have been too full for that
        daemon.until(lambda: not daemon.server.session.status()["waits"], "the wait is over")
        daemon.take_all()
        np.testing.assert_array_equal(link.weights, daemon.weights())
        assert len(daemon.host.updates) == 41


def test_a_daemon_that_dies_while_the_trainer_waits_for_room_loses_nothing_of_the_residual(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(**smallest_rings(WEIGHTS))
    link = attach(ZEROS, control=daemon.path)
    daemon.server.session.outbox_closed = True

    def stop() -> None:
        daemon.until(lambda: bool(daemon.server.session.status()["waits"]), "the trainer waits")
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
    assert link.steps == number - 1
    stopper.join(DEADLINE_S)
    link.close()
