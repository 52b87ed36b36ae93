"""Who is taken out of the view: by other members, or by a person."""

from __future__ import annotations

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.membership import Membership
from tests.core.assembly import FAILURE_TIMEOUT_S, Assembly, assert_all_know, founded


def test_only_a_ready_member_evicts() -> None:
    assembly = founded(3)
    for node in (1, 2, 3):
        assembly.nodes[node].ready = False
    assembly.settle(0.2)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    for node in (1, 2):
        assembly.life(node).request_eviction(3, "it is not there", assembly.now)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.nodes[2].ready = True
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2}, among={1, 2})
    assert ("evicted", 3) in assembly.kinds(2)
    assert assembly.nodes[2].notes[-1].words.endswith("it is not there")


def test_who_wishes_others_out_is_not_left_with_the_majority() -> None:
    """Node 5 wishes all others out, and proposes nothing itself."""
    assembly = founded(5)
    wisher = assembly.life(5)
    wisher.stopping = True
    for node in (1, 2, 3, 4):
        wisher.request_eviction(node, "it is in the way", assembly.now)
    assembly.settle(0.9 * FAILURE_TIMEOUT_S)  # who is evicted is admitted again after one
    for view in assembly.views():
        assert len(view.incarnations.keys() - {5}) > len(view.members) / 2


def test_a_new_life_does_not_pay_for_the_former_one() -> None:
    assembly = founded(3)
    assembly.crash(3)
    for node in (1, 2):
        assembly.nodes[node].ready = False
    assembly.settle(0.2)
    for node in (1, 2):
        assembly.life(node).request_eviction(3, "it is not there", assembly.now)
    assembly.start(3)
    assembly.nodes[1].ready = assembly.nodes[2].ready = True
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(1).view.incarnations[3] == assembly.nodes[3].origin.incarnation
    assert ("evicted", 3) not in assembly.kinds(1)


def test_an_evicted_node_waits_longer_each_time() -> None:
    assembly = founded(3)
    waits = []
    for _ in range(3):
        assembly.life(1).request_eviction(3, "slow", assembly.now)
        assembly.settle(0.1)
        assert 3 not in assembly.life(1).view.incarnations
        began = assembly.now
        while 3 not in assembly.life(1).view.incarnations:
            assembly.settle(0.1)
        waits.append(round(assembly.now - began))
    assert waits == [1, 2, 4]
    assembly.settle(130 * FAILURE_TIMEOUT_S)  # and all is forgiven
    assembly.life(1).request_eviction(3, "slow", assembly.now)
    assembly.settle(1.5 * FAILURE_TIMEOUT_S)
    assert 3 in assembly.life(1).view.incarnations


def test_a_minority_changes_nothing_and_says_what_it_waits_for() -> None:
    assembly = founded(3)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    assembly.life(3).request_eviction(1, "gone", assembly.now)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    told = assembly.life(3).explain()
    assert told.startswith("view 2 with 0000000000000002, 0000000000000003 waits for a majority of view 1")
    assembly.life(3).withdraw_eviction(1)
    assembly.settle(0.1)
    assert assembly.life(3).explain() == ""


@pytest.mark.parametrize(("two_nodes", "changed"), [("stall", False), ("lower-id", True)])
def test_of_two_nodes_the_lower_decides_alone_only_by_policy(two_nodes: str, *, changed: bool) -> None:
    assembly = founded(2, two_nodes=two_nodes)
    assembly.cut(1, 2)
    assembly.life(1).request_eviction(2, "gone", assembly.now)
    assembly.life(2).request_eviction(1, "gone", assembly.now)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert (assembly.life(1).view.number, assembly.life(2).view.number) == ((2 if changed else 1), 1)


def test_a_removed_node_comes_back_unless_it_was_forbidden() -> None:
    assembly = founded(3)
    assembly.life(2).remove(3, forbid=False)
    assembly.settle(0.3)
    assert_all_know(assembly, 2, {1, 2})
    assert assembly.kinds(2)[-1] == ("removed", 3)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 3, {1, 2, 3})
    assembly.life(2).remove(3, forbid=True)
    assembly.settle(0.3)
    assert_all_know(assembly, 4, {1, 2})
    assembly.crash(3)
    assembly.start(3)
    assembly.settle(5 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 4, {1, 2})
    assert assembly.life(3).explain() == (
        "this node was removed for good by view 4 and is not admitted again"
    )


