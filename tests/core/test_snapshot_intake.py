from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.snapshot_install import SnapshotIntake
from p2psgd.core.update_log import ENTRY_BYTES, UpdateLog
from p2psgd.wire import codec
from p2psgd.wire.cover import pack_table
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.core.cluster import WEIGHTS, initial_coordinates, make_words

KEY = 0xFEDC_BA98_7654_3210
A, B = Origin(1, 5), Origin(2, 5)
PLENTY = 1 << 20


@dataclass(frozen=True)
class Donor:
    """Initial coordinates with six updates of A and three of B applied."""

    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    bodies: dict[tuple[Origin, int], bytes]

    def tail(self, *entries: tuple[Origin, int]) -> list[bytes]:
        return [self.bodies[entry] for entry in entries]

    def intake(self, *, tail_bytes_max: int = PLENTY, owners: bool = False) -> SnapshotIntake:
        return SnapshotIntake(
            WEIGHTS,
            KEY,
            self.rows,
            self.digest,
            log=UpdateLog(budget_bytes=PLENTY),
            tail_bytes_max=tail_bytes_max,
            owners=owners,
        )

    def chunks(self, bytes_each: int = 4096) -> list[bytes]:
        data = self.coordinates.astype("<i4").tobytes()
        return [data[start : start + bytes_each] for start in range(0, len(data), bytes_each)]


def make_donor(*, wrong_at: int = 0) -> Donor:
    """`wrong_at`: from that update of A on, its digest is not what the words make."""
    coordinates, rows, bodies = initial_coordinates(), [], {}
    for origin, count in ((A, 6), (B, 3)):
        digest = 0
        for sequence in range(1, count + 1):
            words = make_words([sequence, 40 * sequence, 4999], bool(sequence % 2))
            wrong = 12345 if origin == A and sequence == wrong_at else 0
            digest = (digest + codec.digest_words(words, 3, KEY) + wrong) % 2**64
            header = UpdateHeader(*origin, sequence, digest, sequence, 3, len(words))
            bodies[origin, sequence] = pack_update(header, codec.encode(words, WEIGHTS))
            codec.apply_coordinates(coordinates, words, 3)
        rows.append(FrontierRow(*origin, count, digest))
    return Donor(coordinates, rows, codec.digest_coordinates(coordinates, KEY), bodies)


TAIL = [(A, 6), (A, 5), (B, 3), (B, 2)]


def take(intake: SnapshotIntake, chunks: list[bytes], tail: list[bytes]) -> SnapshotIntake:
    for chunk in chunks:
        intake.chunk(chunk)
    for body in tail:
        intake.tail(body)
    intake.end(len(tail))
    return intake


def frames(intake: SnapshotIntake) -> dict[tuple[Origin, int], bytes]:
    """The tail that came, from each origin's newest to its oldest."""
    found = {}
    for origin, lane in intake.origin_logs.items():
        for sequence, entry in zip(range(lane.last, lane.trimmed_to, -1), lane.entries, strict=True):
            assert isinstance(entry, bytes)
            found[origin, sequence] = entry
    return found


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(PeerError) as caught:
        call()
    assert caught.value.code is RejectCode.SNAPSHOT
    words = str(caught.value)
    assert words.startswith("a snapshot was refused: ")
    return words.removeprefix("a snapshot was refused: ")


@pytest.mark.parametrize("bytes_each", [4, 4092, 4096, 20_000, 30_000])
def test_a_whole_snapshot_is_taken_as_it_was(bytes_each: int) -> None:
    donor = make_donor()
    intake = take(donor.intake(), donor.chunks(bytes_each), donor.tail(*TAIL))
    assert intake.coordinates.dtype == np.int32
    assert intake.coordinates.tobytes() == donor.coordinates.tobytes()
    assert intake.magnitude_max == max(map(abs, donor.coordinates.tolist()))
    assert frames(intake) == {entry: pack_frame(FrameType.UPDATE, donor.bodies[entry]) for entry in TAIL}


