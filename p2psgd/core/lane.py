"""One origin's part of the log."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from p2psgd.core.frame_store import Entry, length_of

_GONE = 0


@dataclass(slots=True)
class Lane:
    """One origin's entries, from floor + 1 on, at the indices from `start` on.

    Those before `start` have left and are cut off together. Arrivals say which lane's entry is the oldest.
    """

    floor: int = 0
    entries: list[Entry] = field(default_factory=list)
    arrivals: array[int] = field(default_factory=lambda: array("Q"))
    start: int = 0
    in_ram: int = 0  # no entry before this index is in RAM
    frame_bytes: int = 0

    @property
    def last(self) -> int:
        """The sequence of the last entry, the floor if there is none."""
        return self.floor + len(self.entries) - self.start

    def append(self, frame: bytes, arrival: int) -> None:
        """Put one more at the end."""
        self.entries.append(frame)
        self.arrivals.append(arrival)
        self.frame_bytes += len(frame)

    def index(self, sequence: int) -> int:
        """Where in `entries` that sequence is, if it is within floor + 1 .. last."""
        return self.start + sequence - self.floor - 1

    def oldest_in_ram(self) -> int:
        """Index of it, or the number of entries if none is."""
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
        self.floor += 1
        self.frame_bytes -= length_of(entry)
        if 2 * self.start > len(self.entries):
            self._cut()
        return entry

    def take_over(self, other: Lane, after: int, frame_bytes: int) -> None:
        """Go on with the entries of `other` beyond `after`, of so many bytes, which leave it."""
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
