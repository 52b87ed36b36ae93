"""A member that is not ready yet owns its range, and is given nothing: it could not publish it."""

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
