"""What of a peer's STATUS is beyond this node's frontier: all that is asked for, or can be lacking."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.frontier import Origin
from p2psgd.core.readiness import lacks_trimmed
from p2psgd.wire.messages import FrontierRow
from tests.core.cluster import Cluster, own_update, status_of

Clusters = Callable[..., Cluster]
GONE = Origin(99, 1)


def test_only_rows_beyond_the_frontier_are_remembered_until_the_next_status(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    node, other = cluster.replica(1), cluster.replica(0).me
    cluster.give(0, own_update([1, 2]))
    cluster.settle()
    peer, view = node.peers[other], node.membership.view
    known = FrontierRow(*other, 1, node.frontier.digest(other))
    lacked = FrontierRow(*GONE, 5, 1, trimmed_to=3)

    def on_message(*rows: FrontierRow) -> None:
        cluster.give(1, status_of(other, list(rows), view=view.number, cluster_id=view.cluster_id))

    on_message(known, lacked)
    assert peer.status == {other: known, GONE: lacked}
    assert peer.ahead == {GONE: lacked}
    assert lacks_trimmed(peer, node.frontier)
    on_message(known)
    assert not peer.ahead
    assert not lacks_trimmed(peer, node.frontier)