def test_a_snapshot_before_the_first_update_has_no_rows_and_no_tail() -> None:
    coordinates = initial_coordinates()
    donor = Donor(coordinates, [], codec.digest_coordinates(coordinates, KEY), {})
    intake = take(donor.intake(), donor.chunks(), [])
    assert (intake.rows, intake.origin_logs) == ([], {})


def test_the_whole_log_may_come() -> None:
    donor = make_donor()
    entries = [(B, sequence) for sequence in (3, 2, 1)] + [(A, sequence) for sequence in range(6, 0, -1)]
    assert len(frames(take(donor.intake(), donor.chunks(), donor.tail(*entries)))) == 9


@pytest.mark.parametrize("entries", [[(A, 6), (B, 3), (A, 5), (B, 2)], [(B, 3)], []])
def test_wherever_the_donor_stops_what_has_come_joins_the_frontier(entries: list[tuple[Origin, int]]) -> None:
    donor = make_donor()
    intake = take(donor.intake(), donor.chunks(), donor.tail(*entries))
    assert sorted(frames(intake)) == sorted(entries)
    assert {origin: lane.last for origin, lane in intake.origin_logs.items()} == {A: 6, B: 3}


def test_what_came_counts_in_the_log_until_it_is_discarded() -> None:
    donor = make_donor()
    log = UpdateLog(budget_bytes=PLENTY)
    intake = SnapshotIntake(WEIGHTS, KEY, donor.rows, donor.digest, log=log, tail_bytes_max=PLENTY)
    take(intake, donor.chunks(), donor.tail(*TAIL))
    assert log.bytes_held == sum(5 + len(donor.bodies[entry]) + ENTRY_BYTES for entry in TAIL)
    assert len(log) == 0
    intake.discard()
    log.tidy()
    assert log.bytes_held == 0


@pytest.mark.parametrize("length", [0, 1, 3, 4097])
def test_a_chunk_is_whole_coordinates(length: int) -> None:
    words = refusal(lambda: make_donor().intake().chunk(bytes(length)))
    assert words == f"a chunk of {length} bytes is not whole coordinates"


def test_too_many_coordinates_are_refused_before_one_is_written() -> None:
    donor = make_donor()
    intake = donor.intake()
    for chunk in donor.chunks():
        intake.chunk(chunk)
    assert refusal(lambda: intake.chunk(bytes(8))) == "5002 coordinates came for a replica of 5000"
    assert (
        refusal(lambda: donor.intake().chunk(bytes(4 * 5001)))
        == "5001 coordinates came for a replica of 5000"
    )


def test_too_few_coordinates_are_refused() -> None:
    donor = make_donor()
    intake = donor.intake()
    for chunk in donor.chunks()[:-1]:
        intake.chunk(chunk)
    words = "4096 of 5000 coordinates came"
    assert refusal(lambda: intake.end(0)) == words
    assert refusal(lambda: intake.tail(donor.bodies[A, 6])) == words


@pytest.mark.parametrize("value", [2**24 + 1, -(2**24) - 1, -(2**31), 2**31 - 1])
def test_a_coordinate_beyond_the_limit_is_refused(value: int) -> None:
    chunk = np.array([0, value, 1], "<i4").tobytes()
    words = f"a coordinate of magnitude {abs(value)} is beyond 16777216"
    assert refusal(lambda: make_donor().intake().chunk(chunk)) == words


