"""A byte ring in shared memory: its entries, the counters of both sides, publication and wake-ups."""

from __future__ import annotations

import contextlib
import enum
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.wire import codec

# ----------------------------------------------------------------------------
# A byte ring in shared memory with one writer and one reader.
#
# An entry is u32 length, u32 generation, `length` bytes, zero padding to 8; it may wrap at the end of the
# ring. Positions count bytes since the ring was made and never wrap; offset = position modulo capacity, a
# power of two. The two positions are published as counters by their owner (Counters); this file only
# checks and copies. Neither side trusts the other: a position that goes backwards, is not a multiple of 8 or
# leaves [tail, tail + capacity] and an entry with a wrong length or generation raise TrainerError, and an
# entry is copied out before anyone looks at it.


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

    def accept_tail(self, tail: int) -> int:
        """Take note of how far the reader says it has read; return the room."""
        if not self._tail_published <= tail <= self.head or tail % ALIGNMENT:
            raise TrainerError(
                f"a ring's tail was moved from {self._tail_published} to {tail}, with its head at {self.head}"
            )
        self._tail_published = tail
        self._tail = max(tail, self._tail)
        return self.capacity - (self.head - self._tail)

    def skip(self) -> int:
        """Count all that was written as read: the reader has promised to go on at the returned position."""
        self._tail = self.head
        return self.head

    def put(self, body: bytes | bytearray) -> bool:
        """Write one entry, whose caller publishes `head` afterwards; False, with nothing done, if it has no
        room.
        """
        length = len(body)
        taken = PREFIX.size + length + -length % ALIGNMENT
        if taken > self.capacity - (self.head - self._tail):
            return False
        entry = b"".join((PREFIX.pack(length, self._generation), body, bytes(-length % ALIGNMENT)))
        offset = self.head % self.capacity
        first = min(taken, self.capacity - offset)
        self._memory[offset : offset + first] = entry[:first]
        self._memory[: taken - first] = entry[first:]
        self.head += taken
        return True


class RingReader:
    """The reading end; `tail` is what to publish, the writer's `head` comes in by `accept_head`."""

    def __init__(
        self, memory: NDArray[np.uint8], generation: int, *, length_min: int, length_max: int
    ) -> None:
        self.capacity = _check_memory(memory)
        self.tail = 0
        self._memory = memory.data
        self._generation = generation
        self.head = 0  # how far the writer says it has written, once that was accepted
        self._length_min = length_min
        self._length_max = length_max

    def accept_head(self, head: int) -> None:
        """Take note of how far the writer says it has written."""
        if head < self.head or head - self.tail > self.capacity or head % ALIGNMENT:
            raise TrainerError(
                f"a ring's head was moved from {self.head} to {head}, with its tail at {self.tail}"
                f" and {self.capacity} bytes in all"
            )
        self.head = head

    def skip_to(self, position: int) -> None:
        """Go on reading at `position`, which the writer has promised; what lies before it is not read.

        It may lie more than the ring's capacity ahead: the writer counts all as read once it has promised a
        position, and a second promise may follow before the first is kept.
        """
        if position < self.head or position % ALIGNMENT:
            raise TrainerError(f"a ring cannot be read on from {position}: its tail is at {self.tail}")
        self.tail = self.head = position

    def take(self) -> bytes | None:
        """Return a copy of the next entry's bytes, None if no more is published; a refused entry stays
        unread.
        """
        pending = self.head - self.tail
        if not pending:
            return None
        # a prefix does not wrap: positions and the capacity are multiples of 8
        length, generation = PREFIX.unpack_from(self._memory, self.tail % self.capacity)
        if generation != self._generation:
            raise TrainerError(
                f"a ring entry is of generation {generation}; this is generation {self._generation}"
            )
        if not self._length_min <= length <= self._length_max:
            raise TrainerError(
                f"a ring entry has a length of {length} bytes, not {self._length_min} to {self._length_max}"
            )
        taken = PREFIX.size + length + -length % ALIGNMENT
        if taken > pending:
            raise TrainerError(f"a ring entry of {length} bytes reaches beyond what is published")
        begin = (self.tail + PREFIX.size) % self.capacity
        wrapped = max(0, begin + length - self.capacity)
        entry = bytes(self._memory[begin : begin + length - wrapped])
        if wrapped:
            entry += bytes(self._memory[:wrapped])
        self.tail += taken
        return entry


# ----------------------------------------------------------------------------
# The page of counters that daemon and trainer publish to each other.
#
# Each counter has one writer and a cache line of its own, so the two sides never write one line. The daemon
# keeps its own counters privately and never reads back what it published. The trainer reads its OUTBOX_HEAD
# and STEPS back, because after an interruption they alone tell whether a send was done (see pack_steps).
# What the trainer published is taken as hostile (RingReader, trainer_memory.py). Bytes written before a store
# are seen after the load that sees it, and all loads and stores have one order, on ARM too.


COUNTERS_BYTES = 4096
COUNTERS_WORDS = COUNTERS_BYTES // 8


