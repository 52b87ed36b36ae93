"""Rounds of mode `owners` in small clusters: who waits for whom, how long, and what a round holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from p2psgd.core.effects import OpenRound
from p2psgd.core.events import HandOver, TrainerChanged
from p2psgd.core.owners import ranges
from p2psgd.core.owners.owners import Owners
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.ring_messages import ROUND_MAX, ContributionMade
from p2psgd.wire.rule import parse_rule
from tests.core.cluster import Cluster, own_update, status_of

TIMEOUT_S = 5.0


class Rounds(Cluster):
    """A cluster in rounds. `opened`: rounds, by node."""

    def __init__(self, size: int, mode: str = "owners-rounds") -> None:
        self.opened = [0] * size
        self.refused: list[str] = []
        self.mode_rule = parse_mode(mode).rule.name
        super().__init__(size, mode=mode)

    def round_opened(self, number: int, effect: OpenRound) -> None:
        self.opened[number] += 1

    def share_refused(self, number: int, words: str) -> None:
        self.refused.append(words)

    def attach(self, *numbers: int) -> None:
        for number in numbers:
            self.give(number, TrainerChanged(active=True))
        self.settle()

    def detach(self, number: int) -> None:
        self.give(number, TrainerChanged(active=False))
        self.settle()

    def share(self, number: int, *indices: int, steps: int = 1) -> None:
        updates = (own_update(list(indices), magnitude=100, steps=steps),) if indices else ()
        self.give(number, ContributionMade(steps, updates))
        self.settle()

    def propose(self, *numbers: int) -> None:
        """Give something of each of these nodes that may."""
        rate = 0.0 if self.mode_rule == "sum" else 0.1
        for number in numbers:
            update = replace(own_update([10 + number, 4000], magnitude=100_000), rate=rate)
            self.give(number, ContributionMade(1, (update,)))
            self.settle()

    def owners(self, number: int) -> Owners:
        owners = self.replica(number).owners
        assert owners is not None
        return owners

    def changed(self, number: int) -> list[int]:
        """The weights that are not the initial ones."""
        return np.flatnonzero(self.replica(number).lattice.coordinates != self.initial()).tolist()

    def waits(self, number: int) -> str:
        return self.owners(number).waiting_for(self.now)


@pytest.fixture
def three() -> Iterator[Rounds]:
    cluster = Rounds(3)
    cluster.found()
    yield cluster
    cluster.assert_equal_at_equal_frontiers()


@pytest.fixture
def running(three: Rounds) -> Rounds:
    three.attach(0, 1, 2)
    for number in range(3):
        three.share(number)
    assert three.opened == [2, 2, 2]
    return three


def test_the_first_round_waits_for_all_trainers(three: Rounds) -> None:
    three.attach(0, 1)
    assert three.opened == [0, 0, 0]
    assert three.waits(0) == "round 1 waits for the trainers of all nodes: node-2 missing"
    three.attach(2)
    assert three.opened == [1, 1, 1]


def test_but_not_for_ever(three: Rounds) -> None:
    three.attach(0, 1)
    three.tick(13 * TIMEOUT_S)
    assert three.opened == [1, 1, 0]
    for number in (0, 1):
        three.share(number, 7)
    assert three.opened == [2, 2, 0]


def test_an_owner_publishes_when_all_have_contributed_and_not_before(running: Rounds) -> None:
    running.share(0, 10)
    running.share(1, 10)
    running.tick(TIMEOUT_S / 2)
    assert running.changed(0) == []
    assert running.opened == [2, 2, 2]
    running.share(2, 4000)
    assert [running.changed(number) for number in range(3)] == [[10, 4000]] * 3
    assert running.opened == [3, 3, 3]
    assert [running.owners(number).round for number in range(3)] == [2, 2, 2]


def test_the_trainer_has_the_replica_when_a_round_opens(running: Rounds) -> None:
    for number in range(3):
        running.share(number, 10, 2000 + number, 4000)
    for replica in running.alive():
        assert np.array_equal(replica.trainer_weights(), replica.lattice.coordinates)


def test_an_owner_that_leaves_is_waited_for_no_longer_than_one_that_is_gone(running: Rounds) -> None:
    running.detach(2)
    running.give(2, HandOver())  # and no GOODBYE: a peer may be slow to acknowledge what it has published
    running.settle()
    for number in (0, 1):
        running.share(number, 10, 4000)
    running.tick(TIMEOUT_S + 1.0)
    assert running.opened[:2] == [3, 3]
    for number in (0, 1):
        running.share(number)
    assert [running.changed(number) for number in (0, 1)] == [[10, 4000]] * 2


def test_nothing_to_give_is_a_contribution(running: Rounds) -> None:
    for number in range(3):
        running.share(number)
    assert running.opened == [3, 3, 3]
    assert [replica.frontier.steps_max for replica in running.alive()] == [2, 2, 2]


def test_rounds_are_not_numbered_by_mini_batches(running: Rounds) -> None:
    for steps in (7, 14):
        for number in range(3):
            running.share(number, 10, steps=steps)
        running.tick(TIMEOUT_S)
    assert [running.owners(number).round for number in range(3)] == [3, 3, 3]
    assert [replica.frontier.steps_max for replica in running.alive()] == [3, 3, 3]


def test_the_trainer_has_the_replica_also_while_a_round_is_open(running: Rounds) -> None:
    running.share(0, 10, 2000, 4000)
    running.share(1, 11)
    for number in (0, 1):
        replica = running.replica(number)
        assert np.array_equal(replica.trainer_weights(), replica.lattice.coordinates)
        assert replica.trainer_digest == replica.lattice.digest


def test_several_updates_are_one_contribution(running: Rounds) -> None:
    updates = (own_update([1, 4000]), own_update([2, 4001], magnitude=5))
    running.give(0, ContributionMade(1, updates))
    running.settle()
    assert running.changed(0) == []
    running.share(1)
    running.share(2)
    assert running.opened == [3, 3, 3]
    assert running.owners(0).waiting == 0


def test_a_node_that_owns_nothing_waits_for_owners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "OWNERS_MIN", 2)
    cluster = Rounds(4)
    cluster.found()
    cluster.attach(0, 1, 2, 3)
    for number in range(4):
        cluster.share(number, 10 + number, 4000)
    assert cluster.opened == [2, 2, 2, 2]
    for number in (0, 1, 2):
        cluster.share(number, 20, 4001)
    cluster.tick(TIMEOUT_S / 2)
    assert [number for number in range(4) if cluster.waits(number).endswith("node-3's trainer")] == [0, 1]
    assert "for the sum of" in cluster.waits(2)
    cluster.cut(0, 3)
    assert cluster.waits(0).endswith("for node-3, to which there is no link")
    cluster.link(0, 3)
    cluster.tick(13 * TIMEOUT_S)
    assert {number for number, _ in cluster.noted("late")} == {0, 1}
    assert cluster.opened == [3, 3, 3, 2]
    assert {cluster.owners(number).round for number in range(3)} == {2}
    cluster.assert_equal_at_equal_frontiers()


@pytest.mark.parametrize("rule", ["sum", "nesterov"])
def test_a_node_becomes_an_owner_when_all_others_are_gone(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(ranges, "OWNERS_MIN", 1)
    word = parse_rule(rule).word
    cluster = Rounds(4, "owners-rounds" + f"-{word}" * (rule != "sum"))
    cluster.found()
    cluster.attach(0, 1, 2, 3)
    cluster.propose(0, 1, 2, 3)
    cluster.kill(0)
    cluster.propose(1, 2, 3)
    opened = cluster.opened[1:]
    cluster.tick(0.9 * TIMEOUT_S)
    assert "for the sum of node-0" in cluster.waits(2)
    assert cluster.opened[1:] == opened
    cluster.tick(3 * TIMEOUT_S)
    owners = cluster.owners(1)
    assert owners._range == owners.aggregator.range == (0, len(cluster.initial()))
    before = [replica.lattice.coordinates.copy() for replica in cluster.alive()]
    for _ in range(3):
        cluster.propose(1, 2, 3)
    assert all(new > old + 1 for new, old in zip(cluster.opened[1:], opened, strict=True))
    assert all(
        (replica.lattice.coordinates != old).any()
        for replica, old in zip(cluster.alive(), before, strict=True)
    )
    cluster.assert_equal_at_equal_frontiers()


def test_without_any_owner_no_round_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an owner a contribution would count in no round, and rounds would follow each other at once."""
    monkeypatch.setattr(ranges, "OWNERS_MIN", 2)
    cluster = Rounds(5)
    cluster.found()
    cluster.attach(0, 1, 2, 3, 4)
    cluster.propose(0, 1, 2, 3, 4)
    for number in range(4):
        cluster.cut(number, 4)
    cluster.propose(4)
    cluster.tick(8 * TIMEOUT_S)
    assert cluster.opened[4] == 2
    assert cluster.waits(4) == "round 2 waits for an owner: node-0, node-1 cannot be reached"
    cluster.link_all()
    cluster.tick(8 * TIMEOUT_S)
    cluster.propose(0, 1, 2, 3)
    assert cluster.opened[4] == 3
    cluster.assert_equal_at_equal_frontiers()


