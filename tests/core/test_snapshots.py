"""Snapshots from node to node: who gives one, and what becomes of one half given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from p2psgd.core.effects import Drop, Reload
from p2psgd.core.events import (
    FrameReceived,
    LinkEvent,
    Resumed,
    SnapshotChunk,
    SnapshotStart,
    SnapshotTail,
    TimePassed,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.readiness import READINESS
from p2psgd.core.replica import Replica
from p2psgd.wire.messages import FrontierRow, SnapshotEnd, SnapshotRequest
from p2psgd.wire.reject import RejectCode
from tests.core.cluster import Cluster, by_origin, own_update

Clusters = Callable[..., Cluster]


def fall_behind(clusters: Clusters, *behind: int, size: int = 3) -> Cluster:
    """Those nodes lack what the others' logs no longer hold, and each has two updates that only it has."""
    cluster = clusters(size)
    cluster.found()
    for node in behind:
        for other in range(size):
            if (node, other) in cluster.queues:
                cluster.cut(node, other)
    ahead = [node for node in range(size) if node not in behind]
    cluster.train(ahead, 5)
    cluster.train(list(behind), 2)
    for node in ahead:
        cluster.lose_log(node)
    return cluster


@contextmanager
def silenced(replica: Replica) -> Iterator[None]:
    """It sends nothing of its log."""
    with patch.object(replica.log_sender, "push"):
        yield


def deliver_until(cluster: Cluster, done: Callable[[], bool]) -> None:
    """One frame at a time, with time passing."""
    for _ in range(200):
        if done():
            return
        if not sum(cluster.deliver(*direction) for direction in list(cluster.queues)):
            cluster.now += 0.5
            for number in range(len(cluster.replicas)):
                if cluster.replicas[number] is not None:
                    cluster.give(number, TimePassed())
    raise AssertionError("it never happened")


