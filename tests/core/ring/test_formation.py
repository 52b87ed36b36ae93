"""When a ring forms, and what is said as long as it does not."""

from __future__ import annotations

import re

import pytest

from p2psgd.core.events import NodeStopping, TrainerChanged
from p2psgd.core.ring.rounds import StopReason
from tests.core.ring.cluster import RingCluster


def test_a_ring_of_one_says_that_it_needs_two() -> None:
    cluster = RingCluster(1)
    cluster.attach()
    cluster.tick(100.0)
    assert cluster.running() == set()
    assert cluster.waits()[0].endswith(
        "a ring needs two nodes, and this is the only member of view 1: "
        "start another node, or train in asynchronous mode"
    )
    assert "a ring needs two nodes" in cluster.replica(0).waiting_for()


def test_round_1_waits_for_all_nodes_of_the_bootstrap() -> None:
    cluster = RingCluster(3)
    cluster.link(0, 1)
    cluster.attach()
    cluster.tick(30.0)
    assert cluster.views() == [1, 1, 0]
    assert cluster.running() == set()
    said = cluster.waits()[0]
    match = re.search(
        r"round 1 waits for all nodes of the bootstrap: 2 of 3 are members, for (\d+) s more at most$", said
    )
    assert match, said
    assert 60 - 30 <= int(match[1]) < 60, "12 failure timeouts from when the run was founded"
    cluster.link_all()
    cluster.tick(10.0)
    assert cluster.running() == {0, 1, 2}


def test_round_1_waits_for_all_trainers() -> None:
    cluster = RingCluster(3)
    cluster.link_all()
    cluster.attach(0, 1)
    cluster.tick(30.0)
    assert cluster.running() == set()
    assert "round 1 waits for all trainers, node-2 is without one yet" in cluster.waits()[0]
    cluster.attach(2)
    assert cluster.running() == {0, 1, 2}


def test_round_1_does_not_wait_for_ever() -> None:
    cluster = RingCluster(3)
    cluster.link(0, 1)
    cluster.attach(0)
    cluster.tick(59.0)
    assert cluster.running() == set()
    cluster.tick(10.0)
    assert cluster.running() == {0, 1}


def test_before_the_first_round_it_is_said_that_nobody_has_a_trainer() -> None:
    cluster = RingCluster(2)
    cluster.link_all()
    cluster.tick(70.0)
    assert [said.endswith(": no node has a trainer yet") for said in cluster.waits()] == [True, True]


@pytest.mark.parametrize("two_nodes", ["stall", "lower-id"])
@pytest.mark.parametrize("gone", [0, 1])
def test_of_two_nodes_the_one_left_says_whom_to_start(two_nodes: str, gone: int) -> None:
    """There is no ring of one, whatever the policy is."""
    cluster = RingCluster(2, two_nodes=two_nodes)
    cluster.start()
    cluster.run()
    cluster.kill(gone)
    cluster.tick(30.0)
    words = f"of two nodes both wait when they lose each other: start node-{gone} again"
    assert cluster.waits()[0].endswith(words)
    assert cluster.running() == set()


def test_later_rounds_wait_for_one_trainer_only() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run()
    cluster.detach()
    cluster.cut(0, 1)
    cluster.settle()
    cluster.link(0, 1)
    cluster.tick(10.0)
    assert cluster.running() == set()
    assert cluster.waits() == ["", "", ""], "all have finished"
    assert cluster.replica(0).waiting_for() == ""
    cluster.attach(2)
    assert cluster.running() == {0, 1, 2}


def test_nobody_without_a_trainer_holds_back_a_round() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.run()
    cluster.detach(1)
    cluster.run(2)
    cluster.assert_all_at(3)
    assert cluster.opened[0][-1].contributors == 3
    assert len(cluster.opened[1]) == 2


def test_a_trainer_that_comes_later_gives_its_first_share_to_the_next_round() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.give(1, TrainerChanged(active=False))
    cluster.share(0)
    cluster.settle()  # node 1 has given an empty share now
    cluster.attach(1)
    assert 1 not in cluster.open
    cluster.run(1)
    cluster.assert_all_at(1)
    assert cluster.open == {0, 1, 2}
    cluster.run(1)
    assert [opened[-1].contributors for opened in cluster.opened] == [3] * 3


def test_a_trainer_that_comes_before_any_share_takes_part_at_once() -> None:
    cluster = RingCluster(2)
    cluster.start()
    cluster.give(1, TrainerChanged(active=False))
    cluster.attach(1)
    assert 1 in cluster.open


def test_a_node_that_stops_leaves_and_the_others_go_on() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.run(2)
    cluster.share(0, 1, 3)
    cluster.give(2, NodeStopping())
    cluster.settle()
    assert cluster.running() == set()
    assert cluster.ring(2).counters.stops[StopReason.LEAVING] == 1
    cluster.tick(5.0)
    assert [cluster.replica(number).membership.view.number for number in (0, 1, 3)] == [2, 2, 2]
    assert cluster.rounds() == [3, 3, 2, 3]
    assert cluster.running() == {0, 1, 3}


def test_all_start_again_from_their_disks() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(4)
    digest = cluster.replica(0).lattice.digest
    for number in range(3):
        cluster.kill(number)
    for number in range(3):
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.attach()
    cluster.tick(30.0)
    assert cluster.running() == {0, 1, 2}, cluster.waits()
    cluster.run(2)
    cluster.assert_converged()
    assert cluster.replica(0).lattice.digest != digest


def test_a_minority_stands_still_and_says_so() -> None:
    cluster = RingCluster(5)
    cluster.start()
    cluster.run(2)
    cluster.share(0, 1, 2, 3, 4)
    for here in (0, 1):
        for there in (2, 3, 4):
            cluster.cut(here, there)
    cluster.settle()
    cluster.tick(20.0)
    assert cluster.running() == {2, 3, 4}
    assert cluster.rounds() == [2, 2, 3, 3, 3]
    for number in (0, 1):
        said = cluster.replica(number).waiting_for()
        assert "the ring has stood still for" in said
        assert "waits for a majority of view 1" in said
    cluster.link_all()
    cluster.tick(30.0)
    cluster.run(1)
    assert cluster.running() == {0, 1, 2, 3, 4}
    cluster.assert_converged()