def test_a_node_that_leaves_waits_until_its_contribution_is_covered(running: Rounds) -> None:
    running.share(2, 10, 2000)
    assert running.owners(2).waits_to_leave
    running.share(0)
    running.share(1)
    assert not running.owners(2).waits_to_leave


def test_a_contribution_that_was_not_asked_for_is_refused(running: Rounds) -> None:
    running.share(0)
    running.share(0, 5)
    assert running.refused == ["unexpected contribution to round 2: it has one, or the round has not started"]


def test_a_trainer_that_has_ended_is_not_waited_for(running: Rounds) -> None:
    running.share(0, 10)
    running.share(1, 10)
    running.detach(2)
    assert running.opened == [3, 3, 2]
    assert running.changed(2) == [10]


def test_one_that_has_come_back_is_waited_for_from_its_contribution_on(running: Rounds) -> None:
    running.detach(2)
    running.attach(2)
    for number in (0, 1):
        running.share(number)
    assert running.opened == [3, 3, 3]
    running.share(2, 9)  # to the round that is over: it counts at once
    assert running.opened == [3, 3, 4]
    assert running.changed(0) == [9]
    for number in (0, 1):
        running.share(number)
    assert running.opened == [3, 3, 4]
    running.share(2)
    assert running.opened == [4, 4, 5]


