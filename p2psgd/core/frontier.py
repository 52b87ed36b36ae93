"""The frontier of a replica, and the identity of the origins in it: node ids and incarnations."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from p2psgd.wire.messages import ORIGINS_MAX, FrontierRow
from p2psgd.wire.ring_messages import ROUND_MAX

# ----------------------------------------------------------------------------
# The frontier: a version vector that also carries each origin's running digest and mini-batch count.
#
# A missing origin counts as sequence 0 with digest 0. Sequences only grow, by one update at a time, or as a
# whole when a snapshot is taken.


class Origin(NamedTuple):
    """A node's incarnation as a sender: a daemon that restarts is a new origin."""

    node: int
    incarnation: int


RING: Final = Origin(0, 0)  # nobody's life: the one row of a dense ring, whose rounds are nobody's own


class Frontier:
    """Holds for each origin the last contiguous sequence number applied, its digest there and its step
    count.
    """

    def __init__(self) -> None:
        self.version = 0  # changes with every change
        self._rows: dict[Origin, tuple[int, int, int]] = {}
        self._told_steps: dict[int, int] = {}  # by node, where updates do not tell them

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._rows

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._rows)

    def items(self) -> ItemsView[Origin, tuple[int, int, int]]:
        """Return sequence, digest and step count by origin."""
        return self._rows.items()

    def sequence(self, origin: Origin) -> int:
        """Last sequence number applied from `origin`, 0 if none."""
        row = self._rows.get(origin)
        return 0 if row is None else row[0]

    def at(self, origin: Origin) -> tuple[int, int]:
        """Return the last sequence number and the digest."""
        row = self._rows.get(origin)
        return (0, 0) if row is None else row[:2]

    def digest(self, origin: Origin) -> int:
        """The origin's running digest at that sequence, 0 if none."""
        row = self._rows.get(origin)
        return 0 if row is None else row[1]

    def advance(self, origin: Origin, sequence: int, digest: int, steps: int) -> None:
        """Note that the next update of `origin` was applied."""
        assert sequence == self.sequence(origin) + 1, (origin, sequence, self.sequence(origin))
        self._rows[origin] = (sequence, digest, steps)
        self.version += 1

    def jump(self, sequence: int, digest: int, steps: int) -> None:
        """Note that a round of a dense ring is complete."""
        assert sequence > self.sequence(RING), (sequence, self.sequence(RING))
        self._rows[RING] = (sequence, digest, steps)
        self.version += 1

    def replace(self, rows: Iterable[FrontierRow]) -> None:
        """Become the frontier of a snapshot or checkpoint."""
        self._rows = {
            Origin(row.node, row.incarnation): (row.sequence, row.digest, row.steps) for row in rows
        }
        self.version += 1

    def rows(self) -> list[FrontierRow]:
        """Return all rows in ascending order; trimmed_to, durable and least are 0."""
        return sorted(
            FrontierRow(*origin, sequence, digest, steps=steps)
            for origin, (sequence, digest, steps) in self._rows.items()
        )

    def dominates(self, other: dict[Origin, int]) -> bool:
        """Return whether all that `other` has applied is applied here."""
        return all(self.sequence(origin) >= sequence for origin, sequence in other.items())

    def sequence_after(self, view: int, number: int) -> int:
        """Return the sequence number of RING once round `number` is completed in `view`: the same for all
        nodes that go on from here. Later views come after. Views are counted anew if all nodes have lost
        their votes; rounds still go on.
        """
        return max(view << 32 | number, self.sequence(RING) + 1)

    @property
    def round(self) -> int:
        """The last round of changes that a dense ring has completed, 0 if none."""
        return self._rows.get(RING, (0, 0, 0))[2]

    @property
    def steps_max(self) -> int:
        """The highest step count that any origin has reported: in rounds of owners, the last round. What is
        beyond the last number of a round is nonsense of a peer, and counts as that one.
        """
        return min(ROUND_MAX, max((steps for _, _, steps in self._rows.values()), default=0))

    def steps_of(self, origin: Origin) -> int:
        """The step count of the last update of an origin, 0 if there is none."""
        return self._rows.get(origin, (0, 0, 0))[2]

    def note_steps(self, node: int, steps: int) -> bool:
        """Note the step count that a node has reported beside its updates; return whether that is news."""
        told = self._told_steps
        if steps <= told.get(node, 0) or (node not in told and len(told) >= ORIGINS_MAX):
            return False
        told[node] = steps
        return True

    def steps(self) -> dict[int, int]:
        """Return, by node, the highest step count that any of its incarnations has reported."""
        counts = dict(self._told_steps)
        for origin, (_, _, steps) in self._rows.items():
            counts[origin.node] = max(steps, counts.get(origin.node, 0))
        return counts


# ----------------------------------------------------------------------------
# Nodes as people read and write them: by their names, or by ids of 16 hexadecimal digits.


_FORM: Final = re.compile("[0-9a-fA-F]{16}", re.ASCII)


def parse_node_id(text: str) -> int | None:
    """Return the id that `text` is; None if it has another form, and only then it may be a name."""
    return int(text, 16) if _FORM.fullmatch(text) else None


def name_node(node: int, names: Mapping[int, str]) -> str:
    """Return a node's name for people: its name if that is known, else its id."""
    return names.get(node) or f"{node:016x}"


# ----------------------------------------------------------------------------
# Incarnations: the numbers that put the starts of one node in order. Pure: clock and chance are given.
#
# Each is the time of the start, milliseconds since 1970 << 16 | 16 random bits; or, where the clock
# is behind what is known of the node, a number above that. Chance decides how far above, since two copies of
# one state directory that begin at once must not get the same number.
#
# No clock explains a number above TOLD_MAX: clocks that count nanoseconds in 64 bits end in the year 2262. A
# peer that reports one is hostile or broken, and is not believed. Between the two limits is room for the
# starts of a node that a hostile peer has pushed as far as it can: at least 2^28.


CHANCE_BITS: Final = 32  # as much as 65 s on the clock, so that it catches up soon
TOLD_MAX: Final = 2**60  # that a peer may tell of: about the year 2527
INCARNATION_MAX: Final = 2**61  # of a linked peer, or of a member


def next_incarnation(known: int, *, clock_ms: int, chance: int) -> int | None:
    """Return the incarnation of a start that happens now; None if there is none left.

    Args:
        known: the highest known of the node, 0 if none.
        clock_ms: milliseconds since 1970.
        chance: drawn from 0 to 2^CHANCE_BITS - 1.
    """
    by_clock = clock_ms << 16 | chance % 2**16
    incarnation = by_clock if by_clock > known else known + 1 + chance
    return incarnation if incarnation <= INCARNATION_MAX else None
