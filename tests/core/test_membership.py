"""Who comes and goes, and what a node does with the news of it."""

from __future__ import annotations

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.membership import Membership
from p2psgd.core.view import View
from p2psgd.wire.reject import PeerError
from tests.core.assembly import FAILURE_TIMEOUT_S, TIMING, assert_all_know, founded


def test_a_member_that_restarts_is_replaced_by_its_new_life() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.start(2)
    assert assembly.life(2).admitted_in is None
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(2).view.incarnations[2] == 2
    assert assembly.life(2).admitted_in == 2
    assert ("admitted", 2) in assembly.kinds(1)


def test_all_restart_at_once_and_none_needs_to_be_ready() -> None:
    assembly = founded(3)
    for node in (1, 2, 3):
        assembly.crash(node)
    for node in (1, 2, 3):
        assembly.start(node)
        assembly.nodes[node].ready = False
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert len({view.number for view in assembly.views()}) == 1
    assert dict(assembly.life(1).view.members) == {1: 2, 2: 2, 3: 2}


def test_who_says_goodbye_leaves_the_view_and_comes_back_as_a_joiner_at_once() -> None:
    assembly = founded(3)
    assembly.nodes[3].stopping = True
    for node in (1, 2):
        assembly.life(node).leaving(3)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2})
    assert assembly.life(3).admitted_in is None
    assert assembly.kinds(1)[-1] == ("left", 3)
    assembly.crash(3)
    assembly.start(3)
    assembly.settle(FAILURE_TIMEOUT_S / 2)
    assert_all_know(assembly, 3, {1, 2, 3})


def test_who_is_back_before_it_has_left_stays() -> None:
    assembly = founded(3)
    assembly.cut(1, 2)  # nobody has a majority to let it go
    for node in (1, 2):
        assembly.life(node).leaving(3)
    assembly.crash(3)
    assembly.start(3)
    assembly.connect(1, 2)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert ("left", 3) not in assembly.kinds(1)


def test_who_shows_an_old_view_is_told_the_latest() -> None:
    assembly = founded(3)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    assembly.life(1).request_eviction(3, "gone", assembly.now)
    assembly.settle(0.3)
    assembly.life(2).link(Origin(3, 1), assembly.now)
    assembly.life(2).on_status(Origin(3, 1), view=1, ready=True, evict_requests=(), now=assembly.now)
    sent = assembly.life(2).effects
    assert len(sent) == 1
    assert assembly.life(2).view.number == 2


def test_a_second_view_of_one_number_is_a_peers_fault() -> None:
    assembly = founded(3)
    view = assembly.life(1).view
    other = View(view.number, view.members[:2], frozenset(), view.cluster_id)
    with pytest.raises(PeerError):
        assembly.life(1).on_vote(Origin(2, 1), other.news(), assembly.now)


def test_a_node_that_was_removed_for_good_cannot_tell_of_a_view_that_lets_it_in_again() -> None:
    assembly = founded(3)
    assembly.life(1).remove(3, forbid=True)
    assembly.settle(FAILURE_TIMEOUT_S)
    life = assembly.life(1)
    assert life.view.forbidden == {3}
    back = View(3, (Origin(3, 1),), cluster_id=life.view.cluster_id, since=(3,))
    with pytest.raises(PeerError, match="no longer forbids a node that view 2 forbids"):
        life.on_vote(Origin(3, 1), back.news(), assembly.now)
    assert life.view.number == 2


def test_a_former_life_that_links_late_changes_nothing() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.start(2)
    assembly.settle(0.5)
    assembly.life(1).link(Origin(2, 1), assembly.now)
    assembly.life(1).on_status(Origin(2, 1), view=1, ready=True, evict_requests=(), now=assembly.now)
    assembly.life(1).unlink(Origin(2, 1))
    assembly.crash(3)
    assembly.life(1).remove(3, forbid=False)  # takes the new life's vote
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 3, {1, 2})


def test_who_hears_of_a_later_view_waits_for_its_news() -> None:
    assembly = founded(3)
    life = assembly.life(1)
    life.on_status(Origin(2, 1), view=2, ready=True, evict_requests=(), now=assembly.now)
    life.remove(3, forbid=True)
    life.tick(assembly.now + FAILURE_TIMEOUT_S, ready=True)
    assert life.effects == []


def test_a_former_life_that_is_still_linked_does_not_replace_the_new_one() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.cables.remove(frozenset({1, 2}))
    assembly.start(2)
    assembly.life(1).link(Origin(2, 1), assembly.now)
    assembly.life(1).on_status(Origin(2, 1), view=1, ready=True, evict_requests=(), now=assembly.now)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(1).view.incarnations[2] == 2


def test_nobody_is_admitted_before_its_status_has_told_that_it_knows_the_view() -> None:
    assembly = founded(3)
    assembly.life(1).link(Origin(9, 1), assembly.now)  # it may turn out to be of another cluster id
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    for view, members in ((0, {1, 2, 3}), (1, {1, 2, 3, 9})):  # one that is deaf never learns of view 1
        assembly.life(1).on_status(Origin(9, 1), view=view, ready=False, evict_requests=(), now=assembly.now)
        assembly.collect(1)
        assembly.settle()
        assert set(assembly.life(1).view.incarnations) == members


def test_names_are_told_where_they_are_known() -> None:
    assembly = founded(2)
    life = Membership(
        Origin(1, 2),
        bootstrap_expect=2,
        two_nodes="stall",
        timing=TIMING,
        votes=assembly.nodes[1].disk,
        now=0.0,
        names={1: "ada", 2: "bob"},
    )
    life.tick(0.0, ready=False)
    assert life.explain() == "view 2 with ada, bob waits for a majority of view 1: bob not linked"