def test_who_is_late_is_named_and_then_left_out(running: Rounds) -> None:
    running.share(0, 10)
    running.share(1)
    running.tick(TIMEOUT_S - 1.0)
    assert running.opened == [2, 2, 2]
    assert running.waits(0) == "round 2 has waited for 3.5 s for node-2's trainer"
    running.tick(2.0)
    assert running.opened == [3, 3, 2]
    running.share(2, 9)
    assert running.changed(0) == [9, 10]
    assert running.opened == [3, 3, 3]


def test_half_of_the_members_are_waited_for_longer(running: Rounds) -> None:
    running.share(0, 10)
    running.tick(11 * TIMEOUT_S)
    assert running.opened == [2, 2, 2]
    running.tick(2 * TIMEOUT_S)
    assert running.opened == [3, 2, 2]


def test_patience_begins_anew_for_a_node_that_owned_nothing_for_a_while(running: Rounds) -> None:
    running.share(0, 10)
    running.tick(1.0)
    barrier = running.owners(0).barrier
    assert barrier is not None
    assert barrier.waits_for(running.now)
    later = running.now + 100 * TIMEOUT_S
    barrier.follow(5, later)
    barrier.end(running.replica(0).me, 6)
    assert barrier.waits_for(later)
    assert barrier.tick(later, ready=True) == []


