"""What is given to a link is bounded by its credit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from p2psgd.core.effects import Send
from p2psgd.core.events import LinkDrained, Resumed, TimePassed
from p2psgd.core.send import CREDIT_BYTES, FRAMES_PER_TURN
from p2psgd.core.view_change import VOTES_OVERDRAFT_BYTES
from p2psgd.wire.frames import FrameType
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]


def test_what_is_under_way_on_a_link_is_bounded_by_its_credit(clusters: Clusters) -> None:
    cluster = clusters(2, log_budget_bytes=1 << 26)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    dense = sorted({number * number % 4999 for number in range(2400)})[:1250]
    frame_bytes = 0
    while cluster.replica(0).log.bytes_held < 5 * CREDIT_BYTES:
        cluster.give(0, own_update(dense))
        frame_bytes = max(frame_bytes, cluster.replica(0).tally.own_bytes // cluster.replica(0).sequence)
    waiting = sum(map(len, cluster.queues[0, 1]))
    assert CREDIT_BYTES - 2000 <= waiting <= CREDIT_BYTES + frame_bytes  # messages have taken some of it
    cluster.stuck = set()
    cluster.settle()
    cluster.assert_converged()


def test_what_is_not_the_log_waits_for_credit_too(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    next(iter(cluster.replica(0).peers.values())).credit = 0
    for _ in range(20):
        cluster.now += 1.0
        cluster.give(0, TimePassed())
    waiting = cluster.queues[0, 1]
    assert all(frame[4] != FrameType.STATUS for frame in waiting)  # nineteen were due
    assert sum(map(len, waiting)) < VOTES_OVERDRAFT_BYTES


def test_on_a_link_that_is_always_busy_a_status_goes_out_before_more_updates(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    replica, there = cluster.replica(0), cluster.replica(1).me
    replica.out.credit_bytes = 500
    replica.peers[there].credit = 0
    for index in range(30):
        cluster.give(0, own_update([index]))
    cluster.now += 1.0  # a STATUS is due
    sent = [effect for effect in cluster.give(0, LinkDrained(there)) if isinstance(effect, Send)]
    assert [effect.frame[4] for effect in sent[:2]] == [FrameType.STATUS, FrameType.UPDATE]
    assert replica.peers[there].credit <= 0  # the next tick would have had none for it


def test_many_small_frames_go_out_in_several_turns_and_in_order(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    cluster.cut(0, 1)
    for number in range(2 * FRAMES_PER_TURN + 50):
        cluster.give(0, own_update([number % 5000]))
    cluster.paused = {0}
    cluster.link(0, 1)
    while cluster.deliver(1, 0):
        pass
    queue = cluster.queues[0, 1]
    lengths = [len(queue)]
    while cluster.replica(0).peers[cluster.replica(1).me].cursors[cluster.replica(0).me].next <= number + 1:
        cluster.give(0, Resumed())
        lengths.append(len(queue))
    sent = [after - before for before, after in pairwise(lengths)]
    assert max(sent) <= FRAMES_PER_TURN
    assert len(sent) >= 2
    cluster.paused = set()
    cluster.give(0, Resumed())
    cluster.settle()
    assert not cluster.drops
    cluster.assert_converged()
