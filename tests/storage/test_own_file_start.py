"""A file of own updates: what was written comes back, and whatever else stands in the file is named."""

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

from p2psgd.storage.update_wal import (
    HEADER_BYTES_MAX,
    VERSION,
    WalError,
    WalHeader,
    read_bodies,
    read_start,
    start_of,
)
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.storage.states import SPEC

START = start_of(SPEC)
HEADER = WalHeader(
    fingerprint=SPEC.fingerprint, label=SPEC.label, mode=SPEC.mode, coordinates=SPEC.coordinates
)


def body(sequence: int, *, indices: int = 3) -> bytes:
    words = np.arange(0, 2 * indices, 2, dtype=np.uint32)
    header = UpdateHeader(1, 2, sequence, 99, sequence, 7, indices)
    return pack_update(header, codec.encode(words, SPEC.weights))


BODIES = [body(1), body(2, indices=min(60, SPEC.weights)), body(3)]
FRAMES = [pack_frame(FrameType.UPDATE, each) for each in BODIES]


def read(data: bytes) -> tuple[list[bytes], str]:
    """The bodies before the end, or before the sentence that ends them."""
    file = io.BytesIO(data)
    bodies: list[bytes] = []
    try:
        for each in read_bodies(file, read_start(file).coordinates):
            bodies.append(bytes(each))
    except WalError as error:
        return bodies, str(error)
    return bodies, ""


def test_what_was_written_comes_back() -> None:
    assert read_start(io.BytesIO(START)) == HEADER
    assert read(START) == ([], "")
    assert read(START + b"".join(FRAMES)) == (BODIES, "")


def test_a_cut_file_gives_its_whole_updates_and_says_where_it_ends() -> None:
    data = START + b"".join(FRAMES)
    ends = [len(START) + sum(map(len, FRAMES[:whole])) for whole in range(4)]
    for cut in range(len(START), len(data)):
        whole = sum(end <= cut for end in ends) - 1
        words = "" if cut in ends else f"it ends in the middle of update {whole + 1}"
        assert read(data[:cut]) == (BODIES[:whole], words), cut


def test_a_cut_start_is_refused() -> None:
    for cut in range(len(START)):
        with pytest.raises(WalError, match=r"does not begin|header is not valid"):
            read_start(io.BytesIO(START[:cut]))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (pack_frame(FrameType.STATUS, b"\x80"), "a STATUS frame is not allowed"),
        (struct.pack("<IB", 2**32 - 1, FrameType.UPDATE), "bytes, allowed are"),
        (struct.pack("<IB", 0, FrameType.UPDATE), "bytes, allowed are"),
    ],
)
def test_a_frame_that_cannot_be_is_named_after_those_before_it(second: bytes, words: str) -> None:
    bodies, sentence = read(START + FRAMES[0] + second + FRAMES[2])
    assert bodies == BODIES[:1]
    assert sentence.startswith("update 2 cannot be read: ")
    assert words in sentence


def start(
    header: bytes, *, magic: bytes = b"p2psgd-u", version: int = VERSION, length: int | None = None
) -> bytes:
    return struct.pack("<8sII", magic, version, len(header) if length is None else length) + header


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (start(START[16:], magic=b"p2psgd-q"), "does not begin like a file of own updates"),
        (start(START[16:], version=2), "has format 2, this p2psgd reads format 1"),
        (start(b"", length=HEADER_BYTES_MAX + 1), f"takes {HEADER_BYTES_MAX + 1} bytes, allowed are"),
        (start(b"\xc1"), "its header is not valid"),
        (start(START[16:] + b"\x00"), "its header is not valid"),
    ],
)
def test_another_start_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(WalError, match=words):
        read_start(io.BytesIO(data))


@pytest.mark.parametrize(
    "fields",
    [{"coordinates": 0}, {"coordinates": 2**31 + 1}, {"fingerprint": b"x"}, {"mode": ""}, {"more": 1}],
)
def test_a_header_that_is_not_a_runs_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(WalError, match="its header is not valid"):
        read_start(io.BytesIO(start(msgpack.packb(HEADER.model_dump() | fields))))


@given(st.binary(max_size=300))
def test_any_bytes_are_safe(data: bytes) -> None:
    makes: list[Callable[[bytes], bytes]] = [
        lambda data: data,
        lambda data: START[:16] + data,
        lambda data: START + data,
        lambda data: START + FRAMES[0] + data,
    ]
    for make in makes:
        with contextlib.suppress(WalError):
            read(make(data))
