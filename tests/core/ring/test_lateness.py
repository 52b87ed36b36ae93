"""Who holds a ring back by more than a failure timeout is evicted, with words that say how; nobody else
is."""

from __future__ import annotations

from p2psgd.core.events import TimePassed
from tests.core.ring.cluster import RingCluster

FAILURE_TIMEOUT_S = 5.0


def evicted(cluster: RingCluster) -> str:
    """All that is said of evictions."""
    return "; ".join(sorted({words for _, words in cluster.noted("evicted")}))


def pass_time_without(cluster: RingCluster, seconds: float, *paused: int) -> None:
    """These nodes are stopped: nothing reaches them, nothing leaves them, no time passes for them."""
    ways = {way for way in cluster.queues if way[0] in paused or way[1] in paused}
    cluster.stuck |= ways
    end = cluster.now + seconds
    while cluster.now < end:
        cluster.now += 0.5
        for number, replica in enumerate(cluster.replicas):
            if replica is not None and number not in paused:
                cluster.give(number, TimePassed())
        cluster.settle()
    cluster.stuck -= ways


def test_nobody_is_waited_for_once_all_trainers_have_left() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(11)
    for number in range(3):
        assert cluster.waits()[number], number
        cluster.detach(number)
    cluster.tick(2 * FAILURE_TIMEOUT_S)
    assert cluster.running() == {0, 1, 2}
    assert cluster.waits() == ["", "", ""]
    assert [cluster.replica(number).waiting_for() for number in range(3)] == ["", "", ""]


def test_a_trainer_that_is_late_is_evicted_with_words_that_say_so() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.run(11)
    cluster.share(0, 1, 3)
    cluster.settle()
    cluster.tick(FAILURE_TIMEOUT_S - 1)
    assert cluster.waits()[0] == "round 12 has waited for 4.0 s for node-2's trainer"
    assert cluster.waits()[2] == "round 12 has waited for 4.0 s for this node's trainer"
    assert cluster.running() == {0, 1, 2, 3}
    cluster.tick(FAILURE_TIMEOUT_S)
    assert "node-2 was evicted by view 2: its trainer has not given its share of round 12 for" in evicted(
        cluster
    )
    assert cluster.rounds() == [12, 12, 11, 12]
    assert cluster.running() >= {0, 1, 3}


def test_it_comes_back_and_gives_what_it_had() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.share(0, 1)
    cluster.settle()
    cluster.tick(FAILURE_TIMEOUT_S + 4)
    assert cluster.rounds() == [1, 1, 0]
    cluster.share(2)
    cluster.tick(5.0)
    assert cluster.running() == {0, 1, 2}
    cluster.share(0, 1)
    cluster.settle()
    cluster.assert_all_at(2)
    assert cluster.open == {0, 1, 2}


def test_nobody_is_evicted_while_no_share_is_given() -> None:
    """All train for longer than a failure timeout."""
    cluster = RingCluster(3)
    cluster.start()
    cluster.tick(20 * FAILURE_TIMEOUT_S)
    assert not evicted(cluster)
    cluster.run()
    cluster.assert_all_at(1)


def test_a_pause_of_half_a_failure_timeout_changes_nothing() -> None:
    results = []
    for paused in ((), (2,)):
        cluster = RingCluster(4)
        cluster.start()
        cluster.run(3)
        cluster.share(0, 1, 2, 3)
        cluster.deliver(1, 2)
        pass_time_without(cluster, FAILURE_TIMEOUT_S / 2, *paused)
        cluster.tick(2.0)
        cluster.run(3)
        cluster.assert_all_at(7)
        assert cluster.views() == [1] * 4
        results.append(cluster.replica(0).lattice.digest)
    assert results[0] == results[1]


def test_who_was_paused_blames_nobody() -> None:
    cluster = RingCluster(4)
    cluster.start()
    pass_time_without(cluster, FAILURE_TIMEOUT_S - 1, 2)
    cluster.now += 1.0
    cluster.give(2, TimePassed())  # before it hears anything
    assert not cluster.replica(2).membership.evict_requests
    cluster.settle()
    cluster.tick(3.0)
    assert not evicted(cluster)
    assert cluster.running() == {0, 1, 2, 3}


def test_who_is_not_heard_of_is_evicted() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.run()
    cluster.share(0, 1, 3)
    pass_time_without(cluster, 2 * FAILURE_TIMEOUT_S, 2)
    assert "node-2 was evicted by view 2: it is silent while the ring waits for" in evicted(cluster)
    assert cluster.rounds() == [2, 2, 1, 2]


def test_neighbours_that_stay_without_their_link_part() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.cut(1, 2)
    cluster.settle()
    cluster.tick(FAILURE_TIMEOUT_S - 1)
    assert not evicted(cluster)
    cluster.tick(3.0)
    assert "node-2 was evicted by view 2: a link of it that the ring needs was missing for" in evicted(
        cluster
    )
    assert cluster.running() >= {0, 1, 3}


def test_a_link_that_no_ring_needs_may_be_lost() -> None:
    cluster = RingCluster(5)
    cluster.start()
    cluster.cut(1, 3)
    cluster.run()
    cluster.tick(2 * FAILURE_TIMEOUT_S)
    cluster.run()
    assert not evicted(cluster)
    assert cluster.rounds() == [2] * 5
    assert all(cluster.ring(number).counters.generations == 1 for number in range(5))


def test_no_ring_of_one_is_left() -> None:
    cluster = RingCluster(2)
    cluster.start()
    cluster.share(0)
    cluster.settle()
    cluster.tick(10 * FAILURE_TIMEOUT_S)
    assert not evicted(cluster)
    cluster.share(1)
    cluster.settle()
    cluster.assert_all_at(1)


def test_most_of_the_members_are_not_late() -> None:
    cluster = RingCluster(4)
    cluster.start()
    cluster.share(0, 3)
    cluster.settle()
    cluster.tick(3 * FAILURE_TIMEOUT_S)
    assert not evicted(cluster)
    cluster.share(1)
    cluster.settle()
    cluster.tick(2 * FAILURE_TIMEOUT_S)
    assert "node-2 was evicted by view 2: its trainer has not given" in evicted(cluster)


def test_who_is_not_ready_for_long_is_evicted() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run()
    replica = cluster.replica(2)
    replica.node.quarantine(cluster.now + 1000.0)  # and its disk says nothing
    cluster.tick(11 * FAILURE_TIMEOUT_S)
    assert cluster.running() == set()
    assert "node-2 is not ready" in cluster.waits()[0]
    assert not evicted(cluster)
    cluster.tick(3 * FAILURE_TIMEOUT_S)
    assert "node-2 was evicted by view 2: the ring has waited for it to be ready for" in evicted(cluster)
    assert cluster.ring(0).counters.generations == 2, "the others did not go on"
