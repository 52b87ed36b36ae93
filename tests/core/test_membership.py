"""Which views come about: founding, admission, eviction, removal, and a storm in which nothing may split."""

from __future__ import annotations

import random

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.membership import Membership
from p2psgd.core.view import View
from p2psgd.errors import PeerError
from tests.core.assembly import TIMING, Assembly, shake

PATIENCE_S = TIMING.patience_s


def founded(size: int, *, two_nodes: str = "stall") -> Assembly:
    assembly = Assembly(size, two_nodes=two_nodes)
    assembly.start_all()
    assembly.settle(0.2)
    assert_all_know(assembly, 1, set(assembly.nodes))
    return assembly


def assert_all_know(
    assembly: Assembly, number: int, nodes: set[int], *, among: set[int] | None = None
) -> None:
    for node in among or assembly.up():
        view = assembly.life(node).view
        assert (view.number, set(view.lives)) == (number, nodes), assembly.life(node).explain()


def test_the_run_is_founded_at_once_when_all_of_the_list_are_here() -> None:
    assembly = founded(3)
    assert [assembly.life(node).admitted_in for node in (1, 2, 3)] == [1, 1, 1]
    assert len({view.founding for view in assembly.views()}) == 1
    assert assembly.life(1).explain() == ""


def test_a_majority_of_the_list_founds_after_a_patience_and_fewer_never() -> None:
    assembly = Assembly(4)
    assembly.connect_all()
    for node in (2, 3):
        assembly.start(node)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 0, set())
    assert assembly.life(2).explain() == "the run is not founded: 2 of 4 nodes are here, it takes 3"
    assembly.start(4)
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 1, {2, 3, 4})
    assembly.start(1)
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3, 4})
    assert assembly.life(1).admitted_in == 2


def test_without_a_list_a_node_alone_founds_after_a_patience_and_others_join_it() -> None:
    assembly = Assembly(3, founders=1)
    assembly.connect_all()
    assembly.start(2)
    assembly.settle(0.5 * PATIENCE_S)
    assert_all_know(assembly, 0, set())
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 1, {2})
    assembly.start(1)
    assembly.start(3)
    assembly.settle(PATIENCE_S)
    assert {frozenset(view.lives) for view in assembly.views()} == {frozenset({1, 2, 3})}


def test_without_a_list_nodes_that_start_together_found_together() -> None:
    assembly = Assembly(3, founders=1)
    assembly.start_all()
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})


def test_runs_founded_apart_are_told_apart() -> None:
    assembly = Assembly(2, founders=1)
    assembly.start(1)
    assembly.start(2)
    assembly.decided = {}
    with pytest.raises(AssertionError, match="two views of one number"):
        assembly.settle(2 * PATIENCE_S)
    with pytest.raises(PeerError, match="begun twice") as caught:
        assembly.life(1).hear_vote(Origin(2, 1), assembly.life(2).view.news(), assembly.now)
    assert caught.value.reason == "founding"


def test_a_member_that_restarts_is_replaced_by_its_new_life() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.start(2)
    assert assembly.life(2).admitted_in is None
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(2).view.lives[2] == 2
    assert assembly.life(2).admitted_in == 2
    assert ("admitted", 2) in assembly.kinds(1)


def test_all_restart_at_once_and_none_needs_to_be_ready() -> None:
    assembly = founded(3)
    for node in (1, 2, 3):
        assembly.crash(node)
    for node in (1, 2, 3):
        assembly.start(node)
        assembly.nodes[node].ready = False
    assembly.settle(3 * PATIENCE_S)
    assert len({view.number for view in assembly.views()}) == 1
    assert dict(assembly.life(1).view.members) == {1: 2, 2: 2, 3: 2}


def test_who_says_goodbye_leaves_the_view_and_comes_back_as_a_joiner_at_once() -> None:
    assembly = founded(3)
    assembly.nodes[3].stopping = True
    for node in (1, 2):
        assembly.life(node).leaving(3)
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2})
    assert assembly.life(3).admitted_in is None
    assert assembly.kinds(1)[-1] == ("left", 3)
    assembly.crash(3)
    assembly.start(3)
    assembly.settle(PATIENCE_S / 2)
    assert_all_know(assembly, 3, {1, 2, 3})


