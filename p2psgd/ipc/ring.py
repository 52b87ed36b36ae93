"""A byte ring in shared memory with one writer and one reader.

An entry is u32 length, u32 generation, `length` bytes, zero padding to 8; it may wrap at the end of the ring.
Positions count bytes since the ring was made and never wrap; offset = position modulo capacity, a power of
two. The two positions are published as counters by whoever owns them (counters.py); this file only checks and
copies. Neither side trusts the other: a position that goes backwards, is not a multiple of 8 or leaves [tail,
tail + capacity] and an entry with a wrong length or generation raise TrainerError, and an entry is copied out
before anyone looks at it.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError

PREFIX = struct.Struct("<II")  # length, generation
ALIGNMENT = 8


def entry_bytes(length: int) -> int:
    """Return the room that an entry of `length` bytes takes in a ring."""
    return PREFIX.size + (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _check_memory(memory: NDArray[np.uint8]) -> int:
    capacity = memory.size
    assert capacity >= ALIGNMENT, capacity
    assert capacity & (capacity - 1) == 0, capacity
    return capacity


class RingWriter:
    """The writing end; `head` is what to publish, the reader's tail comes in by `accept_tail`."""

    def __init__(self, memory: NDArray[np.uint8], generation: int) -> None:
        self.capacity = _check_memory(memory)
        self.head = 0
        self._memory = memory.data
        self._generation = generation
        self._tail_published = 0
        self._tail = 0

    @property
    def room(self) -> int:
        """Bytes that can be written, prefixes and padding included."""
        return self.capacity - (self.head - self._tail)

    def accept_tail(self, tail: int) -> None:
        """Take note of how far the reader says it has read."""
        if not self._tail_published <= tail <= self.head or tail % ALIGNMENT:
            raise TrainerError(
                f"a ring's tail was moved from {self._tail_published} to {tail}, with its head at {self.head}"
            )
        self._tail_published = tail
        self._tail = max(tail, self._tail)

    def skip(self) -> int:
        """Count all that was written as read: the reader has promised to go on at the returned position."""
        self._tail = self.head
        return self.head

    def put(self, *parts: bytes | bytearray | memoryview) -> None:
        """Write one entry; the caller has seen to the room and publishes `head` afterwards."""
        length = sum(len(part) for part in parts)
        taken = entry_bytes(length)
        assert taken <= self.room, (taken, self.room)
        padding = bytes(taken - PREFIX.size - length)
        entry = b"".join((PREFIX.pack(length, self._generation), *parts, padding))
        offset = self.head % self.capacity
        first = min(taken, self.capacity - offset)
        self._memory[offset : offset + first] = entry[:first]
        self._memory[: taken - first] = entry[first:]
        self.head += taken


class RingReader:
    """The reading end; `tail` is what to publish, the writer's head comes in by `accept_head`."""

    def __init__(
        self, memory: NDArray[np.uint8], generation: int, *, length_min: int, length_max: int
    ) -> None:
        self.capacity = _check_memory(memory)
        self.tail = 0
        self._memory = memory.data
        self._generation = generation
        self._length_min = length_min
        self._length_max = length_max
        self._head = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes published and not yet read."""
        return self._head - self.tail

    def accept_head(self, head: int) -> None:
        """Take note of how far the writer says it has written."""
        if head < self._head or head - self.tail > self.capacity or head % ALIGNMENT:
            raise TrainerError(
                f"a ring's head was moved from {self._head} to {head}, with its tail at {self.tail}"
                f" and {self.capacity} bytes in all"
            )
        self._head = head

    def skip_to(self, position: int) -> None:
        """Go on reading at `position`, which the writer has promised; what lies before it is not read.

        It may lie more than the ring's capacity ahead: the writer counts all as read once it has promised a
        position, and a second promise may follow before the first is kept.
        """
        if position < self._head or position % ALIGNMENT:
            raise TrainerError(f"a ring cannot be read on from {position}: its tail is at {self.tail}")
        self.tail = self._head = position

    def take(self) -> bytes | None:
        """A copy of the next entry's bytes, None if no more is published; a refused entry stays unread."""
        if not self.pending_bytes:
            return None
        length, generation = PREFIX.unpack(self._copy(self.tail, PREFIX.size))
        if generation != self._generation:
            raise TrainerError(
                f"a ring entry is of generation {generation}; this is generation {self._generation}"
            )
        if not self._length_min <= length <= self._length_max:
            raise TrainerError(
                f"a ring entry has a length of {length} bytes, not {self._length_min} to {self._length_max}"
            )
        if entry_bytes(length) > self.pending_bytes:
            raise TrainerError(f"a ring entry of {length} bytes reaches beyond what is published")
        entry = self._copy(self.tail + PREFIX.size, length)
        self.tail += entry_bytes(length)
        return entry

    def _copy(self, position: int, length: int) -> bytes:
        offset = position % self.capacity
        first = bytes(self._memory[offset : min(offset + length, self.capacity)])
        return first if len(first) == length else first + bytes(self._memory[: length - len(first)])
