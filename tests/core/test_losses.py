"""No snapshot is taken by which something applied here would be lost; giving that up is counted and said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import CheckpointDue, Resumed, TimePassed
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.snapshot_fetch import FetchProgress
from p2psgd.core.timing import Timing
from p2psgd.core.view import View
from p2psgd.wire.messages import FrontierRow
from tests.core.cluster import Cluster, by_origin, own_update
from tests.core.test_snapshots import deliver_until, fall_behind

Clusters = Callable[..., Cluster]
A, B, Z = Origin(50, 1), Origin(51, 1), Origin(60, 1)


def donor(origin: Origin, *rows: FrontierRow, ready: bool = True) -> Peer:
    peer = Peer(origin, "donor", last_seen=0.0, last_progress=0.0, credit=1)
    peer.status = peer.ahead = by_origin(rows)
    peer.ready = ready
    return peer


def test_a_replica_that_lacks_what_only_this_one_has_is_not_taken_but_another_is(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.link(1, 2)
    deliver_until(
        cluster, lambda: cluster.replica(1).frontier.sequence(cluster.replica(2).me) == 2
    )  # node 1 has the two, node 0 does not
    cluster.cut(0, 1)
    cluster.lose_log(2)
    cluster.lose_log(1)
    cluster.link(0, 2)
    lone = cluster.replica(2)
    before = lone.counters.snapshots_taken
    cluster.tick(10)
    assert lone.frontier.sequence(lone.me) == 2
    assert lone.counters.snapshots_taken >= before
    assert not cluster.halts
    cluster.link_all()
    cluster.tick(10)
    cluster.assert_converged()
    assert cluster.replica(0).frontier.sequence(lone.me) == 2


def come_back_without_log(clusters: Clusters) -> Cluster:
    """Node 2 was evicted while it was cut off, and its log no longer holds the four updates that only it has;
    no correct node comes there by itself.
    """
    cluster = clusters(3, log_budget_bytes=12_000)
    cluster.found()
    cluster.cut(0, 2)
    cluster.cut(1, 2)
    cluster.train([2], 4)
    cluster.train([0, 1], 60)
    assert cluster.replica(2).me not in cluster.replica(0).membership.view
    cluster.lose_log(2)
    cluster.link_all()
    return cluster


def test_after_three_failure_timeouts_the_loss_is_counted_and_the_node_begins_anew(
    clusters: Clusters,
) -> None:
    cluster = come_back_without_log(clusters)
    cluster.tick(14)
    assert not cluster.halts
    assert cluster.replica(2).counters.snapshots_taken == 0
    cluster.tick(6)
    [(number, halt)] = cluster.halts
    assert (number, halt.again, halt.abandon) == (2, True, True)
    assert halt.words.startswith("4 updates that only this node had applied are lost")
    assert cluster.replica(2).counters.lost_updates == 4
    cluster.kill(2)
    cluster.boot(2)
    cluster.link_all()
    cluster.tick(10)
    assert cluster.all_ready()
    cluster.assert_converged()


def test_a_node_that_is_ready_never_gives_itself_up(clusters: Clusters) -> None:
    """Else two sides that each lack something of the other would both throw away what they have."""
    cluster = fall_behind(clusters, 2)
    cluster.lose_log(2)
    cluster.link_all()
    cluster.tick(60)
    assert not cluster.halts


@pytest.mark.usefixtures("small_pieces")
def test_what_was_lost_while_a_snapshot_came_keeps_it_from_being_adopted(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    cluster.link_all()
    lone = cluster.replica(2)
    deliver_until(cluster, lambda: lone.fetch.taking.bytes_taken > 0)
    cluster.stuck = {(2, 0), (2, 1)}
    cluster.give(2, own_update([17, 4900]))
    cluster.lose_log(2)
    cluster.tick(5)
    assert lone.fetch.taking.bytes_taken > 0
    assert lone.counters.snapshots_taken == 0
    assert lone.frontier.sequence(lone.me) == 3


def test_hope_begins_anew_if_what_was_lacking_came_otherwise(clusters: Clusters) -> None:
    cluster = come_back_without_log(clusters)
    cluster.tick(12)
    for other in (0, 1):
        cluster.cut(2, other)
    for _ in range(30):  # alone it lacks nothing that it knows of
        cluster.now += 1.0
        cluster.give(2, TimePassed())
    cluster.link_all()
    cluster.tick(5)
    assert not cluster.halts


def test_a_donor_is_asked_only_for_what_it_has(clusters: Clusters) -> None:
    """Another that is ahead in what will be replayed anyway would give the same again and again."""
    replica = clusters(1).replica(0)
    peers = {peer.origin: peer for peer in (donor(A, FrontierRow(*A, 9, 1)), donor(B, FrontierRow(*Z, 3, 1)))}
    view = View(1, (A, B))

    def chosen(beyond: set[Origin], *, anyway: bool = False) -> Peer | None:
        taking = FetchProgress(Timing(5.0))
        return taking.choose(peers, view, replica.state, beyond=beyond, anyway=anyway, now=0.0)

    assert chosen({Z}) is peers[B]
    assert chosen({A}) is peers[A]
    assert chosen({Origin(70, 1)}) is None
    assert chosen(set()) is peers[A]
    assert chosen({Origin(70, 1)}, anyway=True) is peers[A]


def test_a_donor_is_ready_unless_none_is_and_always_a_member(clusters: Clusters) -> None:
    state = clusters(1).replica(0).state
    first, second = donor(A, FrontierRow(*Z, 3, 1), ready=False), donor(B, FrontierRow(*Z, 3, 1))
    taking = FetchProgress(Timing(5.0))
    both = {A: first, B: second}
    assert taking.choose(both, View(1, (A, B)), state, beyond={Z}, anyway=False, now=0.0) is second
    assert taking.choose(both, View(1, (A,)), state, beyond={Z}, anyway=False, now=0.0) is first
    assert taking.choose(both, View(1, ()), state, beyond={Z}, anyway=False, now=0.0) is None


def test_nothing_is_given_up_for_one_member_as_long_as_a_ready_one_or_a_majority_has_all(
    clusters: Clusters,
) -> None:
    state = clusters(1).replica(0).state
    state.log.start(Z, 7)
    state.frontier.replace([FrontierRow(*Z, 7, 1)])
    lossy = donor(A, FrontierRow(*A, 9, 1))
    whole, unready = donor(B, FrontierRow(*Z, 7, 1)), donor(B, FrontierRow(*Z, 7, 1), ready=False)

    def is_hopeless(view: View, *donors: Peer) -> bool:
        taking = FetchProgress(Timing(5.0))
        peers = {each.origin: each for each in donors}
        for now in (0.0, 20.0):
            assert taking.choose(peers, view, state, beyond={A}, anyway=False, now=now) is None
        return taking.hopeless(20.0)

    three = View(1, (state.me, A, B))
    five = View(1, (state.me, A, B, Origin(52, 1), Origin(53, 1)))
    assert is_hopeless(three, lossy)
    assert not is_hopeless(three, lossy, unready)
    assert is_hopeless(five, lossy, unready)
    assert not is_hopeless(five, lossy, whole)


def test_a_donor_that_had_none_to_give_is_passed_over_for_a_while(clusters: Clusters) -> None:
    state = clusters(1).replica(0).state
    both = {A: donor(A, FrontierRow(*Z, 3, 1)), B: donor(B, FrontierRow(*Z, 3, 1))}
    taking = FetchProgress(Timing(5.0))

    def choose(now: float) -> Peer | None:
        return taking.choose(both, View(1, (A, B)), state, beyond={Z}, anyway=False, now=now)

    taking.ask(A, 0.0)
    taking.end(0.0, avoid_s=5.0)
    assert choose(1.0) is both[B]
    taking.ask(B, 1.0)
    taking.end(1.0, avoid_s=1.0)
    assert choose(1.5) is None
    assert choose(2.0) is both[B]
    assert choose(5.0) is both[A]


def test_an_update_that_its_only_holder_cannot_read_comes_with_a_snapshot(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    cluster.cut(0, 1)
    cluster.train([0], 4)
    holder = cluster.replica(0)
    lane = holder.log._origin_logs[holder.me]
    frame = lane.entries[1]
    assert isinstance(frame, bytes)
    lane.entries[1] = frame[:-1] + bytes([frame[-1] ^ 1])
    cluster.link_all()
    for _ in range(40):
        cluster.tick(0.5)
        if cluster.drops and (0, 1) in cluster.queues:  # its first frame was right, the second is refused
            cluster.cut(0, 1)
            cluster.drops.clear()
            cluster.link_all()
    assert "update 2 of 0000000000000001 has changed in the log's memory" in cluster.alarms[0]
    assert holder.counters.snapshots_given == 1
    cluster.assert_converged()


def test_while_nobody_is_ready_who_gives_a_snapshot_does_not_give_itself_up(clusters: Clusters) -> None:
    """After a power cut: node 0 has most, and no room; node 1 has some of its own, and is given the rest."""
    cluster = clusters(2)
    cluster.found()
    cluster.train([0, 1], 3)
    for node in (0, 1):
        cluster.give(node, CheckpointDue())
    cluster.tick(2)
    cluster.train([0], 3)
    cluster.tick(2)
    first = cluster.replica(0)
    others = first.cluster.other_members
    first.log.trim(lambda origin: first.acks.stable(origin, others), lambda origin: 0, share=0.0)
    cluster.stuck = {(1, 0), (0, 1)}
    for number in range(4):
        cluster.give(number // 3, own_update([number, 4003]))
        cluster.give(1, own_update([number, 4004]))
    cluster.give(0, CheckpointDue())
    for node in (0, 1):
        cluster.kill(node)
    cluster.stuck = set()
    for node in (0, 1):
        cluster.boot(node, from_disk=True)
    first = cluster.replica(0)
    first.log.budget_bytes = first.log.bytes_held + 100
    cluster.paused = {0}  # the copy for node 1 takes long
    cluster.link_all()
    cluster.tick(90)
    assert not cluster.halts
    cluster.paused = set()
    cluster.give(0, Resumed())
    first.log.budget_bytes *= 4
    cluster.tick(20)
    assert cluster.all_ready()
    cluster.assert_converged()


def test_what_the_own_log_cannot_give_is_not_tried_again_at_once(clusters: Clusters) -> None:
    cluster = fall_behind(clusters, 2)
    lone = cluster.replica(2)
    lane = lone.log._origin_logs[lone.me]
    frame = lane.entries[-1]
    assert isinstance(frame, bytes)
    lane.entries[-1] = frame[:-1] + bytes([frame[-1] ^ 1])
    cluster.link_all()
    cluster.tick(60)
    given = sum(cluster.replica(node).counters.snapshots_given for node in (0, 1))
    assert given <= 2
    assert sum("could not be taken" in words for words in cluster.alarms) == given
