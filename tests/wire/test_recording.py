"""Recordings: what was written comes back, and whatever else stands in the file is named."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.base.errors import RecordingError
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.recording import (
    HEADER_BYTES_MAX,
    VERSION,
    RecordedUpdate,
    RecordingHeader,
    pack_start,
    read_start,
    read_updates,
)
from p2psgd.wire.update import UpdateHeader, pack_update

WEIGHTS = 5000
HEADER = RecordingHeader(
    tensors=(("hidden", (40, 100)), ("output", (1000,))),
    quantum_log2=-20,
    mode="async",
    label="a label",
    initial=b"i" * 32,
    two_nodes="stall",
    fingerprint=b"f" * 32,
    weights=WEIGHTS,
)
START = pack_start(HEADER)


def frame(sequence: int, *, indices: int = 3, node: int = 1) -> bytes:
    words = np.arange(0, 2 * indices, 2, dtype=np.uint32)
    header = UpdateHeader(node, 2, sequence, 99, sequence, 7, indices)
    return pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, WEIGHTS)))


FRAMES = [frame(1), frame(2, indices=2000), frame(3)]


def read(data: bytes) -> tuple[RecordingHeader, list[RecordedUpdate], str]:
    """Everything in these bytes, and the sentence it ends with."""
    file = io.BytesIO(data)
    header = read_start(file)
    updates: list[RecordedUpdate] = []
    try:
        updates.extend(iter(read_updates(file, header.weights)))
    except RecordingError as error:
        return header, updates, str(error)
    return header, updates, ""


def collected(data: bytes) -> tuple[int, str]:
    """How many updates come before the end or the sentence that ends it."""
    file = io.BytesIO(data)
    count = 0
    try:
        for _ in read_updates(file, read_start(file).weights):
            count += 1
    except RecordingError as error:
        return count, str(error)
    return count, ""


def test_what_was_written_comes_back() -> None:
    header, updates, words = read(START + b"".join(FRAMES))
    assert (header, words) == (HEADER, "")
    assert [update.header.sequence for update in updates] == [1, 2, 3]
    assert [update.header.count for update in updates] == [3, 2000, 3]
    for update in updates:
        np.testing.assert_array_equal(update.words >> 1, np.arange(update.header.count))
        assert bytes(update.payload) == codec.encode(update.words, WEIGHTS)


def test_a_recording_without_updates_is_whole() -> None:
    assert read(START) == (HEADER, [], "")


def test_the_bytes_are_those_of_the_specification() -> None:
    assert START[:8] == b"p2psgd-r"
    assert struct.unpack_from("<II", START, 8) == (2, len(START) - 16)
    fields = msgpack.unpackb(START[16:])
    covered = ["tensors", "quantum_log2", "mode", "label", "initial", "two_nodes"]
    assert list(fields) == [*covered, "fingerprint", "weights"]


def test_a_cut_recording_gives_its_whole_updates_and_says_where_it_ends() -> None:
    data = START + b"".join(FRAMES)
    ends = [len(START) + sum(map(len, FRAMES[:whole])) for whole in range(4)]
    for cut in range(len(START), len(data)):
        whole = sum(end <= cut for end in ends) - 1
        words = "" if cut in ends else f"the recording ends in the middle of update {whole + 1}"
        assert collected(data[:cut]) == (whole, words), cut


def test_a_cut_start_is_refused() -> None:
    for cut in range(len(START)):
        with pytest.raises(RecordingError, match=r"not a recording|in the middle of its header"):
            read_start(io.BytesIO(START[:cut]))


def damaged(place: int) -> bytes:
    data = bytearray(FRAMES[1])
    data[place] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (damaged(100), "checksum"),
        (damaged(4), "FrameType|frame"),
        (pack_frame(FrameType.STATUS, b"\x80"), "a STATUS frame is not allowed"),
        (struct.pack("<IB", 2**32 - 1, FrameType.UPDATE), "bytes, allowed are"),
        (struct.pack("<IB", 0, FrameType.UPDATE), "bytes, allowed are"),
    ],
)
def test_a_damaged_update_is_named_after_those_before_it(second: bytes, words: str) -> None:
    header, updates, sentence = read(START + FRAMES[0] + second + FRAMES[2])
    assert (header, len(updates)) == (HEADER, 1)
    assert sentence.startswith("update 2 of the recording cannot be read: ")
    with pytest.raises(RecordingError, match=words):
        raise RecordingError(sentence)


def test_an_update_that_comes_twice_or_too_early_is_named() -> None:
    for wrong, number in ((FRAMES[0], 1), (FRAMES[2], 3)):
        _, updates, sentence = read(START + FRAMES[0] + wrong)
        assert len(updates) == 1
        assert sentence.endswith(f"its sequence number is {number} where 2 follows")


def test_a_recording_has_no_more_origins_than_a_run() -> None:
    frames = [frame(1, node=node) for node in range(ORIGINS_MAX + 1)]
    assert read(START + b"".join(frames[:-1]))[2] == ""
    assert "1024 origins, this would be one more" in read(START + b"".join(frames))[2]


def test_a_payload_that_does_not_decode_is_named() -> None:
    body = pack_update(UpdateHeader(1, 2, 1, 99, 1, 7, 3), b"\xff\xff")
    _, updates, sentence = read(START + pack_frame(FrameType.UPDATE, body))
    assert updates == []
    assert sentence.startswith("update 1 of the recording cannot be read: the payload of 3 indices")


def start(
    body: bytes, *, magic: bytes = b"p2psgd-r", version: int = VERSION, length: int | None = None
) -> bytes:
    return struct.pack("<8sII", magic, version, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (start(START[16:], magic=b"p2psgd-q"), "this is not a recording"),
        (start(START[16:], version=1), "has format 1, this p2psgd reads format 2"),
        (start(b"", length=HEADER_BYTES_MAX + 1), f"takes {HEADER_BYTES_MAX + 1} bytes, allowed are"),
        (start(b"\xc1"), "not a valid map"),
        (start(START[16:] + b"\x00"), "not a valid map"),
    ],
)
def test_another_start_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        read_start(io.BytesIO(data))


def changed(**fields: Any) -> bytes:
    return start(msgpack.packb(HEADER.model_dump() | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"weights": 5001},
        {"weights": 0},
        {"tensors": []},
        {"tensors": [["a", [2**31]], ["b", [2**31]]], "weights": 2**31},
        {"tensors": [["a", [-5000]]]},
        {"tensors": [["", [5000]]]},
        {"tensors": [["a", [True] * 17]]},
        {"quantum_log2": 1},
        {"initial": b"short"},
        {"two_nodes": "toss a coin"},
        {"fingerprint": "f" * 32},
        {"another": 1},
    ],
)
def test_a_header_that_is_not_a_runs_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordingError, match=r"^the recording's"):
        read_start(io.BytesIO(changed(**fields)))


@given(st.binary(max_size=300))
def test_any_bytes_are_safe(data: bytes) -> None:
    makes: list[Callable[[bytes], bytes]] = [
        lambda data: data,
        lambda data: START[:16] + data,
        lambda data: START + data,
        lambda data: START + FRAMES[0] + data,
    ]
    for make in makes:
        with contextlib.suppress(RecordingError):
            collected(make(data))
