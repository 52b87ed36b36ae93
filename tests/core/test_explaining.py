"""Every sentence that says why nothing moves, and whom it names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import RemovalRequested
from tests.core.cluster import Cluster, own_update
from tests.core.test_losses import come_back_without_log
from tests.core.test_snapshots import deliver_until, fall_behind, silenced

Clusters = Callable[..., Cluster]


def test_a_ready_node_waits_for_nothing(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    assert cluster.replica(0).waiting_for() == ""


def test_before_the_run_is_founded(clusters: Clusters) -> None:
    assert clusters(2).replica(0).waiting_for() == "looking for the other nodes of the run"


def test_not_admitted(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.kill(2)
    back = cluster.boot(2)
    cluster.link(1, 2)
    deliver_until(cluster, lambda: back.membership.view.number == 1)
    words = back.waiting_for()
    assert words.startswith("waiting to be admitted to the run: view 2 with ")
    assert "0000000000000003" in words


def test_removed_for_good(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.give(0, RemovalRequested(3, forbid=True))
    cluster.tick(3)
    assert cluster.replica(2).waiting_for() == (
        "waiting to be admitted to the run: "
        "this node was removed for good by view 2 and is not admitted again"
    )


def test_the_barrier_names_who_does_not_know_yet(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.cut(0, 1)
    cluster.kill(2)
    back = cluster.boot(2)
    cluster.link(0, 2)
    cluster.tick(3)
    assert cluster.views() == [2, 1, 2]
    assert back.waiting_for() == (
        "waiting for 0000000000000002 to learn that this node is back, or to be removed"
    )


@pytest.mark.usefixtures("small_pieces")
def test_a_snapshot_under_way_names_its_donor_and_share(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.kill(2)
    back = cluster.boot(2)
    cluster.link_all()
    taking = back.fetch.taking
    deliver_until(cluster, lambda: taking.bytes_taken == 8000)
    assert taking.donor is not None
    name = f"node-{taking.donor.node - 1}"
    assert back.waiting_for() == f"taking a snapshot from {name}: 40%"


def test_no_donor(clusters: Clusters) -> None:
    cluster = come_back_without_log(clusters)
    cluster.tick(14)
    assert cluster.replica(2).waiting_for() == "waiting for a member that can give a snapshot"


def test_catching_up_tells_how_far(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    for index in range(30):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.kill(2)
    back = cluster.boot(2)
    with silenced(cluster.replica(0)), silenced(cluster.replica(1)):
        cluster.link_all()
        cluster.tick(3)
        assert back.joining.passed
        assert back.waiting_for() == "catching up: 30 updates behind"
    cluster.tick(10)
    assert back.ready


def test_damaged_weights(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    hurt = cluster.replica(1)
    hurt.node.quarantine(cluster.now)
    hurt.node.give_up_repair(cluster.now)
    assert hurt.waiting_for() == (
        "the weights in memory were damaged: waiting for a member that can give a snapshot"
    )


def test_a_full_log_names_who_holds_it_back_and_what_eviction_waits_for(clusters: Clusters) -> None:
    cluster = clusters(2, log_budget_bytes=12_000)
    cluster.found()
    cluster.cut(0, 1)
    cluster.train([0], 45)
    assert cluster.replica(0).retention.stalled
    words = cluster.replica(0).waiting_for()
    assert words.startswith("the log is full of updates that node-1 has not acknowledged, and view 2 with ")
    assert words.endswith("waits for a majority of view 1: node-1 not linked")
