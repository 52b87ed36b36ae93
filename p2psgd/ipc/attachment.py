"""The daemon's end of the memory it shares with one trainer, from attach to detach.

Rings, counters and wake-ups are made anew for each attachment, so a trainer that was refused and lives on
writes into memory that nobody reads. Only the residual is handed from one trainer to the next (port.py).
Every number that the trainer publishes is checked here before it is used; TrainerError means that it broke
the layout and must go.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np

from p2psgd.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.counters import COUNTERS_BYTES, COUNTERS_WORDS, Counter, Counters
from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.entries import MINI_BATCH_LEAP_MAX, make_entries
from p2psgd.ipc.host import Bucket, Given, OwnUpdate
from p2psgd.ipc.publication import half_after, pack_head, published, unpack_copy, unpack_head
from p2psgd.ipc.ring import RingReader, RingWriter, entry_bytes
from p2psgd.ipc.segments import Access, create_segment, map_segment
from p2psgd.ipc.wakeup import Wakeup
from p2psgd.wire.mode import Mode


class Attachment:
    """One trainer's inbox, outbox, counters and wake-ups.

    `descriptors` are [inbox, outbox, counters, wake_trainer, wake_daemon], for the trainer. `reload_wanted`:
    the inbox lacks updates, and the trainer must take the replica as a whole.
    """

    def __init__(
        self,
        *,
        weights: int,
        mode: Mode,
        generation: int,
        inbox_bytes: int,
        outbox_bytes: int,
        mini_batches: int,
        stopping: bool,
    ) -> None:
        self._entries = make_entries(weights, mode, mini_batches)
        self._shown = mini_batches  # the most that `progress` has returned
        self.reload_wanted = False
        self._states_wanted = 0
        with contextlib.ExitStack() as undo:
            memories = []
            for name, size_bytes in (
                ("inbox", inbox_bytes),
                ("outbox", outbox_bytes),
                ("counters", COUNTERS_BYTES),
            ):
                memories.append(create_segment(f"p2psgd-{name}", size_bytes))
                undo.callback(os.close, memories[-1])
            self._wake_trainer = Wakeup()
            undo.callback(self._wake_trainer.close)
            self.wake_daemon = Wakeup()
            undo.callback(self.wake_daemon.close)
            inbox = map_segment(memories[0], np.uint8, inbox_bytes, Access.WRITE)
            outbox = map_segment(memories[1], np.uint8, outbox_bytes, Access.READ)
            words = map_segment(memories[2], np.uint64, COUNTERS_WORDS, Access.WRITE)
            undo.pop_all()
        self._memories = memories
        self._inbox = RingWriter(inbox, generation)
        shortest, longest = layout.outbox_entry_bytes(weights, mode)
        self._outbox = RingReader(outbox, generation, length_min=shortest, length_max=longest)
        self._counters = Counters(words)
        self._counters.store(Counter.GENERATION, generation)
        self._counters.store(Counter.STOPPING, int(stopping))
        self._counters.store(Counter.MINI_BATCH, mini_batches)
        self._counters.store(Counter.OUTBOX_HEAD, pack_head(0, mini_batches))

    @property
    def mini_batches(self) -> int:
        """Of what was taken last; at first, where the trainer goes on."""
        return self._entries.mini_batches

    @property
    def rounds_opened(self) -> int:
        """How often this trainer was allowed to give a share."""
        return self._entries.opened

    @property
    def descriptors(self) -> list[int]:
        """For the trainer: [inbox, outbox, counters, wake_trainer, wake_daemon]."""
        return [*self._memories, self._wake_trainer.fileno(), self.wake_daemon.fileno()]

    def deliver(self, body: bytes | bytearray) -> None:
        """Put a peer's update into the inbox.

        When that is full: ask for a reload, and write no more until then.
        """
        if self.reload_wanted:
            return
        self._inbox.accept_tail(self._counters.load(Counter.INBOX_TAIL))
        if entry_bytes(len(body)) > self._inbox.room:
            self.want_reload()
            return
        self._inbox.put(body)
        self._counters.store(Counter.INBOX_HEAD, self._inbox.head)
        self._wake_trainer.signal()

    def want_reload(self) -> None:
        """Have the trainer take the replica as a whole, and write no update into the inbox until then."""
        self.reload_wanted = True
        self._counters.store(Counter.RELOAD_WANTED, 1)
        self._wake_trainer.signal()

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """The trainer may give its share of this round; what it must know of the one before comes with that.
        All updates of that were delivered.
        """
        self._entries.opened += 1
        for counter, value in (
            (Counter.CONTRIBUTORS, contributors),
            (Counter.SUMS, sums),
            (Counter.ADDING_US, adding_us),
            (Counter.SENDING_US, sending_us),
            (Counter.ROUND, number),
            (Counter.ROUNDS_OPENED, self._entries.opened),
        ):
            self._counters.store(counter, value)
        self._wake_trainer.signal()

    def want_state(self) -> None:
        """Ask the trainer for its state."""
        self._states_wanted += 1
        self._counters.store(Counter.STATE_WANTED, self._states_wanted)
        self._wake_trainer.signal()

    def accept_state(self) -> None:
        """The state has come: from here on the trainer leaves its copy of the residual alone."""
        self._counters.store(Counter.STATE_WANTED, 0)

    def reload(self) -> int:
        """The trainer is about to get the replica as it is now: the position where it reads its inbox on."""
        self.reload_wanted = False
        self._counters.store(Counter.RELOAD_WANTED, 0)
        return self._inbox.skip()

    @property
    def inbox_end(self) -> int:
        """How far the inbox has been written, as a position."""
        return self._inbox.head

    @property
    def taken_bytes(self) -> int:
        """How far the outbox has been taken, as a position."""
        return self._outbox.tail

    def published_bytes(self) -> int:
        """How far the outbox has been written by now, as a position."""
        position, _ = unpack_head(self._counters.load(Counter.OUTBOX_HEAD))
        self._outbox.accept_head(position)
        return position

    def take(self, entries_max: int, indices_max: int, end: int | None = None) -> list[Given]:
        """The next things in the outbox, checked, as many as fit a turn of the loop; none: it is empty.

        None is taken that begins at position `end` or after it. An entry that does not check raises
        TrainerError once what was whole before it has been taken.
        """
        self.published_bytes()
        before = self._outbox.tail
        given: list[Given] = []
        indices = 0
        while self._entries.half or (len(given) < entries_max and indices < indices_max):
            tail = self._outbox.tail
            if end is not None and tail >= end:
                break
            try:
                entry = self._outbox.take()
                if entry is None:
                    break
                whole = self._entries.check(entry)
            except TrainerError:
                self._outbox.tail = tail  # met again by the next call
                if not given:
                    raise
                break
            if whole is not None:
                given.append(whole)
                indices += _count_indices(whole)
        if self._outbox.tail != before:
            self._counters.store(Counter.OUTBOX_TAIL, self._outbox.tail)
            self._wake_trainer.signal()
        return given

    def request_stop(self) -> None:
        """Tell the trainer to stop after its current mini-batch."""
        self._counters.store(Counter.STOPPING, 1)
        self._wake_trainer.signal()

    def progress(self) -> int:
        """The mini-batches published, never fewer than before; exact once the trainer is gone.

        A live trainer may publish between the two loads, and a count that cannot be is not believed: then it
        is the least from what is known already that fits the residual's current half.
        """
        mini_batch = self._counters.load(Counter.MINI_BATCH)  # before the head: never too many of a live one
        _, half = unpack_head(self._counters.load(Counter.OUTBOX_HEAD))
        count = published(mini_batch, half)
        known = max(self.mini_batches, self._shown)
        if not known <= count <= self.mini_batches + MINI_BATCH_LEAP_MAX:
            count = known + (half_after(known) ^ half)
        self._shown = count
        return count

    def residual_copy(self) -> tuple[int, int] | None:
        """Of a trainer that keeps its residual elsewhere: the mini-batch of its last copy, and the half that
        has it; None: the residual is where it belongs.
        """
        return unpack_copy(self._counters.load(Counter.RESIDUAL_COPY))

    def close_memories(self) -> None:
        """Close what only the trainer needs, once it has been handed over."""
        close_descriptors(self._memories)
        self._memories = []

    def close(self) -> None:
        """Close all descriptors; the maps go with this object."""
        self.close_memories()
        self._wake_trainer.close()
        self.wake_daemon.close()


def _count_indices(given: Given) -> int:
    """What it costs to decode and apply it."""
    match given:
        case Bucket():
            return 0
        case OwnUpdate(count=count):
            return count
        case _:
            return sum(update.count for update in given.updates)
