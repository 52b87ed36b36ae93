"""The log of updates: a part for each origin, a store beyond RAM, and the tail that a checkpoint keeps."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol

from p2psgd.core.frontier import Origin

# ----------------------------------------------------------------------------
# Where the log keeps frames beyond RAM, and what the log knows of each frame.


_LENGTH_BITS: Final = 32

Entry = bytes | int  # the frame, or where the store has it: handle << 32 | length, half the size of a tuple


class FrameStore(Protocol):
    """A place for frames beyond RAM. What it holds need not outlive the process."""

    def write(self, frame: bytes) -> int:
        """Keep a frame; returns its handle, which is not negative. OSError if it cannot."""

    def read(self, handle: int, length: int) -> bytes:
        """Return the frame of `length` bytes; OSError if it cannot be read again as it was. From any
        thread.
        """

    def free(self, handle: int, length: int, *, held: bool) -> None:
        """Free a frame that is not read any more; `held`: it may be read until `release`."""

    def release(self) -> None:
        """Stop holding what was freed as held: it is not read any more."""


def entry_of(handle: int, length: int) -> int:
    """Return the log's entry for a frame in the store."""
    return handle << _LENGTH_BITS | length


def place_of(entry: int) -> tuple[int, int]:
    """Return handle and length of a frame in the store."""
    return entry >> _LENGTH_BITS, length_of(entry)


def length_of(entry: Entry) -> int:
    """Return the bytes of the frame."""
    return len(entry) if isinstance(entry, bytes) else entry & (1 << _LENGTH_BITS) - 1


# ----------------------------------------------------------------------------
# One origin's part of the log.


_GONE = 0


@dataclass(slots=True)
class OriginLog:
    """An origin's entries, from trimmed_to + 1 on, at the indices from `start` on.

    Those before `start` have left and are cut off together. Arrivals show which origin's entry is the oldest.
    """

    trimmed_to: int = 0
    entries: list[Entry] = field(default_factory=list)
    arrivals: array[int] = field(default_factory=lambda: array("Q"))
    start: int = 0
    in_ram: int = 0  # no entry before this index is in RAM
    frame_bytes: int = 0

    @property
    def last(self) -> int:
        """Return the sequence of the last entry, `trimmed_to` if there is none."""
        return self.trimmed_to + len(self.entries) - self.start

    def append(self, frame: bytes, arrival: int) -> None:
        """Append an entry."""
        self.entries.append(frame)
        self.arrivals.append(arrival)
        self.frame_bytes += len(frame)

    def index(self, sequence: int) -> int:
        """Return where in `entries` that sequence is, if it is within trimmed_to + 1 .. last."""
        return self.start + sequence - self.trimmed_to - 1

    def oldest_in_ram(self) -> int:
        """Return the index of the oldest entry in RAM, or the number of entries if none is."""
        index, entries = self.in_ram, self.entries
        while index < len(entries) and isinstance(entries[index], int):
            index += 1
        self.in_ram = index
        return index

    def pop(self) -> Entry:
        """Take the oldest entry out."""
        entry = self.entries[self.start]
        self.entries[self.start] = _GONE
        self.start += 1
        self.trimmed_to += 1
        self.frame_bytes -= length_of(entry)
        if 2 * self.start > len(self.entries):
            self._cut()
        return entry

    def take_over(self, other: OriginLog, after: int, frame_bytes: int) -> None:
        """Take over the entries of `other` beyond `after`, which have `frame_bytes` bytes and leave it."""
        assert self.last == after, (self.last, after)
        index = other.index(after + 1)
        self.entries += other.entries[index:]
        self.arrivals += other.arrivals[index:]
        del other.entries[index:], other.arrivals[index:]
        self.frame_bytes += frame_bytes
        other.frame_bytes -= frame_bytes

    def _cut(self) -> None:
        del self.entries[: self.start], self.arrivals[: self.start]
        self.in_ram = max(0, self.in_ram - self.start)
        self.start = 0


# ----------------------------------------------------------------------------
# What a checkpoint keeps of the log: references to its frames, so that a file can be written of them while
# the log goes on.
#
# A frame in RAM stays what it was, even after the log drops it; one in the store can be read until the log is
# released. Reading takes time, so it is done in the thread that writes.


class UnreadableTailError(Exception):
    """A frame of the tail cannot be had again as it was."""