class Counter(enum.IntEnum):
    """The place of each counter, as an index of words, 8 to a cache line; APPEND ONLY."""

    OUTBOX_HEAD = 0  # trainer writes: bytes published, and the current half of the residual
    INBOX_TAIL = 8  # trainer writes: bytes consumed
    STEPS = 16  # trainer writes: the count of mini-batches that its next store of OUTBOX_HEAD publishes
    INBOX_HEAD = 24  # daemon writes: bytes published
    OUTBOX_TAIL = 32  # daemon writes: bytes consumed
    RELOAD_WANTED = 40  # daemon writes: 1 while the inbox lacks updates and the trainer must reload
    STOPPING = 48  # daemon writes: 1 once the trainer should stop after its mini-batch
    GENERATION = 56  # daemon writes once: which attachment this page belongs to
    STATE_WANTED = 64  # daemon writes: while it wants the trainer's state, how often it has; else 0
    ROUNDS_OPENED = 72  # daemon writes, ring mode: how often this trainer was allowed to contribute
    CONTRIBUTORS = 80  # daemon writes, before it: nodes that contributed to the round before
    SUMS = 88  # daemon writes, before it: which half of the sums has that round's, 0 or 1
    ADDING_US = 96  # daemon writes, before it: microseconds spent on adding contributions up since the attach
    SENDING_US = 104  # and on handing frames of rounds to the network
    ROUND = 112  # daemon writes, before it: the number of the round that it opens
    RESIDUAL_COPY = 120  # trainer writes, if it keeps its residual elsewhere: the last copy (pack_copy)
    LINKS_BUSY = 128  # daemon writes: 1 while the links are busy with what was made before


class Counters:
    """Typed access to a page of counters; `words` is its uint64[512] map.

    `load(counter)` returns what the writer of this counter published last; `store(counter, value)` publishes
    a value, and with it everything written before. Both are the native core's own, without a call between.
    """

    __slots__ = ("load", "store")

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.load: Callable[[Counter], int] = partial(codec.load_counter, words)
        self.store: Callable[[Counter, int], None] = partial(codec.store_counter, words)


# ----------------------------------------------------------------------------
# What a trainer publishes with one store: the updates of its mini-batches and the residual that they leave.
#
# The residual lies in memory twice. A send reads the current half, writes the other one, writes its updates
# into the outbox, and then publishes both by storing OUTBOX_HEAD: positions are multiples of 8, so the
# lowest bit is free to name the current half. A trainer killed before that store has sent nothing and
# changed nothing; one killed after it has done both.
#
# A send counts as many mini-batches as it holds. STEPS, stored just before the head, has the count with this
# send, how many of them are this send's, and the half that becomes current. So STEPS and the head together
# tell the count, whether the send was published or not.
#
# A trainer that keeps its residual elsewhere, on a GPU, copies it into these halves now and then, always
# into the one that does not hold the last copy. RESIDUAL_COPY, stored when a copy is whole, says which half
# has it and of which mini-batch it is; that is what the next trainer gets.


POSITION = ~1  # these bits of an OUTBOX_HEAD are the position; the lowest one is the current half, 0 or 1
SEND_STEPS_MAX: Final = 1000  # mini-batches of one send
_SEND_BITS: Final = 10
STEPS_MAX: Final = (
    2**52
)  # of a node in all its incarnations: what STEPS has room for, with half of it to spare


def pack_steps(steps: int, of_send: int, half: int) -> int:
    """Return STEPS for a count of mini-batches, the last `of_send` of which, 0 to SEND_STEPS_MAX, leave the
    residual in this half, 0 or 1.
    """
    return (steps << _SEND_BITS | of_send) << 1 | half


def published(packed: int, half: int) -> int:
    """Return how many mini-batches are published, from STEPS and the half that the head names."""
    steps, of_send = packed >> 1 + _SEND_BITS, packed >> 1 & (1 << _SEND_BITS) - 1
    return steps if packed & 1 == half else steps - of_send


def pack_copy(steps: int, half: int) -> int:
    """Return RESIDUAL_COPY when this half has a copy of the residual after this step."""
    return (steps + 1) << 1 | half


def unpack_copy(copy: int) -> tuple[int, int] | None:
    """Return the step and the half of a RESIDUAL_COPY; None: the residual is not kept elsewhere."""
    return ((copy >> 1) - 1, copy & 1) if copy >> 1 else None


# ----------------------------------------------------------------------------
# One side signals to the other that something was published: an eventfd, in plain words.
#
# It counts, it does not queue: any number of signals wake the sleeper once, none is lost, and neither call
# ever blocks. The two processes share one open file, so a trainer that means harm could make it block; it
# runs as the daemon's own user and could as well send SIGSTOP, so nothing guards against that.


class Wakeup:
    """An eventfd owned by this object; `close` may be called twice."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = (
            os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor
        )

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._descriptor

    def signal(self) -> None:
        """Wake the other side; its counter being full means that it is awake already."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Forget the signals so far; look at the memory after this, not before."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