def test_who_is_back_before_it_has_left_stays() -> None:
    assembly = founded(3)
    assembly.cut(1, 2)  # nobody has a majority to let it go
    for node in (1, 2):
        assembly.life(node).leaving(3)
    assembly.crash(3)
    assembly.start(3)
    assembly.connect(1, 2)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert ("left", 3) not in assembly.kinds(1)


def test_only_a_ready_member_evicts() -> None:
    assembly = founded(3)
    for node in (1, 2, 3):
        assembly.nodes[node].ready = False
    assembly.settle(0.2)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    for node in (1, 2):
        assembly.life(node).wish_eviction(3, "it is not there", assembly.now)
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.nodes[2].ready = True
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2}, among={1, 2})
    assert ("evicted", 3) in assembly.kinds(2)
    assert assembly.nodes[2].notes[-1].words.endswith("it is not there")


def test_a_new_life_does_not_pay_for_the_former_one() -> None:
    assembly = founded(3)
    assembly.crash(3)
    for node in (1, 2):
        assembly.nodes[node].ready = False
    assembly.settle(0.2)
    for node in (1, 2):
        assembly.life(node).wish_eviction(3, "it is not there", assembly.now)
    assembly.start(3)
    assembly.nodes[1].ready = assembly.nodes[2].ready = True
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(1).view.lives[3] == assembly.nodes[3].origin.incarnation
    assert ("evicted", 3) not in assembly.kinds(1)


def test_an_evicted_node_waits_longer_each_time() -> None:
    assembly = founded(3)
    waits = []
    for _ in range(3):
        assembly.life(1).wish_eviction(3, "slow", assembly.now)
        assembly.settle(0.1)
        assert 3 not in assembly.life(1).view.lives
        began = assembly.now
        while 3 not in assembly.life(1).view.lives:
            assembly.settle(0.1)
        waits.append(round(assembly.now - began))
    assert waits == [1, 2, 4]
    assembly.settle(130 * PATIENCE_S)  # and all is forgiven
    assembly.life(1).wish_eviction(3, "slow", assembly.now)
    assembly.settle(1.5 * PATIENCE_S)
    assert 3 in assembly.life(1).view.lives


def test_a_minority_changes_nothing_and_says_what_it_waits_for() -> None:
    assembly = founded(3)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    assembly.life(3).wish_eviction(1, "gone", assembly.now)
    assembly.settle(3 * PATIENCE_S)
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
    assembly.life(1).wish_eviction(2, "gone", assembly.now)
    assembly.life(2).wish_eviction(1, "gone", assembly.now)
    assembly.settle(3 * PATIENCE_S)
    assert (assembly.life(1).view.number, assembly.life(2).view.number) == ((2 if changed else 1), 1)


def test_a_removed_node_comes_back_unless_it_was_forbidden() -> None:
    assembly = founded(3)
    assembly.life(2).remove(3, forbid=False)
    assembly.settle(0.3)
    assert_all_know(assembly, 2, {1, 2})
    assert assembly.kinds(2)[-1] == ("removed", 3)
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 3, {1, 2, 3})
    assembly.life(2).remove(3, forbid=True)
    assembly.settle(0.3)
    assert_all_know(assembly, 4, {1, 2})
    assembly.crash(3)
    assembly.start(3)
    assembly.settle(5 * PATIENCE_S)
    assert_all_know(assembly, 4, {1, 2})
    assert assembly.life(3).explain() == (
        "this node was removed for good by view 4 and is not admitted again"
    )


def test_a_wish_to_remove_outlives_a_time_without_a_majority() -> None:
    assembly = founded(3)
    assembly.crash(3)
    assembly.cut(1, 2)
    assembly.life(1).remove(3, forbid=False)
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.connect(1, 2)
    assembly.settle(0.5)
    assert_all_know(assembly, 2, {1, 2})


def test_nobody_removes_the_last_member() -> None:
    assembly = Assembly(1)
    assembly.start(1)
    assembly.settle(1.5 * PATIENCE_S)
    assembly.life(1).remove(1, forbid=False)
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 1, {1})


def between_two_that_wish_an_eviction(*, ready: bool) -> Assembly:
    """2 and 3 cannot reach each other, 1 between them is not READY, and 4 is dead, which both want out."""
    assembly = founded(4)
    assembly.nodes[1].ready = False
    assembly.nodes[2].ready = assembly.nodes[3].ready = ready
    assembly.cut(2, 3)
    assembly.crash(4)
    for node in (2, 3):
        assembly.life(node).wish_eviction(4, "gone", assembly.now)
    return assembly


