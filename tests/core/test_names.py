"""What a replica calls nodes: names come with links, and not without end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import LinkClosed, LinkOpened
from p2psgd.core.frontier import Origin
from tests.core.cluster import Cluster

Clusters = Callable[..., Cluster]


def test_names_of_nodes_that_came_and_went_are_forgotten_when_they_are_too_many(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2psgd.core.cluster.NAMES_MAX", 6)
    cluster = clusters(3)
    cluster.found()
    cluster.train([2], 1)
    cluster.kill(2)
    names = cluster.replica(0).cluster.names
    names[1] = "node-0"
    for node in (11, 12, 13, 14):
        cluster.queues[0, node - 1] = cluster.queues[0, 1]
        cluster.give(0, LinkOpened(Origin(node, 1), f"stranger-{node}"))
        if node != 13:
            cluster.give(0, LinkClosed(Origin(node, 1)))
        del cluster.queues[0, node - 1]
    assert names == {1: "node-0", 2: "node-1", 3: "node-2", 13: "stranger-13", 14: "stranger-14"}
