"""Whole replicas in a dense ring: generations, failures, newcomers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.core.events import CheckpointDue
from p2psgd.core.replica import Replica
from p2psgd.core.ring.dense import DenseRounds
from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.ring_messages import CHANGES, BucketContributed
from tests.core.cluster import WEIGHTS
from tests.core.ring.cluster import RingCluster

HALF = WEIGHTS // 2


class DenseCluster(RingCluster):
    """Trainers give their changes in two buckets, the last weights first."""

    def __init__(self, size: int) -> None:
        self.memories: dict[int, DenseMemory] = {}
        super().__init__(size, mode="ring-dense")

    def boot(self, number: int, *, from_disk: bool = False) -> Replica:
        replica = super().boot(number, from_disk=from_disk)
        assert replica.ring is not None
        assert isinstance(replica.ring.rounds, DenseRounds)
        self.memories[number] = replica.ring.rounds.memory
        return replica

    def share(self, *nodes: int, updates: int = 1) -> None:
        for number in nodes:
            self.open.remove(number)
            self.steps[number] += 1
            self.memories[number].shares[:WEIGHTS] = self.changes(number)
            for offset, count in ((HALF, WEIGHTS - HALF), (0, HALF)):
                self.give(number, BucketContributed(CHANGES, offset, count, f"w.{offset}", f"({count},)"))

    def changes(self, number: int) -> NDArray[np.float32]:
        generator = np.random.default_rng([number, self.steps[number]])
        return generator.normal(size=WEIGHTS).astype(np.float32)

    def end(self) -> None:
        """Whoever may gives a share, until all are at one round."""
        self.tick(30.0)
        for _ in range(3):
            self.run()
            self.tick(1.0)
        assert len(set(self.rounds())) == 1, self.waits()
        self.assert_converged()
        assert not self.alarms, self.alarms
        assert not [
            drop for _, drop in self.drops if drop.code not in (RejectCode.SILENT, RejectCode.SLOW)
        ], self.drops


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.core.ring.chunks.SEGMENT_NUMBERS", 300)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_rounds_follow_each_other(size: int) -> None:
    cluster = DenseCluster(size)
    cluster.start()
    cluster.run(10)
    cluster.assert_all_at(10)
    [row] = cluster.replica(0).frontier.rows()
    assert (row.sequence, row.steps) == (1 << 32 | 10, 10)
    assert [opened.contributors for opened in cluster.opened[0]] == [0] + [size] * 10


def test_two_runs_end_with_the_same_bits() -> None:
    digests = set()
    for _ in range(2):
        cluster = DenseCluster(3)
        cluster.start()
        cluster.run(5)
        digests.add(cluster.replica(1).lattice.digest)
    assert len(digests) == 1


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(12))
def test_a_round_that_was_cut_somewhere_ends_the_same_everywhere(seed: int) -> None:
    chance = random.Random(seed)
    cluster = DenseCluster(4)
    cluster.start()
    cluster.run(2)
    cluster.share(*sorted(cluster.open))
    links = list(cluster.queues)
    for _ in range(chance.randrange(400)):
        cluster.deliver(*chance.choice(links))
    one = chance.randrange(4)
    other = (one + 1) % 4
    cluster.cut(one, other)
    cluster.settle()
    cluster.tick(1.0)
    cluster.link(one, other)
    cluster.end()
    assert cluster.all_ready()
    assert not cluster.refused


@pytest.mark.usefixtures("small_segments", "small_pieces")
@pytest.mark.parametrize("seed", range(12))
def test_one_that_dies_in_a_round_is_left_out_and_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    cluster = DenseCluster(4)
    cluster.start()
    cluster.run(2)
    cluster.give(3, CheckpointDue())
    cluster.run()
    cluster.share(*sorted(cluster.open))
    links = list(cluster.queues)
    for _ in range(chance.randrange(400)):
        cluster.deliver(*chance.choice(links))
    cluster.kill(3)
    cluster.settle()
    cluster.tick(30.0)
    assert cluster.running() == {0, 1, 2}, cluster.waits()
    cluster.run(2)
    cluster.boot(3, from_disk=bool(seed % 2))
    cluster.link_all()
    cluster.tick(30.0)
    cluster.attach(3)
    cluster.end()
    assert cluster.running() == {0, 1, 2, 3}


@pytest.mark.usefixtures("small_segments")
def test_a_trainer_that_comes_and_goes_is_counted_or_not() -> None:
    cluster = DenseCluster(3)
    cluster.start()
    cluster.run()
    cluster.detach(2)
    cluster.run(2)
    cluster.attach(2)
    cluster.tick(1.0)
    cluster.run(2)
    cluster.assert_all_at(5)
    assert [opened.contributors for opened in cluster.opened[0]] == [0, 3, 2, 2, 3, 3]


@pytest.mark.usefixtures("small_segments")
def test_members_that_lack_the_last_sums_are_given_them() -> None:
    given = 0
    for seed in range(8):
        cluster = DenseCluster(3)
        cluster.start()
        cluster.share(0, 1, 2)
        chance = random.Random(seed)
        while not any(cluster.rounds()):
            cluster.deliver(*chance.choice(list(cluster.queues)))
        cluster.cut(1, 2)
        cluster.settle()
        cluster.link(1, 2)
        cluster.tick(3.0)
        assert cluster.rounds() == [1, 1, 1]
        assert not cluster.noted("snapshot given")
        given += len(cluster.noted("result given"))
        cluster.end()
    assert given
