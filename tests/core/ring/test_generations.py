"""Generations begin at the head and end everywhere; what comes of another one does no harm."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from p2psgd.core.events import CheckpointDue, FrameReceived, PeerStatus, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.core.ring.contribution import Part
from p2psgd.core.ring.rounds import StopReason
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import FrontierRow, RingBegin
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.ring_messages import ContributionMade, RingState
from p2psgd.wire.update import pack_update, parse_update
from tests.core.cluster import Cluster, by_origin, sample_update, status_of
from tests.core.ring.cluster import RingCluster


@pytest.fixture
def cluster() -> RingCluster:
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(2)
    return cluster


def begun(cluster: RingCluster, source: int = 0, **changes: object) -> FrameReceived:
    """Generation 2, as node 1 hears it from the head."""
    replica = cluster.replica(1)
    fields = {
        "view": 1,
        "generation": 2,
        "round": 3,
        "digest": replica.lattice.digest,
    }
    return FrameReceived(cluster.replica(source).me, RingBegin.model_validate({**fields, **changes}))


def number_of(cluster: RingCluster, node: int) -> int:
    generation = cluster.ring(node).generation
    return 0 if generation is None else generation.number


def test_a_later_generation_takes_the_place_of_the_one_under_way(cluster: RingCluster) -> None:
    cluster.share(0, 1)
    cluster.settle()
    cluster.give(1, begun(cluster))
    assert number_of(cluster, 1) == 2
    assert cluster.ring(1).counters.stops[StopReason.LATER] == 1
    assert cluster.ring(1).rounds.contributed
    assert FrameType.RING_BEGIN in cluster.on_its_way(1, 2)
    assert not cluster.drops


def test_a_generation_that_is_not_later_is_ignored(cluster: RingCluster) -> None:
    cluster.give(1, begun(cluster, generation=1))
    assert number_of(cluster, 1) == 1
    assert not cluster.drops


def test_a_round_that_is_complete_here_is_not_run_again(cluster: RingCluster) -> None:
    cluster.give(1, begun(cluster, round=2))
    assert number_of(cluster, 1) == 0
    assert cluster.ring(1).counters.stops[StopReason.UNLIKE] == 1
    assert cluster.ring(1).rounds.done == 2
    assert FrameType.RING_BEGIN not in cluster.on_its_way(1, 2)
    assert not cluster.drops


@pytest.mark.parametrize("view", [2, 7])
def test_a_generation_of_another_view_is_ignored(cluster: RingCluster, view: int) -> None:
    cluster.give(1, begun(cluster, view=view))
    assert number_of(cluster, 1) == 1
    assert not cluster.drops


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (2, {}, "is not to pass on"),
        (0, {"round": 2**32}, "is impossible"),
        (0, {"generation": 2**62 + 1}, "is impossible"),
    ],
)
def test_a_generation_that_cannot_have_been_begun_so_is_refused(
    cluster: RingCluster, source: int, changes: dict[str, object], words: str
) -> None:
    cluster.give(1, begun(cluster, source, **changes))
    assert [(number, drop.code) for number, drop in cluster.drops] == [(1, RejectCode.RING)]
    assert words in cluster.drops[0][1].details
    assert number_of(cluster, 1) == 1


def test_who_has_another_replica_stops_the_generation_for_all(cluster: RingCluster) -> None:
    cluster.give(1, begun(cluster, digest=7))
    assert number_of(cluster, 1) == 0
    assert cluster.ring(1).counters.stops[StopReason.UNLIKE] == 1
    assert FrameType.RING_BEGIN not in cluster.on_its_way(1, 2)
    cluster.settle()
    assert cluster.running() == set()
    cluster.tick(3.0)
    assert [number_of(cluster, node) for node in range(3)] == [3, 3, 3]
    cluster.run()
    cluster.assert_all_at(3)


def test_a_former_life_s_updates_come_in_before_the_next_generation() -> None:
    """They are on the disk of a node that comes back, and nobody else has them."""
    cluster = RingCluster(3)
    cluster.start()
    cluster.run(2)
    cluster.share(0, 1, 2)
    cluster.stuck = {(2, 0)}
    cluster.settle()
    assert cluster.rounds() == [2, 2, 3]
    cluster.stuck.clear()
    cluster.give(2, CheckpointDue())
    cluster.kill(2)
    cluster.tick(12.0)
    cluster.run(2, nodes={0, 1})
    cluster.boot(2, from_disk=True)
    cluster.link_all()
    cluster.attach(2)
    cluster.tick(15.0)
    assert cluster.running() == {0, 1, 2}, cluster.waits()
    assert cluster.replica(0).frontier.sequence(Origin(3, 1)) == 3
    cluster.run(2)
    cluster.assert_converged()


def test_an_update_that_comes_in_a_generation_is_not_taken(cluster: RingCluster) -> None:
    header, payload = sample_update(cluster)
    header.node, header.incarnation = 77, 1
    before = cluster.replica(1).lattice.digest
    cluster.give(1, FrameReceived(cluster.replica(0).me, UpdateBody(pack_update(header, payload))))
    assert cluster.replica(1).lattice.digest == before
    assert not cluster.drops


def test_nobody_may_know_more_updates_of_this_node_than_it_gave(cluster: RingCluster) -> None:
    cluster.share(1)
    me = cluster.replica(1).me
    parts = cluster.replica(1).given.parts
    assert parts[-1].header.sequence == 3
    right = parts[-1].header.digest
    for sequence, digest, refused in ((3, right, False), (3, right + 1, True), (4, right, True)):
        row = FrontierRow(*me, sequence, digest)
        standing = RingState(1, 3, running=True, active=True, contributed=False)
        event = FrameReceived(
            cluster.replica(0).me, PeerStatus(by_origin([row]), 1, 0, True, [], [], 0, standing)
        )
        cluster.give(1, event)
        assert [drop.code for _, drop in cluster.drops] == [RejectCode.IDENTITY] * refused
        cluster.drops.clear()


def stopped_with_a_share(*, updates: int = 1) -> tuple[RingCluster, tuple[Part, ...]]:
    """No generation runs, and what node 1 has given to it is in no replica yet."""
    cluster = RingCluster(3)
    cluster.start()
    cluster.share(1, updates=updates)
    cluster.cut(0, 1)
    cluster.settle()
    assert cluster.running() == set()
    parts = cluster.replica(1).given.parts
    assert parts
    return cluster, parts


def test_own_updates_are_taken_back_only_as_they_were_given() -> None:
    cluster, (part,) = stopped_with_a_share()
    right = part.body
    other = bytearray(right)
    other[32] ^= 1  # the mini-batch
    cluster.give(1, FrameReceived(cluster.replica(2).me, UpdateBody(bytes(other[:60]) + right[60:])))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.CHECKSUM]
    cluster.give(1, FrameReceived(cluster.replica(2).me, UpdateBody(right)))
    assert len(cluster.drops) == 1
    assert cluster.replica(1).sequence == 1
    assert cluster.delivered[1] == 0  # its trainer has it


def test_an_own_update_that_came_back_changed_is_refused_by_its_digest() -> None:
    cluster, parts = stopped_with_a_share(updates=2)
    for part in parts:
        header, payload = parse_update(part.body, cluster.spec.weights)
        other = pack_update(replace(header, magnitude=header.magnitude + 1), bytes(payload))
        cluster.give(1, FrameReceived(cluster.replica(2).me, UpdateBody(other)))
    words = [f"update {sequence} of this node came back other than it was made" for sequence in (1, 2)]
    assert [(drop.code, drop.details) for _, drop in cluster.drops] == [
        (RejectCode.DIGEST, each) for each in words
    ]
    assert cluster.alarms == words
    assert cluster.replica(1).sequence == 0


def test_own_updates_that_come_back_out_of_order_are_asked_for_again() -> None:
    cluster, parts = stopped_with_a_share(updates=2)
    for part, applied in ((parts[1], 0), (parts[0], 1), (parts[1], 2)):
        cluster.give(1, FrameReceived(cluster.replica(2).me, UpdateBody(part.body)))
        assert cluster.replica(1).sequence == applied
    assert not cluster.drops


def test_a_share_that_nobody_asked_for_is_refused(cluster: RingCluster) -> None:
    cluster.share(1)
    before = cluster.replica(1).given.parts
    cluster.give(1, ContributionMade(9, (cluster.update(1),)))
    assert cluster.replica(1).given.parts is before
    assert [number for number, _ in cluster.refused] == [1]
    assert "unexpected contribution for round 3" in cluster.refused[0][1]
    cluster.run()
    cluster.assert_all_at(3)


def test_a_ring_hears_no_status_without_a_standing(cluster: RingCluster) -> None:
    cluster.give(1, status_of(cluster.replica(0).me, [], view=1))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.RING]


def test_an_asynchronous_run_hears_no_frame_of_a_ring() -> None:
    cluster = Cluster(2)
    cluster.found()
    cluster.give(1, FrameReceived(cluster.replica(0).me, RingBegin(view=1, generation=1, round=1, digest=0)))
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.RING]


def test_a_round_of_which_something_was_lost_is_run_again_in_another_generation(cluster: RingCluster) -> None:
    """No peer that follows the rules loses a frame; a wrong bit in what says where one belongs does."""
    cluster.share(*sorted(cluster.open))
    kept = [frame for frame in cluster.queues[1, 2] if FrameType(frame[4]) is not FrameType.RING_UPDATE]
    assert len(kept) < len(cluster.queues[1, 2])
    cluster.queues[1, 2] = deque(kept)
    cluster.settle()
    assert min(cluster.rounds()) == 2
    cluster.tick(2 * cluster.replica(0).timing.silence_s)
    assert cluster.rounds() == [3, 3, 3]
    assert any(cluster.ring(number).counters.stops[StopReason.STUCK] for number in range(3))
    cluster.run(2)
    cluster.assert_all_at(5)
