"""The trainer's end of the memory it shares with its daemon: the counterpart of attachment.py.

What to publish when; what it means is client/link.py's. Not safe for several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.ring_buffer import (
    COUNTERS_WORDS,
    POSITION,
    Counter,
    Counters,
    RingReader,
    RingWriter,
    Wakeup,
    entry_bytes,
    half_after,
    pack_copy,
    unpack_copy,
)
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.wire.frames import UPDATE_HEADER_BYTES

Mark = TypeVar("Mark")


class TrainerMemory(Generic[Mark]):
    """Residual, rings, counters and wake-ups as `answer` describes them.

    `mark` is whatever the caller wants to know of what it has published so far: a publication brings a new
    one, which holds from the very store that publishes. `shares` and `arrays` float32 (M,) and `sums` float32
    (2, M) are those of a dense ring, else empty.

    `memories` are descriptors [residual, inbox, outbox, counters], then those of shares and sums, needed only
    by this call; `wake_trainer` and `wake_daemon` belong to this object.
    """

    def __init__(
        self,
        answer: AttachAnswer,
        memories: Sequence[int],
        wake_trainer: Wakeup,
        wake_daemon: Wakeup,
        mark: Mark,
    ) -> None:
        residual, inbox, outbox, counters, *dense = memories
        self._marks = (0, mark, mark)  # where the last publication ends, from there on, before
        (self.shares, self.arrays), self.sums = _map_dense(answer.weights, dense)
        parts = map_segment(residual, np.float32, layout.RESIDUAL_PARTS * answer.weights, Access.WRITE)
        *self._halves, self._kept = parts.reshape(layout.RESIDUAL_PARTS, answer.weights)
        self._counters = Counters(map_segment(counters, np.uint64, COUNTERS_WORDS, Access.WRITE))
        generation = self._counters.load(Counter.GENERATION)
        if generation != answer.generation:
            raise TrainerError(f"the shared memory is of generation {generation}, not {answer.generation}")
        self._inbox = RingReader(
            map_segment(inbox, np.uint8, answer.inbox_bytes, Access.READ),
            answer.generation,
            length_min=UPDATE_HEADER_BYTES + 1,
            length_max=layout.inbox_entry_bytes_max(answer.coordinates),
        )
        self._outbox = RingWriter(
            map_segment(outbox, np.uint8, answer.outbox_bytes, Access.WRITE), answer.generation
        )
        self.wake_trainer = wake_trainer
        self._wake_daemon = wake_daemon

    @property
    def mini_batches(self) -> int:
        """The last mini-batch published, read back: no interruption can leave a copy behind that is old."""
        half = self._counters.load(Counter.OUTBOX_HEAD) & 1
        mini_batch = self._counters.load(Counter.MINI_BATCH)
        return mini_batch - (mini_batch & 1 ^ half)

    @property
    def reload_wanted(self) -> bool:
        """Whether the inbox lacks updates, so that the weights must come from the replica."""
        return self._counters.load(Counter.RELOAD_WANTED) != 0

    @property
    def stopping(self) -> bool:
        """Whether the daemon asks for the end after this mini-batch."""
        return self._counters.load(Counter.STOPPING) != 0

    @property
    def mark(self) -> Mark:
        """As of what is published, also after an interruption."""
        end, since, before = self._marks
        return since if self.published_bytes >= end else before

    def set_mark(self, mark: Mark) -> None:
        """Another one, with nothing published."""
        self._marks = (self.published_bytes, mark, mark)

    @property
    def rounds_opened(self) -> int:
        """How often this trainer was allowed to give a share."""
        return self._counters.load(Counter.ROUNDS_OPENED)

    @property
    def round(self) -> int:
        """The number of the last round opened, 0 before."""
        return self._counters.load(Counter.ROUND)

    @property
    def contributors(self) -> int:
        """How many nodes had a share in the round before the last one opened."""
        return self._counters.load(Counter.CONTRIBUTORS)

    @property
    def round_sums(self) -> NDArray[np.float32]:
        """The sums of that round, float32 (M,): until the trainer gives its next share, or for one failure
        timeout, whichever ends first, as rounds may then go on without it.
        """
        half: NDArray[np.float32] = self.sums[self._counters.load(Counter.SUMS) & 1]
        return half

    @property
    def adding_us(self) -> int:
        """What the daemon says it has spent on adding up shares, as of the last round opened,"""
        return self._counters.load(Counter.ADDING_US)

    @property
    def sending_us(self) -> int:
        """and on handing what goes around to the network."""
        return self._counters.load(Counter.SENDING_US)

    @property
    def state_wanted(self) -> int:
        """The number of the daemon's wish for the state, 0 if it wants none now."""
        return self._counters.load(Counter.STATE_WANTED)

    @property
    def published_bytes(self) -> int:
        """How far the outbox has been published, as a position."""
        return self._counters.load(Counter.OUTBOX_HEAD) & POSITION

    def has_updates(self) -> bool:
        """Whether an update lies in the inbox."""
        self._inbox.accept_head(self._counters.load(Counter.INBOX_HEAD))
        return self._inbox.head > self._inbox.tail

    def updates(self, end: int | None = None) -> Iterator[bytes]:
        """The UPDATE bodies in the inbox now, or those before position `end` of them; asking for the next
        gives back the room of the last.
        """
        inbox = self._inbox
        inbox.accept_head(self._counters.load(Counter.INBOX_HEAD))
        while inbox.tail not in (end, inbox.head) and (body := inbox.take()) is not None:
            yield body
            self._counters.store(Counter.INBOX_TAIL, inbox.tail)

    def skip_inbox(self, position: int) -> None:
        """Read on at this position, where the daemon said at a reload."""
        self._inbox.skip_to(position)
        self._counters.store(Counter.INBOX_TAIL, position)

    @property
    def residual(self) -> NDArray[np.float32]:
        """The current half: the residual after the last published mini-batch, float32 (P,)."""
        return self._halves[self._counters.load(Counter.OUTBOX_HEAD) & 1]

    @property
    def next_residual(self) -> NDArray[np.float32]:
        """The other half, which becomes the residual when the next mini-batch is published."""
        return self._halves[~self._counters.load(Counter.OUTBOX_HEAD) & 1]

    def take_out_residual(self) -> NDArray[np.float32]:
        """From now on the residual is kept elsewhere, and what lies here are copies; (P,) as it is now."""
        half = half_after(self.mini_batches)
        self._counters.store(Counter.RESIDUAL_COPY, pack_copy(self.mini_batches, half))
        return self._halves[half]

    def copy_residual(self, write: Callable[[NDArray[np.float32]], None]) -> NDArray[np.float32]:
        """Have `write` copy the residual as of the last publication to where the next trainer gets it from,
        should this one end without another word; return that, (P,).

        Interrupted anywhere, the copy before it stays.
        """
        copied = unpack_copy(self._counters.load(Counter.RESIDUAL_COPY))
        assert copied is not None, "take_out_residual() comes first"
        half = 1 - copied[1]
        write(self._halves[half])
        self._counters.store(Counter.RESIDUAL_COPY, pack_copy(self.mini_batches, half))
        return self._halves[half]

    def keep_residual(self, residual: NDArray[np.float32]) -> None:
        """Copy the residual (P,) to where the daemon looks for it when it is told of a state; a dense ring
        has none.
        """
        if not self.shares.size:
            self._kept[:] = residual

    def has_room(self, entries: Sequence[bytes]) -> bool:
        """Whether the outbox has room for these now; TrainerError if it never has."""
        room = self._outbox.accept_tail(self._counters.load(Counter.OUTBOX_TAIL))
        needed = 0
        for entry in entries:
            needed += entry_bytes(len(entry))
        if needed > self._outbox.capacity:
            raise TrainerError(
                f"the {len(entries)} updates of this send take {needed} bytes and the daemon's outbox holds"
                f" {self._outbox.capacity}: give more tensors the same step"
            )
        return needed <= room

    def publish(self, entries: Sequence[bytes], mark: Mark | None = None, *, ends: bool = True) -> None:
        """Write entries, then publish them and the residual after them with one store; `ends`: they are the
        last of a mini-batch, which counts now, and whose residual becomes current. `mark` None: the last one
        holds on.

        The caller has seen to the room. Interrupted anywhere, it has done all or nothing: `mini_batches`
        tells which, or, where there are entries, `mark`; `settle` must come before the next one.
        """
        for entry in entries:
            fits = self._outbox.put(entry)
            assert fits, (len(entry), self._outbox.room)
        head = self._counters.load(Counter.OUTBOX_HEAD)
        end, since, before = self._marks
        last = since if head & POSITION >= end else before
        self._marks = (self._outbox.head, last if mark is None else mark, last)
        mini_batch = self._counters.load(Counter.MINI_BATCH)
        mini_batch += ends - ((mini_batch ^ head) & 1)  # see mini_batches
        self._counters.store(Counter.MINI_BATCH, mini_batch)
        self._counters.store(Counter.OUTBOX_HEAD, self._outbox.head | mini_batch & 1)  # pack_head
        if entries:
            self._wake_daemon.signal()

    def remind(self) -> None:
        """Wake the daemon if something published is not taken yet: an interruption may have come between the
        two steps of a publication.
        """
        if self._counters.load(Counter.OUTBOX_TAIL) != self.published_bytes:
            self._wake_daemon.signal()

    def settle(self) -> None:
        """Forget entries that an interruption has kept from being published."""
        self._outbox.head = self.published_bytes

    def close(self) -> None:
        """Close the wake-ups; the maps go with this object."""
        self.wake_trainer.close()
        self._wake_daemon.close()


def _map_dense(weights: int, descriptors: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Shares with arrays, to be written, and sums, to be read; empty unless the daemon gave both."""
    if not descriptors:
        return np.empty((2, 0), np.float32), np.empty((2, 0), np.float32)
    shares, sums = descriptors
    numbers = layout.dense_numbers(weights)
    return (
        map_segment(shares, np.float32, 2 * numbers, Access.WRITE).reshape(2, numbers),
        map_segment(sums, np.float32, 2 * numbers, Access.READ).reshape(2, numbers),
    )
