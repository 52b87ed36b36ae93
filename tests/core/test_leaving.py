"""Who leaves the view: by its own wish, a person's or the others'; and two nodes without each other."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import NodeStopping, RemovalRequested, TimePassed
from p2psgd.wire.reject import RejectCode
from tests.core.cluster import Cluster

Clusters = Callable[..., Cluster]
BUDGET = 12_000  # some thirty updates


def test_goodbye_starts_a_view_without_the_one_that_leaves(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 3)
    leaving = cluster.replica(2)
    cluster.give(2, NodeStopping())
    assert not cluster.replica(2).may_leave
    cluster.tick(3)
    assert cluster.views() == [2, 2, 2]
    assert leaving.me not in cluster.replica(0).membership.view
    assert cluster.replica(2).may_leave
    assert (0, "node-2 left with view 2") in cluster.noted("left")
    cluster.kill(2)
    cluster.train([0, 1], 3)
    cluster.assert_converged()
    back = cluster.boot(2)
    cluster.link_all()
    cluster.tick(5)
    assert back.ready
    assert cluster.views() == [3, 3, 3]
    cluster.assert_converged()


def test_who_stops_knows_why_it_is_out_however_soon_the_others_decide(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    leaving = cluster.replica(2)
    cluster.give(2, NodeStopping("stopped by SIGTERM"))
    for _ in range(20):  # the clock of the one that leaves stands still
        cluster.settle()
        for number in (0, 1):
            cluster.give(number, TimePassed())
    assert (2, "this node left with view 2: stopped by SIGTERM") in cluster.noted("left")
    assert not cluster.noted("evicted")
    assert leaving.counters.evictions_seen == 0


def test_the_last_one_may_leave_at_once(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    cluster.give(0, NodeStopping())
    cluster.give(1, NodeStopping())
    cluster.settle()
    assert cluster.replica(0).may_leave
    assert cluster.replica(1).may_leave


def test_a_dead_machine_is_removed_by_a_person_and_may_come_again(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.kill(2)
    cluster.give(0, RemovalRequested(3, forbid=False))
    cluster.tick(3)
    assert [len(replica.membership.view.members) for replica in cluster.alive()] == [2, 2]
    assert "removed" in {note.kind for _, note in cluster.notes}
    back = cluster.boot(2)
    cluster.link_all()
    cluster.tick(5)
    assert back.ready


def test_a_machine_removed_for_good_does_not_come_back(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.kill(2)
    cluster.give(1, RemovalRequested(3, forbid=True))
    cluster.tick(3)
    assert cluster.replica(0).membership.view.forbidden == {3}
    back = cluster.boot(2)
    cluster.link_all()
    cluster.train([0, 1], 10)
    assert not back.ready
    assert back.me not in cluster.replica(0).membership.view
    assert len(cluster.replica(0).membership.view.members) == 2


def test_who_was_removed_for_good_and_knows_a_later_view_is_heard_until_it_has_told_it(
    clusters: Clusters,
) -> None:
    """All others that know it may be dead, and whoever does not would wait for them for ever."""
    cluster = clusters(4)
    cluster.found()
    cluster.give(0, RemovalRequested(4, forbid=True))
    cluster.tick(1)
    for other in (1, 2, 3):
        cluster.cut(0, other)
    cluster.give(1, RemovalRequested(1, forbid=False))
    cluster.tick(1)
    assert cluster.views() == [2, 3, 3, 3]
    cluster.kill(1)
    cluster.kill(2)
    cluster.drops.clear()
    cluster.link(0, 3)
    cluster.settle()
    assert cluster.views() == [3, 3]
    assert not cluster.drops
    cluster.tick(2)
    assert {(number, drop.code) for number, drop in cluster.drops} == {(0, RejectCode.FORBIDDEN)}


def split_two(clusters: Clusters, policy: str) -> Cluster:
    """Two nodes that lose each other for longer than their logs hold."""
    cluster = clusters(2, log_budget_bytes=BUDGET, two_nodes=policy)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.cut(0, 1)
    for _ in range(80):
        for node in (0, 1):
            if not cluster.replica(node).retention.stalled:
                cluster.train([node], 1)
        cluster.tick(0.5)
    return cluster


def test_two_that_lose_each_other_both_stall(clusters: Clusters) -> None:
    cluster = split_two(clusters, "stall")
    assert [replica.retention.stalled for replica in cluster.alive()] == [True, True]
    assert cluster.views() == [1, 1]
    made = [replica.sequence for replica in cluster.alive()]
    cluster.link_all()
    cluster.tick(15)
    cluster.assert_converged()
    assert not any(replica.retention.stalled or not replica.ready for replica in cluster.alive())
    first, second = cluster.alive()
    assert [second.frontier.sequence(first.me), first.frontier.sequence(second.me)] == made
    assert sum(replica.counters.snapshots_taken for replica in cluster.alive()) == 0


def test_by_lower_id_one_of_two_goes_on_and_the_other_brings_its_own_later(clusters: Clusters) -> None:
    cluster = split_two(clusters, "lower-id")
    first, second = cluster.alive()
    assert (first.retention.stalled, second.retention.stalled) == (False, True)
    assert (first.membership.view.members, second.membership.view.number) == ((first.me,), 1)
    assert first.log.trimmed_to(first.me) > 0
    made = second.sequence
    cluster.link_all()
    cluster.tick(20)
    assert cluster.all_ready()
    cluster.assert_converged()
    assert first.frontier.sequence(second.me) == made
    assert second.counters.snapshots_taken == 1
    assert second.counters.evictions_seen == 1