@pytest.mark.parametrize("forbid", [False, True])
def test_a_node_that_is_not_ready_removes_no_ready_one_unless_for_good(forbid: bool) -> None:
    # The ready one may be the last that has what the other is to take from it.
    assembly = founded(3)
    assembly.nodes[1].ready = assembly.nodes[2].ready = False
    assembly.settle(0.5)
    assembly.life(2).remove(3, forbid=forbid)
    assembly.settle(0.9 * FAILURE_TIMEOUT_S)
    assert (("removed", 3) in assembly.kinds(2)) == forbid
    assembly.nodes[2].ready = True
    assembly.settle(FAILURE_TIMEOUT_S)
    assert ("removed", 3) in assembly.kinds(2)


def test_a_wish_to_remove_outlives_a_time_without_a_majority() -> None:
    assembly = founded(3)
    assembly.crash(3)
    assembly.cut(1, 2)
    assembly.life(1).remove(3, forbid=False)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.connect(1, 2)
    assembly.settle(0.5)
    assert_all_know(assembly, 2, {1, 2})


def test_nobody_removes_the_last_member() -> None:
    assembly = Assembly(1)
    assembly.start(1)
    assembly.settle(1.5 * FAILURE_TIMEOUT_S)
    assembly.life(1).remove(1, forbid=False)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1})


def between_two_that_wish_an_eviction(*, ready: bool) -> Assembly:
    """2 and 3 cannot reach each other, 1 between them is not READY, and 4 is dead, which both want out."""
    assembly = founded(4)
    assembly.nodes[1].ready = False
    assembly.nodes[2].ready = assembly.nodes[3].ready = ready
    assembly.cut(2, 3)
    assembly.crash(4)
    for node in (2, 3):
        assembly.life(node).request_eviction(4, "gone", assembly.now)
    return assembly


def test_whom_ready_members_wish_to_evict_a_member_takes_out_that_reaches_a_majority() -> None:
    assembly = between_two_that_wish_an_eviction(ready=True)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    one, two = (assembly.nodes[node].notes[-1].words for node in (1, 2))
    assert two.endswith("was evicted by view 2: gone")
    assert one.endswith(f"was evicted by view 2: {2:016x}, {3:016x} asked for it; see the events there")


def test_the_wish_of_a_member_that_is_not_ready_is_nobodys() -> None:
    assembly = between_two_that_wish_an_eviction(ready=False)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3, 4})


def test_a_wish_of_another_view_is_not_acted_on() -> None:
    assembly = between_two_that_wish_an_eviction(ready=True)
    for node in (2, 3):
        assembly.life(node).withdraw_eviction(4)
        told = Origin(node, 1)
        assembly.life(1).on_status(told, view=0, ready=True, evict_requests={4}, now=assembly.now)
    for _ in range(20):
        assembly.tick(status_sender=False)
    assert assembly.life(1).view.number == 1
    assert assembly.life(1).explain() == ""


def test_of_two_that_wish_each_other_out_one_has_its_way() -> None:
    assembly = founded(5)
    assembly.nodes[1].ready = False  # so that it waits its turn, and hears both
    for one, other in ((2, 3), (2, 4), (2, 5), (3, 4), (3, 5)):
        assembly.cut(one, other)
    for node, other in ((2, 3), (3, 2)):
        assembly.life(node).request_eviction(other, "it holds back", assembly.now)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert set(assembly.life(1).view.incarnations) == {1, 2, 4, 5}


def wishing(*wishes: tuple[int, set[int]]) -> Membership:
    """Node 1 of four, linked with all, and what it hears of their wishes."""
    assembly = founded(4)
    life = assembly.life(1)
    for node, evict_requests in wishes:
        life.on_status(Origin(node, 1), view=1, ready=True, evict_requests=evict_requests, now=assembly.now)
    life.tick(assembly.now, ready=True)
    return life


def test_of_members_that_all_wish_each_other_out_one_stays() -> None:
    life = wishing((2, {3, 4}), (3, {2, 4}), (4, {2, 3}))  # each is linked with node 1 alone
    assert life.explain().startswith("view 2 with 0000000000000001, 0000000000000002 ")


def test_who_is_at_odds_with_several_goes_and_they_stay() -> None:
    life = wishing((2, {3, 4}), (3, {2}), (4, {2}))
    words = "view 2 with 0000000000000001, 0000000000000003, 0000000000000004 "
    assert life.explain().startswith(words)


def test_who_goes_anyway_is_at_odds_with_nobody() -> None:
    life = wishing((2, {3}), (3, {2}), (4, {3}))
    life.request_eviction(2, "it holds back", life._began)
    assert life.explain().startswith("view 2 with 0000000000000001, 0000000000000003, 0000000000000004 ")


@pytest.mark.parametrize("own", [{3}, {2, 3, 4}, {3, 4}])
def test_who_wishes_itself_out_makes_no_difference(own: set[int]) -> None:
    assert wishing((2, {4}), (3, own)).explain() == wishing((2, {4}), (3, own - {3})).explain()
    assert wishing((2, {2, 3, 4})).explain() == ""


