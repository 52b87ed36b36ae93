"""Peers that claim a later view than this node knows: they are waited for, but not for long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.effects import Drop
from p2psgd.core.events import RemovalRequested
from p2psgd.core.frontier import Origin
from p2psgd.core.membership import VIEWS_SKIPPED_MAX, Membership
from p2psgd.core.view import NO_VIEW, NO_VOTES
from p2psgd.wire.messages import ConfirmedRow
from p2psgd.wire.reject import PeerError, RejectCode
from tests.core.assembly import FAILURE_TIMEOUT_S, TICK_S, TIMING, Assembly, assert_all_know, founded
from tests.core.cluster import Cluster, status_of

LIAR = 4
Clusters = Callable[..., Cluster]


def claim(assembly: Assembly, view: int, *, seconds: float) -> None:
    """The liar tells everybody that it knows that view."""
    assembly.claims[LIAR] = view
    assembly.settle(seconds)


def with_a_liar() -> Assembly:
    """Four members; 4 claims view 1,000 from now on, and 3 is to leave."""
    assembly = founded(4)
    claim(assembly, 1000, seconds=TICK_S)
    for node in (1, 2):
        assembly.life(node).leaving(3)
    return assembly


def test_a_claim_holds_up_changes_for_a_failure_timeout_and_no_longer() -> None:
    assembly = with_a_liar()
    claim(assembly, 1000, seconds=FAILURE_TIMEOUT_S / 2)
    assert assembly.life(1).view.number == 1
    words = "the view after 1 waits for 0000000000000004 to send view 1000, which it claims"
    assert assembly.life(1).explain() == words
    unbacked = {}
    for _ in range(20):
        claim(assembly, 1000, seconds=TICK_S)
        for node in (1, 2):
            for origin, sentence in assembly.life(node).take_unbacked(assembly.now).items():
                unbacked[node, origin.node] = sentence
    assert unbacked.keys() == {(1, LIAR), (2, LIAR)}
    assert unbacked[1, LIAR].startswith("0000000000000004 claims view 1000 and has not sent it for 1.")
    assembly.cut(1, LIAR)
    assembly.cut(2, LIAR)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert 3 not in assembly.life(1).view.incarnations
    assert assembly.life(2).view == assembly.life(1).view


def test_whoever_comes_back_with_the_same_claim_is_not_waited_for_again() -> None:
    assembly = founded(4)
    claim(assembly, 1000, seconds=2 * FAILURE_TIMEOUT_S)
    for node in (1, 2, 3):
        assert assembly.life(node).take_unbacked(assembly.now)
        assembly.cut(node, LIAR)
    for node in (1, 2, 3):
        assembly.connect(node, LIAR)
    for node in (1, 2):
        assembly.life(node).leaving(3)
    claim(assembly, 1000, seconds=FAILURE_TIMEOUT_S / 2)
    assert 3 not in assembly.life(1).view.incarnations


@pytest.mark.parametrize("again", ["takes it back", "links again"])
def test_no_pattern_of_claims_holds_up_changes_for_longer(again: str) -> None:
    assembly = with_a_liar()
    for _ in range(3):
        claim(assembly, 1000, seconds=0.6 * FAILURE_TIMEOUT_S)
        if again == "takes it back":
            claim(assembly, 1, seconds=TICK_S)
        else:
            for node in (1, 2, 3):
                assembly.cut(node, LIAR)
                assembly.connect(node, LIAR)
    assert 3 not in assembly.life(1).view.incarnations


def test_who_brings_views_has_a_failure_timeout_for_what_else_it_claims() -> None:
    membership, peer = lone_membership(), Origin(2, 1)
    membership.link(peer, 0.0)
    view = NO_VIEW.replace({1: 1, 2: 1}, set(), set())
    for turn in range(8):
        now = turn * 0.6 * FAILURE_TIMEOUT_S
        membership.on_status(peer, view=view.number + 1, ready=True, evict_requests=(), now=now)
        membership.on_vote(peer, view.news(), now)
        view = view.replace({}, set(), set())
        assert not membership.take_unbacked(now)
    assert membership.take_unbacked(now + 1.1 * FAILURE_TIMEOUT_S)


def test_no_life_goes_back_to_an_earlier_view(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    peer, cluster_id = cluster.replica(1).me, cluster.replica(0).membership.view.cluster_id
    cluster.give(0, status_of(peer, [], view=2, cluster_id=cluster_id))
    cluster.give(0, status_of(peer, [], view=1, cluster_id=cluster_id))
    words = "node-1 reports view 1 after view 2"
    assert cluster.drops == [(0, Drop(peer, RejectCode.VIEW, words))]


def test_a_view_that_comes_in_time_is_what_was_claimed() -> None:
    assembly = founded(3)
    assembly.cut(1, 2)
    assembly.cut(1, 3)
    assembly.settle(FAILURE_TIMEOUT_S)
    assembly.life(2).remove(1, forbid=False)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert (assembly.life(1).view.number, assembly.life(2).view.number) == (1, 2)
    assembly.connect(1, 2)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert not assembly.life(1).take_unbacked(assembly.now)
    assert_all_know(assembly, 3, {1, 2, 3})


def test_who_does_not_hear_this_node_has_until_it_would_close_the_link_itself() -> None:
    membership, peer = lone_membership(), Origin(2, 1)
    membership.link(peer, 0.0)
    step_s, now, dropped = TIMING.status_s, 0.0, None
    while dropped is None:
        now += step_s
        membership.on_status(peer, view=9, ready=False, evict_requests=(), now=now, hears=False)
        if membership.take_unbacked(now):
            dropped = now
        assert now < 100
    assert (
        TIMING.silence_s + TIMING.failure_timeout_s
        <= dropped - step_s
        <= TIMING.silence_s + 2 * TIMING.failure_timeout_s
    )


def lone_membership() -> Membership:
    return Membership(
        Origin(1, 1), bootstrap_expect=1, two_nodes="stall", timing=TIMING, votes=NO_VOTES, now=0.0
    )


def test_no_run_skips_that_many_views() -> None:
    membership = lone_membership()
    membership.check_number(VIEWS_SKIPPED_MAX)
    with pytest.raises(PeerError, match="far beyond 0"):
        membership.check_number(VIEWS_SKIPPED_MAX + 1)


@pytest.mark.parametrize(("claimed", "at_once"), [(2**62, True), (1000, False)])
def test_its_link_ends_with_the_reason(clusters: Clusters, claimed: int, *, at_once: bool) -> None:
    cluster = clusters(5)
    cluster.found()
    liar, cluster_id = cluster.replica(3).me, cluster.replica(0).membership.view.cluster_id
    cluster.kill(2)
    cluster.give(0, RemovalRequested(3, forbid=False))
    cluster.stuck.add((3, 0))
    for _ in range(14):
        if not cluster.drops:
            heard = [ConfirmedRow(*cluster.replica(0).me, 0)]
            cluster.give(0, status_of(liar, [], view=claimed, cluster_id=cluster_id, confirmed=heard))
            assert bool(cluster.drops) == at_once
        cluster.tick(0.5)
    ((number, drop), *_) = cluster.drops
    assert (number, drop.peer, drop.code) == (0, liar, RejectCode.VIEW)
    assert str(claimed) in drop.details
    assert 3 not in cluster.replica(0).membership.view.incarnations