def test_whom_ready_members_wish_to_evict_a_member_takes_out_that_reaches_a_majority() -> None:
    assembly = between_two_that_wish_an_eviction(ready=True)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3})


def test_the_wish_of_a_member_that_is_not_ready_is_nobodys() -> None:
    assembly = between_two_that_wish_an_eviction(ready=False)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3, 4})


def test_a_wish_of_another_view_is_not_acted_on() -> None:
    assembly = between_two_that_wish_an_eviction(ready=True)
    for node in (2, 3):
        assembly.life(node).withdraw_eviction(4)
        told = Origin(node, 1)
        assembly.life(1).hear_status(told, view=0, ready=True, unwanted={4}, now=assembly.now)
    for _ in range(20):
        assembly.tick(statuses=False)
    assert assembly.life(1).view.number == 1
    assert assembly.life(1).explain() == ""


def test_of_two_that_wish_each_other_out_one_has_its_way() -> None:
    assembly = founded(5)
    assembly.nodes[1].ready = False  # so that it waits its turn, and hears both
    for one, other in ((2, 3), (2, 4), (2, 5), (3, 4), (3, 5)):
        assembly.cut(one, other)
    for node, other in ((2, 3), (3, 2)):
        assembly.life(node).wish_eviction(other, "it holds back", assembly.now)
    assembly.settle(PATIENCE_S)
    assert set(assembly.life(1).view.lives) == {1, 2, 4, 5}


def test_nobody_takes_itself_out_because_others_wish_it() -> None:
    assembly = founded(3)
    assembly.cut(2, 3)
    assembly.life(2).wish_eviction(1, "it holds back", assembly.now)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})


def test_who_shows_an_old_view_is_told_the_latest() -> None:
    assembly = founded(3)
    assembly.cut(1, 3)
    assembly.cut(2, 3)
    assembly.life(1).wish_eviction(3, "gone", assembly.now)
    assembly.settle(0.3)
    assembly.life(2).link(Origin(3, 1), assembly.now)
    assembly.life(2).hear_status(Origin(3, 1), view=1, ready=True, unwanted=(), now=assembly.now)
    sent = assembly.life(2).take_effects()
    assert len(sent) == 1
    assert assembly.life(2).view.number == 2


def test_a_second_view_of_one_number_is_a_peers_fault() -> None:
    assembly = founded(3)
    view = assembly.life(1).view
    other = View(view.number, view.members[:2], frozenset(), view.founding)
    with pytest.raises(PeerError):
        assembly.life(1).hear_vote(Origin(2, 1), other.news(), assembly.now)


def test_a_former_life_that_links_late_changes_nothing() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.start(2)
    assembly.settle(0.5)
    assembly.life(1).link(Origin(2, 1), assembly.now)
    assembly.life(1).hear_status(Origin(2, 1), view=1, ready=True, unwanted=(), now=assembly.now)
    assembly.life(1).unlink(Origin(2, 1))
    assembly.crash(3)
    assembly.life(1).remove(3, forbid=False)  # takes the new life's vote
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 3, {1, 2})


def test_a_proposal_of_which_every_message_is_lost_is_made_again() -> None:
    assembly = founded(3)
    assembly.life(1).remove(3, forbid=True)
    for _ in range(12):
        assembly.tick(statuses=False)
        assembly.save(1)
        assembly.bag.clear()
    assert "without an answer yet from" in assembly.life(1).explain()
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2})


def test_a_voter_that_links_while_a_view_is_being_decided_is_asked_at_once() -> None:
    assembly = founded(3)
    assembly.crash(3)
    assembly.life(1).remove(3, forbid=True)
    assembly.tick(statuses=False)
    assembly.save(1)
    assembly.bag.clear()  # node 2 never hears of it on this link
    assembly.cut(1, 2)
    assembly.connect(1, 2)
    assembly.settle()  # in no time
    assert_all_know(assembly, 2, {1, 2})


def test_a_node_that_stops_votes_and_proposes_nothing() -> None:
    assembly = founded(3)
    assembly.nodes[1].stopping = True
    assembly.life(1).remove(3, forbid=True)
    assembly.settle(3 * PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.crash(3)
    assembly.life(2).remove(3, forbid=True)
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2})


