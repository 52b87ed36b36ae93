"""An owner that loses its range publishes first, and then gives what it had added up to the next owner."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import LinkDrained, RemovalRequested, TimePassed
from p2psgd.core.owners.owners import Owners
from p2psgd.wire.frames import FrameType
from tests.core.cluster import Cluster, own_update

LOUD, FAINT = [2000], [2001, 2002]  # weights that node 1 of three owns, and of two node 0


def owners_of(cluster: Cluster, number: int) -> Owners:
    owners = cluster.replica(number).owners
    assert owners is not None
    return owners


def with_something_added_up(clusters: Callable[..., Cluster]) -> Cluster:
    """Node 1 has published one contribution of node 0 and has another, which does not go out as a whole. On
    its way to node 1 is a view in which these weights are node 0's own.
    """
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.give(0, own_update(LOUD, magnitude=8))
    cluster.settle()
    cluster.tick(0.5)
    assert owners_of(cluster, 0).waiting == 0
    cluster.give(0, RemovalRequested(3, forbid=True))
    cluster.now += 0.5
    for number in range(3):
        cluster.give(number, TimePassed())
    cluster.give(0, own_update(FAINT, magnitude=1))
    while owners_of(cluster, 1).received[cluster.replica(0).me] < 2:
        assert cluster.deliver(0, 1)
    assert owners_of(cluster, 1).aggregator.residual.any()
    assert cluster.views() == [1, 1, 1]
    return cluster


def deliver_until_node_1_has_the_view(cluster: Cluster) -> None:
    while cluster.replica(1).view.number == 1:
        assert any([cluster.deliver(0, 1), cluster.deliver(1, 0)])


def sent(cluster: Cluster) -> list[FrameType]:
    """Return the types of the frames about weights that are on their way from node 1 to node 0."""
    types = [FrameType(frame[4]) for frame in cluster.queues[1, 0]]
    return [each for each in types if each in (FrameType.UPDATE, FrameType.CONTRIBUTION)]


def test_an_update_covers_where_it_came_from_before_the_new_owner_is_given_it(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = with_something_added_up(clusters)
    deliver_until_node_1_has_the_view(cluster)
    assert sent(cluster) == [FrameType.UPDATE, FrameType.CONTRIBUTION]
    cluster.settle()
    cluster.tick(1.0)
    assert owners_of(cluster, 0).waiting == owners_of(cluster, 1).waiting == 0


def test_the_new_owner_is_given_it_only_when_the_update_is_sent(clusters: Callable[..., Cluster]) -> None:
    cluster = with_something_added_up(clusters)
    peer = cluster.replica(1).peers[cluster.replica(0).me]
    while cluster.replica(1).view.number == 1:
        peer.credit = 0
        assert any([cluster.deliver(0, 1), cluster.deliver(1, 0)])
    assert sent(cluster) == []
    cluster.give(1, LinkDrained(peer.origin))
    assert sent(cluster) == [FrameType.UPDATE, FrameType.CONTRIBUTION]


def test_an_owner_that_may_not_publish_keeps_it_until_it_may(clusters: Callable[..., Cluster]) -> None:
    cluster = with_something_added_up(clusters)
    owners = owners_of(cluster, 1)
    before = owners.aggregator.range
    cluster.replica(1).node.quarantine(cluster.now)
    deliver_until_node_1_has_the_view(cluster)
    assert owners.aggregator.range == before
    assert owners.aggregator.residual.any()
    cluster.replica(1).node.release()
    cluster.tick(0.5)
    assert owners.aggregator.range == (2500, 5000)
