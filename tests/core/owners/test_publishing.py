"""When an owner publishes without rounds: soon enough that no trainer waits for others, else seldom."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import TimePassed
from p2psgd.core.owners.owners import PENDING_MAX, PUBLISH_S, Owners
from tests.core.cluster import Cluster, own_update

OF_NODE_0, OF_NODE_2 = 10, 4500  # weights, of three nodes


def owners_of(cluster: Cluster, number: int) -> Owners:
    owners = cluster.replica(number).owners
    assert owners is not None
    return owners


def test_one_trainer_among_many_members_without_one_waits_for_none(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(PENDING_MAX + 2, mode="owners")
    cluster.found()
    for step in range(2 * PENDING_MAX):
        cluster.now += PUBLISH_S / (3 * PENDING_MAX)
        cluster.give(0, own_update([OF_NODE_0, OF_NODE_2], steps=step + 1))
        cluster.settle()
        assert not owners_of(cluster, 0).full


def test_what_came_goes_out_half_a_second_after_the_last_publication_and_not_with_each_tick(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.tick(PUBLISH_S)
    cluster.give(0, own_update([OF_NODE_2]))
    cluster.settle()
    published = []
    for _ in range(3):
        cluster.now += 0.4 * PUBLISH_S
        cluster.give(2, TimePassed())
        published.append(cluster.replica(2).sequence)
    assert published == [0, 0, 1]
