"""The simulator's rules for what a snapshot brings: each hole in its tail is found, whosever update it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import FrameReceived, TimePassed
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import SnapshotRequest
from tests.core.cluster import Cluster
from tests.core.uneven import ASKER, DONOR, applied, make_uneven, numbers_in
from tests.sim.exchange import EXCHANGED, Exchange
from tests.sim.outcome import Violation
from tests.sim.whole import Grave


class Given:
    """A snapshot that the donor of an uneven cluster has given, frame by frame."""

    def __init__(self) -> None:
        cluster = make_uneven(Cluster)
        self.donor, self.asker = cluster.replica(DONOR), cluster.replica(ASKER).me
        self.incarnations = {
            each.me: Grave(each.me, applied(each), each.membership.view.number, None)
            for each in cluster.alive()
        }
        queue = cluster.queues[DONOR, ASKER]
        queue.clear()
        cluster.give(DONOR, FrameReceived(self.asker, SnapshotRequest(view=0)))
        self.frames = [frame for frame in queue if frame[4] in EXCHANGED]

    def origin_of(self, frame: bytes) -> Origin | None:
        """Whose update a frame of the tail is."""
        if frame[4] != FrameType.SNAPSHOT_TAIL:
            return None
        return next(origin for origin, numbers in numbers_in(self.donor, [frame]).items() if numbers)

    def check(self, frames: list[bytes], *, replaced_meanwhile: bool = False) -> None:
        """The frames are sent, with one event, which may also have brought another replica."""
        exchange, event = Exchange(self.donor, self.incarnations.get), TimePassed()
        if replaced_meanwhile:
            exchange.replaced(event)
        for frame in frames:
            exchange.sent(self.asker, frame, event)


@pytest.fixture(scope="module")
def given() -> Given:
    return Given()


def test_a_tail_as_it_must_be_passes(given: Given) -> None:
    given.check(given.frames)


def test_a_tail_without_the_oldest_it_needs_of_any_origin_is_found(given: Given) -> None:
    origins = {origin for frame in given.frames if (origin := given.origin_of(frame))}
    assert origins == set(given.donor.frontier)
    for origin in origins:
        oldest = max(i for i, frame in enumerate(given.frames) if given.origin_of(frame) == origin)
        with pytest.raises(Violation, match="without"):
            given.check(given.frames[:oldest] + given.frames[oldest + 1 :])


def test_a_tail_is_not_compared_with_the_log_that_replaced_its_own(given: Given) -> None:
    given.check([given.frames[0], given.frames[-1]], replaced_meanwhile=True)
    with pytest.raises(Violation, match="without"):
        given.check([given.frames[0], given.frames[-1]])


@pytest.mark.parametrize("change", [lambda tail: tail[1:], lambda tail: tail[::-1], lambda tail: tail * 2])
def test_a_tail_in_another_order_is_found(given: Given, change: Callable[[list[bytes]], list[bytes]]) -> None:
    tail = [frame for frame in given.frames if given.origin_of(frame)]
    with pytest.raises(Violation, match="in place of"):
        given.check([given.frames[0], *change(tail), given.frames[-1]])


def test_a_tail_with_what_all_others_were_known_to_have_is_found(given: Given) -> None:
    me = given.donor.me
    oldest = max(i for i, frame in enumerate(given.frames) if given.origin_of(frame) == me)
    before = given.donor.log.frame(me, 2)
    assert before is not None
    more = pack_frame(FrameType.SNAPSHOT_TAIL, before[PREFIX.size :])
    with pytest.raises(Violation, match="though it knew that all members had 2"):
        given.check([*given.frames[: oldest + 1], more, *given.frames[oldest + 1 :]])
