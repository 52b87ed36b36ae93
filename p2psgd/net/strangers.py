"""Nodes of other runs that were refused, remembered for people: who they are and how they differ.

Such a node ends after one patience, and what is left is a refused connection that tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from p2psgd.wire.messages import Hello

STRANGERS_MAX: Final = 16  # node ids cost nobody anything


@dataclass(frozen=True, slots=True)
class Stranger:
    """Refused last at `at`, seconds, monotonic, with these words."""

    node: int
    name: str
    at: float
    words: str


class Strangers:
    """The first STRANGERS_MAX; `met` is called once for each, with node id and sentence."""

    def __init__(self, met: Callable[[int, str], None]) -> None:
        self._met = met
        self._known: dict[int, Stranger] = {}

    def __iter__(self) -> Iterator[Stranger]:
        return iter(self._known.values())

    def refused(self, theirs: Hello, words: str, now: float) -> None:
        """A node has said HELLO for another run."""
        new = theirs.node not in self._known
        if new and len(self._known) >= STRANGERS_MAX:
            return
        self._known[theirs.node] = Stranger(theirs.node, theirs.name, now, words)
        if new:
            self._met(theirs.node, words)

    def linked(self, node: int) -> None:
        """It is of this run now."""
        self._known.pop(node, None)