class Tail:
    """Frames in an order in which each origin's sequences ascend, without holes."""

    def __init__(self, origin_logs: list[list[Entry]], store: FrameStore | None = None) -> None:
        """Hold the entries of each origin, in order: `origin_logs`, with those in RAM or in `store`."""
        self._origin_logs = origin_logs
        self._store = store

    @classmethod
    def of(cls, frames: Iterable[bytes]) -> Tail:
        """Return the tail of frames that are all in RAM."""
        return cls([list(frames)])

    @property
    def frame_bytes(self) -> int:
        """Return the bytes of all frames."""
        return sum(sum(map(length_of, origin_log)) for origin_log in self._origin_logs)

    def __len__(self) -> int:
        return sum(map(len, self._origin_logs))

    def __iter__(self) -> Iterator[bytes]:
        """Yield frame by frame, those in the store read as they come; UnreadableTailError if one cannot
        be.
        """
        for origin_log in self._origin_logs:
            for entry in origin_log:
                yield entry if isinstance(entry, bytes) else self._read(entry)

    def _read(self, entry: int) -> bytes:
        assert self._store is not None
        try:
            return self._store.read(*place_of(entry))
        except OSError as error:
            raise UnreadableTailError(str(error)) from None

    def readable(self, is_whole: Callable[[bytes], bool]) -> Tail:
        """Return, of each origin, only what comes after its last frame that cannot be read, or is not
        whole.
        """
        return Tail(
            [self._after_last_bad(origin_log, is_whole) for origin_log in self._origin_logs], self._store
        )

    def _after_last_bad(self, origin_log: list[Entry], is_whole: Callable[[bytes], bool]) -> list[Entry]:
        for index in reversed(range(len(origin_log))):
            entry = origin_log[index]
            try:
                frame = entry if isinstance(entry, bytes) else self._read(entry)
            except UnreadableTailError:
                return origin_log[index + 1 :]
            if not is_whole(frame):
                return origin_log[index + 1 :]
        return origin_log


# ----------------------------------------------------------------------------
# The log: frames of updates, kept so that any holder can send them to a peer that lacks them.
#
# One log for all peers: a slow peer is a cursor that lags, not a queue that grows. Everything is kept until
# the budgets are needed, in RAM and then, if there is a store, in the store. What may leave then is the
# owner's decision (`trim`); an append never drops anything, it is the owner who asks for `room` first.
# Whatever could take long is done in parts, so that no turn of the loop is long.


ENTRY_BYTES: Final = (
    120  # of RAM that a frame costs beside its own bytes, wherever those are: see test_log_cost.py
)
SPILL_BYTES: Final = 256 * 1024  # go to the store at a time: little enough to stall no turn of the loop
SHED_MAX: Final = 1 << 14  # entries trimmed at a time: each takes about a microsecond, and the loop waits
TIDY_MAX: Final = 1 << 12  # entries let go in one turn of many


