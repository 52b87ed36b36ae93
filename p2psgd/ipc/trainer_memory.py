"""The memory that a daemon shares with its trainer, from both ends.

`Attachment` is the daemon's end, `TrainerMemory` the trainer's: one publishes what the other reads, so the
two stand side by side. What that means is for trainer_session.py and client/link.py to say. Not safe for
several threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.protocol import AttachAnswer, close_descriptors
from p2psgd.ipc.ring_buffer import (
    COUNTERS_BYTES,
    COUNTERS_WORDS,
    POSITION,
    STEPS_MAX,
    Counter,
    Counters,
    RingReader,
    RingWriter,
    Wakeup,
    entry_bytes,
    pack_copy,
    pack_steps,
    published,
    unpack_copy,
)
from p2psgd.ipc.segments import Access, create_segment, map_segment
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAsked
from p2psgd.wire.frames import UPDATE_HEADER_BYTES
from p2psgd.wire.mode import Mode
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import (
    ARRAY,
    BUCKETS_MAX,
    CHANGES,
    PARTS_MAX,
    BucketContributed,
    ContributionMade,
)
from p2psgd.wire.rule import RATE_MAX
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# What a trainer may write into its outbox, by the run's mode, and the checks that it must pass.
#
# In async mode an entry is an update. In rounds of updates a closing entry ends the node's contribution to a
# round, and only whole contributions come out of here. In a dense ring an entry says that a bucket of the
# contribution is whole. A trainer may only give to a round that was opened for it. Whatever else lies there
# is a TrainerError.


STEPS_LEAP_MAX: Final = 2**32  # between two entries; a liar needs many to use up STEPS_MAX


# What a trainer gives, copied out of shared memory, or out of a request, and checked.
Given = OwnUpdateMade | ContributionMade | BucketContributed | EvaluationAsked


class Entries(Protocol):
    """Checks one entry after the other. `steps` is of the last thing taken."""

    steps: int
    opened: int  # rounds, for this trainer
    half: bool  # what was checked last must go on before anything can be made of it

    def check(self, entry: bytes) -> Given | None:
        """Return what an entry means; None if it means something only with those that follow. TrainerError,
        with nothing changed.
        """


def make_entries(coordinates: int, mode: Mode, steps: int) -> Entries:
    """Make the checks of outbox entries for a trainer that goes on after `steps`."""
    if mode.dense:
        return Buckets(coordinates, steps)
    if mode.rounds:
        return Contributions(coordinates, steps, mode)
    return Updates(coordinates, steps, gradients=mode.rule.gradients)


def check_steps(steps: int, first: int, before: int) -> None:
    """Raise TrainerError unless it is `first` or follows, and not by much more than `before`."""
    if not first <= steps <= min(before + STEPS_LEAP_MAX, STEPS_MAX):
        raise TrainerError(f"step {steps} cannot follow step {before}")


class Updates:
    """Entries of the asynchronous mode; one step may send several."""

    def __init__(self, coordinates: int, steps: int, *, gradients: bool) -> None:
        self.half = False
        self.steps = steps
        self.opened = 0
        self._gradients = gradients
        self._first = steps  # that the next entry may be of; the trainer before may have sent nothing of it
        self._coordinates = coordinates

    def check(self, entry: bytes) -> OwnUpdateMade:
        steps = layout.OUTBOX_ENTRY.unpack_from(entry)[0]
        check_steps(steps, self._first, self.steps)
        update = check_update(entry, self._coordinates, gradients=self._gradients)
        self.steps = self._first = steps
        return update


def check_update(entry: bytes, coordinates: int, *, gradients: bool = False) -> OwnUpdateMade:
    """Check an entry of indices and return its update; its number of steps is not checked. `gradients`:
    it has a learning rate.
    """
    steps, magnitude, count, rate = layout.OUTBOX_ENTRY.unpack_from(entry)
    payload = entry[layout.OUTBOX_ENTRY.size :]
    if not 1 <= magnitude <= codec.MAGNITUDE_MAX:
        raise TrainerError(f"magnitude {magnitude} is not within 1 to {codec.MAGNITUDE_MAX} quanta")
    if not (0 < rate <= RATE_MAX if gradients else rate == 0):
        raise TrainerError(f"a learning rate of {rate:g}")
    if not 1 <= count <= codec.indices_max(coordinates):
        raise TrainerError(f"{count} indices, possible are 1 to {codec.indices_max(coordinates)}")
    try:
        words: NDArray[np.uint32] = codec.decode(payload, count, coordinates)
    except PeerError as error:
        raise TrainerError(f"its payload does not decode: {error}") from None
    return OwnUpdateMade(steps, magnitude, payload, words, rate)


class Contributions:
    """Entries of a sparse ring, or of rounds of owners: the contributions to rounds."""

    def __init__(self, coordinates: int, steps: int, mode: Mode) -> None:
        self._gradients = mode.rule.gradients
        self.steps = steps
        self.opened = 0
        self._given = 0
        self.half = False
        self._updates: list[OwnUpdateMade] = []
        self._indices = 0
        self._coordinates = coordinates
        self._indices_max = layout.contribution_indices_max(coordinates, mode)

    def check(self, entry: bytes) -> ContributionMade | None:
        if self._given >= self.opened:
            raise TrainerError(f"a contribution to a round that is not open: {self.opened} were opened")
        steps, magnitude, count, _ = layout.OUTBOX_ENTRY.unpack_from(entry)
        if self._updates:
            first = before = self._updates[0].steps
            if steps != first:
                raise TrainerError(f"steps {before} and {steps} in one contribution")
        else:
            check_steps(steps, self.steps + bool(count and steps), self.steps)  # 0: the run's first weights
        if magnitude == count == 0 and len(entry) == layout.OUTBOX_ENTRY.size:
            made = ContributionMade(steps, tuple(self._updates))
            self._updates, self._indices, self.half = [], 0, False
            self._given += 1
            self.steps = steps
            return made
        update = check_update(entry, self._coordinates, gradients=self._gradients)
        if len(self._updates) == PARTS_MAX or self._indices + count > self._indices_max:
            raise TrainerError(
                f"a contribution of more than {PARTS_MAX} updates or {self._indices_max} indices"
            )
        self._updates.append(update)
        self._indices += count
        self.half = True
        return None


class Buckets:
    """Entries of a dense ring. Those of one round of changes hold each weight once; an array is a round
    alone.
    """

    def __init__(self, weights: int, steps: int) -> None:
        self.half = False
        self.steps = steps
        self.opened = 0
        self._given = 0
        self._weights = weights
        self._numbers = layout.dense_numbers(weights)
        self._covered: list[tuple[int, int]] = []  # by this round's buckets so far

    def check(self, entry: bytes) -> BucketContributed:
        if self._given >= self.opened:
            raise TrainerError(f"a contribution to a round that is not open: {self.opened} were opened")
        steps, kind, offset, count, name_bytes = layout.BUCKET_ENTRY.unpack_from(entry)
        check_steps(steps, self.steps + (kind == CHANGES and steps > 0), self.steps)  # 0: as in a sparse ring
        words = entry[layout.BUCKET_ENTRY.size :]
        name, shape = words[:name_bytes], words[name_bytes:]
        if name_bytes > len(words) or max(len(name), len(shape)) > layout.NAME_BYTES_MAX:
            raise TrainerError(f"a name of {name_bytes} and a shape in {len(words)} bytes")
        try:
            bucket = BucketContributed(kind, offset, count, name.decode(), shape.decode())
        except UnicodeDecodeError:
            raise TrainerError("a name or a shape that is not UTF-8") from None
        if kind == CHANGES:
            self._cover(bucket, steps)
        elif kind != ARRAY or offset or not 1 <= count <= self._numbers or self._covered:
            raise TrainerError(f"a bucket of kind {kind}, of {count} numbers from {offset}, cannot be here")
        else:
            self._given += 1
        return bucket

    def _cover(self, bucket: BucketContributed, steps: int) -> None:
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
            self.steps = steps


# ----------------------------------------------------------------------------
# The daemon's end of the memory it shares with one trainer, from attach to detach.
#
# Rings, counters and wake-ups are made anew for each attachment, so a trainer that was refused and lives on
# writes into memory that nobody reads. Only the residual is handed from one trainer to the next
# (trainer_session.py). Every number that the trainer publishes is checked here before it is used;
# TrainerError means that it broke the layout and must go.


class Attachment:
    """A trainer's inbox, outbox, counters and wake-ups, as the daemon holds them.

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
        steps: int,
        half: int,
        stopping: bool,
    ) -> None:
        self.entries = make_entries(coordinates, mode, steps)
        self._rounds = mode.rounds
        self._shown = steps  # the most that `progress` has returned
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
        self.inbox = RingWriter(inbox, generation)
        shortest, longest = layout.outbox_entry_bytes(coordinates, mode)
        self.outbox = RingReader(outbox, generation, length_min=shortest, length_max=longest)
        self._counters = Counters(words)
        self._counters.store(Counter.GENERATION, generation)
        self._counters.store(Counter.STOPPING, int(stopping))
        self._counters.store(Counter.STEPS, pack_steps(steps, 0, half))
        self._counters.store(Counter.OUTBOX_HEAD, half)

    @property
    def descriptors(self) -> list[int]:
        """Return the trainer's descriptors: [inbox, outbox, counters, wake_trainer, wake_daemon]."""
        return [*self._memories, self._wake_trainer.fileno(), self.wake_daemon.fileno()]

    def deliver(self, body: bytes | bytearray) -> None:
        """Put a peer's update into the inbox, and wake a trainer that had read all before: one that has not
        looks there before it sleeps. In rounds it sleeps until the next one is opened.

        When that is full: ask for a reload, and write no more until then.
        """
        if self.reload_wanted:
            return
        self.inbox.accept_tail(self._counters.load(Counter.INBOX_TAIL))
        before = self.inbox.head
        if not self.inbox.put(body):
            self.want_reload()
            return
        self._counters.store(Counter.INBOX_HEAD, self.inbox.head)
        # Loaded after that: a trainer that reads the last entry meanwhile sees this one, or is seen here.
        if not self._rounds and self._counters.load(Counter.INBOX_TAIL) == before:
            self._wake_trainer.signal()

    def want_reload(self) -> None:
        """Have the trainer take the replica as a whole, and write no update into the inbox until then."""
        self.reload_wanted = True
        self._counters.store(Counter.RELOAD_WANTED, 1)
        self._wake_trainer.signal()

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """Allow the trainer to make its contribution to this round; what it must know of the one before comes
        with that. All updates of that were delivered.
        """
        self.entries.opened += 1
        for counter, value in (
            (Counter.CONTRIBUTORS, contributors),
            (Counter.SUMS, sums),
            (Counter.ADDING_US, adding_us),
            (Counter.SENDING_US, sending_us),
            (Counter.ROUND, number),
            (Counter.ROUNDS_OPENED, self.entries.opened),
        ):
            self._counters.store(counter, value)
        self._wake_trainer.signal()

    def want_state(self) -> None:
        """Ask the trainer for its state."""
        self._states_wanted += 1
        self._counters.store(Counter.STATE_WANTED, self._states_wanted)
        self._wake_trainer.signal()

    def accept_state(self) -> None:
        """Note that the state has come: from here on the trainer leaves its copy of the residual alone."""
        self._counters.store(Counter.STATE_WANTED, 0)

    def reload(self) -> int:
        """Prepare for the replica that the trainer is about to get as it is now; return the position where it
        reads its inbox on.
        """
        self.reload_wanted = False
        self._counters.store(Counter.RELOAD_WANTED, 0)
        return self.inbox.skip()

    def published_bytes(self) -> int:
        """Return how far the outbox has been written by now, as a position."""
        position = self._counters.load(Counter.OUTBOX_HEAD) & POSITION
        self.outbox.accept_head(position)
        return position

    def take(self, entries_max: int, indices_max: int, end: int | None = None) -> list[Given]:
        """Return the next things in the outbox, checked, as many as fit a turn of the loop; none: it is
        empty.

        None is taken that begins at position `end` or after it. An entry that does not check raises
        TrainerError once what was whole before it has been taken.
        """
        self.outbox.accept_head(self._counters.load(Counter.OUTBOX_HEAD) & POSITION)
        before = tail = self.outbox.tail
        end = self.outbox.head if end is None else end
        given: list[Given] = []
        indices = 0
        while tail < end and (self.entries.half or (len(given) < entries_max and indices < indices_max)):
            try:
                entry = self.outbox.take()
                if entry is None:
                    break
                whole = self.entries.check(entry)
            except TrainerError:
                self.outbox.tail = tail  # met again by the next call
                if not given:
                    raise
                break
            tail = self.outbox.tail
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

    def show_links(self, *, busy: bool) -> None:
        """Show the trainer whether the links are busy with what was made before."""
        self._counters.store(Counter.LINKS_BUSY, int(busy))

    def progress(self) -> int:
        """Return the steps published, never fewer than before; exact once the trainer is gone.

        A live trainer may publish between the two loads, and a count that cannot be is not believed: then it
        is what is known already.
        """
        packed = self._counters.load(Counter.STEPS)  # before the head: never too many of a live one
        count = published(packed, self.half)
        known = max(self.entries.steps, self._shown)
        if known <= count <= min(self.entries.steps + STEPS_LEAP_MAX, STEPS_MAX):
            self._shown = count
        return max(known, self._shown)

    @property
    def half(self) -> int:
        """The half of the residual, 0 or 1, that the trainer's last publication left."""
        return self._counters.load(Counter.OUTBOX_HEAD) & 1

    def residual_copy(self) -> tuple[int, int] | None:
        """Return, for a trainer that keeps its residual elsewhere, the step of its last copy and the half
        that has it; None: the residual is where it belongs.
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


# ----------------------------------------------------------------------------
# The trainer's end.


Mark = TypeVar("Mark")


class TrainerMemory(Generic[Mark]):
    """Residual, rings, counters and wake-ups as `answer` describes them.

    `mark` is whatever the caller wants to know of what it has published so far: a publication brings a new
    one, which holds from the very store that publishes. `contributions` and `arrays` float32 (M,) and `sums`
    float32 (2, M) are those of a dense ring, else empty.

    `memories` are descriptors [residual, inbox, outbox, counters], then those of contributions and sums,
    needed only by this call; `wake_trainer` and `wake_daemon` belong to this object.
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
        (self.contributions, self.arrays), self.sums = _map_dense(answer.weights, dense)
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
    def steps(self) -> int:
        """Return the last step published, read back: no interruption can leave a copy behind that is old."""
        return published(self._counters.load(Counter.STEPS), self.half)

    @property
    def half(self) -> int:
        """The half of the residual, 0 or 1, that is current."""
        return self._counters.load(Counter.OUTBOX_HEAD) & 1

    @property
    def reload_wanted(self) -> bool:
        """Return whether the inbox lacks updates, so that the weights must come from the replica."""
        return self._counters.load(Counter.RELOAD_WANTED) != 0

    @property
    def links_busy(self) -> bool:
        """Return whether the links are busy with what was made before."""
        return self._counters.load(Counter.LINKS_BUSY) != 0

    @property
    def stopping(self) -> bool:
        """Return whether the daemon asks for the end after this step."""
        return self._counters.load(Counter.STOPPING) != 0

    @property
    def mark(self) -> Mark:
        """Return the mark as of what is published, also after an interruption."""
        end, since, before = self._marks
        return since if self.published_bytes >= end else before

    def set_mark(self, mark: Mark) -> None:
        """Replace the mark, with nothing published."""
        self._marks = (self.published_bytes, mark, mark)

    @property
    def rounds_opened(self) -> int:
        """Return how often this trainer was allowed to make a contribution."""
        return self._counters.load(Counter.ROUNDS_OPENED)

    @property
    def round(self) -> int:
        """The number of the last round opened, 0 before."""
        return self._counters.load(Counter.ROUND)

    @property
    def contributors(self) -> int:
        """Return how many nodes contributed to the round before the last one opened."""
        return self._counters.load(Counter.CONTRIBUTORS)

    @property
    def round_sums(self) -> NDArray[np.float32]:
        """Return the sums of that round, float32 (M,). They are valid until the trainer makes its next
        contribution, or for one failure timeout, whichever ends first, as rounds may then go on without it.
        """
        half: NDArray[np.float32] = self.sums[self._counters.load(Counter.SUMS) & 1]
        return half

    @property
    def adding_us(self) -> int:
        """Return the microseconds that the daemon has spent on summing contributions, as of the last round
        opened.
        """
        return self._counters.load(Counter.ADDING_US)

    @property
    def sending_us(self) -> int:
        """Return the microseconds that the daemon has spent on handing ring data to the network, as of the
        last round opened.
        """
        return self._counters.load(Counter.SENDING_US)

    @property
    def state_wanted(self) -> int:
        """Return the number of the daemon's request for the state, 0 if it wants none now."""
        return self._counters.load(Counter.STATE_WANTED)

    @property
    def published_bytes(self) -> int:
        """Return how far the outbox has been published, as a position."""
        return self._counters.load(Counter.OUTBOX_HEAD) & POSITION

    def has_updates(self) -> bool:
        """Return whether an update lies in the inbox."""
        self._inbox.accept_head(self._counters.load(Counter.INBOX_HEAD))
        return self._inbox.head > self._inbox.tail

    def updates(self, end: int | None = None) -> Iterator[bytes]:
        """Return the UPDATE bodies in the inbox now, or those before position `end` of them; asking for the
        next gives back the room of the last.
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
        return self._halves[self.half]

    @property
    def next_residual(self) -> NDArray[np.float32]:
        """The other half, which becomes the residual when the next mini-batch is published."""
        return self._halves[1 - self.half]

    def take_out_residual(self) -> NDArray[np.float32]:
        """Keep the residual elsewhere from now on, so that what lies here are copies; return it (P,) as it is
        now.
        """
        self._counters.store(Counter.RESIDUAL_COPY, pack_copy(self.steps, self.half))
        return self.residual

    def copy_residual(self, write: Callable[[NDArray[np.float32]], None]) -> NDArray[np.float32]:
        """Have `write` copy the residual as of the last publication to where the next trainer gets it from,
        should this one end without another word; return that, (P,).

        Interrupted anywhere, the copy before it stays.
        """
        copied = unpack_copy(self._counters.load(Counter.RESIDUAL_COPY))
        assert copied is not None, "take_out_residual() comes first"
        half = 1 - copied[1]
        write(self._halves[half])
        self._counters.store(Counter.RESIDUAL_COPY, pack_copy(self.steps, half))
        return self._halves[half]

    def keep_residual(self, residual: NDArray[np.float32]) -> None:
        """Copy the residual (P,) to where the daemon looks for it when it is sent a state; a dense ring has
        none.
        """
        if not self.contributions.size:
            self._kept[:] = residual

    def has_taken(self, end: int) -> bool:
        """Return whether the daemon has taken the outbox up to this position."""
        room = self._outbox.accept_tail(self._counters.load(Counter.OUTBOX_TAIL))
        return self._outbox.head - (self._outbox.capacity - room) >= end

    def has_room(self, entries: Sequence[bytes]) -> bool:
        """Return whether the outbox has room for these now; TrainerError if it never has."""
        room = self._outbox.accept_tail(self._counters.load(Counter.OUTBOX_TAIL))
        needed = 0
        for entry in entries:
            needed += entry_bytes(len(entry))
        if needed > self._outbox.capacity:
            raise TrainerError(
                f"the {len(entries)} updates of this send take {needed} bytes and the daemon's outbox holds"
                f" {self._outbox.capacity}: give more tensors the same threshold, or fewer in full precision"
            )
        return needed <= room

    def publish(self, entries: Sequence[bytes], mark: Mark | None = None, *, steps: int = 1) -> None:
        """Write entries, then publish them and the residual after them with one store, which counts `steps`
        mini-batches more, 0 to SEND_STEPS_MAX. With 0 the residual stays as it is. `mark` None: the last one
        holds on.

        The caller has seen to the room. Interrupted anywhere, it has done all or nothing: the property
        `steps` shows which, or, where there are entries, `mark`; `settle` must come before the next one.
        """
        for entry in entries:
            fits = self._outbox.put(entry)
            assert fits, (len(entry), self._outbox.room)
        head = self._counters.load(Counter.OUTBOX_HEAD)
        end, since, before = self._marks
        last = since if head & POSITION >= end else before
        self._marks = (self._outbox.head, last if mark is None else mark, last)
        half = head & 1 ^ (steps > 0)
        self._counters.store(Counter.STEPS, pack_steps(self.steps + steps, steps, half))
        self._counters.store(Counter.OUTBOX_HEAD, self._outbox.head | half)
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
    """Map contributions with arrays, for writing, and sums, for reading; empty unless the daemon gave
    both.
    """
    if not descriptors:
        return np.empty((2, 0), np.float32), np.empty((2, 0), np.float32)
    contributions, sums = descriptors
    numbers = layout.dense_numbers(weights)
    return (
        map_segment(contributions, np.float32, 2 * numbers, Access.WRITE).reshape(2, numbers),
        map_segment(sums, np.float32, 2 * numbers, Access.READ).reshape(2, numbers),
    )
