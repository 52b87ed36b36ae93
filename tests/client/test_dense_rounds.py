"""Links in dense rings: rounds of changes, whole or tensor by tensor."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from p2psgd.client.attach import attach
from p2psgd.client.buckets import BUCKET_NUMBERS
from p2psgd.client.link import Link
from p2psgd.wire.ring_messages import CHANGES
from tests.client.dense_links import INITIAL, WEIGHTS, both, follow, random_delta
from tests.ipc.daemons import Daemon, StartDaemon
from tests.ipc.rings import DenseRing


def test_the_weights_are_any_float32_numbers_and_change_by_the_mean(
    pair: tuple[DenseRing, Link, Link],
) -> None:
    ring, first, second = pair
    before = first.weights.copy()
    np.testing.assert_array_equal(first.tensors["weight"], INITIAL["weight"])
    deltas = [random_delta(1), random_delta(2)]

    def train(link: Link, node: int) -> None:
        assert link.receive() == 0
        assert link.send(deltas[node]) == WEIGHTS
        assert link.receive() == 2
        assert link.receive() == 0

    both(train, (first, second))
    expected = before + (deltas[0] + deltas[1]) * np.float32(0.5)
    np.testing.assert_array_equal(first.weights, expected)
    np.testing.assert_array_equal(second.weights, expected)
    np.testing.assert_array_equal(ring.daemons[0].host.coordinates.view(np.float32), expected)
    assert first.steps == 1
    assert first.sent == {"weight": 600, "bias": 30, "scale": 1}


def test_tensors_are_begun_as_they_are_whole_and_waited_for_together(
    pair: tuple[DenseRing, Link, Link],
) -> None:
    ring, first, second = pair
    before = first.weights.copy()

    def train(link: Link, node: int) -> None:
        for _ in range(3):
            for name in ("scale", "bias"):
                link.proposed[name][...] = node + 1
                link.allreduce_begin(name)
            link.proposed["weight"][:] = node
            link.allreduce_begin("weight")
            assert link.allreduce_wait() == 2

    both(train, (first, second))
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.tensors["bias"], np.full(30, 4.5, np.float32))
    np.testing.assert_array_equal(first.weights[:600], before[:600] + np.float32(1.5))
    assert ring.rounds == first.steps == 3
    for buckets in ring.buckets:
        assert sorted((bucket.kind, bucket.offset, bucket.count) for bucket in buckets) == [
            (CHANGES, 0, WEIGHTS)
        ]


def test_large_tensors_are_given_at_once_and_cut(start_daemon: StartDaemon) -> None:
    sizes = {"small": 10, "large": 2 * BUCKET_NUMBERS + 1, "last": 5}
    daemon = start_daemon(1)
    weights = sum(sizes.values())
    ring = DenseRing([daemon], weights)
    initial = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    with attach(initial, mode="ring", payload="dense", control=daemon.path) as link:
        ring.open()
        link.proposed["large"][:] = 1
        link.allreduce_begin("large")
        daemon.until(lambda: len(daemon.host.shares) == 3, "the large tensor's buckets")
        link.allreduce_begin("last")
        link.allreduce_begin("small")  # the last one: the share is whole
        assert link.allreduce_wait() == 1
        assert link.weights[10] == 1
    (buckets,) = ring.buckets
    assert [(bucket.name, bucket.shape) for bucket in buckets[2:]] == [
        ("large", f"({sizes['large']},)"),
        ("small", "(10,)"),
        ("last", "(5,)"),
    ]
    assert sum(bucket.count for bucket in buckets) == weights


def test_a_trainer_that_is_asked_to_end_does_not_hang_in_a_round(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    ring.held.set()
    before = link.weights.copy()
    for name in link.proposed:
        link.allreduce_begin(name)
    threading.Timer(0.02, lambda: ring.daemons[0].call(ring.daemons[0].server.session.finish)).start()
    assert link.allreduce_wait() == 0
    assert link.stopping
    link.allreduce_begin("bias")
    assert link.allreduce_wait() == 0
    np.testing.assert_array_equal(link.weights, before)


def test_weights_that_were_replaced_are_taken_instead_of_sums(
    alone: tuple[DenseRing, Link],
) -> None:
    ring, link = alone
    daemon = ring.daemons[0]
    link.send(random_delta(1))
    daemon.until(lambda: ring.rounds == 1, "the round")

    def replace() -> None:
        daemon.host.coordinates.view(np.float32)[:] = 7
        daemon.server.session.replica_replaced()

    daemon.call(replace)
    link.receive()
    assert (link.weights == 7).all()
    link.send(np.ones(WEIGHTS, np.float32))
    link.receive()
    assert (link.weights == 8).all()


def test_the_state_that_is_kept_has_no_residual(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    daemon = ring.daemons[0]
    link.keep(lambda: {"n": link.steps})
    link.send(random_delta(1))
    daemon.call(daemon.server.session.request_state)
    link.receive()
    daemon.until(lambda: bool(daemon.host.states), "a state")
    assert daemon.host.states[0].residual is None
    assert daemon.host.states[0].script == {"n": 1}


def test_the_next_trainer_finds_a_share_that_was_given_whole(daemon: Daemon) -> None:
    ring = DenseRing([daemon], WEIGHTS)
    ring.held.set()
    with follow(daemon) as link:
        ring.open()
        before = link.weights.copy()
        link.send(np.ones(WEIGHTS, np.float32))
    daemon.until(lambda: bool(daemon.host.shares), "a share")
    with follow(daemon) as link:
        ring.held.clear()
        daemon.call(ring.look)
        link.receive()
        np.testing.assert_array_equal(link.weights, before + 1)
        assert link.steps == 1
        link.send(np.ones(WEIGHTS, np.float32))
        assert link.receive() == 1
        np.testing.assert_array_equal(link.weights, daemon.host.coordinates.view(np.float32))


def test_what_is_proposed_is_written_where_the_daemon_reads_it(alone: tuple[DenseRing, Link]) -> None:
    ring, link = alone
    link.proposed["bias"][3] = 4
    assert ring.segments[0].contributions[603] == 4
    with pytest.raises(TypeError):
        link.proposed["bias"] = np.zeros(30, np.float32)  # type: ignore[index]
    assert not link._memory.sums.flags.writeable
