"""The daemon's end of the memory shared with one trainer, and the checks of what the trainer wrote."""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import PeerError, TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.protocol import TENSORS_MAX, close_descriptors
from p2psgd.ipc.ring_buffer import (
    COUNTERS_BYTES,
    COUNTERS_WORDS,
    POSITION,
    Counter,
    Counters,
    RingReader,
    RingWriter,
    Wakeup,
    half_after,
    pack_head,
    published,
    unpack_copy,
)
from p2psgd.ipc.segments import Access, create_segment, map_segment
from p2psgd.wire import codec
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import ARRAY, BUCKETS_MAX, CHANGES, BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# What a trainer may write into its outbox, by the run's mode, and the checks that it must pass.
#
# In async mode an entry is an update. In a sparse ring a closing entry ends the node's share of a round, and
# only whole shares come out of here. In a dense ring an entry says that a bucket of the shares is whole. A
# trainer may only give to a round that was opened for it. Whatever else lies there is a TrainerError.


MINI_BATCH_LEAP_MAX: Final = 2**32  # between two entries; keeps a liar from using up 64 bits


# What a trainer gives, copied out of shared memory and checked.
Given = OwnUpdateMade | ContributionMade | BucketContributed


class Entries(Protocol):
    """Checks one entry after the other. `mini_batches` is of the last thing taken."""

    mini_batches: int
    opened: int  # rounds, for this trainer
    half: bool  # what was checked last must go on before anything can be made of it

    def check(self, entry: bytes) -> Given | None:
        """What an entry means; None if only with those that follow. TrainerError, with nothing changed."""


def make_entries(coordinates: int, mode: Mode, mini_batches: int) -> Entries:
    """For a trainer that goes on after `mini_batches`."""
    if mode.dense:
        return Buckets(coordinates, mini_batches)
    return Shares(coordinates, mini_batches) if mode.ring else Updates(coordinates, mini_batches)


def check_mini_batch(mini_batch: int, first: int, before: int) -> None:
    """TrainerError unless it is `first` or follows, and not by much more than `before`."""
    if not first <= mini_batch <= before + MINI_BATCH_LEAP_MAX:
        raise TrainerError(f"mini-batch {mini_batch} cannot follow mini-batch {before}")


class Updates:
    """Of the asynchronous mode; one mini-batch may send several."""

    def __init__(self, coordinates: int, mini_batches: int) -> None:
        self.half = False
        self.mini_batches = mini_batches
        self.opened = 0
        self._first = mini_batches + 1  # that the next entry may be of
        self._coordinates = coordinates

    def check(self, entry: bytes) -> OwnUpdateMade:
        mini_batch = layout.OUTBOX_ENTRY.unpack_from(entry)[0]
        check_mini_batch(mini_batch, self._first, self.mini_batches)
        update = check_update(entry, self._coordinates)
        self.mini_batches = self._first = mini_batch
        return update


def check_update(entry: bytes, coordinates: int) -> OwnUpdateMade:
    """One entry of indices; its mini-batch is not looked at."""
    mini_batch, step, count = layout.OUTBOX_ENTRY.unpack_from(entry)
    payload = entry[layout.OUTBOX_ENTRY.size :]
    if not 1 <= step <= codec.STEP_MAX:
        raise TrainerError(f"step {step} is not within 1 to {codec.STEP_MAX} quanta")
    if not 1 <= count <= codec.indices_max(coordinates):
        raise TrainerError(f"{count} indices, possible are 1 to {codec.indices_max(coordinates)}")
    try:
        words: NDArray[np.uint32] = codec.decode(payload, count, coordinates)
    except PeerError as error:
        raise TrainerError(f"its payload does not decode: {error}") from None
    return OwnUpdateMade(mini_batch, step, payload, words)


class Shares:
    """Of a sparse ring."""

    def __init__(self, coordinates: int, mini_batches: int) -> None:
        self.mini_batches = mini_batches
        self.opened = 0
        self._given = 0
        self.half = False
        self._updates: list[OwnUpdateMade] = []
        self._indices = 0
        self._coordinates = coordinates
        self._indices_max = codec.indices_max(coordinates) + TENSORS_MAX  # of one send (client/residual.py)

    def check(self, entry: bytes) -> ContributionMade | None:
        if self._given >= self.opened:
            raise TrainerError(f"a share of a round that is not open: {self.opened} were opened")
        mini_batch, step, count = layout.OUTBOX_ENTRY.unpack_from(entry)
        if self._updates:
            first = before = self._updates[0].mini_batch
            if mini_batch != first:
                raise TrainerError(f"mini-batches {before} and {mini_batch} in one share")
        else:
            check_mini_batch(mini_batch, self.mini_batches + bool(count), self.mini_batches)
        if step == count == 0 and len(entry) == layout.OUTBOX_ENTRY.size:
            share = ContributionMade(mini_batch, tuple(self._updates))
            self._updates, self._indices, self.half = [], 0, False
            self._given += 1
            self.mini_batches = mini_batch
            return share
        update = check_update(entry, self._coordinates)
        if len(self._updates) == TENSORS_MAX or self._indices + count > self._indices_max:
            raise TrainerError(f"a share of more than {TENSORS_MAX} updates or {self._indices_max} indices")
        self._updates.append(update)
        self._indices += count
        self.half = True
        return None