def test_a_link_may_be_lost_for_less_than_the_patience(running: Rounds) -> None:
    running.cut(0, 2)
    running.share(0, 10)
    running.share(1)
    running.share(2, 20)
    running.tick(TIMEOUT_S / 2)
    assert running.opened == [2, 2, 2]
    running.link(0, 2)
    running.tick(1.0)
    assert running.opened == [3, 3, 3]
    assert running.changed(1) == [10, 20]


def test_who_is_unlinked_for_longer_is_not_waited_for_and_others_are_given_its_part(running: Rounds) -> None:
    running.cut(0, 2)
    running.share(0, 4000)
    running.share(1)
    running.share(2, 10)
    running.tick(2 * TIMEOUT_S)
    assert running.opened == [3, 3, 3]
    for number in range(3):
        running.share(number)
    running.tick(2 * TIMEOUT_S)
    assert running.changed(0) == [10, 4000]
    running.link(0, 2)
    running.tick(TIMEOUT_S)
    for number in range(3):
        running.share(number)
    running.tick(TIMEOUT_S)
    assert [running.owners(number).waiting for number in range(3)] == [0, 0, 0]
    assert running.changed(0) == [10, 4000]


def test_the_others_go_on_without_an_owner_that_is_killed(running: Rounds) -> None:
    running.share(0, 4000)
    running.share(1, 1)
    running.kill(2)
    running.tick(4 * TIMEOUT_S)
    assert running.opened[:2] == [3, 3]
    for number in (0, 1):
        running.share(number)
    assert running.opened[:2] == [4, 4]
    assert running.changed(1) == [1, 4000]
    running.boot(2)
    running.link_all()
    running.tick(4 * TIMEOUT_S)
    running.attach(2)
    assert running.opened == [4, 4, 3]
    running.share(2)
    for number in (0, 1):
        running.share(number)
    assert running.opened == [5, 5, 4]
    assert [running.owners(number).round for number in range(3)] == [4, 4, 4]


def test_what_a_stopping_owner_hands_over_is_published_without_a_round(running: Rounds) -> None:
    for number in range(3):
        running.share(number, 4900)
    for number in range(3):
        running.detach(number)
    owners = running.owners(2)
    owners.aggregator.residual[0] = 5
    owners.hand_over(running.now)
    running.settle()
    running.tick(1.0)
    index = 5000 * 2 // 3
    assert running.replica(0).lattice.coordinates[index] != running.initial()[index]


def test_a_status_without_rounds_is_refused(running: Rounds) -> None:
    peer = running.replica(1)
    running.give(0, status_of(peer.me, peer.frontier.rows(), view=1))
    assert [drop.code for _, drop in running.drops] == [RejectCode.RING]


@pytest.mark.parametrize("rule", ["adagrad", "adamw", "nesterov"])
def test_what_a_rule_makes_of_a_round_does_not_depend_on_who_was_first(rule: str) -> None:
    ended = []
    for order in ((0, 1, 2), (2, 1, 0)):
        cluster = Rounds(3, f"owners-rounds-{parse_rule(rule).word}")
        cluster.found()
        cluster.attach(0, 1, 2)
        for number in range(5):
            for node in order:
                made = own_update([1, 2000, 4000], magnitude=7 + 100_003 * node + number, steps=number + 1)
                gradient = replace(made, rate=0.1 + node)
                cluster.give(node, ContributionMade(number + 1, (gradient,)))
                cluster.settle()
        assert cluster.opened == [6, 6, 6]
        cluster.assert_equal_at_equal_frontiers()
        assert {1, 2000, 4000} <= set(cluster.changed(0))
        residuals = [cluster.owners(node).aggregator.residual for node in range(3)]
        ended.append(np.concatenate([cluster.replica(0).lattice.coordinates, *residuals]))
    assert ended[0].tolist() == ended[1].tolist()


