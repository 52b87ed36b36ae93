"""The frontier: a version vector that also carries each origin's running digest and mini-batch count.

A missing origin counts as sequence 0 with digest 0. Sequences only grow, by one update at a time, or as a
whole when a snapshot is taken.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from typing import Final, NamedTuple

from p2psgd.wire.messages import FrontierRow


class Origin(NamedTuple):
    """A node's life as a sender: a daemon that restarts is a new origin."""

    node: int
    incarnation: int


RING: Final = Origin(0, 0)  # nobody's life: the one row of a dense ring, whose rounds are nobody's own


class Frontier:
    """For each origin the last contiguous sequence number applied, its digest there and its mini-batch."""

    def __init__(self) -> None:
        self.version = 0  # changes with every change
        self._rows: dict[Origin, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._rows

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._rows)

    def items(self) -> ItemsView[Origin, tuple[int, int, int]]:
        """By origin: sequence, digest and mini-batch."""
        return self._rows.items()

    def sequence(self, origin: Origin) -> int:
        """Last sequence number applied from `origin`, 0 if none."""
        row = self._rows.get(origin)
        return 0 if row is None else row[0]

    def at(self, origin: Origin) -> tuple[int, int]:
        """Both the last sequence number and the digest."""
        row = self._rows.get(origin)
        return (0, 0) if row is None else row[:2]

    def digest(self, origin: Origin) -> int:
        """The origin's running digest at that sequence, 0 if none."""
        row = self._rows.get(origin)
        return 0 if row is None else row[1]

    def advance(self, origin: Origin, sequence: int, digest: int, mini_batch: int) -> None:
        """One more update of `origin` was applied."""
        assert sequence == self.sequence(origin) + 1, (origin, sequence, self.sequence(origin))
        self._rows[origin] = (sequence, digest, mini_batch)
        self.version += 1

    def jump(self, sequence: int, digest: int, mini_batch: int) -> None:
        """A round of a dense ring is complete."""
        assert sequence > self.sequence(RING), (sequence, self.sequence(RING))
        self._rows[RING] = (sequence, digest, mini_batch)
        self.version += 1

    def replace(self, rows: Iterable[FrontierRow]) -> None:
        """Become the frontier of a snapshot or checkpoint."""
        self._rows = {
            Origin(row.node, row.incarnation): (row.sequence, row.digest, row.mini_batch) for row in rows
        }
        self.version += 1

    def rows(self) -> list[FrontierRow]:
        """All rows in ascending order; floors, durable and least are 0."""
        return sorted(
            FrontierRow(*origin, sequence, digest, mini_batch=mini_batch)
            for origin, (sequence, digest, mini_batch) in self._rows.items()
        )

    def dominates(self, other: dict[Origin, int]) -> bool:
        """All that `other` has applied is applied here."""
        return all(self.sequence(origin) >= sequence for origin, sequence in other.items())

    def sequence_after(self, view: int, number: int) -> int:
        """That of RING once round `number` is completed in `view`: the same for all who go on from here.
        Later views come after. Views are counted anew if all nodes have lost their votes; rounds still go on.
        """
        return max(view << 32 | number, self.sequence(RING) + 1)

    @property
    def round(self) -> int:
        """The last round of changes that a dense ring has completed, 0 if none."""
        return self._rows.get(RING, (0, 0, 0))[2]

    def mini_batches(self) -> dict[int, int]:
        """By node, the highest count that any of its lives has told."""
        counts: dict[int, int] = {}
        for origin, (_, _, mini_batch) in self._rows.items():
            counts[origin.node] = max(mini_batch, counts.get(origin.node, 0))
        return counts
