"""A round survives what goes wrong in it: it is completed by all, or run again from the same shares."""

from __future__ import annotations

from p2psgd.core.effects import OpenRound, Send
from p2psgd.core.events import CheckpointDue, LinkDrained, TimePassed, TrainerChanged
from p2psgd.core.ring.rounds import StopReason
from p2psgd.core.ring.sparse import EMPTY_ROUNDS_MAX
from p2psgd.wire.frames import FrameType
from p2psgd.wire.ring_messages import ROUND_MAX
from tests.core.ring.cluster import RingCluster


def test_a_lost_link_stops_the_generation_everywhere_and_the_next_has_the_same_result() -> None:
    results = []
    for broken in (False, True):
        cluster = RingCluster(4)
        cluster.start()
        cluster.run(2)
        cluster.share(0, 1, 2, 3)
        if broken:
            cluster.deliver(1, 2)
            cluster.cut(1, 2)
            cluster.settle()
            assert cluster.running() == set()
            assert cluster.rounds() == [2] * 4
            assert all(cluster.ring(number).rounds.contributed for number in range(4))
            cluster.link(1, 2)
        cluster.tick(3.0)
        cluster.assert_all_at(3)
        assert cluster.open == {0, 1, 2, 3}
        assert all(opened[-1] == OpenRound(4, 0) for opened in cluster.opened)
        results.append(cluster.replica(0).lattice.digest)
    assert results[0] == results[1]


def test_that_generations_end_waits_for_credit_and_is_said_first_when_there_is_some() -> None:
    cluster = RingCluster(3)
    cluster.start()
    busy, free = (cluster.replica(number).me for number in (0, 2))
    peer = cluster.replica(1).peers[busy]
    peer.credit = 0
    cluster.ring(1).stop(StopReason.STUCK, cluster.now)
    effects = cluster.give(1, TimePassed())
    assert {effect.peer for effect in effects if isinstance(effect, Send)} == {free}
    effects = cluster.give(1, LinkDrained(busy))
    assert [effect.frame[4] for effect in effects if isinstance(effect, Send)] == [FrameType.STATUS]
    cluster.tick(3.0)
    assert cluster.running() == {0, 1, 2}


def test_one_dies_in_mid_round_and_the_others_run_it_without_it() -> None:
    cluster = RingCluster(5)
    cluster.start()
    cluster.run(2)
    cluster.share(0, 1, 2, 3, 4)
    cluster.deliver(2, 3)
    cluster.kill(2)
    cluster.settle()
    cluster.tick(10.0)
    assert cluster.views() == [2] * 4
    cluster.assert_all_at(3)
    cluster.run(2, nodes={0, 1, 3, 4})
    cluster.assert_all_at(5)


def test_a_round_that_one_completed_is_completed_by_all() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.share(0, 1, 2)
    cluster.stuck = {(2, 0)}  # so that only node 2 comes to have all shares
    cluster.settle()
    assert cluster.rounds() == [0, 0, 1]
    assert cluster.open == {2}
    cluster.stuck.clear()
    cluster.cut(0, 2)
    cluster.settle()
    assert cluster.running() == set()
    cluster.link(0, 2)
    cluster.tick(3.0)
    assert cluster.open == {0, 1, 2}
    cluster.assert_all_at(1)
    cluster.run()
    cluster.assert_all_at(2)


def test_a_killed_node_returns_between_rounds() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(3)
    cluster.share(0, 1, 2)
    cluster.deliver(2, 0)
    cluster.kill(2)
    cluster.tick(10.0)
    cluster.run(2, nodes={0, 1})
    cluster.lose_log(0)
    cluster.lose_log(1)
    cluster.boot(2)
    cluster.link_all()
    cluster.tick(20.0)
    assert cluster.noted("snapshot taken")
    cluster.attach(2)
    cluster.run(2)
    cluster.assert_converged()
    assert cluster.running() == {0, 1, 2}


def test_rounds_to_which_nobody_gave_anything_count_after_a_stop_of_all() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(2)
    for _ in range(3):
        cluster.share(0, 1, 2, updates=0)
        cluster.settle()
    for number in range(3):
        cluster.give(number, CheckpointDue())
    cluster.settle()
    for number in range(3):
        cluster.kill(number)
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.attach()
    cluster.tick(5.0)
    cluster.assert_all_at(5)
    cluster.run()
    cluster.assert_all_at(6)


def test_a_wrong_number_of_rounds_is_not_kept_after_a_stop_of_all() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(3)
    cluster.replica(1).state.rounds = ROUND_MAX - 2  # wrong bits
    cluster.ring(1).stop(StopReason.STUCK, cluster.now)
    cluster.settle()
    cluster.tick(6.0)
    assert cluster.running() == {0, 1, 2}
    cluster.run(2)
    cluster.tick(6.0)
    assert max(cluster.rounds()) == ROUND_MAX
    assert cluster.running() == set()
    assert all("the last there can be: stop all nodes" in wait for wait in cluster.waits())
    assert not cluster.drops
    for number in range(3):
        cluster.give(number, CheckpointDue())
    cluster.settle()
    for number in range(3):
        cluster.kill(number)
        cluster.boot(number, from_disk=True)
    cluster.link_all()
    cluster.attach()
    cluster.tick(5.0)
    cluster.assert_all_at(5 * 3 + EMPTY_ROUNDS_MAX)
    cluster.run()
    cluster.assert_all_at(5 * 3 + EMPTY_ROUNDS_MAX + 1)


def test_shares_that_come_in_pieces_are_put_together() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.share(0, updates=3)
    cluster.share(1, updates=0)
    cluster.share(2, updates=2)
    cluster.settle()
    cluster.assert_all_at(1)
    assert [cluster.replica(0).frontier.sequence(cluster.replica(n).me) for n in range(3)] == [3, 0, 2]
    assert FrameType.UPDATE not in {kind for way in cluster.queues for kind in cluster.on_its_way(*way)}


def test_a_trainer_that_attaches_between_generations_waits_until_all_are_equal() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run()
    cluster.detach(1)
    cluster.share(0)
    cluster.settle()
    cluster.stuck = {(0, 1)}  # so that node 1 does not come to have node 2's share
    cluster.share(2)
    cluster.settle()
    assert cluster.rounds() == [2, 1, 2]
    cluster.stuck.clear()
    cluster.cut(0, 1)
    cluster.settle()
    cluster.give(1, TrainerChanged(active=True))
    assert 1 not in cluster.open  # it lacks round 2
    cluster.link(0, 1)
    cluster.tick(3.0)
    cluster.assert_all_at(2)
    assert cluster.open == {0, 1, 2}


def test_while_no_trainer_waits_nobody_is_evicted() -> None:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run()
    cluster.detach()
    cluster.cut(1, 2)
    cluster.tick(20.0)
    assert cluster.views() == [1] * 3
    cluster.attach(0)
    cluster.tick(10.0)
    assert cluster.views()[0] > 1
