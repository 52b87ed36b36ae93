"""A member that is not ready yet owns its range, and is given nothing: it could not publish it. Once it says
that it is ready it is given its part at once.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.core.cluster import Cluster, own_update


def test_a_member_that_is_not_ready_is_given_nothing(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.kill(2)
    newcomer = cluster.boot(2).me
    owners, peers = cluster.replica(0).owners, cluster.replica(0).peers
    assert owners is not None
    cluster.link_all()
    while newcomer not in cluster.replica(0).view.members:
        if not any(cluster.deliver(*direction) for direction in list(cluster.queues)):
            cluster.tick(0.5)
    assert not peers[newcomer].ready
    cluster.give(0, own_update([4500]))
    assert newcomer not in owners.channels
    cluster.tick(2.0)
    assert peers[newcomer].ready
    cluster.give(0, own_update([4500]))
    assert newcomer in owners.channels
    cluster.tick(1.0)
    assert owners.waiting == 0


def test_a_member_that_says_that_it_is_ready_is_given_its_part_before_the_next_tick(
    clusters: Callable[..., Cluster],
) -> None:
    """Else, in a crowd with long ticks, each node would give its first steps to itself, and publish them."""
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.kill(2)
    newcomer = cluster.boot(2).me
    owners, peers = cluster.replica(0).owners, cluster.replica(0).peers
    assert owners is not None
    cluster.link_all()
    while newcomer not in peers or not peers[newcomer].ready:
        if not any(cluster.deliver(*direction) for direction in list(cluster.queues)):
            cluster.tick(0.5)
    cluster.give(0, own_update([4500]))
    assert newcomer in owners.channels