def test_nesterov_makes_one_step_of_each_round_and_its_velocity_survives_its_owner() -> None:
    """Three rounds, to two of which a node contributes nothing; then an owner is killed."""
    cluster = Rounds(3, "owners-rounds-nesterov(momentum=0.5)")
    cluster.found()
    cluster.attach(0, 1, 2)
    indices, rate = [1, 2000, 4000], 0.25
    wanted, velocity = 0.0, 0.0  # in quanta
    for number, magnitudes in enumerate(((6000, 3000, 12_000), (900, 0, -300), (0, 7500, 600)), 1):
        for node, size in enumerate(magnitudes):
            made = own_update(indices, magnitude=max(1, abs(size)), negative=size < 0, steps=number)
            cluster.give(node, ContributionMade(number, (replace(made, rate=rate),) if size else ()))
            cluster.settle()
        mean = sum(magnitudes) / 3
        velocity = 0.5 * velocity + mean
        wanted -= rate * (mean + 0.5 * velocity)
    assert cluster.opened == [4, 4, 4]
    for place, index in enumerate(indices):  # of the range of the owner at this place
        owner = cluster.owners(place)
        begin, end = owner.aggregator.range
        assert begin <= index < end
        change = int(cluster.replica(0).lattice.coordinates[index]) - int(cluster.initial()[index])
        assert change + int(owner.aggregator.residual[index - begin]) == pytest.approx(wanted, abs=2)
        assert velocity_of(owner, index) == pytest.approx(velocity, rel=1e-5)
    cluster.tick(3.0)  # a copy is whole
    cluster.kill(2)
    cluster.tick(30.0)
    assert velocity_of(cluster.owners(1), 4000) == pytest.approx(velocity, rel=1e-5)


@pytest.mark.parametrize("rule", ["adagrad", "adamw", "nesterov"])
def test_rounds_go_on_in_the_range_of_a_killed_owner(rule: str) -> None:
    """Its neighbour is given gradients for that range before it owns it."""
    cluster = Rounds(3, f"owners-rounds-{parse_rule(rule).word}")
    cluster.found()
    cluster.attach(0, 1, 2)
    gradient = replace(own_update([1, 2000, 4000], magnitude=100_000), rate=0.25)
    for number in range(3):
        cluster.give(number, ContributionMade(1, (gradient,)))
        cluster.settle()
    cluster.cut(0, 2)
    cluster.tick(1.2 * TIMEOUT_S)
    cluster.give(0, ContributionMade(2, (gradient,)))
    cluster.settle()
    cluster.kill(2)
    changes = []
    for turn in range(2, 8):
        for number in (0, 1):
            if cluster.opened[number] >= turn and (turn, number) != (2, 0):
                cluster.give(number, ContributionMade(turn, (gradient,)))
                cluster.settle()
        cluster.tick(2 * TIMEOUT_S)
        changes.append(int(cluster.replica(0).lattice.coordinates[4000]))
    assert cluster.opened[:2] == [8, 8]
    assert len(set(changes)) > 3, changes
    assert [cluster.owners(number).waiting for number in (0, 1)] == [0, 0]
    assert not any(cluster.owners(number).aggregator.misplaced for number in (0, 1))


def velocity_of(owners: Owners, index: int) -> float:
    """Return the rule's state of a weight at its owner, in quanta."""
    rule = owners.aggregator.rule
    assert rule is not None
    return float(rule.state.arrays["velocity"][index - rule.state.range[0]] * 2**20)


@pytest.mark.parametrize("steps", [ROUND_MAX, 2**64 - 1])
def test_a_number_of_rounds_that_only_nonsense_reaches_ends_no_node(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of an update are any 64-bit number, and a round is one of 32 bits."""
    cluster = Rounds(3)
    cluster.found()
    cluster.attach(0, 1, 2)
    monkeypatch.setattr(cluster.owners(2), "_published_steps", lambda now: steps)
    for turn in range(3):
        for number in range(3):
            if cluster.opened[number] > turn:
                cluster.share(number, number)
        cluster.tick(1.0)
    assert cluster.owners(0).round == ROUND_MAX
    assert cluster.waits(0) == "round 4,294,967,295 is the last one that can be numbered: start a new run"
