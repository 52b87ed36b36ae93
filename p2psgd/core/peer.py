"""What a replica knows of one linked peer: its cursors into the log, its acknowledgements, its signs of
life.

A cursor is a place in the log, not a copy of it. The one on our own origin follows for as long as the link
lives; others serve a NEED and end. Credit bounds what is on its way through a link: it is spent by sending
and comes back when the link has drained.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Origin

CREDIT_BYTES: Final = (
    1024 * 1024
)  # 80 ms of a 100 Mbit/s link: enough to keep it full between two turns of the loop


@dataclass(slots=True)
class Cursor:
    """Send `next` and what follows, up to `last`; None follows the origin for ever.

    `parked`: the peer was told GAP up to here, and nothing is sent until its STATUS shows that others have
    filled it; then it is sent what follows, or told the next GAP if the log has lost that too. 0: it was not.
    """

    next: int
    last: int | None
    parked: int = 0


@dataclass(slots=True)
class Peer:
    """One linked peer, from LinkOpened to LinkClosed."""

    origin: Origin
    name: str
    heard: float
    brought: float  # when it last brought an update of its own, or showed that we lack none
    credit: int  # bytes that may still be given to the link
    draining: bool = False  # ReportDrained was ordered and LinkDrained has not come yet
    status: dict[Origin, int] | None = None  # its frontier by its last STATUS, None before the first
    cursors: dict[Origin, Cursor] = field(default_factory=dict)
    status_due: float = 0.0
    applied_bytes: int = 0  # from this peer since our last STATUS to it,
    applied_updates: int = 0  # and how many updates they were
    loop_lag_ms: int = 0
    acknowledged: float = 0.0  # when it last acknowledged more of our own updates
    caught_up: bool = False  # on this link it has been close behind us before

    def has(self, origin: Origin) -> int:
        """Last sequence of `origin` that it has told us it applied."""
        return 0 if self.status is None else self.status.get(origin, 0)
