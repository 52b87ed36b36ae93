"""Whoever holds a round back is named at every node, and nobody else."""

from __future__ import annotations

import re

import pytest

from p2psgd.core.events import TimePassed, TrainerChanged
from p2psgd.wire.frames import FrameType
from tests.core.ring.cluster import RingCluster
from tests.core.ring.test_lateness import pass_time_without

ROUND_FRAMES = {FrameType.RING_UPDATE, FrameType.RING_BUCKET, FrameType.RING_CHUNK}
MODES = pytest.mark.parametrize("mode", ["ring-sparse", "ring-dense"])


def training(size: int, mode: str, rounds: int = 11) -> RingCluster:
    cluster = RingCluster(size, mode=mode)
    cluster.start()
    for _ in range(rounds):
        cluster.run()
        cluster.tick(0.5)
    return cluster


def named(said: str) -> set[str]:
    return set(re.findall(r"node-\d|this node", said))


@MODES
@pytest.mark.parametrize("late", range(4))
def test_a_trainer_that_is_stopped_is_named_everywhere(mode: str, late: int) -> None:
    cluster = training(4, mode)
    cluster.tick(1.0)
    cluster.share(*sorted({0, 1, 2, 3} - {late}))
    cluster.settle()
    cluster.tick(2.5)
    for number in range(4):
        whose = "4.0 s for this node's" if number == late else f"2.5 s for node-{late}'s"
        assert cluster.waits()[number] == f"round 12 has waited for {whose} trainer"


@MODES
@pytest.mark.parametrize("stopped", range(4))
@pytest.mark.parametrize("gave", [True, False], ids=["daemon", "daemon and trainer"])
def test_a_daemon_that_is_stopped_is_named_everywhere(mode: str, stopped: int, gave: bool) -> None:
    cluster = training(4, mode)
    cluster.stuck |= {way for way in cluster.queues if stopped in way}
    cluster.share(*sorted({0, 1, 2, 3} - (set() if gave else {stopped})))
    cluster.settle()
    pass_time_without(cluster, 2.5, stopped)
    for number in {0, 1, 2, 3} - {stopped}:
        said = cluster.waits()[number]
        assert re.fullmatch(
            rf"round 12 has waited for 2\.5 s: node-{stopped} not heard for \d\.\d s", said
        ), said


@MODES
def test_a_daemon_that_stops_half_way_through_a_round_is_named_everywhere(mode: str) -> None:
    """Some have the next round under way then."""
    for steps in range(1, 24):
        cluster = training(4, mode, rounds=2)
        cluster.share(0, 1, 2, 3)
        for _ in range(steps):
            for way in list(cluster.queues):
                cluster.deliver(*way)
        pass_time_without(cluster, 3.5, 2)
        for number in (0, 1, 3):
            assert named(cluster.waits()[number]) == {"node-2"}, (steps, cluster.waits())


@MODES
def test_who_gives_late_in_a_round_is_innocent_at_once(mode: str) -> None:
    cluster = training(4, mode)
    cluster.tick(3.0)
    assert cluster.waits()[0].endswith("for the trainers of this node, node-1, node-2 and 1 more")
    cluster.share(0, 1, 3)
    cluster.settle()
    for number in range(4):
        assert named(cluster.waits()[number]) == {"this node" if number == 2 else "node-2"}


@MODES
def test_a_trainer_that_leaves_is_not_waited_for(mode: str) -> None:
    cluster = training(4, mode)
    cluster.give(1, TrainerChanged(active=False))
    cluster.share(0, 3)
    cluster.settle()
    cluster.tick(2.5)
    for number in range(4):
        assert named(cluster.waits()[number]) == {"this node" if number == 2 else "node-2"}


def hold_back(cluster: RingCluster, seconds: float, *ways: tuple[int, int]) -> None:
    """These links bring every STATUS, and nothing of a round before the end."""
    held = []
    end = cluster.now + seconds
    while cluster.now < end:
        cluster.now += 0.5
        for number in range(len(cluster.replicas)):
            cluster.give(number, TimePassed())
        while any(cluster.queues.values()):
            for way, queue in cluster.queues.items():
                if queue and way in ways and queue[0][4] in ROUND_FRAMES:
                    held.append((way, queue.popleft()))
                else:
                    cluster.deliver(*way)
    for way, frame in held:
        cluster.queues[way].append(frame)


@MODES
def test_when_all_have_given_nobody_is_accused(mode: str) -> None:
    cluster = training(4, mode)
    cluster.share(0, 1, 2, 3)
    ways = (1, 2), (3, 0)
    hold_back(cluster, 2.0, *ways)
    assert cluster.waits() == [""] * 4
    hold_back(cluster, 2.0, *ways)
    assert cluster.waits() == ["round 12: all shares are given and on their way for 4.0 s"] * 4
    cluster.settle()
    cluster.assert_all_at(12)


def test_who_has_not_got_the_round_before_is_named_without_its_trainer() -> None:
    cluster = training(4, "ring-sparse")
    cluster.share(0, 1, 2, 3)
    held = []
    while cluster.rounds() != [11, 12, 11, 11]:  # all shares come to node 1, none gets from there to node 2
        for way, queue in cluster.queues.items():
            if queue and way == (1, 2):
                held.append(queue.popleft())
            else:
                cluster.deliver(*way)
    cluster.share(1)
    hold_back(cluster, 2.5, (1, 2))
    for number in range(4):
        said = cluster.waits()[number]
        assert said.endswith("where not all of round 12 has come"), said
        others = {f"node-{each}" for each in {0, 2, 3} - {number}}
        assert named(said) == others | (set() if number == 1 else {"this node"})
    cluster.queues[1, 2].extendleft(reversed(held))
    cluster.settle()
    assert cluster.rounds() == [12] * 4
