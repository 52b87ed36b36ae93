"""What a node does with updates that its log has no room for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import Resumed
from tests.core.cluster import Cluster

Clusters = Callable[..., Cluster]
UPDATES = 20  # that each of two members has made


@pytest.fixture(params=[0, 100])
def full(clusters: Clusters, request: pytest.FixtureRequest) -> Cluster:
    """Node 2 is a member that is not READY: its log has room for half of what the others have, and for so
    many bytes, too few for one more. The snapshot that it asks for does not come. All that it has the others
    have acknowledged.
    """
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1], UPDATES)
    cluster.kill(2)
    joiner = cluster.boot(2)
    joiner.log.budget_bytes = cluster.replica(0).log.bytes_held // 2 + request.param
    cluster.paused = {0, 1}
    cluster.link_all()
    cluster.tick(4)
    assert joiner.me in joiner.membership.view
    assert joiner.counters.held_back > 0
    return cluster


def test_who_is_not_ready_lets_go_of_nothing_to_take_an_update(full: Cluster) -> None:
    joiner = full.replica(2)
    full.tick(30)
    assert not joiner.ready
    assert [joiner.log.trimmed_to(origin) for origin in joiner.frontier] == [0, 0]
    assert UPDATES - 3 < len(joiner.log) < UPDATES + 3


def test_what_was_held_back_is_not_sent_again_before_there_is_room(full: Cluster) -> None:
    counters = full.replica(2).counters
    held_back = counters.held_back
    full.tick(30)
    assert counters.held_back == held_back


@pytest.mark.parametrize("snapshot", [False, True])
def test_once_there_is_room_it_comes(full: Cluster, *, snapshot: bool) -> None:
    joiner = full.replica(2)
    if snapshot:
        full.paused = set()
        for donor in (0, 1):
            full.give(donor, Resumed())
    else:
        joiner.log.budget_bytes *= 4
    full.tick(8)
    assert joiner.ready
    assert joiner.counters.snapshots_taken == snapshot
    full.assert_converged()
