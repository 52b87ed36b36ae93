"""What a checkpoint keeps of the log, compared exactly and for every origin."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import CheckpointDue
from p2psgd.core.frontier import Origin
from tests.core.cluster import Cluster
from tests.core.uneven import beyond, numbers_in

Clusters = Callable[..., Cluster]


def saved(cluster: Cluster, node: int) -> dict[Origin, int]:
    """What is in that node's latest checkpoint."""
    checkpoint = cluster.checkpoints[node]
    assert checkpoint is not None
    return {Origin(row.node, row.incarnation): row.sequence for row in checkpoint.rows}


def test_it_keeps_what_any_other_member_has_on_no_disk_linked_or_not(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    for node in (2, 1, 0):  # each saves one update of everybody more than the one before
        cluster.train([0, 1, 2], 1)
        cluster.give(node, CheckpointDue())
    cluster.tick(2)
    cluster.cut(0, 2)
    cluster.train([1], 1)
    cluster.give(0, CheckpointDue())
    kept, holder = cluster.checkpoints[0], cluster.replica(0)
    assert kept is not None
    expected = beyond(holder, [saved(cluster, 1), saved(cluster, 2)])
    assert list(expected.values()) == [[2, 3], [2, 3, 4], [2, 3]]
    assert numbers_in(holder, kept.tail) == expected