class UpdateLog:
    """Frames by origin and sequence number; contiguous from trimmed_to + 1 for each origin."""

    def __init__(
        self, *, budget_bytes: int, store: FrameStore | None = None, store_budget_bytes: int = 0
    ) -> None:
        """`budget_bytes` of RAM, at least 1, and `store_budget_bytes` of frames in the store."""
        self.budget_bytes = budget_bytes
        self.store_budget_bytes = store_budget_bytes
        self.bytes_held = 0  # in RAM: ENTRY_BYTES for each entry, and the frames that are there
        self.bytes_stored = 0  # of frames in the store
        self.lost_durability = 0  # entries trimmed that not every member had durably
        self.unreadable = 0  # times that the store could not give back a frame
        self._origin_logs: dict[Origin, OriginLog] = {}
        self._leaving: list[OriginLog] = []  # that nobody will ask for any more
        self._arrival = 0
        self._store = store
        self._taking = store is not None  # the store took what it was given last
        self._held: dict[Origin, tuple[int, int]] | None = None  # first and last sequence of a tail in use

    def __len__(self) -> int:
        return sum(origin_log.last - origin_log.trimmed_to for origin_log in self._origin_logs.values())

    @property
    def pressure(self) -> float:
        """Return the share of the budgets that is in use. A store that takes no more counts as much as it
        holds.
        """
        return (self.bytes_held + self.bytes_stored) / self.capacity

    @property
    def capacity(self) -> int:
        """Return the bytes that may be in use, in RAM and in the store."""
        return self.budget_bytes + (self.store_budget_bytes if self._taking else self.bytes_stored)

    def room(self, frame_bytes: int) -> bool:
        """Return whether an append of this many bytes would stay within the budgets.

        It is by the first frame over its budget that RAM learns that the store takes no more; then there is
        no room.
        """
        return self.bytes_held + self.bytes_stored + frame_bytes + ENTRY_BYTES <= self.capacity

    def append(self, origin: Origin, sequence: int, frame: bytes) -> None:
        """Keep one more frame of `origin`; sequences come without holes. While RAM is over its budget the
        oldest frames there go to the store.
        """
        origin_log = self._origin_logs.get(origin)
        if origin_log is None:
            origin_log = self._origin_logs[origin] = OriginLog()
        assert sequence == origin_log.last + 1, (origin, sequence, origin_log.last)
        origin_log.append(frame, self._arrival)
        self._arrival += 1
        self.bytes_held += len(frame) + ENTRY_BYTES
        if self.bytes_held > self.budget_bytes and self._taking:
            self._spill()

    def frame(self, origin: Origin, sequence: int) -> bytes | None:
        """Return the frame; None if it has left, was never here, or the store cannot read it."""
        origin_log = self._origin_logs.get(origin)
        if origin_log is None or not origin_log.trimmed_to < sequence <= origin_log.last:
            return None
        return self.frame_of(origin_log.entries[origin_log.index(sequence)])

    def frame_of(self, entry: Entry) -> bytes | None:
        """Return the frame for an entry of an origin; None if the store cannot read it."""
        if isinstance(entry, bytes):
            return entry
        assert self._store is not None
        try:
            return self._store.read(*place_of(entry))
        except OSError:
            self.unreadable += 1
            return None

    def trimmed_to(self, origin: Origin) -> int:
        """Return the last sequence of `origin` that has left the log, 0 if none."""
        origin_log = self._origin_logs.get(origin)
        return 0 if origin_log is None else origin_log.trimmed_to

    def last(self, origin: Origin) -> int:
        """Return the last sequence of `origin` that came; `trimmed_to` if nothing of it is held."""
        origin_log = self._origin_logs.get(origin)
        return 0 if origin_log is None else origin_log.last

    def trim(
        self, stable: Callable[[Origin], int], durable: Callable[[Origin], int], *, share: float
    ) -> None:
        """Let the oldest entries go until no more than `share` of the budgets is in use.

        First what all members have durably, then what all have applied; beyond that, `stable`, nothing goes.
        Of each at most SHED_MAX entries; what is too much then goes the next time.
        A store that took no more is tried again here.
        """
        target = share * self.capacity
        dropped = self._shed(lambda origin: (last := durable(origin)) and min(last, stable(origin)), target)
        if dropped < SHED_MAX:
            self.lost_durability += self._shed(stable, target)
        if self._store is not None and not self._taking:
            self._spill()

    def pinned_bytes(self, applied: Callable[[Origin], int]) -> int:
        """Return the bytes of the entries beyond what a node has applied, by each origin's mean size of a
        frame.
        """
        total = 0
        for origin, origin_log in self._origin_logs.items():
            held = origin_log.last - origin_log.trimmed_to
            beyond = min(held, origin_log.last - applied(origin))
            if beyond > 0:
                total += beyond * ENTRY_BYTES + origin_log.frame_bytes * beyond // held
        return total

    def tail(self, acknowledged: Callable[[Origin], int]) -> Tail:
        """Return the entries beyond what is acknowledged. They can be read until `release`, also those that
        leave the log meanwhile; one tail at a time.
        """
        assert self._held is None, "the tail before this one has not been released"
        self._held, origin_logs = {}, []
        for origin, origin_log in self._origin_logs.items():
            if origin_log.trimmed_to < origin_log.last:
                first = max(origin_log.trimmed_to, acknowledged(origin)) + 1
                origin_logs.append(origin_log.entries[origin_log.index(first) :])
                self._held[origin] = first, origin_log.last
        return Tail(origin_logs, self._store)

    def release(self) -> None:
        """Note that the tail is read."""
        self._held = None
        if self._store is not None:
            self._store.release()

    # -- becoming another replica's log

    def start(self, origin: Origin, trimmed_to: int) -> None:
        """Begin, in an empty log, the entries of `origin`: they come after `trimmed_to`."""
        assert origin not in self._origin_logs, origin
        self._origin_logs[origin] = OriginLog(trimmed_to)

    def pass_over(self, origin: Origin, trimmed_to: int) -> None:
        """Note that nothing of `origin` up to `trimmed_to` was ever here, nor will be."""
        self._origin_logs[origin] = OriginLog(trimmed_to)

    def receive(self, origin_log: OriginLog, frame: bytes) -> None:
        """Take the frame before all those in `origin_log`, which will be adopted or else discarded: its
        entries stand there from the newest to the oldest. It counts as held, and goes to the store if RAM is
        over its budget.
        """
        self.bytes_held += len(frame) + ENTRY_BYTES
        origin_log.trimmed_to -= 1
        origin_log.frame_bytes += len(frame)
        entry = None
        if self.bytes_held > self.budget_bytes and self._taking:
            entry = self._store_one(frame)
            if self.bytes_held > self.budget_bytes:
                self._spill()
        origin_log.entries.append(frame if entry is None else entry)
        origin_log.in_ram = 0 if entry is None else origin_log.in_ram + 1

    def adopt(self, received: Mapping[Origin, OriginLog], applied_again: Mapping[Origin, int]) -> None:
        """Become the log of a replica taken from a snapshot: `received` has a lane for each of its origins.

        What this log holds beyond them stays; it has been applied again, `applied_again` bytes of frames of
        each such origin. All else goes, bit by bit (`tidy`).
        """
        for origin, origin_log in received.items():
            before = self._origin_logs.get(origin)
            if (
                before is not None and before.trimmed_to > origin_log.last
            ):  # trimmed since then: all members have it
                self._leaving.append(origin_log)
                continue
            origin_log.entries.reverse()
            origin_log.arrivals = array("Q", [0]) * len(origin_log.entries)  # older than all else
            if before is not None:
                if before.trimmed_to <= origin_log.last < before.last:
                    origin_log.take_over(before, origin_log.last, applied_again.get(origin, 0))
                self._leaving.append(before)
            self._origin_logs[origin] = origin_log

    def discard(self, received: Mapping[Origin, OriginLog]) -> None:
        """Let these entries go, bit by bit (`tidy`): they will not be adopted."""
        self._leaving += received.values()

    @property
    def untidy(self) -> bool:
        """Return whether there is something to `tidy`."""
        return bool(self._leaving)

    def tidy(self) -> None:
        """Let go of at most TIDY_MAX entries of what was given up."""
        left = TIDY_MAX
        while self._leaving and left:
            origin_log = self._leaving[-1]
            if origin_log.trimmed_to == origin_log.last:
                self._leaving.pop()
            else:
                self._drop_oldest(origin_log, held=self._held is not None)
                left -= 1

    def _shed(self, limit: Callable[[Origin], int], target: float) -> int:
        """Drop the oldest entries within `limit` while more than `target` bytes are in use; returns how
        many.
        """
        heads = []
        for origin, origin_log in self._origin_logs.items():
            last = min(limit(origin), origin_log.last)
            if origin_log.trimmed_to < last:
                heads.append((origin_log.arrivals[origin_log.start], origin, origin_log, last))
        heapify(heads)
        held = self._held or {}
        dropped = 0
        while heads and self.bytes_held + self.bytes_stored > target and dropped < SHED_MAX:
            _, origin, origin_log, last = heads[0]
            first_held, last_held = held.get(origin, (1, 0))
            self._drop_oldest(origin_log, held=first_held <= origin_log.trimmed_to + 1 <= last_held)
            dropped += 1
            if origin_log.trimmed_to < last:
                heapreplace(heads, (origin_log.arrivals[origin_log.start], origin, origin_log, last))
            else:
                heappop(heads)
        return dropped

    def _drop_oldest(self, origin_log: OriginLog, *, held: bool) -> None:
        """Drop the oldest entry; `held`: it may be part of the tail in use."""
        entry = origin_log.pop()
        if isinstance(entry, bytes):
            self.bytes_held -= len(entry)
        else:
            assert self._store is not None
            handle, length = place_of(entry)
            self._store.free(handle, length, held=held)
            self.bytes_stored -= length
        self.bytes_held -= ENTRY_BYTES

    def _spill(self) -> None:
        """Move the oldest frames in RAM to the store, until there is some room or it takes no more."""
        target = self.budget_bytes - min(SPILL_BYTES, self.budget_bytes // 16)
        heads = []
        for origin, origin_log in self._origin_logs.items():
            index = origin_log.oldest_in_ram()
            if index < len(origin_log.entries):
                heads.append((origin_log.arrivals[index], origin, origin_log))
        heapify(heads)
        while heads and self.bytes_held > target:
            _, origin, origin_log = heads[0]
            frame = origin_log.entries[origin_log.in_ram]
            assert isinstance(frame, bytes)
            entry = self._store_one(frame)
            if entry is None:
                break
            origin_log.entries[origin_log.in_ram] = entry
            index = origin_log.oldest_in_ram()
            if index < len(origin_log.entries):
                heapreplace(heads, (origin_log.arrivals[index], origin, origin_log))
            else:
                heappop(heads)
        self._taking = self.bytes_held <= self.budget_bytes

    def _store_one(self, frame: bytes) -> Entry | None:
        """Move a frame that counts as held in RAM to the store; None if that takes no more."""
        assert self._store is not None
        if self.bytes_stored + len(frame) > self.store_budget_bytes:
            return None
        try:
            handle = self._store.write(frame)
        except OSError:
            return None
        self.bytes_stored += len(frame)
        self.bytes_held -= len(frame)
        return entry_of(handle, len(frame))
