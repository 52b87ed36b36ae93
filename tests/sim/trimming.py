"""I5: what a log lets go of, every member of the view that the node knows has applied; but for what was gone
already when that member became one, and what a snapshot came without. And a log lets go of nothing while its
node is not READY: who else is a member by now, such a node may not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from tests.sim.ledger import label
from tests.sim.outcome import Violation

Rows = Mapping[Origin, int]


class Trimming:
    """Of one life."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._view = replica.membership.view
        self._held = 0
        self._gone_before: int | None = None  # while it is not READY: the sum of its floors
        self._gone: dict[tuple[Origin, int], Rows] = {}  # floors when it learned of each member
        self._meet()

    def follow(self, applied: Callable[[Origin], Rows | None], *, replaced: bool) -> None:
        """Check after an event. `applied`: what a life has, or had when it ended; None if it never began.
        `replaced`: by a snapshot.
        """
        log, view = self._replica.log, self._replica.membership.view
        held = log.bytes_held + log.bytes_stored
        if not self._replica.spec.dense:
            self._check_unready(replaced=replaced)
        if replaced:
            self._gone.clear()
        elif held < self._held:
            self._check(applied)
        self._held = held
        if replaced or view is not self._view:
            self._view = view
            self._meet()

    def _check_unready(self, *, replaced: bool) -> None:
        """`replaced`: the floors are those of a snapshot."""
        before, self._gone_before = self._gone_before, None
        if self._replica.ready:
            return
        log = self._replica.log
        self._gone_before = gone = sum(log.trimmed_to(origin) for origin in self._replica.frontier)
        if not replaced and before is not None and gone > before:
            words = f"{label(self._replica.me)} has let go of {gone - before} updates while it is not READY"
            raise Violation("I5", words)

    def _members(self) -> dict[Origin, tuple[Origin, int]]:
        """The other members, each with the view since which it has been one."""
        rows = zip(self._view.members, self._view.since, strict=True)
        return {row[0]: row for row in rows if row[0] != self._replica.me}

    def _meet(self) -> None:
        floors = {origin: self._replica.log.trimmed_to(origin) for origin in self._replica.frontier}
        self._gone = {row: self._gone.get(row, floors) for row in self._members().values()}

    def _check(self, applied: Callable[[Origin], Rows | None]) -> None:
        log, me = self._replica.log, label(self._replica.me)
        for member, row in self._members().items():
            has, gone = applied(member), self._gone[row]
            if has is None:
                continue
            for origin in self._replica.frontier:
                trimmed_to, least = log.trimmed_to(origin), has.get(origin, 0)
                if trimmed_to > max(least, gone.get(origin, 0)):
                    words = f"{me} has let go of {label(origin)} up to {trimmed_to}, of which {label(member)}"
                    raise Violation("I5", f"{words}, a member of its view, has applied {least}")
