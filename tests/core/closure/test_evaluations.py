"""Evaluations of several members: one result to the bit, whoever is slow, dies or comes late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from p2psgd.core.closure import sums
from p2psgd.core.events import TrainerChanged
from tests.core.closure.cluster import ClosureCluster

Make = Callable[..., ClosureCluster]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ClosureCluster] = []

    def build(size: int, *, portions: int = 12) -> ClosureCluster:
        cluster = ClosureCluster(size, portions=portions)
        made.append(cluster)
        if size > 1:
            cluster.found()
        else:
            cluster.tick(30.0)
        return cluster

    yield build
    for cluster in made:
        cluster.assert_equal_at_equal_frontiers()
        assert cluster.drops == []


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces to a shard, and several windows."""
    monkeypatch.setattr(sums, "PIECE_NUMBERS", 300)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_members_get_the_sums_of_one_process(make: Make, size: int) -> None:
    """Which Evaluator compares."""
    cluster = make(size)
    cluster.attach()
    cluster.evaluate(4, Random(size))
    assert all(trainer.errors == [] for trainer in cluster.trainers.values())


def test_each_member_computes_some_portions_and_fast_ones_more(make: Make) -> None:
    cluster = make(3, portions=40)
    cluster.speeds = [1.0, 1.0, 0.1]
    cluster.attach()
    cluster.evaluate(3, Random(1))
    fast, also, slow = (cluster.trainers[number].computed for number in range(3))
    assert min(fast, also) > 2 * slow > 0


def test_a_trainer_that_stands_still_holds_up_nobody(make: Make) -> None:
    cluster = make(3)
    cluster.attach()
    cluster.evaluate(1, Random(1))
    cluster.speeds[1] = 0.0
    cluster.evaluate(6, Random(1), 0, 2)
    cluster.speeds[1] = 1.0
    cluster.evaluate(8, Random(1))


def test_members_that_are_killed_at_any_instant_hold_up_nobody(make: Make) -> None:
    for seed in range(12):
        cluster, chance = make(4), Random(seed)
        cluster.attach()
        cluster.evaluate(1, chance)
        for _ in range(chance.randint(0, 60)):
            cluster.turn(chance)
        victim = chance.randrange(4)
        cluster.kill(victim)
        cluster.evaluate(4, chance)


def test_a_trainer_that_was_started_again_makes_up_for_it_from_the_log(make: Make) -> None:
    cluster, chance = make(3), Random(1)
    cluster.attach()
    cluster.evaluate(3, chance)
    for _ in range(7):
        cluster.turn(chance)
    cluster.detach(1)
    cluster.evaluate(5, chance)
    computed = [cluster.trainers[number].computed for number in (0, 2)]
    cluster.attach(1)
    cluster.evaluate(5, chance, 1)
    assert cluster.trainers[1].computed == 0
    assert [cluster.trainers[number].computed for number in (0, 2)] >= computed
    cluster.evaluate(7, chance)


def test_a_member_that_joins_late_does(make: Make) -> None:
    cluster, chance = make(3), Random(1)
    cluster.attach(0, 1)
    cluster.evaluate(4, chance)
    cluster.attach(2)
    cluster.evaluate(20, chance)
    assert cluster.trainers[2].computed > 0


def test_links_that_are_lost_and_come_again_change_nothing(make: Make) -> None:
    for seed in range(8):
        cluster, chance = make(3), Random(seed)
        cluster.attach()
        for _ in range(6):
            for _ in range(chance.randint(0, 30)):
                cluster.turn(chance)
            a, b = chance.sample(range(3), 2)
            cluster.cut(a, b)
            for _ in range(chance.randint(0, 10)):
                cluster.turn(chance)
            cluster.link(a, b)
        cluster.evaluate(4, chance)


def test_another_point_is_refused_with_both_digests(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    cluster.settle()
    cluster.answers.pop(1)
    cluster.trainers[1].digest = 77
    cluster.give(1, TrainerChanged(active=False))
    cluster.give(1, TrainerChanged(active=True))
    cluster.give(1, cluster.trainers[1].begin())
    cluster.settle()
    error = cluster.answers[1].error
    assert "node-1" in error
    assert "000000000000004d" in error
    assert "0000000000000001" in error
    del cluster.trainers[1], cluster.answers[1]
    cluster.evaluate(2, chance, 0)


def test_a_portion_that_one_cannot_compute_another_does(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    cluster.trainers[0].fails = {3: "OSError: no such file"}
    cluster.evaluate(3, chance)
    assert cluster.trainers[0].errors == []


def test_a_portion_that_nobody_can_compute_ends_the_evaluation_everywhere(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    for trainer in cluster.trainers.values():
        trainer.fails = {3: "OSError: no such file"}
    for _ in range(600):
        cluster.turn(chance)
        if all(trainer.errors for trainer in cluster.trainers.values()):
            break
    for trainer in cluster.trainers.values():
        assert "portion 3 of 12 of evaluation 1 cannot be computed" in trainer.errors[0]
        assert "OSError: no such file" in trainer.errors[0]
        trainer.fails = {}
    cluster.evaluate(2, chance)
