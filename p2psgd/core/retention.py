"""Retention: how much the log may hold, and what happens as it fills: trim, warn, evict, stall.

Everything is kept until room is needed. A node's own updates that a member has not acknowledged may take
half of the budget divided by the number of members that publish: so all that is not yet acknowledged
everywhere fits into any member's log, and nodes with full logs can never wait for each other. In mode
`owners` the owners publish. A former owner has at most such a share left, and for all of these there is the
other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from p2psgd.core.acks import Acknowledgements, stable_by
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import owner_count
from p2psgd.core.state import State
from p2psgd.core.update_log import ENTRY_BYTES
from p2psgd.core.view import View

TRIM_FROM: Final = 0.75  # of the budget
TRIM_TO: Final = 0.70
TRIM_FOR_JOINER: Final = 0.25  # what a newcomer pins must leave it time to catch up
WARN: Final = 0.8
EVICT: Final = 0.9
GUILTY: Final = 0.5  # a member that holds back this part of what fills the log is named, and evicted
STALL: Final = 0.95


class Retention:
    """Measures how full the log is, as a fraction of its budget; `fullness` counts the own part as well."""

    def __init__(self, state: State, *, acks: Acknowledgements, saved: Mapping[Origin, int]) -> None:
        """Use `saved`, the frontier of this node's own checkpoint."""
        self.fullness = 0.0
        self.holders: list[Origin] = []  # members that hold it back, the worst first; from WARN on
        self._state = state
        self._acks = acks
        self._saved = saved

    @property
    def stalled(self) -> bool:
        """Return whether the log is full of what others have not acknowledged: the trainer must wait."""
        return self.fullness >= STALL

    @property
    def full(self) -> bool:
        """Return whether the log is full at this moment: of what came since the last look, too. An owner can
        publish hundreds of updates in between.
        """
        return self.stalled or self._state.log.pressure >= STALL

    def look(self, view: View, *, ready: bool, own_bytes: int) -> None:
        """Trim, then measure. `own_bytes`: of all own updates so far."""
        log, me, acks = self._state.log, self._state.me, self._acks
        pressure = log.pressure
        if ready and pressure > TRIM_FROM:
            self.trim(view, TRIM_TO)
            pressure = log.pressure
        others = [member for member in view.members if member != me]
        sequence = self._state.frontier.sequence(me)
        # A node that has published nothing, as most of a crowd of owners, waits for nobody to acknowledge it.
        beyond = [sequence and sequence - acks.applied(member, me) for member in others]
        most = min(max(beyond, default=0), sequence - log.trimmed_to(me))
        in_shares = 0.0
        if most > 0:
            in_shares = 2 * self._publishers(view) * (own_bytes / sequence + ENTRY_BYTES) / log.capacity
        self.fullness = max(pressure, in_shares * most)
        self.holders = []
        if self.fullness >= WARN:
            held = {}
            for member, own in zip(others, beyond, strict=True):
                pinned = log.pinned_bytes(partial(acks.applied, member)) / log.capacity
                held[member] = max(pinned, in_shares * min(own, most))
            guilty = [member for member in others if held[member] >= GUILTY * self.fullness]
            self.holders = sorted(guilty, key=lambda member: -held[member])

    def _publishers(self, view: View) -> int:
        """Return how many members of a view publish updates."""
        members, spec = len(view.members), self._state.spec
        return owner_count(members, spec.weights) if spec.owners else members

    def trim(self, view: View, share: float) -> None:
        """Drop frames that all members of the view have, down to `share` of the budget; READY nodes only
        (VIEWS.md, 19).
        """
        acks, saved = self._acks, self._saved
        others = [member for member in view.members if member != self._state.me]
        floors = acks.floors_of(others)

        def stable(origin: Origin) -> int:
            return stable_by(floors, origin)

        def durable(origin: Origin) -> int:
            here = saved.get(origin, 0)
            return here and min([here, *[acks.durable(member, origin) for member in others]])

        if view.number:
            self._state.log.trim(stable, durable, share=share)