@settings(max_examples=50)
@given(index=st.integers(0, WEIGHTS - 1), difference=st.integers(-1000, 1000).filter(bool))
def test_any_other_coordinate_is_found_with_the_last_chunk(index: int, difference: int) -> None:
    donor = make_donor()
    donor.coordinates[index] += difference
    *chunks, last = donor.chunks()
    intake = donor.intake()
    for chunk in chunks:
        intake.chunk(chunk)
    assert refusal(lambda: intake.chunk(last)) == "its coordinates do not have its digest"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(A, 6), (A, 6)], "update 6 of 0000000000000001 came where update 5 belongs"),
        ([(A, 6), (A, 4)], "update 4 of 0000000000000001 came where update 5 belongs"),
        ([(A, 6), (A, 5), (A, 6)], "update 6 of 0000000000000001 came where update 4 belongs"),
        ([(A, 5)], "update 5 of 0000000000000001 came where update 6 belongs"),
        ([(B, 3), (B, 1)], "update 1 of 0000000000000002 came where update 2 belongs"),
    ],
)
def test_a_tail_leads_from_the_frontier_down_without_holes(
    entries: list[tuple[Origin, int]], words: str
) -> None:
    donor = make_donor()
    assert refusal(lambda: take(donor.intake(), donor.chunks(), donor.tail(*entries))) == words


def test_as_many_frames_as_the_donor_sent_must_have_come() -> None:
    donor = make_donor()
    intake = take(donor.intake(), donor.chunks(), donor.tail(*TAIL))
    assert refusal(lambda: intake.end(5)) == "4 of its 5 frames came"
    assert refusal(lambda: intake.end(3)) == "4 of its 3 frames came"


def test_a_frame_beyond_the_frontier_or_of_a_stranger_is_refused() -> None:
    donor = make_donor()
    shorter = replace(
        donor, rows=[row._replace(sequence=5) if row.node == A.node else row for row in donor.rows]
    )
    words = refusal(lambda: take(shorter.intake(), donor.chunks(), donor.tail((A, 6))))
    assert words == "update 6 of 0000000000000001 came where update 5 belongs"
    words = refusal(
        lambda: take(replace(donor, rows=donor.rows[1:]).intake(), donor.chunks(), donor.tail((A, 1)))
    )
    assert words == "update 1 of 0000000000000001 came where update 0 belongs"


def test_a_frame_that_leaves_its_origins_digest_is_refused() -> None:
    donor = make_donor(wrong_at=4)
    entries = [(A, sequence) for sequence in range(6, 2, -1)]
    words = refusal(lambda: take(donor.intake(), donor.chunks(), donor.tail(*entries)))
    assert words == "update 3 of 0000000000000001 does not have the digest that what comes after it states"


def test_a_first_update_starts_at_digest_0() -> None:
    donor = make_donor(wrong_at=1)
    entries = [(A, sequence) for sequence in range(6, 0, -1)]
    words = refusal(lambda: take(donor.intake(), donor.chunks(), donor.tail(*entries)))
    assert words == "update 1 of 0000000000000001 does not start at digest 0"


def test_a_frame_that_does_not_have_the_digest_of_the_frontier_is_refused() -> None:
    donor = make_donor()
    rows = [row._replace(digest=row.digest ^ 1) for row in donor.rows]
    words = refusal(lambda: take(replace(donor, rows=rows).intake(), donor.chunks(), donor.tail((B, 3))))
    assert words == "update 3 of 0000000000000002 does not have the digest that what comes after it states"


def test_the_tail_has_no_more_bytes_than_allowed() -> None:
    donor = make_donor()
    exact = sum(len(body) + 5 for body in donor.tail(*TAIL))
    take(donor.intake(tail_bytes_max=exact), donor.chunks(), donor.tail(*TAIL))
    intake = donor.intake(tail_bytes_max=exact - 1)
    words = refusal(lambda: take(intake, donor.chunks(), donor.tail(*TAIL)))
    assert words == "the frames of its log have more bytes than there is room for"
    assert len(frames(intake)) == 3


