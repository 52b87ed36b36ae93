"""What does not fit: shares of other shapes, frames that cannot be, trainers that leave in the middle."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from p2psgd.core.ring.chunks import declaration
from p2psgd.core.ring.reduce import Bucket
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import RingBucket, pack_message
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import ARRAY, CHANGES, BucketContributed, RingChunkHeader, pack_ring_chunk
from tests.core.ring.circle import Circle, ring_sum

ONES = np.ones(50, np.float32)
WHOLE = [(0, 50)]
W = Bucket(CHANGES, 0, 50, "w.0", "(50,)")


def begun(nodes: int = 3) -> Circle:
    circle = Circle(nodes, 50)
    circle.begin(range(nodes))
    while any(circle.links.values()):
        circle.step(Random(1))
    return circle


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_shares_of_other_shapes_are_refused_by_name(odd: int, seed: int) -> None:
    circle = begun()
    for number in range(3):
        circle.plan(number, ONES, [(0, 20), (20, 30)] if number != odd else [(0, 20), (20, 29)])
    random = Random(seed)
    while circle.step(random):
        for number in range(3):
            if circle.nodes[number].rounds.request_stop:
                assert circle.nodes[number].refusals == [circle.nodes[number].rounds.request_stop]
    refused = [number for number in range(3) if circle.nodes[number].refusals]
    assert refused
    assert set(refused) <= {odd, (odd + 1) % 3}
    for number in refused:
        node, left = circle.nodes[number], (number - 1) % 3
        mine, theirs = (29, 30) if number == odd else (30, 29)
        assert node.refusals == [
            f"bucket 1 of round 1 is tensor 'w.1' ({mine},) here and 'w.1' ({theirs},) at node-{left}: "
            "all nodes must give the same tensors in the same order"
        ]
        assert node.alarms == node.refusals
        assert not node.rounds.contributed
    assert not any(node.completed for node in circle.nodes)


def test_an_unlike_share_is_not_passed_on_by_whoever_it_had_refused_but_after_a_failure_timeout() -> None:
    circle = begun(4)
    for number in range(3):
        circle.plan(number, ONES, WHOLE if number else [(0, 49)])
    for number in (0, 1):
        circle.give(number)
        while any(circle.links.values()):
            circle.deliver(*next(link for link, queue in circle.links.items() if queue))
    assert [len(node.refusals) for node in circle.nodes] == [0, 1, 0, 0]
    circle.stop(0)
    circle.sleep(1)
    circle.begin(range(4))
    circle.give(2)
    circle.run(Random(1))
    right = circle.nodes[1].rounds
    right.tick(circle.now)
    circle.run(Random(1))
    assert not circle.nodes[2].refusals
    right.tick(circle.now + circle.nodes[1].replica.timing.failure_timeout_s)
    circle.collect(1)
    circle.run(Random(1))
    assert "at node-1" in circle.nodes[2].refusals[0]


def test_an_unlike_share_is_passed_on_a_failure_timeout_after_the_first_refusal_however_many_follow() -> None:
    circle = begun(2)
    circle.plan(0, ONES, WHOLE, call="odd")
    circle.run(Random(1))
    right = circle.nodes[1]
    for refusals in (1, 2, 3):
        assert not right.completed
        right.active = True
        right.rounds.activate(True, circle.now)
        circle.plan(1, ONES, WHOLE)
        circle.run(Random(1))
        assert len(right.refusals) == refusals
        circle.sleep(1)
        circle.stop(0)
        circle.begin(range(2))
        circle.run(Random(1))
        circle.now += 0.6 * right.replica.timing.failure_timeout_s
    assert [(done.round, done.contributors, done.own) for done in right.completed] == [(1, 1, False)]


def test_an_array_where_others_train_is_refused() -> None:
    circle = begun(2)
    circle.plan(0, ONES, WHOLE)
    circle.plan(1, ONES, WHOLE, kind=ARRAY, call="mine")
    circle.run(Random(1))
    refusals = [words for node in circle.nodes for words in node.refusals]
    assert refusals
    assert all("array 'mine.0' (50,)" in words and "tensor 'w.0' (50,)" in words for words in refusals)


def test_after_a_refusal_the_right_share_may_come() -> None:
    circle = begun(2)
    circle.plan(0, ONES, WHOLE)
    circle.plan(1, ONES, [(0, 49)])
    circle.run(Random(3))
    for number in range(2):
        circle.stop(number)
        if circle.nodes[number].refusals:
            circle.plan(number, ONES, WHOLE)
    circle.begin(range(2), view=2)
    circle.run(Random(4))
    assert [node.completed[0].contributors for node in circle.nodes] == [2, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 20, 49])
@pytest.mark.parametrize("kind", [CHANGES, ARRAY])
def test_a_share_that_is_not_finite_is_refused_here_and_goes_nowhere(
    bad: float, place: int, kind: int
) -> None:
    circle = begun()
    share = ONES.copy()
    share[place] = bad
    circle.plan(0, share, WHOLE, kind=kind, call="mine")
    for number in (1, 2):
        circle.plan(number, ONES, WHOLE, kind=kind, call="mine")
    circle.run(Random(place))
    words = f"'mine.0' (50,) is refused: number {place} is {bad:g}, not finite"
    assert [node.refusals for node in circle.nodes] == [[words], [], []]
    assert circle.nodes[0].rounds.request_stop == words
    assert not any(node.completed for node in circle.nodes)
    for node in circle.nodes[1:]:
        assert np.isfinite(node.memory.sums).all()
    for number in range(3):
        circle.stop(number)
    circle.plan(0, ONES, WHOLE, kind=kind, call="mine")
    circle.begin(range(3), view=2)
    circle.run(Random(4))
    assert [node.completed[0].contributors for node in circle.nodes] == [3, 3, 3]


def test_more_than_a_whole_share_is_refused() -> None:
    circle = begun(2)
    circle.plan(0, ONES, WHOLE)
    circle.give(0)
    node = circle.nodes[0]
    node.rounds.share(BucketContributed(CHANGES, 0, 50, "again", "(50,)"), circle.now)
    circle.collect(0)
    assert node.refusals == ["'again' came after the whole share of round 1"]


def test_a_trainer_that_leaves_in_the_middle_ends_the_generation() -> None:
    circle = begun()
    for number in range(3):
        circle.plan(number, ONES, [(0, 20), (20, 30)])
    circle.give(0)
    circle.sleep(0)
    node = circle.nodes[0]
    assert node.rounds.request_stop == "the trainer left before its share was whole"
    assert not node.rounds.contributed
    circle.begin(range(3), view=2)
    assert not node.rounds.request_stop
    circle.nodes[0].to_give.clear()
    circle.run(Random(5))
    assert [node.completed[0].contributors for node in circle.nodes] == [2, 2, 2]
    assert not circle.nodes[0].completed[0].own


def test_a_trainer_that_leaves_after_its_share_leaves_it() -> None:
    circle = begun()
    for number in range(3):
        circle.plan(number, ONES, WHOLE)
    circle.give(0)
    circle.sleep(0)
    assert circle.nodes[0].rounds.contributed
    circle.run(Random(5))
    assert [node.completed[0].contributors for node in circle.nodes] == [3, 3, 3]
    assert not circle.nodes[0].rounds.contributed


def test_a_trainer_that_leaves_before_gives_nothing_to_what_is_under_way() -> None:
    circle = begun()
    for number in (1, 2):
        circle.plan(number, ONES, WHOLE)
    circle.run(Random(5))
    assert not any(node.completed for node in circle.nodes)
    circle.sleep(0)
    assert circle.nodes[0].rounds.contributed
    circle.run(Random(5))
    assert [node.completed[0].contributors for node in circle.nodes] == [2, 2, 2]


def test_a_trainer_that_comes_in_the_middle_waits_for_the_next_round() -> None:
    circle = begun()
    circle.sleep(0)
    for number in (1, 2):
        circle.plan(number, ONES, WHOLE)
    circle.give(2)  # the left neighbour of node 0
    while circle.links[2, 0]:
        circle.deliver(2, 0)
    node = circle.nodes[0]
    assert node.rounds.contributed  # nothing
    node.active = True
    node.rounds.activate(True, circle.now)
    assert node.rounds.contributed
    node.memory.shares[:50] = 5  # given all the same: it is kept for the next round
    node.rounds.share(BucketContributed(CHANGES, 0, 50, "w.0", "(50,)"), circle.now)
    circle.collect(0)
    circle.run(Random(1))
    assert [(done.round, done.contributors, done.own) for done in node.completed] == [(1, 2, False)]
    assert node.rounds.contributed
    for number in (1, 2):
        circle.plan(number, ONES, WHOLE)
    circle.run(Random(1))
    assert (node.completed[1].contributors, node.completed[1].own) == (3, True)
    assert node.results[1][:50].tobytes() == ring_sum([5 * ONES, ONES, ONES], WHOLE).tobytes()


# -- frames


def bucket_frame(**changes: int) -> bytes:
    message = declaration(1, 1, 1, 0, W)
    return pack_message(RingBucket(**message.model_dump() | changes))


def chunk_frame(**changes: int) -> bytes:
    """Of 50 numbers and three nodes the first chunk that node 1 receives is 0 to 16."""
    fields = {"view": 1, "generation": 1, "round": 1, "bucket": 0, "hop": 0, "offset": 0, "contributors": 1}
    count, cut = changes.pop("count", 16), changes.pop("cut", 0)
    numbers = np.full(count, 7, np.float32).tobytes()
    body = pack_ring_chunk(RingChunkHeader(**fields | changes), numbers) + numbers
    return pack_frame(FrameType.RING_CHUNK, body[: len(body) - cut])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 2}, "a bucket of round 2, hop 0, was declared in round 1"),
        ({"hop": 1}, "a bucket of round 1, hop 1, was declared in round 1"),
        ({"contributors": 1}, "was declared in round 1"),
        ({"bucket": 1}, "bucket 1 was declared after 0 others"),
        ({"count": 51}, "ends at weight 51 of 50"),
        ({"offset": 1}, "ends at weight 51 of 50"),
        ({"kind": 1, "count": 2**31}, "numbers: at most 262144 fit"),
        ({"kind": 1, "offset": 1}, "numbers: at most 262144 fit"),
    ],
)
def test_a_bucket_that_cannot_be_is_the_neighbours_fault(changes: dict[str, int], words: str) -> None:
    circle = begun()
    with pytest.raises(PeerError, match=words):
        circle.on_message(0, 1, bucket_frame(**changes))
    circle.on_message(0, 1, bucket_frame())
    with pytest.raises(PeerError, match="bucket 0 was declared after 1 others"):
        circle.on_message(0, 1, bucket_frame())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 2}, "numbers of round 2 came in round 1"),
        ({"bucket": 1}, "numbers came of bucket 1, of 1 declared"),
        ({"hop": 1}, "came where 0 to 16 belong at hop 0"),
        ({"hop": 2}, "came where 0 to 16 belong at hop 0"),
        ({"offset": 1}, "numbers 1 to 17 at hop 0 came where 0 to 16 belong"),
        ({"count": 17}, "numbers 0 to 17 at hop 0 came where"),
        ({"contributors": 2}, "cannot be sums of 2 shares"),
        ({"cut": 1}, "a chunk of 63 bytes does not hold whole numbers"),
        ({"cut": 4}, "the checksum of a chunk"),
        ({"cut": 64}, "holds no numbers"),
    ],
)
def test_numbers_that_cannot_be_are_the_neighbours_fault(changes: dict[str, int], words: str) -> None:
    circle = begun()
    circle.on_message(0, 1, bucket_frame())
    sums = circle.nodes[1].memory.sums
    before = sums.copy()
    with pytest.raises(PeerError, match=words):
        circle.on_message(0, 1, chunk_frame(**changes))
    assert sums[0].tobytes() == before[0].tobytes()  # what the trainer may be reading
    current = circle.nodes[1].rounds._round
    assert current is not None
    assert current.heard == 0
    circle.on_message(0, 1, chunk_frame())
    assert sums[1][:16].tolist() == [7] * 16
    assert current.heard == 1


def test_what_is_of_another_generation_or_not_from_the_left_is_dropped_unread() -> None:
    circle = begun()
    broken = bytearray(chunk_frame(generation=2, round=9, bucket=77))
    broken[-1] ^= 1  # not even its checksum is looked at
    for frame in (bytes(broken), bucket_frame(generation=2, round=9), bucket_frame(view=2, bucket=5)):
        circle.on_message(0, 1, frame)
    wrong = bytearray(chunk_frame())
    wrong[-1] ^= 1
    circle.on_message(2, 1, bytes(wrong))
    circle.on_message(2, 1, bucket_frame(bucket=9))
    circle.stop(1)
    circle.on_message(0, 1, bytes(wrong))
    circle.on_message(0, 1, bucket_frame(bucket=9))
    assert not circle.nodes[1].memory.sums.any()