def test_who_hears_of_a_later_view_waits_for_its_news() -> None:
    assembly = founded(3)
    life = assembly.life(1)
    life.hear_status(Origin(2, 1), view=2, ready=True, unwanted=(), now=assembly.now)
    life.remove(3, forbid=True)
    life.pass_time(assembly.now + PATIENCE_S, ready=True, stopping=False)
    assert life.take_effects() == []


def test_a_former_life_that_is_still_linked_does_not_replace_the_new_one() -> None:
    assembly = founded(3)
    assembly.crash(2)
    assembly.cables.remove(frozenset({1, 2}))
    assembly.start(2)
    assembly.life(1).link(Origin(2, 1), assembly.now)
    assembly.life(1).hear_status(Origin(2, 1), view=1, ready=True, unwanted=(), now=assembly.now)
    assembly.settle(2 * PATIENCE_S)
    assert_all_know(assembly, 2, {1, 2, 3})
    assert assembly.life(1).view.lives[2] == 2


def test_nobody_is_admitted_before_its_status_has_told_that_it_knows_the_view() -> None:
    assembly = founded(3)
    assembly.life(1).link(Origin(9, 1), assembly.now)  # it may turn out to be of another founding
    assembly.settle(PATIENCE_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    for view, members in ((0, {1, 2, 3}), (1, {1, 2, 3, 9})):  # one that is deaf never learns of view 1
        assembly.life(1).hear_status(Origin(9, 1), view=view, ready=False, unwanted=(), now=assembly.now)
        assembly.collect(1)
        assembly.settle()
        assert set(assembly.life(1).view.lives) == members


def test_who_is_linked_and_silent_is_not_counted_on() -> None:
    assembly = founded(3)
    life = assembly.life(1)
    assembly.now += 2 * PATIENCE_S
    life.wish_eviction(3, "it is slow", assembly.now)
    assert life.explain() == ""  # 1 and 2 alone could decide nothing more if 2 is dead
    life.hear_status(Origin(2, 1), view=1, ready=True, unwanted=(), now=assembly.now)
    assembly.now += PATIENCE_S
    life.pass_time(assembly.now, ready=True, stopping=False)
    assert life.explain().startswith("view 2 with 0000000000000001, 0000000000000002 is ")


def test_names_are_told_where_they_are_known() -> None:
    assembly = founded(2)
    life = Membership(
        Origin(1, 2),
        founders=2,
        two_nodes="stall",
        timing=TIMING,
        votes=assembly.nodes[1].disk,
        now=0.0,
        names={1: "ada", 2: "bob"},
    )
    life.pass_time(0.0, ready=False, stopping=False)
    assert life.explain() == "view 2 with ada, bob waits for a majority of view 1: bob not linked"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_splits_in_a_storm_and_all_are_members_when_it_is_over(seed: int) -> None:
    chance = random.Random(seed)
    assembly = Assembly(chance.choice([2, 3, 4, 5, 7]), two_nodes=chance.choice(["stall", "lower-id"]))
    assembly.start_all()
    shake(assembly, chance, 4000)
    storm = max(assembly.decided, default=0)
    for node in assembly.nodes:
        if assembly.nodes[node].life is None:
            assembly.start(node)
        assembly.nodes[node].ready = True
        for other in assembly.nodes:
            assembly.life(node).withdraw_eviction(other)
    for one in assembly.nodes:  # whoever was said to leave is here after all: its link is a new one
        for other in assembly.nodes:
            assembly.cut(one, other)
    assembly.connect_all()
    lives = {node: machine.origin.incarnation for node, machine in assembly.nodes.items()}
    healed = assembly.now
    assembly.settle(10 * PATIENCE_S)  # what a person wished in the storm comes true, turn by turn
    while any(dict(view.members) != lives for view in assembly.views()):
        assert assembly.now < healed + 70 * PATIENCE_S, [assembly.life(node).explain() for node in lives]
        assembly.settle(PATIENCE_S)  # the longest back-off is 64 of them
    assert all(assembly.life(node).admitted_in is not None for node in lives)
    still = max(assembly.decided)
    assembly.settle(5 * PATIENCE_S)
    assert max(assembly.decided) == still > storm - 1
    victim = chance.choice(list(assembly.nodes))
    if assembly.size > 2:
        assembly.crash(victim)
        witness = chance.choice(assembly.up())
        assembly.life(witness).remove(victim, forbid=True)
        assembly.settle(3 * PATIENCE_S)
        assert_all_know(assembly, still + 1, set(assembly.nodes) - {victim})
