"""Who gives a dense round's sums to whom: one to each that lacks the last round and nothing else."""

from __future__ import annotations

from typing import cast

import pytest

from p2psgd.core.events import FrameReceived, LinkOpened, RingChunk
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.ring.chunks import declaration
from p2psgd.core.ring.formation import RingStates
from p2psgd.core.ring.reduce import Bucket
from p2psgd.core.ring.rounds import Rounds
from p2psgd.core.ring.stragglers import ResultServer
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.ring_messages import ARRAY, RESULT_HOP, RingChunkHeader, RingState, pack_ring_chunk
from tests.core.cluster import by_origin
from tests.core.ring.cluster import RingCluster

RING = Origin(0, 0)


class Given:
    """Rounds that only note to whom results are given."""

    def __init__(self, done: int) -> None:
        self.done = done
        self.to: list[int] = []

    def give_result(self, peer: Peer, now: float) -> None:
        self.to.append(peer.origin.node)


class Scene:
    """Node 1 of view 1 has completed round 12, which changed weights; the others told what the test says."""

    def __init__(self) -> None:
        self.cluster = RingCluster(4)
        self.cluster.start()
        self.replica = self.cluster.replica(1)
        self.given = Given(12)
        self.ring_states = RingStates()
        self.laggards = ResultServer(
            self.replica.cluster,
            self.replica.state,
            ring_states=self.ring_states,
            rounds=cast(Rounds, self.given),
        )
        frontier = self.replica.frontier
        frontier.replace([FrontierRow(*RING, 11, 5)])
        self.laggards.begin()
        frontier.replace([FrontierRow(*RING, 12, 6)])
        self.laggards.completed()

    def tell(
        self, number: int, done: int, *, at: tuple[int, int], running: bool = False, view: int = 1
    ) -> None:
        me = self.cluster.replica(number).me
        self.ring_states.on_state(me, RingState(1, done, running, active=True, contributed=True), view, 0.0)
        self.replica.peers[me].status = by_origin([FrontierRow(*RING, *at)])

    def served(self, now: float = 0.0) -> list[int]:
        self.laggards.serve(now)
        return self.given.to


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_who_lacks_just_that_round_is_given_it(scene: Scene) -> None:
    scene.tell(0, 11, at=(11, 5))
    scene.tell(2, 12, at=(12, 6))
    scene.tell(3, 11, at=(11, 5))
    assert scene.served() == [1, 4]


def test_the_first_of_those_that_have_it_gives_it(scene: Scene) -> None:
    scene.tell(0, 12, at=(12, 6))
    scene.tell(3, 11, at=(11, 5))
    assert not scene.served()


def test_the_next_gives_it_if_the_first_has_no_sums_of_it(scene: Scene) -> None:
    scene.tell(0, 12, at=(12, 6))
    scene.tell(3, 11, at=(11, 5))
    failure_timeout_s = scene.replica.timing.failure_timeout_s
    assert not scene.served()
    assert not scene.served(2 * failure_timeout_s - 0.1)
    scene.tell(3, 12, at=(12, 6))
    assert not scene.served(2 * failure_timeout_s)
    scene.tell(3, 11, at=(11, 5))
    assert not scene.served(3 * failure_timeout_s)
    assert scene.served(5 * failure_timeout_s) == [4]


def test_nobody_is_given_it_while_one_runs(scene: Scene) -> None:
    scene.tell(2, 12, at=(12, 6), running=True)
    scene.tell(3, 11, at=(11, 5))
    assert not scene.served()


@pytest.mark.parametrize(("done", "at"), [(10, (10, 4)), (11, (11, 7)), (12, (12, 6)), (11, (12, 6))])
def test_who_is_elsewhere_is_not_given_it(scene: Scene, done: int, at: tuple[int, int]) -> None:
    scene.tell(3, done, at=at)
    assert not scene.served()


def test_who_does_not_know_the_view_is_not_given_it(scene: Scene) -> None:
    scene.tell(3, 11, at=(11, 5), view=2)
    assert not scene.served()


def test_a_round_that_changed_no_weight_left_no_trace(scene: Scene) -> None:
    scene.given.done = 13
    scene.laggards.completed()
    scene.tell(3, 12, at=(12, 6))
    assert scene.served() == [4]


@pytest.mark.parametrize(("giver", "done"), [(Origin(9, 1), 0), (Origin(2, 1), 1)])
def test_only_members_give_it(giver: Origin, done: int) -> None:
    cluster = RingCluster(2, mode="ring-dense")
    cluster.start()
    cluster.cut(0, 1)
    taker = cluster.replica(0)
    taker.handle(LinkOpened(giver, "giver"), cluster.now)
    bucket = declaration(1, 1, 1, 0, Bucket(ARRAY, 0, 1, "array", "(1,)"), hop=RESULT_HOP, contributors=2)
    numbers = bytes(4)
    head = pack_ring_chunk(RingChunkHeader(1, 1, 1, 0, RESULT_HOP, 0, 2), numbers)
    taker.handle(FrameReceived(giver, bucket), cluster.now)
    taker.handle(FrameReceived(giver, RingChunk(head + numbers)), cluster.now)
    assert cluster.ring(0).rounds.done == done
