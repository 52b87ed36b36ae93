"""What is read off real replicas."""

from __future__ import annotations

from typing import Any

import pytest

from p2psgd.core.events import RemovalAsked, TimePassed
from p2psgd.core.read_model import view_of
from p2psgd.observe.model import describe_replication, find_fault
from p2psgd.observe.replication_text import replication_lines
from p2psgd.observe.status import observe_digest, observe_replication
from tests.core.cluster import Cluster, own_update


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes in view 1 that have made 5 updates each and hold the same."""
    cluster = Cluster(3)
    cluster.link_all()
    cluster.settle()
    cluster.pass_time(6.0)
    for number in range(15):
        cluster.give(number % 3, own_update([number], mini_batch=number))
    cluster.pass_time(2.0)
    return cluster


def status(cluster: Cluster, number: int = 0) -> dict[str, Any]:
    replica = cluster.replica(number)
    figures = observe_replication(view_of(replica, cluster.now), checkpoint=None, stall=None, slow_links=[])
    return describe_replication(figures)


def digest(cluster: Cluster) -> dict[str, Any]:
    return observe_digest(view_of(cluster.replica(0), cluster.now))


def test_a_run_where_all_is_well(cluster: Cluster) -> None:
    told = status(cluster)
    assert (told["ready"], told["not_ready"], told["view"]["number"]) == (True, "", 1)
    rows = [(row["node"], row["linked"], row["ready"], row["lag"]) for row in told["view"]["members"]]
    assert rows[1:] == [("node-1", True, True, 0), ("node-2", True, True, 0)]
    assert (told["log"]["updates"], told["log"]["holders"], told["checkpoint"]) == (15, [], None)
    assert [label for label, _ in replication_lines(told)] == ["view", "member", "member"]


def test_a_node_that_starts_says_what_it_waits_for() -> None:
    told = status(Cluster(3))
    assert (told["ready"], told["not_ready"]) == (False, "looking for the other nodes of the run")
    assert told["view"]["members"] == []


def test_who_is_away_pins_what_it_lacks(cluster: Cluster) -> None:
    cluster.kill(2)
    for number in range(20):
        cluster.give(0, own_update([number], mini_batch=100 + number))
    cluster.pass_time(3.0)
    told = status(cluster)
    away = told["view"]["members"][2]
    assert (away["node"], away["linked"], away["lag"]) == ("node-2", False, 20)
    assert away["heard_s"] == pytest.approx(3.0, abs=1.5)
    assert [holder["node"] for holder in told["log"]["holders"]] == ["node-2"]
    assert told["log"]["holders"][0]["bytes"] >= 20 * 100


def test_a_view_that_lacks_a_majority_says_so(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.kill(number)
    cluster.give(0, RemovalAsked(cluster.replica(0).membership.view.members[2].node, forbid=False))
    cluster.pass_time(12.0)
    assert "view 2" in status(cluster)["view"]["waits"]


def test_replicas_are_identical_and_the_scrub_that_was_asked_for_is_clean(cluster: Cluster) -> None:
    cluster.replica(0).sweeping.scrub_due = cluster.now
    report = digest(cluster)
    assert [peer["verdict"] for peer in report["peers"]] == ["identical", "identical"]
    assert find_fault(report)  # no scrub has ended yet
    cluster.pass_time(31.0)
    report = digest(cluster)
    assert report["scrub"]["count"] == 1
    assert not find_fault(report)


def test_a_changed_coordinate_is_not_sound(cluster: Cluster) -> None:
    cluster.replica(0).sweeping.scrub_due = cluster.now
    cluster.replica(0).lattice.coordinates[77] ^= 1 << 9
    for _ in range(70):  # of the damaged node alone, so that nobody mends it
        cluster.now += 0.5
        cluster.give(0, TimePassed())
    report = digest(cluster)
    assert report["scrub"]["quarantines"] == 1
    assert "the weights in memory" in find_fault(report)


def test_one_that_is_behind_agrees_and_one_that_is_away_is_unknown(cluster: Cluster) -> None:
    cluster.kill(2)
    cluster.stuck.add((0, 1))
    for number in range(4):
        cluster.give(0, own_update([number], mini_batch=200 + number))
    report = digest(cluster)
    told = {peer["node"]: (peer["verdict"], peer["lacks"], peer["linked"]) for peer in report["peers"]}
    assert told == {"node-1": ("agrees", 4, True), "node-2": ("unknown", 0, False)}
    assert "node-2: not compared" in find_fault(report)


def test_a_snapshot_on_its_way_shows_how_fast_it_goes() -> None:
    cluster = Cluster(3)
    cluster.link_all()
    cluster.pass_time(6.0)
    cluster.kill(2)
    for number in range(30):
        cluster.give(0, own_update([number], mini_batch=number))
    cluster.pass_time(1.0)
    for number in (0, 1):  # what the third will lack leaves their logs
        log = cluster.replica(number).log
        log.trim(lambda _: 2**64, lambda _: 2**64, share=0.0)
    cluster.boot(2)
    cluster.link_all()
    seen = set()
    for _ in range(400):
        cluster.now += 0.1
        for number in range(3):
            cluster.give(number, TimePassed())
        for direction in list(cluster.queues):
            cluster.deliver(*direction)
        told = status(cluster, 2)
        seen |= {(row["giving"], row["node"]) for row in told["snapshots"] if row["bytes_per_s"] > 0}
    assert told["counters"]["snapshots_taken"] == 1
    assert seen
    assert {giving for giving, _ in seen} == {False}
    assert told["snapshots"] == []
    cluster.assert_converged()
