"""How much of a run a replica holds, in the words of people: updates, or in a dense ring rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from p2psgd.core.frontier import RING, Origin


class Row(Protocol):
    """Of a frontier: that of a STATUS, or that of a checkpoint."""

    @property
    def node(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def mini_batch(self) -> int: ...


def count_applied(row: Row) -> int:
    """Updates of this origin; of the one row of a dense ring, whose sequence bears the view too, rounds."""
    return row.mini_batch if is_ring(row) else row.sequence


def is_ring(row: Row) -> bool:
    """It is that one row."""
    return Origin(row.node, row.incarnation) == RING


def unit_of(rows: Iterable[Row]) -> str:
    """What is counted there."""
    return "round" if any(map(is_ring, rows)) else "update"
