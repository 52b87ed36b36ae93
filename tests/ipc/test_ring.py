from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.ring_buffer import RingReader, RingWriter, entry_bytes
from tests.ipc.daemons import PATIENT

CAPACITY = 256


def make_ring() -> tuple[NDArray[np.uint8], RingWriter, RingReader]:
    memory = np.zeros(CAPACITY, dtype=np.uint8)
    return memory, RingWriter(memory, 3), RingReader(memory, 3, length_min=1, length_max=CAPACITY - 8)


@PATIENT
@given(st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=100)), max_size=200))
def test_what_is_written_is_read_in_order_whatever_the_interleaving(operations: list[bytes | None]) -> None:
    """None reads one entry, bytes are written if there is room."""
    _, writer, reader = make_ring()
    waiting: list[bytes] = []
    for operation in operations:
        if operation is None:
            reader.accept_head(writer.head)
            assert reader.take() == (waiting.pop(0) if waiting else None)
            writer.accept_tail(reader.tail)
        elif entry_bytes(len(operation)) <= writer.room:
            assert writer.put(operation)
            waiting.append(operation)
        else:
            assert not writer.put(operation)
        assert writer.head % 8 == 0
        assert writer.room == CAPACITY - sum(entry_bytes(len(entry)) for entry in waiting)


def test_an_entry_that_fills_the_ring_wraps() -> None:
    _, writer, reader = make_ring()
    for length in (40, 248, 248):
        writer.put(bytes(range(length)))
        reader.accept_head(writer.head)
        assert reader.take() == bytes(range(length))
        assert reader.take() is None
        writer.accept_tail(reader.tail)


@pytest.mark.parametrize("head", [4, 47, 264, 2**63, 2**64 - 8])
def test_a_head_that_cannot_be_is_refused(head: int) -> None:
    _, writer, reader = make_ring()
    writer.put(bytes(40))
    reader.accept_head(writer.head)
    with pytest.raises(TrainerError, match="head was moved"):
        reader.accept_head(head)
    with pytest.raises(TrainerError, match="head was moved"):
        reader.accept_head(writer.head - 8)
    assert reader.take() == bytes(40)


@pytest.mark.parametrize("tail", [0, 8, 17, 56, 2**64 - 8])
def test_a_tail_that_cannot_be_is_refused(tail: int) -> None:
    _, writer, _ = make_ring()
    writer.put(bytes(40))
    writer.accept_tail(16)
    with pytest.raises(TrainerError, match="tail was moved"):
        writer.accept_tail(tail)
    assert writer.room == CAPACITY - 32


@pytest.mark.parametrize(
    ("length", "generation", "words"),
    [
        (0, 3, "length of 0 bytes"),
        (249, 3, "length of 249 bytes"),
        (2**32 - 1, 3, "length of 4294967295 bytes"),
        (41, 3, "beyond what is published"),
        (40, 2, "generation 2; this is generation 3"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_and_stays(length: int, generation: int, words: str) -> None:
    memory, writer, reader = make_ring()
    writer.put(bytes(40))
    memory[:8] = list(struct.pack("<II", length, generation))
    reader.accept_head(writer.head)
    for _ in range(2):
        with pytest.raises(TrainerError, match=words):
            reader.take()
    assert reader.tail == 0


@PATIENT
@given(st.binary(min_size=CAPACITY, max_size=CAPACITY), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_any_memory_and_any_heads_give_entries_or_a_refusal(memory: bytes, heads: list[int]) -> None:
    reader = RingReader(np.frombuffer(memory, dtype=np.uint8), 3, length_min=1, length_max=100)
    for head in heads:
        try:
            reader.accept_head(head % 512)
            entry = reader.take()
        except TrainerError:
            continue
        assert entry is None or 1 <= len(entry) <= 100


def test_after_a_skip_the_reader_goes_on_where_the_writer_said() -> None:
    _, writer, reader = make_ring()
    writer.put(bytes(200))
    position = writer.skip()
    assert writer.room == CAPACITY
    writer.put(b"after")
    writer.accept_tail(0)  # the reader has not yet said that it skips
    assert writer.room == CAPACITY - 16
    reader.skip_to(position)
    reader.accept_head(writer.head)
    assert reader.take() == b"after"
    writer.accept_tail(reader.tail)
    assert writer.room == CAPACITY


def test_of_two_skips_the_later_counts_even_if_the_ring_was_filled_in_between() -> None:
    _, writer, reader = make_ring()
    for _ in range(2):
        writer.put(bytes(200))
        position = writer.skip()
    assert position > CAPACITY
    reader.skip_to(position)
    writer.put(b"after")
    reader.accept_head(writer.head)
    assert reader.take() == b"after"


def test_a_skip_to_where_the_writer_cannot_be_is_refused() -> None:
    _, writer, reader = make_ring()
    writer.put(bytes(40))
    reader.accept_head(writer.head)
    for position in (40, 52, -8):
        with pytest.raises(TrainerError, match="cannot be read on"):
            reader.skip_to(position)
