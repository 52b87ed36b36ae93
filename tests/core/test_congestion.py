"""When a trainer must wait because all peers are far behind."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.send import OWN_LAG_MAX
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]


def test_a_node_is_congested_only_when_its_fastest_lively_peer_is_far_behind(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    for index in range(OWN_LAG_MAX + 200):
        cluster.give(0, own_update([index], steps=1 + index))
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)  # node 2 keeps up
    cluster.stuck = {(0, 1), (0, 2)}
    for index in range(OWN_LAG_MAX + 200):
        cluster.give(0, own_update([index], steps=OWN_LAG_MAX + 201 + index))
    assert cluster.replica(0).congested(cluster.now)
    assert not cluster.replica(0).congested(cluster.now + 6.0)  # nobody acknowledges: nobody is waited for
    cluster.stuck = set()
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)


def test_mini_batches_make_a_peer_lag_however_many_updates_each_of_them_makes(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    for steps in range(1, OWN_LAG_MAX + 1):
        for index in range(3):
            cluster.give(0, own_update([index], steps=steps))
    assert not cluster.replica(0).congested(cluster.now)
    cluster.give(0, own_update([3], steps=OWN_LAG_MAX + 1))
    assert cluster.replica(0).congested(cluster.now)
    cluster.stuck = set()
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)