def test_of_three_the_one_in_the_middle_does_not_choose() -> None:
    assembly = founded(3)
    life = assembly.life(1)
    for node, evict_requests in ((2, {3}), (3, {2})):
        life.on_status(Origin(node, 1), view=1, ready=True, evict_requests=evict_requests, now=assembly.now)
    life.tick(assembly.now, ready=True)
    assert life.explain() == ""


def test_one_members_word_does_not_leave_it_the_majority() -> None:
    assert wishing((2, {3, 4})).explain() == ""


def test_nobody_takes_itself_out_because_others_wish_it() -> None:
    assembly = founded(3)
    assembly.cut(2, 3)
    assembly.life(2).request_eviction(1, "it holds back", assembly.now)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})


def test_who_is_linked_and_silent_is_not_counted_on() -> None:
    assembly = founded(3)
    life = assembly.life(1)
    assembly.now += 2 * FAILURE_TIMEOUT_S
    life.request_eviction(3, "it is slow", assembly.now)
    assert "cannot be taken out yet" in life.explain()  # 1 and 2 alone could decide nothing if 2 is dead
    life.on_status(Origin(2, 1), view=1, ready=True, evict_requests=(), now=assembly.now)
    assembly.now += FAILURE_TIMEOUT_S
    life.tick(assembly.now, ready=True)
    assert life.explain().startswith("view 2 with 0000000000000001, 0000000000000002 is ")


def test_who_is_deaf_is_neither_counted_on_nor_has_its_way() -> None:
    assembly = founded(4)
    life = assembly.life(1)
    life.on_status(Origin(3, 1), view=1, ready=True, evict_requests={4}, hears=False, now=assembly.now)
    life.tick(assembly.now, ready=True)
    assert life.explain() == ""
    assembly.now += 2 * FAILURE_TIMEOUT_S
    life.on_status(Origin(3, 1), view=1, ready=True, evict_requests=(), hears=False, now=assembly.now)
    life.request_eviction(4, "it is slow", assembly.now)
    assert "cannot be taken out yet" in life.explain()  # 1 and 3 would decide, but 3 cannot vote
    life.on_status(Origin(3, 1), view=1, ready=True, evict_requests=(), hears=True, now=assembly.now)
    assert life.explain().startswith("view 2 with ")


def test_a_wish_of_long_ago_is_not_acted_on() -> None:
    assembly = between_two_that_wish_an_eviction(ready=True)
    for node in (2, 3):
        assembly.life(node).withdraw_eviction(4)
    life, failure_timeout_s = assembly.life(1), FAILURE_TIMEOUT_S
    life.on_status(Origin(2, 1), view=1, ready=True, evict_requests={4}, now=assembly.now)
    life.on_status(Origin(3, 1), view=1, ready=True, evict_requests=(), now=assembly.now + failure_timeout_s)
    life.tick(assembly.now + 1.01 * failure_timeout_s, ready=False)
    assert life.explain() == ""


def test_a_person_has_nobody_removed_without_whom_the_others_could_decide_nothing() -> None:
    assembly = founded(3)
    assembly.cut(2, 3)
    assembly.life(3).remove(1, forbid=False)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    one, two = (f"{node:016x}" for node in (1, 2))
    assert assembly.life(3).explain() == (
        f"{one} cannot be taken out yet: 1 of 2 members would be left to decide anything, too few; "
        f"start {two} again, or remove it too"
    )
    assembly.connect(2, 3)
    assembly.settle(0.5)
    assert 1 not in assembly.life(2).view.incarnations


def test_a_node_that_is_no_member_is_named_too_if_it_cannot_be_forbidden_yet() -> None:
    assembly = founded(3)
    assembly.cut(1, 3)
    life = assembly.life(1)
    life.remove(77, forbid=True)
    assembly.now += 2 * FAILURE_TIMEOUT_S  # node 2 is linked and silent
    life.tick(assembly.now, ready=True)
    two, three, stranger = (f"{node:016x}" for node in (2, 3, 77))
    assert life.explain() == (
        f"{stranger} cannot be taken out yet: 1 of 3 members would be left to decide anything, too few; "
        f"start {two}, {three} again"  # to remove them takes one of them
    )


def test_no_more_are_advised_to_be_removed_than_it_takes() -> None:
    assembly = founded(5)
    for node in (1, 2, 3):
        assembly.cut(node, 4)
        assembly.cut(node, 5)
    assembly.life(1).remove(3, forbid=False)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    four, five = (f"{node:016x}" for node in (4, 5))
    assert assembly.life(1).explain().endswith(f"; start {four}, {five} again, or remove 1 of them too")
