"""Which shard a node takes next, by counts that reach the nodes late."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from p2psgd.data.assignment import Counts, Deal, Dealing
from tests.data.lists import shard_list

LEASE_S = 30.0


@dataclass
class Node:
    """Takes a shard, holds it for a while, counts it as used."""

    number: int
    dealing: Dealing
    speed: float
    holds: Deal | None = None
    until: float = 0.0
    since: float = 0.0


@dataclass
class World:
    """Counts as they were and are: a node sees what others did `late_s` ago, at once what it did."""

    shards: int
    epochs: int
    late_s: float
    nodes: list[Node] = field(default_factory=list)
    changes: list[tuple[float, int, int, int, int]] = field(
        default_factory=list
    )  # when, node, row, shard, by
    uses: Counter[tuple[int, int]] = field(default_factory=Counter)  # of shard and epoch
    now: float = 0.0

    def add(self, number: int, speed: float) -> Node:
        dealing = Dealing(shard_list(self.shards), number, life=number, epochs=self.epochs, lease_s=LEASE_S)
        self.nodes.append(Node(number, dealing, speed))
        return self.nodes[-1]

    def counts(self, node: Node | None = None) -> Counts:
        counts = np.zeros((2, self.shards), np.int64)
        for when, number, row, shard, amount in self.changes:
            if node is None or number == node.number or when <= self.now - self.late_s:
                counts[row, shard] += amount
        return counts

    def change(self, node: Node, shard: int, held: int, used: int) -> None:
        self.changes += [(self.now, node.number, row, shard, by) for row, by in enumerate((held, used)) if by]

    def step(self, node: Node) -> None:
        if node.holds is not None and self.now >= node.until:
            deal = node.holds
            used = self.counts(node)[1, deal.shard]
            self.change(node, deal.shard, -deal.ends, int(used < deal.epoch))
            self.uses[deal.shard, deal.epoch] += 1
            node.dealing.held_for(self.now - node.since)
            node.holds = None
        if node.holds is None:
            held, used = self.counts(node)
            others = {other.number for other in self.nodes if other is not node}
            node.holds = node.dealing.choose(held, used, others=others, mine=set(), now=self.now)
            if node.holds is not None:
                self.change(node, node.holds.shard, node.holds.begins, 0)
                node.since, node.until = self.now, self.now + node.speed

    def run(self, until: float) -> None:
        while self.now < until and not (self.counts()[1] >= self.epochs).all():
            for node in self.nodes:
                self.step(node)
            self.now += 0.5


@pytest.mark.parametrize("seed", range(8))
def test_every_shard_is_used_once_in_every_epoch_while_nodes_come_die_and_differ_in_speed(seed: int) -> None:
    draw = random.Random(seed)
    world = World(shards=24, epochs=2, late_s=draw.choice([0.0, 1.0]))
    for number in range(3):
        world.add(number + 1, speed=draw.choice([1.0, 2.0, 4.0]))
    world.run(6.0)
    dead = world.nodes.pop(draw.randrange(3))
    world.run(10.0)
    world.add(9, speed=1.0)
    world.run(500.0)
    assert world.now < 500, "all are through"
    again = sum(world.uses.values()) - 2 * 24
    assert 0 <= again <= 8, f"seed {seed}: {again} were used again"
    times = Counter[int]()
    for (shard, _), count in world.uses.items():
        times[shard] += count
    assert min(times[shard] for shard in range(24)) >= 2
    if not world.late_s:  # else two may use a shard at the same moment, which counts for the next epoch too
        assert len(world.uses) == 2 * 24, "each in each epoch"
        assert again == 0
    assert not world.counts()[0].any(), "nothing is left held"
    assert dead.holds is None or (dead.holds.shard, dead.holds.epoch) in world.uses


def test_what_others_hold_is_left_to_them_for_a_lease() -> None:
    dealing = Dealing(shard_list(3), 1, life=1, epochs=5, lease_s=LEASE_S)
    held, used = np.array([0, 1, 1]), np.array([1, 1, 0])

    def choose(mine: set[int], now: float, held: Counts = held) -> Deal | None:
        return dealing.choose(held, used, others=set(), mine=mine, now=now)

    assert choose(set(), 0) == Deal(0, 2)
    assert choose({0}, 29) is None
    assert choose({0}, 31) == Deal(2, 1, ends=2), "who is behind comes first, and its holder goes as well"
    dealing.held_for(100.0)
    assert choose({0}, 399) is None, "others may be as slow"
    assert choose({0}, 401, np.array([1, 1, 2])) == Deal(1, 2, ends=2), "another one has taken shard 2"
    assert choose(set(), 402, np.array([-1, 1, 2])) == Deal(0, 2, begins=2), "a dead one was not dead"


def test_a_node_keeps_to_its_own_shards_an_epoch_ahead_of_others_and_then_takes_theirs() -> None:
    shards, zeros = shard_list(40), np.zeros(40, np.int64)
    dealing = Dealing(shards, 1, life=1, epochs=5, lease_s=LEASE_S)
    used, chosen = zeros.copy(), list[Deal]()
    while used.min() == 0:
        deal = dealing.choose(zeros, used, others={2}, mine=set(), now=0)
        assert deal is not None
        chosen.append(deal)
        used[deal.shard] += 1
    epochs = [deal.epoch for deal in chosen]
    turn = epochs.index(2)
    assert 10 < turn < 30, "about half are its own"
    assert epochs[: 2 * turn] == [1] * turn + [2] * turn
    assert {deal.shard for deal in chosen[:turn]} == {deal.shard for deal in chosen[turn : 2 * turn]}
    assert not {deal.shard for deal in chosen[2 * turn :]} & {deal.shard for deal in chosen[:turn]}
    assert set(epochs[2 * turn :]) <= {1}


def test_nodes_that_know_each_other_reach_for_different_shards_and_keep_to_them() -> None:
    shards = shard_list(300)
    zeros = np.zeros(300, np.int64)

    def first(node: int, others: set[int], count: int, epoch: int) -> list[int]:
        dealing, chosen = Dealing(shards, node, life=node, epochs=9, lease_s=LEASE_S), list[int]()
        for _ in range(count):
            deal = dealing.choose(zeros, zeros + epoch, others=others, mine=set(chosen), now=0)
            assert deal is not None
            chosen.append(deal.shard)
        return chosen

    sets = [set(first(node, {1, 2, 3} - {node}, 70, 0)) for node in (1, 2, 3)]
    assert len(set.union(*sets)) == 210, "of 100 each that are its own"
    assert sets[0] == set(first(1, {2, 3}, 70, 1)), "in each epoch"
    alone = [set(first(node, set(), 10, 0)) for node in (1, 2, 3)]
    assert len(set.union(*alone)) >= 27, "also before they know each other"


def test_a_shard_that_ends_each_life_of_a_trainer_keeps_it_from_no_other() -> None:
    shards, held, used = shard_list(24), np.zeros(24, np.int64), np.zeros(24, np.int64)
    unreadable, lives = 7, 0
    while (np.delete(used, unreadable) == 0).any():
        lives += 1
        dealing = Dealing(shards, 1, life=lives, epochs=9, lease_s=LEASE_S)
        while (deal := dealing.choose(held, used, others=set(), mine=set(), now=0)) is not None:
            if deal.shard == unreadable:
                break
            used[deal.shard] += 1
        assert lives < 30, f"never used: {np.flatnonzero(used == 0)}"
    assert used[unreadable] == 0
