"""Replicas that agree on views: founding, trimming, eviction, snapshots, restarts."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.effects import Shutdown
from p2psgd.core.events import CheckpointDue, RemovalRequested, TimePassed
from p2psgd.core.retention import EVICT
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]
BUDGET = 12_000  # some thirty updates


def test_a_run_is_founded_by_all_that_are_linked(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.tick(3)
    assert cluster.views() == [1, 1, 1]
    assert cluster.all_ready()


def test_a_newcomer_whose_list_names_nobody_waits_for_those_whose_lists_name_it(clusters: Clusters) -> None:
    """A run of its own that it founded at once could never unite with theirs."""
    cluster = clusters(3)
    cluster.kill(2)
    cluster.link_all()
    cluster.tick(6)
    newcomer = cluster.boot(2)
    newcomer.membership.bootstrap_expect = 1
    cluster.tick(4)  # of a failure timeout of 5 s: they dial it that often
    cluster.link_all()
    cluster.tick(3)
    assert cluster.views() == [2, 2, 2]
    assert cluster.all_ready()


def test_logs_are_trimmed_only_of_what_all_members_have(clusters: Clusters) -> None:
    cluster = clusters(3, log_budget_bytes=BUDGET)
    cluster.found()
    cluster.train([0, 1, 2], 60)
    replica = cluster.replica(0)
    assert replica.log.trimmed_to(replica.me) > 20
    assert replica.log.bytes_held <= BUDGET
    assert cluster.views() == [1, 1, 1]
    cluster.assert_converged()


def test_a_dead_member_is_evicted_when_it_holds_back_the_log_and_comes_back_by_snapshot(
    clusters: Clusters,
) -> None:
    cluster = clusters(3, log_budget_bytes=BUDGET)
    cluster.found()
    cluster.train([0, 1, 2], 5)
    cluster.kill(2)
    cluster.train([0, 1], 60)
    assert all(view > 1 for view in cluster.views())
    assert cluster.replica(0).log.bytes_held <= BUDGET
    back = cluster.boot(2)
    cluster.link_all()
    cluster.tick(30)
    assert back.ready, back.waiting_for()
    assert back.counters.snapshots_taken == 1
    cluster.assert_converged()
    cluster.train([0, 1, 2], 10)
    cluster.assert_converged()


def test_a_node_that_was_cut_off_brings_back_what_only_it_has(clusters: Clusters) -> None:
    cluster = clusters(3, log_budget_bytes=BUDGET)
    cluster.found()
    cluster.train([0, 1, 2], 5)
    cluster.cut(0, 2)
    cluster.cut(1, 2)
    cluster.train([2], 4)
    cluster.train([0, 1], 60)
    cluster.link_all()
    cluster.tick(30)
    lone = cluster.replica(2)
    assert lone.ready, lone.waiting_for()
    assert lone.counters.snapshots_taken == 1
    cluster.assert_converged()
    assert cluster.replica(0).frontier.sequence(lone.me) == 9


def test_all_lost_at_once_go_on_from_their_checkpoints(clusters: Clusters) -> None:
    cluster = clusters(3, log_budget_bytes=BUDGET)
    cluster.found()
    cluster.train([0, 1, 2], 30)
    for number in range(3):
        cluster.train([0, 1, 2], 2)
        cluster.give(number, CheckpointDue())
    cluster.train([0, 1, 2], 3)
    kept = [cluster.checkpoints[number] for number in range(3)]
    for number in range(3):
        cluster.kill(number)
    for number in range(3):
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.tick(30)
    assert cluster.all_ready()
    cluster.assert_converged()
    newest = kept[2]
    assert newest is not None
    assert all(
        cluster.replica(0).frontier.sequence(origin) >= row.sequence
        for row in newest.rows
        for origin in cluster.replica(0).frontier
        if tuple(origin) == row[:2]
    )


def test_two_that_lost_their_memory_wait_for_the_third_that_is_cut_off(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 5)
    for number in (0, 1):
        cluster.kill(number)
    for number in (0, 1):
        cluster.boot(number, from_disk=True)
    cluster.link(0, 1)
    cluster.tick(60)
    assert not cluster.replica(0).ready
    assert not cluster.replica(1).ready
    cluster.link_all()
    cluster.tick(30)
    assert cluster.all_ready()
    cluster.assert_converged()
    assert cluster.replica(0).frontier.sequence(cluster.replica(2).me) == 5


def test_a_flipped_coordinate_is_found_within_one_scrub_and_mended_by_a_snapshot(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 5)
    hurt = cluster.replica(1)
    hurt.lattice.coordinates[1234] ^= 1 << 9
    cluster.tick(110)
    assert hurt.counters.quarantines == 1
    assert hurt.counters.snapshots_taken == 1
    assert hurt.ready
    right = int(hurt.lattice.coordinates[1234])
    wrong, name = right ^ 1 << 9, hurt.spec.name_coordinate(1234)
    quantum = hurt.spec.quantum
    told = [words for _, words in cluster.noted("mended")]
    assert told == [f"{name} was {wrong * quantum:g} instead of {right * quantum:g}"]
    cluster.assert_converged()


def test_a_full_log_takes_no_more_of_peers_and_has_it_all_later(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    slow, peer = cluster.replica(1), cluster.replica(0).me
    slow.log.budget_bytes = BUDGET
    for index in range(100):  # at once: nothing is acknowledged in between
        cluster.give(0, own_update([index]))
    cluster.settle()
    assert slow.counters.held_back > 30
    assert slow.log.bytes_held <= BUDGET
    assert 0 < slow.frontier.sequence(peer) < 100
    cluster.tick(30)
    cluster.assert_converged()
    assert slow.frontier.sequence(peer) == 100
    assert slow.log.bytes_held <= BUDGET
    assert slow.counters.snapshots_taken == 0
    assert not cluster.drops


def test_nodes_that_cannot_reach_each_other_trim_by_way_of_a_third(clusters: Clusters) -> None:
    cluster = clusters(3, log_budget_bytes=BUDGET)
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.tick(10)
    assert all(len(view.members) == 3 for view in (each.membership.view for each in cluster.alive()))
    assert cluster.all_ready()
    cluster.train([0, 1, 2], 60)
    cluster.tick(5)
    for replica in cluster.alive():
        assert replica.log.trimmed_to(cluster.replica(0).me) > 20
        assert replica.log.trimmed_to(cluster.replica(2).me) > 20
        assert not replica.counters.evictions_seen
    assert sum(replica.counters.snapshots_taken for replica in cluster.alive()) == 0
    cluster.assert_converged()


def test_a_restarted_node_gets_back_its_own_old_updates_and_those_stay_one_origin(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 4)
    old = cluster.replica(2).me
    cluster.kill(2)
    back = cluster.boot(2)
    cluster.link_all()
    cluster.tick(5)
    assert back.ready
    assert back.frontier.sequence(old) == 4
    assert back.counters.snapshots_taken == 0
    cluster.train([2], 2)
    cluster.assert_converged()
    assert [cluster.replica(0).frontier.sequence(life) for life in (old, back.me)] == [4, 2]
    assert cluster.replica(0).frontier.steps()[3] == 4


def test_who_joins_by_way_of_others_is_given_time_before_it_counts_as_holding_back_a_log(
    clusters: Clusters,
) -> None:
    cluster = clusters(3, log_budget_bytes=12_000)
    cluster.link_all()
    cluster.found()
    cluster.train([0], 20)
    cluster.tick(2)
    cluster.cut(0, 2)
    cluster.kill(2)
    newcomer = cluster.boot(2, from_disk=True).me
    cluster.link(1, 2)
    first = cluster.replica(0)
    while newcomer not in first.membership.view:
        cluster.tick(0.2)
    cluster.stuck = {(2, 1)}  # nobody hears what it has
    cluster.tick(1)
    assert first.retention.fullness >= EVICT
    assert first.retention.holders == [newcomer]
    assert not first.membership.evict_requests
    cluster.stuck = set()
    cluster.tick(5)
    assert cluster.all_ready()
    cluster.assert_converged()


def test_who_was_removed_for_good_ends_and_ends_again_when_it_is_started_again(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.found()
    cluster.give(0, RemovalRequested(3, forbid=True))
    cluster.tick(10)
    assert not cluster.halts  # it may be the only one that knows
    cluster.tick(15)
    advice = "to join as another node it needs a new --state, and over TLS a certificate under a new name"
    words = f"this node was removed for good by view 2: {advice}"
    assert cluster.halts == [(2, Shutdown(words))]
    cluster.kill(2)
    cluster.boot(2, from_disk=True)
    for _ in range(30):
        cluster.now += 1.0
        cluster.give(2, TimePassed())
    assert cluster.halts == 2 * [(2, Shutdown(words))]
