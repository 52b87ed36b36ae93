"""A wish becomes a view, whatever is lost on the way, and in a storm nothing splits."""

from __future__ import annotations

import random

import pytest

from tests.core.assembly import FAILURE_TIMEOUT_S, TICK_S, Assembly, assert_all_know, founded, shake


def test_a_proposal_of_which_every_message_is_lost_is_made_again() -> None:
    assembly = founded(3)
    assembly.life(1).remove(3, forbid=True)
    until = assembly.now + 0.9 * FAILURE_TIMEOUT_S
    while assembly.now < until:
        assembly.tick(status_sender=False)
        assembly.save(1)
        assembly.bag.clear()
    assert "without an answer yet from" in assembly.life(1).explain()
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2})


def test_a_node_that_is_there_alone_does_not_say_that_it_waits_for_itself() -> None:
    assembly = Assembly(1)
    assembly.start_all()
    assembly.tick(status_sender=False)
    assert assembly.life(1).explain() == "the cluster is about to form: 1 of 1 nodes are here"
    for _ in range(round(FAILURE_TIMEOUT_S / TICK_S) + 1):
        assembly.tick(status_sender=False)
    assert assembly.life(1).explain().endswith("without an answer yet from: this node's own disk")
    assembly.settle()
    assert_all_know(assembly, 1, {1})


def test_a_node_that_stops_before_its_run_is_founded_waits_for_nobody() -> None:
    assembly = Assembly(1)
    assembly.start_all()
    assembly.nodes[1].stopping = True
    assembly.tick(status_sender=False)
    assert assembly.life(1).explain() == "the cluster has not formed, and this node is stopping"


def test_a_voter_that_links_while_a_view_is_being_decided_is_asked_at_once() -> None:
    assembly = founded(3)
    assembly.crash(3)
    assembly.life(1).remove(3, forbid=True)
    assembly.tick(status_sender=False)
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
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})
    assembly.crash(3)
    assembly.life(2).remove(3, forbid=True)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2})


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
    incarnations = {node: machine.origin.incarnation for node, machine in assembly.nodes.items()}
    healed = assembly.now
    assembly.settle(10 * FAILURE_TIMEOUT_S)  # what a person wished in the storm comes true, turn by turn
    while any(dict(view.members) != incarnations for view in assembly.views()):
        assert assembly.now < healed + 70 * FAILURE_TIMEOUT_S, [
            assembly.life(node).explain() for node in incarnations
        ]
        assembly.settle(FAILURE_TIMEOUT_S)  # the longest back-off is 64 of them
    assert all(assembly.life(node).admitted_in is not None for node in incarnations)
    still = max(assembly.decided)
    assembly.settle(5 * FAILURE_TIMEOUT_S)
    assert max(assembly.decided) == still > storm - 1
    victim = chance.choice(list(assembly.nodes))
    if assembly.size > 2:
        assembly.crash(victim)
        witness = chance.choice(assembly.up())
        assembly.life(witness).remove(victim, forbid=True)
        assembly.settle(3 * FAILURE_TIMEOUT_S)
        assert_all_know(assembly, still + 1, set(assembly.nodes) - {victim})