def test_a_damaged_header_or_payload_is_refused_with_what_is_wrong() -> None:
    donor = make_donor()
    body = donor.bodies[A, 6]
    for damaged in (body[:-1], body[:10], b"", body[:70] + bytes([body[70] ^ 1]) + body[71:]):
        words = refusal(lambda damaged=damaged: take(donor.intake(), donor.chunks(), [damaged]))  # type: ignore[misc]
        assert words.startswith("frame 1 of its log: ")
    header = UpdateHeader(*A, sequence=6, digest=1, steps=1, magnitude=3, count=2)
    words = refusal(lambda: take(donor.intake(), donor.chunks(), [pack_update(header, b"\x00" * 9)]))
    assert words.startswith("frame 1 of its log: ")


@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_refused(data: st.DataObject) -> None:
    donor = make_donor()
    parts = [*donor.chunks(), *donor.tail(*TAIL)]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 8 * len(parts[which]) - 1))
    flipped = bytearray(parts[which])
    flipped[bit // 8] ^= 1 << bit % 8
    parts[which] = bytes(flipped)
    chunks = len(donor.chunks())
    refusal(lambda: take(donor.intake(), parts[:chunks], parts[chunks:]))


def test_covers_come_before_the_end_one_for_each_owner() -> None:
    donor = make_donor()
    intake = donor.intake(owners=True)
    intake.cover(pack_table(A, [(B, 3)]))
    intake.cover(pack_table(B, [(A, 7), (Origin(3, 1), 1)]))
    take(intake, donor.chunks(), [])
    assert dict(intake.covers.numbers(A)) == {B: 3}
    assert dict(intake.covers.numbers(B)) == {A: 7, Origin(3, 1): 1}


def test_a_cover_that_cannot_be_is_refused() -> None:
    intake = make_donor().intake(owners=True)
    intake.cover(pack_table(A, [(B, 3)]))
    with pytest.raises(PeerError, match="the cover of owner 0000000000000001 came twice"):
        intake.cover(pack_table(A, [(B, 4)]))
    with pytest.raises(PeerError, match="a table of 23 bytes is not whole"):
        intake.cover(bytes(23))
    words = "it has the cover of an owner of which it has no update"
    assert refusal(lambda: intake.cover(pack_table(Origin(1, 6), [(B, 3)]))) == words
    words = "it has the cover of an owner, in a run whose ranges have none"
    assert refusal(lambda: make_donor().intake().cover(pack_table(A, [(B, 3)]))) == words


def test_an_update_of_the_tail_has_a_cover_just_where_ranges_have_owners() -> None:
    donor = make_donor()
    covered = pack_update(UpdateHeader(*A, 6, donor.rows[0].digest, 6, 1, 0, cover=()), b"")
    words = refusal(lambda: take(donor.intake(), donor.chunks(), [covered]))
    assert words == "frame 1 of its log: an update has a cover, and the ranges of the run do not have owners"
    words = refusal(lambda: take(donor.intake(owners=True), donor.chunks(), donor.tail((A, 6))))
    assert words == "frame 1 of its log: an update has no cover, and the ranges of the run have owners"
    take(donor.intake(owners=True), donor.chunks(), [covered])


def test_bits_of_float32_weights_have_no_magnitude() -> None:
    weights = np.linspace(-1e30, 1e30, WEIGHTS, dtype=np.float32).view(np.int32)
    rows, digest = [FrontierRow(0, 0, 1 << 32 | 5, 7)], codec.digest_coordinates(weights, KEY)
    donor = Donor(weights, rows, digest, make_donor().bodies)
    with pytest.raises(PeerError, match="a coordinate of magnitude"):
        take(donor.intake(), donor.chunks(), [])
    log = UpdateLog(budget_bytes=PLENTY)
    intake = SnapshotIntake(WEIGHTS, KEY, rows, digest, log=log, tail_bytes_max=PLENTY, bounded=False)
    take(intake, donor.chunks(), []).end(0)
    assert intake.coordinates.tobytes() == weights.tobytes()
    assert intake.magnitude_max == 0
    with pytest.raises(PeerError, match="it has frames of a log, and a dense ring has none"):
        intake.tail(donor.bodies[A, 6])
