"""Rings to which anything may happen but the loss of votes: replicas at one round stay equal at every step
(RingCluster.check), and when it is over the rounds go on with all.
"""

from __future__ import annotations

import random

import pytest

from p2psgd.core.events import TimePassed, TrainerChanged
from p2psgd.wire.reject import RejectCode
from tests.core.ring.cluster import RingCluster

HONEST = {RejectCode.SILENT, RejectCode.SLOW}  # why a link may be dropped between honest nodes


def shake(cluster: RingCluster, chance: random.Random, steps: int) -> None:
    size = len(cluster.replicas)
    for _ in range(steps):
        one, other = chance.sample(range(size), 2)
        what = chance.random()
        if what < 0.60:
            for _ in range(chance.choice([1, 3, 10])):
                cluster.deliver(*chance.choice(list(cluster.queues) or [(one, other)]))
        elif what < 0.75 and cluster.open:
            cluster.share(chance.choice(sorted(cluster.open)), updates=chance.randrange(3))
        elif what < 0.90:
            tick(cluster, chance.choice([0.1, 0.5]), {one})
        elif what < 0.93:
            tick(cluster, chance.choice([0.5, 2.0]), set(range(size)))
        elif what < 0.95 and (one, other) in cluster.queues:
            cluster.cut(one, other)
        elif what < 0.98:
            link(cluster, one, other)
        elif what < 0.985:
            trainer(cluster, one, active=chance.random() < 0.7)
        elif what < 0.99 and cluster.replicas[one] is not None:
            cluster.kill(one)
            cluster.open.discard(one)
        elif cluster.replicas[one] is None:
            cluster.boot(one, from_disk=True)
            trainer(cluster, one, active=True)
        obey(cluster)


def tick(cluster: RingCluster, seconds: float, nodes: set[int]) -> None:
    cluster.now += seconds
    for number in sorted(nodes):
        if cluster.replicas[number] is not None:
            cluster.give(number, TimePassed())


def link(cluster: RingCluster, one: int, other: int) -> None:
    alive = cluster.replicas[one] is not None and cluster.replicas[other] is not None
    if alive and (one, other) not in cluster.queues:
        cluster.link(one, other)


def trainer(cluster: RingCluster, number: int, *, active: bool) -> None:
    if cluster.replicas[number] is not None:
        if not active:
            cluster.open.discard(number)
        cluster.give(number, TrainerChanged(active))


def obey(cluster: RingCluster) -> None:
    """Close the links that somebody wants closed."""
    drops, cluster.drops = cluster.drops, []
    for number, drop in drops:
        assert drop.code in HONEST, drop
        if (number, drop.peer.node - 1) in cluster.queues:
            cluster.cut(number, drop.peer.node - 1)
    assert not cluster.halts, cluster.halts
    assert not cluster.alarms, cluster.alarms
    assert not cluster.refused, cluster.refused


def heal(cluster: RingCluster) -> None:
    for number, replica in enumerate(cluster.replicas):
        if replica is None:
            cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.settle()
    cluster.attach()
    everybody = set(range(len(cluster.replicas)))
    for _ in range(2000):  # evicted nodes are let in again after up to 64 failure timeouts
        if (
            cluster.running() == everybody
            and len({replica.membership.view for replica in cluster.alive()}) == 1
        ):
            break
        cluster.share(*cluster.open)
        cluster.settle()
        cluster.tick(0.5)
        obey(cluster)
        cluster.link_all()
    assert cluster.running() == everybody, cluster.waits()


@pytest.mark.parametrize("mode", ["ring-sparse", "ring-dense"])
@pytest.mark.parametrize("seed", range(40))
def test_a_shaken_ring_goes_on_with_all(seed: int, mode: str) -> None:
    chance = random.Random(seed)
    cluster = RingCluster(chance.choice([2, 3, 4, 5]), mode=mode)
    cluster.start()
    shake(cluster, chance, 400)
    heal(cluster)
    cluster.share(*cluster.open)
    cluster.settle()
    before = cluster.rounds()
    cluster.run(3)
    assert cluster.rounds() == [number + 3 for number in before]
    cluster.assert_converged()
