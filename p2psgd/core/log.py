"""The log: frames of updates, kept so that any holder can give them to whoever lacks them.

One log for all peers: a slow peer is a cursor that lags, not a queue that grows. Everything is kept until
the budgets are needed, in RAM and then, if there is a store, in the store. What may leave then is the
owner's decision (`trim`); an append never drops anything, it is the owner who asks for `room` first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol

from p2psgd.core.frontier import Origin

ENTRY_BYTES: Final = (
    120  # of RAM that a frame costs beside its own bytes, wherever those are: see test_log.py
)
SPILL_BYTES: Final = 256 * 1024  # go to the store at a time: little enough to stall no turn of the loop
SHED_MAX: Final = 1 << 14  # entries dropped at a time: each takes about a microsecond, and the loop waits
_GONE: Final = 0
_LENGTH_BITS: Final = 32


class FrameStore(Protocol):
    """A place for frames beyond RAM. What it holds need not outlive the process."""

    def write(self, frame: bytes) -> int:
        """Keep a frame; returns its handle, which is not negative. OSError if it cannot."""

    def read(self, handle: int, length: int) -> bytes:
        """The frame of `length` bytes; OSError if it cannot be had again as it was."""

    def free(self, handle: int, length: int) -> None:
        """The frame will not be read any more."""


@dataclass(slots=True)
class _Lane:
    """One origin's entries, from floor + 1 on, at the indices from `start` on.

    An entry is the frame, or where the store has it: handle << 32 | length, half the size of a tuple. Those
    before `start` have left and are cut off together. Arrivals say which lane's entry is the oldest.
    """

    floor: int = 0
    entries: list[bytes | int] = field(default_factory=list)
    arrivals: array[int] = field(default_factory=lambda: array("Q"))
    start: int = 0
    in_ram: int = 0  # no entry before this index is in RAM
    frame_bytes: int = 0

    @property
    def last(self) -> int:
        return self.floor + len(self.entries) - self.start

    def oldest_in_ram(self) -> int:
        """Index of it, or the number of entries if none is."""
        index, entries = self.in_ram, self.entries
        while index < len(entries) and isinstance(entries[index], int):
            index += 1
        self.in_ram = index
        return index

    def pop(self) -> bytes | int:
        """Take the oldest entry out."""
        entry = self.entries[self.start]
        self.entries[self.start] = _GONE
        self.start += 1
        self.floor += 1
        if 2 * self.start > len(self.entries):
            self._cut()
        return entry

    def prepend(self, frames: list[bytes]) -> None:
        """Put frames before the oldest entry, as old as that."""
        self._cut()
        arrival = self.arrivals[0] if self.arrivals else 0
        self.entries[:0] = frames
        self.arrivals[:0] = array("Q", [arrival]) * len(frames)
        self.floor -= len(frames)
        self.in_ram = 0

    def _cut(self) -> None:
        del self.entries[: self.start], self.arrivals[: self.start]
        self.in_ram = max(0, self.in_ram - self.start)
        self.start = 0


class UpdateLog:
    """Frames by origin and sequence number; contiguous from floor + 1 for each origin."""

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
        self._lanes: dict[Origin, _Lane] = {}
        self._arrival = 0
        self._store = store
        self._taking = store is not None  # the store took what it was given last

    def __len__(self) -> int:
        return sum(lane.last - lane.floor for lane in self._lanes.values())

    @property
    def pressure(self) -> float:
        """Share of the budgets that is in use. A store that takes no more counts as much as it holds."""
        return (self.bytes_held + self.bytes_stored) / self.capacity

    @property
    def capacity(self) -> int:
        """Bytes that may be in use, in RAM and in the store."""
        return self.budget_bytes + (self.store_budget_bytes if self._taking else self.bytes_stored)

    def room(self, frame_bytes: int) -> bool:
        """An append of so many bytes would stay within the budgets.

        It is by the first frame over its budget that RAM learns that the store takes no more; then there is
        no room.
        """
        return self.bytes_held + self.bytes_stored + frame_bytes + ENTRY_BYTES <= self.capacity

    def append(self, origin: Origin, sequence: int, frame: bytes) -> None:
        """Keep one more frame of `origin`; sequences come without holes. While RAM is over its budget the
        oldest frames there go to the store.
        """
        lane = self._lanes.get(origin)
        if lane is None:
            lane = self._lanes[origin] = _Lane()
        assert sequence == lane.last + 1, (origin, sequence, lane.last)
        lane.entries.append(frame)
        lane.arrivals.append(self._arrival)
        lane.frame_bytes += len(frame)
        self._arrival += 1
        self.bytes_held += len(frame) + ENTRY_BYTES
        if self.bytes_held > self.budget_bytes and self._taking:
            self._spill()

    def frame(self, origin: Origin, sequence: int) -> bytes | None:
        """The frame; None if it has left, was never here, or the store cannot read it."""
        lane = self._lanes.get(origin)
        if lane is None or not lane.floor < sequence <= lane.last:
            return None
        entry = lane.entries[lane.start + sequence - lane.floor - 1]
        if isinstance(entry, bytes):
            return entry
        assert self._store is not None
        try:
            return self._store.read(*_place(entry))
        except OSError:
            self.unreadable += 1
            return None

    def floor(self, origin: Origin) -> int:
        """The last sequence of `origin` that has left the log, 0 if none."""
        lane = self._lanes.get(origin)
        return 0 if lane is None else lane.floor

    def last(self, origin: Origin) -> int:
        """The last sequence of `origin` that came; its floor if nothing of it is held."""
        lane = self._lanes.get(origin)
        return 0 if lane is None else lane.last

    def trim(
        self, stable: Callable[[Origin], int], durable: Callable[[Origin], int], *, share: float
    ) -> None:
        """Let the oldest entries go until no more than `share` of the budgets is in use.

        First what all members have durably, then what all have applied; beyond that, `stable`, nothing goes.
        Of each at most SHED_MAX entries; what is too much then goes the next time.
        A store that took no more is tried again here.
        """
        target = share * self.capacity
        dropped = self._shed(lambda origin: min(durable(origin), stable(origin)), target)
        if dropped < SHED_MAX:
            self.lost_durability += self._shed(stable, target)
        if self._store is not None and not self._taking:
            self._spill()

    def pinned_bytes(self, applied: Callable[[Origin], int]) -> int:
        """Bytes of the entries beyond what somebody has applied, by each origin's mean size of a frame."""
        total = 0
        for origin, lane in self._lanes.items():
            held = lane.last - lane.floor
            beyond = min(held, lane.last - applied(origin))
            if beyond > 0:
                total += beyond * ENTRY_BYTES + lane.frame_bytes * beyond // held
        return total

    def tail(self, acknowledged: Callable[[Origin], int]) -> list[tuple[Origin, int, bytes]]:
        """The entries beyond what is acknowledged, each origin's ascending and without holes to its last:
        one that the store cannot read is left out with those before it.
        """
        tail = []
        for origin, lane in self._lanes.items():
            part: list[tuple[Origin, int, bytes]] = []
            for sequence in range(max(lane.floor, acknowledged(origin)) + 1, lane.last + 1):
                frame = self.frame(origin, sequence)
                if frame is None:
                    part.clear()
                else:
                    part.append((origin, sequence, frame))
            tail += part
        return tail

    def adopt(self, frontier: Mapping[Origin, int], tail: Iterable[tuple[Origin, int, bytes]]) -> None:
        """Become the log of a replica taken from a snapshot, at `frontier`.

        `tail`: frames that came with it, each origin's ascending without holes up to the frontier. What the
        log holds beyond the frontier stays if it goes on from there without a hole; all else goes.
        """
        given: dict[Origin, list[tuple[int, bytes]]] = {}
        for origin, sequence, frame in tail:
            given.setdefault(origin, []).append((sequence, frame))
        for origin in dict.fromkeys((*self._lanes, *frontier, *given)):
            self._join(origin, frontier.get(origin, 0), given.get(origin, []))
        if self.bytes_held > self.budget_bytes and self._taking:
            self._spill()

    def _join(self, origin: Origin, applied: int, frames: list[tuple[int, bytes]]) -> None:
        """Make one origin's entries those in `frames`, that end at `applied`, and what goes on from there."""
        first = applied - len(frames) + 1
        assert [sequence for sequence, _ in frames] == list(range(first, applied + 1)), (origin, applied)
        lane = self._lanes.setdefault(origin, _Lane())
        goes_on = lane.floor <= applied < lane.last
        while lane.floor < (applied if goes_on else lane.last):
            self._drop_oldest(lane)
        lane.floor = applied
        lane.prepend([frame for _, frame in frames])
        frame_bytes = sum(len(frame) for _, frame in frames)
        lane.frame_bytes += frame_bytes
        self.bytes_held += frame_bytes + ENTRY_BYTES * len(frames)

    def _shed(self, limit: Callable[[Origin], int], target: float) -> int:
        """Drop the oldest entries within `limit` while more than `target` bytes are in use; returns how
        many.
        """
        heads = []
        for origin, lane in self._lanes.items():
            last = min(limit(origin), lane.last)
            if lane.floor < last:
                heads.append((lane.arrivals[lane.start], origin, lane, last))
        heapify(heads)
        dropped = 0
        while heads and self.bytes_held + self.bytes_stored > target and dropped < SHED_MAX:
            _, origin, lane, last = heads[0]
            self._drop_oldest(lane)
            dropped += 1
            if lane.floor < last:
                heapreplace(heads, (lane.arrivals[lane.start], origin, lane, last))
            else:
                heappop(heads)
        return dropped

    def _drop_oldest(self, lane: _Lane) -> None:
        entry = lane.pop()
        if isinstance(entry, bytes):
            length = len(entry)
            self.bytes_held -= length
        else:
            assert self._store is not None
            handle, length = _place(entry)
            self._store.free(handle, length)
            self.bytes_stored -= length
        lane.frame_bytes -= length
        self.bytes_held -= ENTRY_BYTES

    def _spill(self) -> None:
        """Move the oldest frames in RAM to the store, until there is some room or it takes no more."""
        assert self._store is not None
        target = self.budget_bytes - min(SPILL_BYTES, self.budget_bytes // 16)
        heads = []
        for origin, lane in self._lanes.items():
            index = lane.oldest_in_ram()
            if index < len(lane.entries):
                heads.append((lane.arrivals[index], origin, lane))
        heapify(heads)
        while heads and self.bytes_held > target:
            _, origin, lane = heads[0]
            frame = lane.entries[lane.in_ram]
            assert isinstance(frame, bytes)
            if self.bytes_stored + len(frame) > self.store_budget_bytes:
                break
            try:
                handle = self._store.write(frame)
            except OSError:
                break
            lane.entries[lane.in_ram] = handle << _LENGTH_BITS | len(frame)
            self.bytes_stored += len(frame)
            self.bytes_held -= len(frame)
            index = lane.oldest_in_ram()
            if index < len(lane.entries):
                heapreplace(heads, (lane.arrivals[index], origin, lane))
            else:
                heappop(heads)
        self._taking = self.bytes_held <= self.budget_bytes


def _place(entry: int) -> tuple[int, int]:
    """Handle and length of a frame in the store."""
    return entry >> _LENGTH_BITS, entry & (1 << _LENGTH_BITS) - 1
