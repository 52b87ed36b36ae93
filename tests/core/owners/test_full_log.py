"""An owner whose log is full of what others have not acknowledged publishes nothing."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.cluster import Cluster, own_update


def test_an_owner_with_a_full_log_publishes_when_it_has_room_again(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2, mode="owners")
    cluster.found()
    replica = cluster.replica(0)
    assert replica.owners is not None
    cluster.give(0, own_update([5]))
    replica.retention.fullness = 1.0
    replica.owners.publish(cluster.now + 1.0)
    assert replica.owners.waiting == 1
    replica.retention.fullness = 0.0
    replica.owners.publish(cluster.now + 2.0)
    assert replica.owners.waiting == 0
