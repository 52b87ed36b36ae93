"""What is read off real replicas."""

from __future__ import annotations

import pytest

from p2psgd.cli.digest import find_fault
from p2psgd.core.events import RemovalRequested, TimePassed
from p2psgd.core.read_model import view_of
from p2psgd.observe.collect import replica_parts
from p2psgd.observe.digest import DigestReport, report_digest
from p2psgd.observe.status import LogStatus, NodeStatus, ViewStatus
from p2psgd.observe.text import replication_lines
from tests.core.cluster import Cluster, own_update
from tests.observe.replications import vitals


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes in view 1 that have made 5 updates each and hold the same."""
    cluster = Cluster(3)
    cluster.link_all()
    cluster.settle()
    cluster.tick(6.0)
    for number in range(15):
        cluster.give(number % 3, own_update([number], steps=number))
    cluster.tick(2.0)
    return cluster


def status(cluster: Cluster, number: int = 0) -> NodeStatus:
    view = view_of(cluster.replica(number), cluster.now)
    return NodeStatus(node=f"node-{number}", **replica_parts(view, vitals(checkpoint=None)))


def view(cluster: Cluster) -> ViewStatus:
    found = status(cluster).view
    assert found is not None
    return found


def log(cluster: Cluster) -> LogStatus:
    found = status(cluster).log
    assert found is not None
    return found


def digest(cluster: Cluster) -> DigestReport:
    return report_digest(view_of(cluster.replica(0), cluster.now))


def test_a_run_where_all_is_well(cluster: Cluster) -> None:
    told = status(cluster)
    assert (told.ready, told.not_ready, view(cluster).number) == (True, "", 1)
    rows = [(row.node, row.linked, row.ready, row.lag) for row in view(cluster).members]
    assert rows[1:] == [("node-1", True, True, 0), ("node-2", True, True, 0)]
    assert (log(cluster).updates, log(cluster).holders, told.checkpoint) == (15, [], None)
    assert [line.label for line in replication_lines(told) if line.words] == ["view"]


def test_a_node_that_starts_says_what_it_waits_for() -> None:
    cluster = Cluster(3)
    told = status(cluster)
    assert (told.ready, told.not_ready) == (False, "looking for the other nodes of the run")
    assert view(cluster).members == []


def test_who_is_away_pins_what_it_lacks(cluster: Cluster) -> None:
    cluster.kill(2)
    for number in range(20):
        cluster.give(0, own_update([number], steps=100 + number))
    cluster.tick(3.0)
    away = view(cluster).members[2]
    assert (away.node, away.linked, away.lag) == ("node-2", False, 20)
    assert away.heard_s == pytest.approx(3.0, abs=1.5)
    (holder,) = log(cluster).holders
    assert holder.node == "node-2"
    assert holder.bytes >= 20 * 100


def test_a_view_that_lacks_a_majority_says_so(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.kill(number)
    cluster.give(0, RemovalRequested(cluster.replica(0).membership.view.members[2].node, forbid=False))
    cluster.tick(12.0)
    assert "view 2" in view(cluster).waits


def test_replicas_are_identical_and_the_scrub_that_was_asked_for_is_clean(cluster: Cluster) -> None:
    cluster.replica(0).scanner.scrub_due = cluster.now
    report = digest(cluster)
    assert [peer.verdict for peer in report.peers] == ["identical", "identical"]
    assert find_fault(report)  # no scrub has ended yet
    cluster.tick(31.0)
    report = digest(cluster)
    assert report.scrub.count == 1
    assert not find_fault(report)


def test_a_changed_coordinate_is_not_sound(cluster: Cluster) -> None:
    cluster.replica(0).scanner.scrub_due = cluster.now
    cluster.replica(0).lattice.coordinates[77] ^= 1 << 9
    for _ in range(70):  # of the damaged node alone, so that nobody mends it
        cluster.now += 0.5
        cluster.give(0, TimePassed())
    report = digest(cluster)
    assert report.scrub.quarantines == 1
    assert "the weights in memory" in find_fault(report)


def test_one_that_is_behind_agrees_and_one_that_is_away_is_unknown(cluster: Cluster) -> None:
    cluster.kill(2)
    cluster.stuck.add((0, 1))
    for number in range(4):
        cluster.give(0, own_update([number], steps=200 + number))
    report = digest(cluster)
    told = {peer.node: (peer.verdict, peer.lacks, peer.linked) for peer in report.peers}
    assert told == {"node-1": ("agrees", 4, True), "node-2": ("unknown", 0, False)}
    assert "node-2: not compared" in find_fault(report)


def test_a_snapshot_on_its_way_shows_how_fast_it_goes() -> None:
    cluster = Cluster(3)
    cluster.link_all()
    cluster.tick(6.0)
    cluster.kill(2)
    for number in range(30):
        cluster.give(0, own_update([number], steps=number))
    cluster.tick(1.0)
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
        seen |= {(row.giving, row.node) for row in told.snapshots if row.bytes_per_s > 0}
    assert told.counters is not None
    assert told.counters.snapshots_taken == 1
    assert seen
    assert {giving for giving, _ in seen} == {False}
    assert told.snapshots == []
    cluster.assert_converged()
