"""A share that cannot be is refused as soon as its first wrong part comes: nothing of it is applied, kept or
passed on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psgd.core.effects import Send
from p2psgd.core.events import FrameReceived, RingChunk, RingUpdate
from p2psgd.core.frontier import Origin
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.ring_messages import RingUpdateHeader, pack_ring_update
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.core.cluster import WEIGHTS, make_words
from tests.core.ring.cluster import RingCluster

WORDS = make_words([3, 9, 4000])


@pytest.fixture
def cluster() -> RingCluster:
    """Four nodes; node 0 gives two updates to round 1, and node 1 is to hear of it from the test."""
    cluster = RingCluster(4)
    cluster.start()
    return cluster


def header(cluster: RingCluster, **changes: int) -> RingUpdateHeader:
    generation = cluster.ring(1).generation
    assert generation is not None
    node = cluster.replica(0).me.node
    right = RingUpdateHeader(generation.view, generation.number, 1, node, part=0, parts=2)
    return replace(right, **changes)


def update(cluster: RingCluster, *, magnitude: int = 5, **changes: int) -> tuple[UpdateHeader, bytes]:
    """The first that node 0 makes."""
    digest = codec.digest_words(WORDS, magnitude, cluster.spec.key)
    right = UpdateHeader(*cluster.replica(0).me, 1, digest, 1, magnitude, len(WORDS))
    for name, value in changes.items():
        setattr(right, name, value)
    return right, codec.encode(WORDS, WEIGHTS)


def on_message(cluster: RingCluster, event: FrameReceived) -> None:
    """Node 1 hears it from node 0, and must not pass anything on."""
    effects = cluster.give(1, event)
    assert not [effect for effect in effects if isinstance(effect, Send) and is_part(effect)]


def is_part(effect: Send) -> bool:
    return effect.frame[PREFIX.size - 1] == FrameType.RING_UPDATE


def tell(cluster: RingCluster, of: RingUpdateHeader, body: bytes) -> None:
    on_message(cluster, FrameReceived(cluster.replica(0).me, RingUpdate(pack_ring_update(of, body))))


def assert_refused(cluster: RingCluster, reason: str, words: str) -> None:
    assert [(number, drop.code.label) for number, drop in cluster.drops] == [(1, reason)]
    assert words in cluster.drops[0][1].details
    assert len(cluster.replica(1).frontier) == 0
    assert cluster.rounds() == [0] * 4


def test_a_right_part_is_kept_and_passed_on(cluster: RingCluster) -> None:
    body = pack_ring_update(header(cluster), pack_update(*update(cluster)))
    effects = cluster.give(1, FrameReceived(cluster.replica(0).me, RingUpdate(body)))
    assert [effect.peer.node for effect in effects if isinstance(effect, Send) and is_part(effect)] == [3]
    assert not cluster.drops
    assert len(cluster.replica(1).frontier) == 0


def test_a_digest_that_does_not_fit_is_refused_with_an_alarm(cluster: RingCluster) -> None:
    tell(cluster, header(cluster), pack_update(*update(cluster, digest=1)))
    assert_refused(cluster, "digest", "does not fit its digest")
    assert len(cluster.alarms) == 1


def test_an_index_beyond_the_weights_is_refused(cluster: RingCluster) -> None:
    words = make_words([3, WEIGHTS])
    right, _ = update(cluster, count=2)
    tell(cluster, header(cluster), pack_update(right, codec.encode(words, WEIGHTS + 1)))
    assert_refused(cluster, "payload", "")


@pytest.mark.parametrize(("base", "count"), [(0, 3), (3, 3), (0, 0)])
def test_a_part_with_an_owners_cover_is_refused(cluster: RingCluster, base: int, count: int) -> None:
    """Its indices are counted from a base, which those that fetch it later would see, and the round not."""
    right, payload = update(cluster, base=base, count=count)
    right.cover = ()
    if not count:
        right.magnitude, payload = 1, b""
    tell(cluster, header(cluster), pack_update(right, payload))
    assert_refused(cluster, "encoding", "an update has a cover")


def test_a_changed_bit_is_refused(cluster: RingCluster) -> None:
    body = bytearray(pack_update(*update(cluster)))
    body[70] ^= 1
    tell(cluster, header(cluster), bytes(body))
    assert_refused(cluster, "checksum", "checksum")


@pytest.mark.parametrize("sequence", [2, 9])
def test_a_gap_is_refused(cluster: RingCluster, sequence: int) -> None:
    tell(cluster, header(cluster), pack_update(*update(cluster, sequence=sequence)))
    assert_refused(cluster, "sequence", f"sequence {sequence}")


@pytest.mark.parametrize(("part", "parts"), [(1, 2), (0, 4097)])
def test_a_part_that_is_not_the_next_is_refused(cluster: RingCluster, part: int, parts: int) -> None:
    tell(cluster, header(cluster, part=part, parts=parts), pack_update(*update(cluster)))
    assert_refused(cluster, "ring", f"part {part} of {parts}")


def test_a_part_that_comes_twice_is_refused(cluster: RingCluster) -> None:
    body = pack_update(*update(cluster))
    cluster.give(1, FrameReceived(cluster.replica(0).me, RingUpdate(pack_ring_update(header(cluster), body))))
    tell(cluster, header(cluster), body)
    assert_refused(cluster, "ring", "part 0 of 2")


def test_a_share_that_is_whole_has_no_more_parts(cluster: RingCluster) -> None:
    empty = pack_ring_update(header(cluster, parts=0), b"")
    cluster.give(1, FrameReceived(cluster.replica(0).me, RingUpdate(empty)))
    on_message(cluster, FrameReceived(cluster.replica(0).me, RingUpdate(empty)))
    assert_refused(cluster, "ring", "part 0 of 0")


@pytest.mark.parametrize("number", [2, 7])
def test_a_share_of_another_round_is_refused(cluster: RingCluster, number: int) -> None:
    tell(cluster, header(cluster, round=number), pack_update(*update(cluster)))
    assert_refused(cluster, "ring", f"round {number} came while round 1 is under way")


@pytest.mark.parametrize("node", [2, 77])
def test_a_share_of_nobody_or_of_this_node_is_refused(cluster: RingCluster, node: int) -> None:
    tell(cluster, header(cluster, node=node), pack_update(*update(cluster)))
    assert_refused(cluster, "ring", "cannot be whose share")


@pytest.mark.parametrize("origin", [Origin(1, 9), Origin(3, 1)])
def test_an_update_of_another_life_is_refused(cluster: RingCluster, origin: Origin) -> None:
    wrong = update(cluster, node=origin.node, incarnation=origin.incarnation)
    tell(cluster, header(cluster), pack_update(*wrong))
    assert_refused(cluster, "ring", "as part of")


@pytest.mark.parametrize("changes", [{"generation": 2}, {"generation": 0}, {"view": 2}])
def test_a_frame_of_another_generation_is_dropped_unread(
    cluster: RingCluster, changes: dict[str, int]
) -> None:
    tell(cluster, header(cluster, **changes), b"anything")
    assert not cluster.drops
    assert cluster.ring(1).rounds.missing == [cluster.replica(number).me for number in range(4)]


def test_a_frame_that_is_not_from_the_left_is_dropped_unread(cluster: RingCluster) -> None:
    on_message(
        cluster,
        FrameReceived(cluster.replica(3).me, RingUpdate(pack_ring_update(header(cluster), b"anything"))),
    )
    assert not cluster.drops
    assert len(cluster.ring(1).rounds.missing) == 4


def test_numbers_are_refused_in_a_sparse_ring(cluster: RingCluster) -> None:
    bucket = RingBucket(
        view=1,
        generation=1,
        round=1,
        bucket=0,
        kind=0,
        offset=0,
        count=1,
        name="",
        shape="",
        hop=0,
        contributors=0,
    )
    for event in (
        FrameReceived(cluster.replica(0).me, bucket),
        FrameReceived(cluster.replica(0).me, RingChunk(b"")),
    ):
        on_message(cluster, event)
        assert_refused(cluster, "ring", "of a dense ring")
        cluster.drops.clear()


def test_a_share_beyond_all_weights_is_refused(cluster: RingCluster) -> None:
    """Each of its updates could be: a share's memory must have a bound all the same."""
    words = make_words(list(range(3000)))
    digest = 0
    for part in range(2):
        digest = (digest + codec.digest_words(words, 5, cluster.spec.key)) % 2**64
        of_update = UpdateHeader(*cluster.replica(0).me, part + 1, digest, 1, 5, len(words))
        body = pack_update(of_update, codec.encode(words, WEIGHTS))
        framed = pack_ring_update(header(cluster, part=part), body)
        cluster.give(1, FrameReceived(cluster.replica(0).me, RingUpdate(framed)))
    assert_refused(cluster, "count", "changes 6000 weights")