class Buckets:
    """Of a dense ring. Those of one round of changes hold each weight once; an array is a round alone."""

    def __init__(self, weights: int, mini_batches: int) -> None:
        self.half = False
        self.mini_batches = mini_batches
        self.opened = 0
        self._given = 0
        self._weights = weights
        self._numbers = layout.dense_numbers(weights)
        self._covered: list[tuple[int, int]] = []  # by this round's buckets so far

    def check(self, entry: bytes) -> BucketContributed:
        if self._given >= self.opened:
            raise TrainerError(f"a share of a round that is not open: {self.opened} were opened")
        mini_batch, kind, offset, count, name_bytes = layout.BUCKET_ENTRY.unpack_from(entry)
        check_mini_batch(mini_batch, self.mini_batches + (kind == CHANGES), self.mini_batches)
        words = entry[layout.BUCKET_ENTRY.size :]
        name, shape = words[:name_bytes], words[name_bytes:]
        if name_bytes > len(words) or max(len(name), len(shape)) > layout.NAME_BYTES_MAX:
            raise TrainerError(f"a name of {name_bytes} and a shape in {len(words)} bytes")
        try:
            bucket = BucketContributed(kind, offset, count, name.decode(), shape.decode())
        except UnicodeDecodeError:
            raise TrainerError("a name or a shape that is not UTF-8") from None
        if kind == CHANGES:
            self._cover(bucket, mini_batch)
        elif kind != ARRAY or offset or not 1 <= count <= self._numbers or self._covered:
            raise TrainerError(f"a bucket of kind {kind}, of {count} numbers from {offset}, cannot be here")
        else:
            self._given += 1
        return bucket

    def _cover(self, bucket: BucketContributed, mini_batch: int) -> None:
        begin, end = bucket.offset, bucket.offset + bucket.count
        if begin == end or end > self._weights:
            raise TrainerError(f"a bucket of weights {begin} to {end} of {self._weights}")
        if any(begin < other_end and other < end for other, other_end in self._covered):
            raise TrainerError(f"weights {begin} to {end} are in a bucket of this round already")
        if len(self._covered) == BUCKETS_MAX:
            raise TrainerError(f"more than {BUCKETS_MAX} buckets in a round")
        self._covered.append((begin, end))
        if sum(end - begin for begin, end in self._covered) == self._weights:
            self._covered = []
            self._given += 1
            self.mini_batches = mini_batch


# ----------------------------------------------------------------------------
# The daemon's end of the memory it shares with one trainer, from attach to detach.
#
# Rings, counters and wake-ups are made anew for each attachment, so a trainer that was refused and lives on
# writes into memory that nobody reads. Only the residual is handed from one trainer to the next
# (trainer_session.py). Every number that the trainer publishes is checked here before it is used;
# TrainerError means that it broke the layout and must go.


class Attachment:
    """One trainer's inbox, outbox, counters and wake-ups.

    `descriptors` are [inbox, outbox, counters, wake_trainer, wake_daemon], for the trainer. `reload_wanted`:
    the inbox lacks updates, and the trainer must take the replica as a whole.
    """

    def __init__(
        self,
        *,
        coordinates: int,
        mode: Mode,
        generation: int,
        inbox_bytes: int,
        outbox_bytes: int,
        mini_batches: int,
        stopping: bool,
    ) -> None:
        self._entries = make_entries(coordinates, mode, mini_batches)
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
        shortest, longest = layout.outbox_entry_bytes(coordinates, mode)
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
        if not self._inbox.put(body):
            self.want_reload()
            return
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
        position = self._counters.load(Counter.OUTBOX_HEAD) & POSITION
        self._outbox.accept_head(position)
        return position

    def take(self, entries_max: int, indices_max: int, end: int | None = None) -> list[Given]:
        """The next things in the outbox, checked, as many as fit a turn of the loop; none: it is empty.

        None is taken that begins at position `end` or after it. An entry that does not check raises
        TrainerError once what was whole before it has been taken.
        """
        self._outbox.accept_head(self._counters.load(Counter.OUTBOX_HEAD) & POSITION)
        before = tail = self._outbox.tail
        end = self._outbox.head if end is None else end
        given: list[Given] = []
        indices = 0
        while tail < end and (self._entries.half or (len(given) < entries_max and indices < indices_max)):
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
            tail = self._outbox.tail
            if whole is not None:
                given.append(whole)
                if isinstance(whole, OwnUpdateMade):
                    indices += len(whole.words)
                elif isinstance(whole, ContributionMade):
                    indices += sum(len(update.words) for update in whole.updates)
        if tail != before:
            self._counters.store(Counter.OUTBOX_TAIL, tail)
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
        half = self._counters.load(Counter.OUTBOX_HEAD) & 1
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
