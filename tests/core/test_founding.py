"""The first view: who founds a run, and when."""

from __future__ import annotations

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.wire.reject import PeerError, RejectCode
from tests.core.assembly import FAILURE_TIMEOUT_S, Assembly, assert_all_know, founded


def test_the_run_is_founded_at_once_when_all_of_the_list_are_here() -> None:
    assembly = founded(3)
    assert [assembly.life(node).admitted_in for node in (1, 2, 3)] == [1, 1, 1]
    assert len({view.cluster_id for view in assembly.views()}) == 1
    assert assembly.life(1).explain() == ""


def test_a_majority_of_the_list_founds_after_a_failure_timeout_and_fewer_never() -> None:
    assembly = Assembly(4)
    assembly.connect_all()
    for node in (2, 3):
        assembly.start(node)
    assembly.settle(3 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 0, set())
    assert assembly.life(2).explain() == "the cluster has not formed: 2 of 4 nodes are here, 3 are needed"
    assembly.start(4)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {2, 3, 4})
    assembly.start(1)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 2, {1, 2, 3, 4})
    assert assembly.life(1).admitted_in == 2


def test_without_a_list_a_node_alone_founds_after_a_failure_timeout_and_others_join_it() -> None:
    assembly = Assembly(3, bootstrap_expect=1)
    assembly.connect_all()
    assembly.start(2)
    assembly.settle(0.5 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 0, set())
    assembly.settle(FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {2})
    assembly.start(1)
    assembly.start(3)
    assembly.settle(FAILURE_TIMEOUT_S)
    assert {frozenset(view.incarnations) for view in assembly.views()} == {frozenset({1, 2, 3})}


def test_without_a_list_nodes_that_start_together_found_together() -> None:
    assembly = Assembly(3, bootstrap_expect=1)
    assembly.start_all()
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 1, {1, 2, 3})


def test_runs_founded_apart_are_told_apart() -> None:
    assembly = Assembly(2, bootstrap_expect=1)
    assembly.start(1)
    assembly.start(2)
    assembly.decided = {}
    with pytest.raises(AssertionError, match="two views of one number"):
        assembly.settle(2 * FAILURE_TIMEOUT_S)
    with pytest.raises(PeerError, match="bootstrapped twice") as caught:
        assembly.life(1).on_vote(Origin(2, 1), assembly.life(2).view.news(), assembly.now)
    assert caught.value.code is RejectCode.CLUSTER_ID


def test_nodes_that_know_one_address_found_no_run_without_the_node_that_is_there() -> None:
    """1 is the node whose address all others know, and they know no other."""
    assembly = Assembly(4, bootstrap_expect=2)
    for other in (2, 3, 4):
        assembly.connect(1, other)
        assembly.start(other)
    assembly.settle(5 * FAILURE_TIMEOUT_S)
    assert_all_know(assembly, 0, set())
    assert assembly.life(2).explain() == "the cluster has not formed: 1 of 2 nodes are here, 2 are needed"
    assembly.start(1)
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert {frozenset(view.incarnations) for view in assembly.views()} == {frozenset({1, 2, 3, 4})}
    assert len({view.cluster_id for view in assembly.views()}) == 1


def test_a_node_that_meets_more_than_it_was_told_of_counts_them_all() -> None:
    """Else two of four could found a run, and the other two another."""
    assembly = Assembly(4, bootstrap_expect=2)
    assembly.connect_all()
    for node in (1, 2, 3, 4):
        assembly.start(node)
        assembly.bag.clear()  # nothing is decided while they meet
    life = assembly.life(4)
    for peer in (1, 2, 3):
        life.on_status(Origin(peer, 1), view=0, ready=False, evict_requests=(), now=assembly.now)
    assert not life._is_quorum({3, 4})
    assert life._is_quorum({2, 3, 4})
    assembly.settle(2 * FAILURE_TIMEOUT_S)
    assert {frozenset(view.incarnations) for view in assembly.views()} == {frozenset({1, 2, 3, 4})}
