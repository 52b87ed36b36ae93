"""The lines behind the hashes of one simulated run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

PARTS: Final = ("wire", "local", "orders")
HASH_DIGITS: Final = 12  # 48 bits: two runs that differ have the same hash once in 10^14


class Line(NamedTuple):
    """What happened at a virtual time between a node and the place that it gives something to."""

    time_s: float
    node: str
    place: str
    what: str


class Trace:
    """Collects lines; order counts only within one time, node and place."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Line]] = {part: [] for part in PARTS}

    def add(self, part: str, line: Line) -> None:
        """Add a line to a part."""
        self._lines[part].append(line)

    def lines(self, part: str) -> Iterator[str]:
        """Yield a part's lines in their canonical order."""
        for line in sorted(self._lines[part], key=lambda line: line[:3]):
            yield f"{line.time_s!r} {line.node} {line.place} {line.what}"

    def hashes(self) -> tuple[str, ...]:
        """Return the hash of each part."""
        return tuple(self._hash(part) for part in PARTS)

    def _hash(self, part: str) -> str:
        digest = hashlib.sha256()
        for line in self.lines(part):
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()[:HASH_DIGITS]
