"""Frames out of any cutting of the bytes, and nothing bigger or earlier than allowed."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from p2psgd.wire.frames import (
    AHEAD_BYTES,
    BUFFER_BYTES,
    HANDSHAKE_LIMITS,
    PREFIX,
    SMALL_BYTES_MAX,
    Body,
    FrameReader,
    FrameType,
    link_limits,
    pack_frame,
)
from p2psgd.wire.reject import PeerError

LIMITS = link_limits(10**7)
CHUNK_MAX = LIMITS[FrameType.RING_CHUNK]
Frame = tuple[FrameType, bytes]


def feed(reader: FrameReader, data: bytes, piece_bytes: int) -> list[Frame]:
    frames = []
    view = memoryview(data)
    while view:
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), piece_bytes, len(view))
        buffer[:count] = view[:count]
        view = view[count:]
        reader.received(count)
        while (frame := reader.next_frame()) is not None:
            frames.append((frame[0], bytes(frame[1])))
    return frames


def opened() -> FrameReader:
    reader = FrameReader()
    reader.open(LIMITS)
    return reader


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7, 4096, 10**7])
def test_frames_come_out_whole_however_the_bytes_are_cut(piece_bytes: int) -> None:
    chance = random.Random(piece_bytes)
    sizes = (
        [1, 2, 64, 4096, 9000]
        if piece_bytes < 100
        else [1, 64, 65536, BUFFER_BYTES - 5, BUFFER_BYTES, BUFFER_BYTES + 1, 400_000, 3]
    )
    frames = [(FrameType.UPDATE, chance.randbytes(size)) for size in sizes]
    data = b"".join(pack_frame(*frame) for frame in frames)
    assert feed(opened(), data, piece_bytes) == frames


@pytest.mark.parametrize("piece_bytes", [3, 4096, 70_000, 10**7])
def test_chunks_of_a_ring_come_out_whole_however_the_bytes_are_cut(piece_bytes: int) -> None:
    chance = random.Random(piece_bytes)
    sizes = (
        [9, 700, 64]
        if piece_bytes < 100
        else [9, 262_197, 262_196, 4000, *[262_197] * 9, CHUNK_MAX, 1, 300_000]
    )
    frames = [
        (FrameType.RING_CHUNK, chance.randbytes(size)) if number % 3 else (FrameType.STATUS, b"s" * 77)
        for number, size in enumerate(sizes)
    ]
    data = b"".join(pack_frame(*frame) for frame in frames)
    assert feed(opened(), data, piece_bytes) == frames


def test_chunks_of_a_ring_are_not_copied_once_one_has_come() -> None:
    reader, frame = opened(), pack_frame(FrameType.RING_CHUNK, bytes(2 * BUFFER_BYTES))
    assert len(feed(reader, frame, 10**7)) == 1
    view = memoryview(frame)
    while view:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        view = view[count:]
        reader.received(count)
    tracemalloc.start()
    found = reader.next_frame()
    assert tracemalloc.get_traced_memory()[1] < 8192
    tracemalloc.stop()
    assert found is not None
    assert bytes(found[1]) == frame[PREFIX.size :]


def write(reader: FrameReader, data: bytes) -> None:
    """All of it into the buffer that is handed out now."""
    buffer = reader.get_buffer()
    buffer[: len(data)] = data
    reader.received(len(data))


def place_of(body: Body) -> int:
    return np.frombuffer(body, np.uint8).ctypes.data


def test_of_a_large_chunk_exactly_the_rest_is_asked_for_and_it_is_not_moved() -> None:
    reader, frame = opened(), pack_frame(FrameType.RING_CHUNK, bytes(range(256)) * (BUFFER_BYTES // 128))
    assert len(feed(reader, frame, 10**7)) == 1
    for head in (PREFIX.size, 1000, AHEAD_BYTES):
        begun = place_of(reader.get_buffer())
        write(reader, frame[:head])
        assert reader.next_frame() is None
        assert len(reader.get_buffer()) == len(frame) - head
        assert place_of(reader.get_buffer()) == begun + head
        write(reader, frame[head:])
        found = reader.next_frame()
        assert found is not None
        assert (bytes(found[1]), place_of(found[1])) == (frame[PREFIX.size :], begun + PREFIX.size)
        assert reader.next_frame() is None


def test_a_chunk_that_has_room_where_it_begins_is_not_moved() -> None:
    reader, chunk = opened(), pack_frame(FrameType.RING_CHUNK, bytes(100_000 - PREFIX.size))
    assert len(feed(reader, pack_frame(FrameType.RING_CHUNK, bytes(2 * BUFFER_BYTES)), 10**7)) == 1
    begun = place_of(reader.get_buffer())
    update = pack_frame(FrameType.UPDATE, bytes(60_000 - PREFIX.size))  # read piece by piece
    data = memoryview(5 * update + chunk)  # the chunk begins in the second half of the buffer
    places = []
    while data:
        count = min(len(reader.get_buffer()), len(data))
        write(reader, bytes(data[:count]))
        data = data[count:]
        while (found := reader.next_frame()) is not None:
            places.append(place_of(found[1]))
    assert places[-1] == begun + 300_000 + PREFIX.size


def test_after_a_chunk_that_is_larger_than_the_buffer_no_more_is_read_ahead_than_usual() -> None:
    reader = opened()
    for size in (2 * BUFFER_BYTES, 3 * BUFFER_BYTES):
        assert len(feed(reader, pack_frame(FrameType.RING_CHUNK, bytes(size)), 10**7)) == 1
        assert len(reader.get_buffer()) == AHEAD_BYTES


def test_an_update_between_large_chunks_is_not_read_as_one() -> None:
    reader, chunk = opened(), pack_frame(FrameType.RING_CHUNK, bytes(2 * BUFFER_BYTES))
    update = pack_frame(FrameType.UPDATE, b"u" * 5000)
    assert len(feed(reader, chunk, 10**7)) == 1
    write(reader, chunk[:1000])
    assert reader.next_frame() is None
    write(reader, chunk[1000:])
    assert reader.next_frame() is not None
    write(reader, update[:100])
    assert reader.next_frame() is None
    assert len(reader.get_buffer()) == AHEAD_BYTES
    assert feed(reader, update[100:] + chunk, 10**7) == [
        (FrameType.UPDATE, update[PREFIX.size :]),
        (FrameType.RING_CHUNK, chunk[PREFIX.size :]),
    ]


def test_bytes_received_before_the_link_opened_are_kept() -> None:
    reader = FrameReader()
    hello, update = (FrameType.HELLO, b"x" * 100), (FrameType.UPDATE, b"y" * 3000)
    data = pack_frame(*hello) + pack_frame(*update)[:50]
    buffer = reader.get_buffer()
    buffer[: len(data)] = data
    reader.received(len(data))
    assert reader.next_frame() == hello
    reader.open(LIMITS)
    assert feed(reader, pack_frame(*update)[50:], 1000) == [update]


def refused(reader: FrameReader, prefix: bytes) -> str:
    with pytest.raises(PeerError) as caught:
        feed(reader, prefix, 100)
    return caught.value.label


@pytest.mark.parametrize("frame_type", LIMITS)
def test_a_forbidden_length_is_refused_before_its_body_gets_memory(frame_type: FrameType) -> None:
    for length in (0, LIMITS[frame_type] + 1, 2**32 - 1):
        reader = opened()
        tracemalloc.start()
        assert refused(reader, PREFIX.pack(length, frame_type)) == "frame length"
        assert tracemalloc.get_traced_memory()[1] < 8192
        tracemalloc.stop()


@pytest.mark.parametrize("frame_type", LIMITS)
def test_a_body_of_the_greatest_length_comes_out_whole(frame_type: FrameType) -> None:
    body = random.Random(1).randbytes(LIMITS[frame_type])
    assert feed(opened(), pack_frame(frame_type, body), 200_000) == [(frame_type, body)]


def test_a_reader_whose_peer_sends_little_keeps_a_small_buffer_and_grows_with_what_comes() -> None:
    reader, small = opened(), pack_frame(FrameType.UPDATE, bytes(1000))
    for _ in range(100):
        feed(reader, small, 10**6)
    assert len(reader.get_buffer()) <= 2 * SMALL_BYTES_MAX
    feed(reader, small * 1000, 10**6)
    assert len(reader.get_buffer()) > BUFFER_BYTES // 2


@pytest.mark.parametrize("weights", [1, 10**3, 10**7, 2**31])
def test_a_reader_takes_no_more_memory_than_its_buffer_and_one_body(weights: int) -> None:
    limits = link_limits(weights)
    for frame_type, limit in limits.items():
        tracemalloc.start()
        reader = FrameReader()
        assert tracemalloc.get_traced_memory()[1] < 2 * SMALL_BYTES_MAX
        reader.open(limits)
        feed(reader, PREFIX.pack(limit, frame_type), 100)
        assert tracemalloc.get_traced_memory()[1] < BUFFER_BYTES + limit + 4 * SMALL_BYTES_MAX
        tracemalloc.stop()


@pytest.mark.parametrize("number", [0, max(FrameType) + 1, 255])
def test_an_unknown_type_is_refused(number: int) -> None:
    assert refused(opened(), PREFIX.pack(1, number)) == "frame type"


def test_before_the_greeting_only_a_small_greeting_is_allowed() -> None:
    for frame_type in FrameType:
        if frame_type not in HANDSHAKE_LIMITS:
            assert refused(FrameReader(), PREFIX.pack(100, frame_type)) == "frame order"
    assert refused(FrameReader(), PREFIX.pack(SMALL_BYTES_MAX + 1, FrameType.HELLO)) == "frame length"
    assert feed(FrameReader(), pack_frame(FrameType.HELLO, b"z" * SMALL_BYTES_MAX), 1000)


def test_a_linked_peer_does_not_greet_again() -> None:
    for frame_type in (FrameType.HELLO, FrameType.WELCOME):
        assert refused(opened(), PREFIX.pack(10, frame_type)) == "frame order"


def test_every_type_has_a_place_where_it_is_allowed() -> None:
    assert LIMITS.keys() | HANDSHAKE_LIMITS.keys() == set(FrameType)
    assert LIMITS.keys() & HANDSHAKE_LIMITS.keys() == {FrameType.REJECT}
    assert LIMITS[FrameType.SNAPSHOT_TAIL] == LIMITS[FrameType.UPDATE]