@pytest.mark.usefixtures("small_pieces")
def test_what_only_the_joiner_had_is_applied_again_and_goes_to_all(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.link_all()
    joiner = cluster.replica(2)
    deliver_until(cluster, lambda: joiner.fetch.taking.bytes_taken > 0)
    cluster.give(2, own_update([17, 4900]))
    cluster.tick(5)
    counters = joiner.counters
    assert (counters.snapshots_taken, counters.reapplied, counters.lost_updates) == (1, 1, 0)
    cluster.assert_converged()
    assert cluster.replica(0).frontier.sequence(joiner.me) == 3


def test_a_donor_gives_one_at_a_time_and_another_is_asked_meanwhile(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2, 3, size=4)
    cluster.paused = {0}
    cluster.link_all()
    cluster.tick(4)
    assert cluster.replica(0).counters.snapshots_given == 0
    assert cluster.replica(1).counters.snapshots_given == 1
    cluster.paused = set()
    cluster.give(0, Resumed())
    cluster.tick(4)
    assert cluster.replica(0).counters.snapshots_given == 1
    assert [cluster.replica(node).counters.snapshots_taken for node in (2, 3)] == [1, 1]
    assert not cluster.drops
    cluster.assert_converged()


@pytest.mark.usefixtures("small_pieces")
def test_if_the_donor_dies_in_the_middle_nothing_is_half_applied_and_another_gives(
    clusters: Clusters,
) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.link_all()
    joiner = cluster.replica(2)
    taking, before = joiner.fetch.taking, joiner.lattice.coordinates.tobytes()
    deliver_until(cluster, lambda: taking.bytes_taken >= 8000)
    donor = taking.donor
    assert donor is not None
    assert joiner.lattice.coordinates.tobytes() == before
    cluster.kill(donor.node - 1)
    assert (taking.donor, taking.intake) == (None, None)
    assert joiner.lattice.coordinates.tobytes() == before
    cluster.tick(5)
    assert joiner.counters.snapshots_taken == 1
    cluster.assert_converged()


def test_a_donor_that_brings_nothing_for_two_failure_timeouts_is_given_up(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.link_all()
    cluster.settle()
    cluster.paused = {0}
    cluster.tick(9)
    taking = cluster.replica(2).fetch.taking
    assert taking.donor == cluster.replica(0).me
    cluster.tick(4)
    assert cluster.replica(1).counters.snapshots_given == 1
    assert cluster.replica(2).counters.snapshots_taken == 1
    cluster.assert_converged()


@pytest.mark.usefixtures("small_pieces")
def test_updates_made_while_it_is_copied_are_in_the_snapshot_exactly_once(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    cluster.stuck = {(0, 2), (1, 2)}
    for turn in range(5):  # five slices: each update changes all parts, copied or not
        cluster.give(0, own_update(list(range(turn, 5000, 500)), magnitude=2))
        cluster.give(1, own_update(list(range(turn, 5000, 700)), negative=True))
        while cluster.deliver(1, 0):
            pass
        cluster.give(0, Resumed())
    feed = next(peer.feed for peer in cluster.replica(0).peers.values() if peer.origin.node == 3)
    assert feed is None  # all of it is on the link
    there = cluster.replica(0).lattice.coordinates.copy()
    cluster.stuck = {(1, 2)}
    deliver_until(cluster, lambda: cluster.replica(2).counters.snapshots_taken == 1)
    mine = cluster.replica(2)
    assert mine.frontier.sequence(cluster.replica(0).me) == 10
    assert mine.frontier.sequence(cluster.replica(1).me) == 10
    changed = (mine.lattice.coordinates != there).nonzero()[0]
    assert set(changed) <= {2, 9, 4002}  # by its own two updates alone
    cluster.stuck = set()
    cluster.tick(5)
    cluster.assert_converged()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("cut_at", [0, 1, 3, None])
def test_a_snapshot_gives_its_memory_back_when_it_is_sent_and_when_its_link_breaks(
    clusters: Clusters, cut_at: int | None
) -> None:
    cluster = fall_behind(clusters, 2)
    for node in (0, 1):
        cluster.replica(node).out.credit_bytes = 4000
    cluster.link_all()
    taking = cluster.replica(2).fetch.taking
    deliver_until(cluster, lambda: taking.donor is not None)
    assert taking.donor is not None
    donor = taking.donor.node - 1
    scanner = cluster.replica(donor).scanner
    deliver_until(cluster, lambda: scanner.spare is None)
    if cut_at is not None:
        deliver_until(cluster, lambda: taking.bytes_taken >= 4000 * cut_at)
        assert scanner.spare is None
        cluster.cut(donor, 2)
    cluster.tick(5)
    assert scanner.spare is not None
    assert cluster.replica(2).counters.snapshots_taken == 1


def test_an_asker_whose_link_broke_is_not_given_what_it_does_not_await(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    cluster.cut(0, 2)
    cluster.link(0, 2)
    cluster.give(0, Resumed())
    cluster.paused = set()
    cluster.tick(5)
    assert not cluster.drops
    assert cluster.replica(2).counters.snapshots_taken == 1
    cluster.assert_converged()


def test_who_takes_nothing_of_its_snapshot_is_dropped(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    asker = cluster.replica(0).peers[cluster.replica(2).me]
    asker.credit = 0
    cluster.give(0, Resumed())
    assert asker.feed is not None
    for _ in range(21):
        cluster.now += 1.0
        asker.last_seen = cluster.now
        cluster.give(0, TimePassed())
    assert {(drop.peer.node, drop.code) for _, drop in cluster.drops} >= {(3, RejectCode.SLOW)}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("copied", [False, True])
def test_a_donor_whose_memory_is_found_damaged_sends_no_more_of_it_and_says_so(
    clusters: Clusters, *, copied: bool
) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    donor, joiner = cluster.replica(0), cluster.replica(2)
    deliver_until(cluster, lambda: donor.scanner.copying is not None)
    asker = donor.peers[joiner.me]
    if copied:
        asker.credit = 1
        for _ in range(5):
            cluster.give(0, Resumed())
    assert (asker.feed is not None) == copied
    donor.lattice.coordinates[3] += 1
    donor.scanner.scrub_due = cluster.now
    while not donor.node.quarantined:
        cluster.now += 0.1
        cluster.give(0, TimePassed())
    assert asker.feed is None
    cluster.paused = set()
    cluster.give(0, Resumed())
    cluster.tick(30)
    assert not cluster.drops
    assert joiner.counters.snapshots_taken == 1


def test_a_member_gives_one_though_its_own_barrier_waits_for_who_asks(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.replica(0).joining.state = READINESS.first
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)


def test_a_stranger_that_has_what_no_log_holds_keeps_nobody_from_one(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.kill(2)
    joiner, stranger = cluster.boot(2, from_disk=True), Origin(9, 1)
    joiner.log.budget_bytes = 1  # there is no room to replay anything
    cluster.link_all()
    peer = Peer(stranger, "stranger", last_seen=cluster.now, last_progress=0.0, credit=0)
    rows = by_origin([FrontierRow(*stranger, 5, 1, trimmed_to=5)])
    peer.learn_status(rows, rows, 0)
    joiner.cluster.peers[stranger] = peer
    cluster.tick(3)
    del joiner.cluster.peers[stranger]
    assert joiner.counters.snapshots_taken == 1


def test_nobody_asks_for_one_before_all_members_know_that_it_is_a_member(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.kill(2)
    cluster.cut(0, 1)  # node 1 is not told of view 2
    joiner = cluster.boot(2, from_disk=True)
    cluster.lose_log(0)
    cluster.link(0, 2)
    cluster.tick(9)  # of 10 s until node 1 is evicted
    assert joiner.me in cluster.replica(0).membership.view
    assert cluster.replica(0).ready
    assert joiner.joining.absent == [cluster.replica(1).me]
    assert joiner.fetch.taking.donor is None
    assert cluster.replica(0).counters.snapshots_given == 0
    cluster.lose_log(1)
    cluster.link_all()
    cluster.tick(3)
    assert joiner.counters.snapshots_taken == 1
    assert joiner.ready
    cluster.assert_converged()


def test_a_node_that_is_not_complete_itself_says_so(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.give(1, FrameReceived(cluster.replica(0).me, SnapshotRequest(view=0)))
    assert cluster.replica(1).scanner.copying is None
    assert b"not complete" in cluster.queues[1, 0][-1]


@pytest.mark.parametrize(
    "what",
    [
        lambda peer: FrameReceived(peer, SnapshotStart([], 0)),
        lambda peer: FrameReceived(peer, SnapshotChunk(bytes(4))),
        lambda peer: FrameReceived(peer, SnapshotTail(bytes(4))),
        lambda peer: FrameReceived(peer, SnapshotEnd(reason="", tail=0)),
    ],
)
def test_what_nobody_asked_for_or_not_any_more_is_passed_over(
    clusters: Clusters, what: Callable[[Origin], LinkEvent]
) -> None:
    cluster = clusters(2)
    cluster.found()
    before = cluster.replica(1).lattice.coordinates.tobytes()
    effects = cluster.give(1, what(cluster.replica(0).me))
    assert not any(isinstance(effect, Drop | Reload) for effect in effects)
    assert cluster.replica(1).lattice.coordinates.tobytes() == before


@pytest.mark.parametrize(
    "what",
    [
        lambda peer: FrameReceived(peer, SnapshotChunk(bytes(4))),
        lambda peer: FrameReceived(peer, SnapshotTail(bytes(4))),
        lambda peer: FrameReceived(peer, SnapshotEnd(reason="", tail=0)),
    ],
)
def test_what_comes_before_the_beginning_drops_the_donor(
    clusters: Clusters, what: Callable[[Origin], LinkEvent]
) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    cluster.give(2, what(cluster.replica(0).me))
    assert [(number, drop.code) for number, drop in cluster.drops] == [(2, RejectCode.SNAPSHOT)]
    assert "before its beginning" in cluster.drops[0][1].details


def test_a_snapshot_whose_frontier_no_such_run_has_drops_the_donor(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.paused = {0}
    cluster.link_all()
    deliver_until(cluster, lambda: cluster.replica(0).scanner.copying is not None)
    cluster.give(2, FrameReceived(cluster.replica(0).me, SnapshotStart([FrontierRow(0, 0, 1, 7)], 7)))
    assert [(number, drop.code) for number, drop in cluster.drops] == [(2, RejectCode.ORIGIN)]


def test_a_donor_that_stands_still_loses_its_link(clusters: Clusters) -> None:
    """What it had sent before must not come after a request that begins anew."""
    cluster = fall_behind(clusters, 1, size=2)
    donor, joiner = cluster.replica(0).me, cluster.replica(1)
    cluster.replica(0).out.credit_bytes = 4000
    cluster.link_all()
    deliver_until(cluster, lambda: joiner.fetch.taking.bytes_taken > 0)
    cluster.stuck = {(0, 1)}
    for _ in range(11):
        cluster.now += 1.0
        joiner.peers[donor].last_seen = cluster.now  # not silent
        cluster.give(1, TimePassed())
    words = "node-0 has sent nothing of its snapshot for two failure timeouts"
    assert cluster.drops == [(1, Drop(donor, RejectCode.SLOW, words))]
