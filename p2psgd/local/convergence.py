"""When have all nodes applied the same updates? Pure: statuses and times in, answers out.

A frontier says how many updates of each origin a node has applied. Statuses are asked one after the other, so
two looks in a row must show the same, equal frontiers. No progress at all for a limit means that they will
not become equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2psgd.ops import numerals
from p2psgd.ops.figures import Status, printable, whole

Origin = tuple[str, int]  # (node id, incarnation)
RING: Origin = (f"{0:016x}", 0)  # whose one row stands for all rounds of a dense ring


@dataclass(frozen=True, slots=True)
class Frontier:
    """How many updates of each origin a node has applied, and what people call these origins."""

    applied: Mapping[Origin, int]
    names: Mapping[Origin, str]


def frontier_of(status: Status) -> Frontier:
    """Read a status; an origin without updates is as good as none."""
    applied: dict[Origin, int] = {}
    names: dict[Origin, str] = {}
    if "id" in status:
        names[printable(status["id"]), whole(status, "incarnation")] = printable(status.get("node", "?"))
    for entry in status.get("frontier") or ():
        origin = (printable(entry.get("id", "?")), whole(entry, "incarnation"))
        names.setdefault(origin, printable(entry.get("node") or origin[0]))
        if sequence := whole(entry, "sequence"):
            applied[origin] = sequence
    return Frontier(applied, names)


def who_lacks_what(frontiers: Mapping[str, Frontier]) -> list[str]:
    """Return a sentence for each node and origin where the node is behind the foremost one."""
    foremost: dict[Origin, int] = {}
    names: dict[Origin, str] = {}
    for frontier in frontiers.values():
        names |= frontier.names
        for origin, sequence in frontier.applied.items():
            foremost[origin] = max(sequence, foremost.get(origin, 0))
    return [
        f"{node} has not completed the last round of the ring"
        if origin == RING
        else f"{node} lacks {numerals.counted(missing, 'update')} of {names[origin]}"
        for node, frontier in frontiers.items()
        for origin, sequence in foremost.items()
        if (missing := sequence - frontier.applied.get(origin, 0))
    ]


class Convergence:
    """Follows the frontiers of the live nodes until they are equal or stand still for `limit_s`."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._moved = now
        self._last: dict[str, Mapping[Origin, int]] = {}
        self._equal_looks = 0

    def look(self, frontiers: Mapping[str, Frontier], now: float) -> None:
        """Take in the newest frontiers of all live nodes."""
        current = {node: frontier.applied for node, frontier in frontiers.items()}
        if current != self._last:
            self._last, self._moved, self._equal_looks = current, now, 0
        if not who_lacks_what(frontiers):
            self._equal_looks += 1

    @property
    def reached(self) -> bool:
        """Whether two looks in a row found the same frontier everywhere."""
        return self._equal_looks >= 2

    def stalled(self, now: float) -> bool:
        """Whether nothing has moved for the limit."""
        return not self.reached and now - self._moved >= self._limit_s
