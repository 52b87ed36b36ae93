"""The frontier: a version vector that also carries each origin's running digest.

A missing origin counts as sequence 0 with digest 0. Sequences only grow, by one update at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from p2psgd.wire.messages import FrontierRow, pack_frontier


class Origin(NamedTuple):
    """A node's life as a sender: a daemon that restarts is a new origin."""

    node: int
    incarnation: int


class Frontier:
    """For each origin the last contiguous sequence number applied, and its digest there."""

    def __init__(self) -> None:
        self._rows: dict[Origin, tuple[int, int]] = {}
        self._packed: bytes | None = b""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._rows

    def sequence(self, origin: Origin) -> int:
        """Last sequence number applied from `origin`, 0 if none."""
        return self._rows.get(origin, (0, 0))[0]

    def digest(self, origin: Origin) -> int:
        """The origin's running digest at that sequence, 0 if none."""
        return self._rows.get(origin, (0, 0))[1]

    def advance(self, origin: Origin, sequence: int, digest: int) -> None:
        """One more update of `origin` was applied."""
        assert sequence == self.sequence(origin) + 1, (origin, sequence, self.sequence(origin))
        self._rows[origin] = (sequence, digest)
        self._packed = None

    def rows(self) -> list[FrontierRow]:
        """All rows in ascending order."""
        return sorted(FrontierRow(*origin, *row) for origin, row in self._rows.items())

    def packed(self) -> bytes:
        """The table as it travels in STATUS; kept until the next advance, since every peer gets the same
        one.
        """
        if self._packed is None:
            self._packed = pack_frontier(self.rows())
        return self._packed
