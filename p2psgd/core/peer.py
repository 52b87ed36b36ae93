"""The state of one linked peer, and the effects that the handling of one event collects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.effects import Effect, NextTurn, ReportDrained, Send, SendNumbers
from p2psgd.core.frontier import Origin
from p2psgd.core.snapshot_offer import SnapshotFeed
from p2psgd.wire.messages import FrontierRow, Message, pack_message

# ----------------------------------------------------------------------------
# What a replica knows of one linked peer: its cursors into the log, its acknowledgements, its signs of
# life.
#
# A cursor is a place in the log, not a copy of it. The one on our own origin follows for as long as the link
# lives; others serve a NEED and end. Credit bounds what is on its way through a link: it is spent by sending
# and comes back when the link has drained.


@dataclass(slots=True)
class Cursor:
    """Send `next` and what follows, up to `last`; None follows the origin for ever.

    `parked`: the peer was told GAP up to here, and nothing is sent until its STATUS shows that others have
    filled it; then it is sent what follows, or told the next GAP if the log has lost that too. 0: it was not.
    """

    next: int
    last: int | None
    parked: int = 0
    begun: bool = False  # its first frame was looked at


@dataclass(slots=True)
class Peer:
    """One linked peer, from LinkOpened to LinkClosed."""

    origin: Origin
    name: str
    heard: float
    brought: float  # when it last brought an update of its own, or showed that we lack none
    credit: int  # bytes that may still be given to the link
    draining: bool = False  # ReportDrained was ordered and LinkDrained has not come yet
    status: Mapping[Origin, FrontierRow] | None = None  # its last STATUS, None before the first
    ahead: Mapping[Origin, FrontierRow] = field(default_factory=dict)  # of it what was beyond our frontier
    view: int = 0  # the latest view it has told
    ready: bool = False  # it says that it is
    leaving: bool = False  # it has said GOODBYE
    # its node was removed for good: since when that is known, or since when it has brought no view
    barred_at: float | None = None
    cursors: dict[Origin, Cursor] = field(default_factory=dict)
    status_due: float = 0.0
    applied_bytes: int = 0  # from this peer since our last STATUS to it,
    applied_updates: int = 0  # and how many updates they were
    loop_lag_ms: int = 0
    acknowledged: float = 0.0  # when it last acknowledged more of our own updates
    caught_up: bool = False  # on this link it has been close behind us before
    round_trip_us: int = 0  # as measured on this link, 0 before,
    bytes_per_s: int = 0  # and what it carried
    feed: SnapshotFeed | None = None  # the snapshot it is being given

    def has(self, origin: Origin) -> int:
        """Last sequence of `origin` that it has told us it applied."""
        row = None if self.status is None else self.status.get(origin)
        return 0 if row is None else row.sequence

    def floor(self, origin: Origin) -> int:
        """Up to here its log holds none of `origin`, as it has told us."""
        row = None if self.status is None else self.status.get(origin)
        return 0 if row is None else row.floor

    def holds(self, origin: Origin, applied: int) -> bool:
        """Its log holds what comes after `applied`."""
        return self.has(origin) > applied >= self.floor(origin)


# ----------------------------------------------------------------------------
# What a replica orders while it handles one event, and what its links may still be given.


CREDIT_BYTES: Final = (
    1024 * 1024
)  # 80 ms of a 100 Mbit/s link: enough to keep it full between two turns of the loop


class Outbound:
    """Collects effects in order; spends a peer's credit with every frame."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self._effects: list[Effect] = []
        self._turn_is_wanted = self._turn_is_ordered = False

    def order(self, effect: Effect) -> None:
        """One more thing to do."""
        self._effects.append(effect)

    def order_turn(self) -> None:
        """Have TurnPassed said in the next turn of the loop, once."""
        self._turn_is_wanted = True

    def turn_passed(self) -> None:
        """It was said."""
        self._turn_is_wanted = self._turn_is_ordered = False

    def send(self, peer: Peer, frame: bytes) -> None:
        """Give a whole frame to a peer's link, whatever its credit."""
        self._effects.append(Send(peer.origin, frame))
        self._spend(peer, len(frame))

    def send_numbers(self, peer: Peer, head: bytes, numbers: memoryview) -> None:
        """The same of a frame whose numbers stay where they are (SendNumbers)."""
        self._effects.append(SendNumbers(peer.origin, head, numbers))
        self._spend(peer, len(head) + numbers.nbytes)

    def _spend(self, peer: Peer, frame_bytes: int) -> None:
        peer.credit -= frame_bytes
        if peer.credit <= 0 and not peer.draining:
            peer.draining = True
            self._effects.append(ReportDrained(peer.origin))

    def say(self, peer: Peer, message: Message) -> None:
        """Send a control message."""
        self.send(peer, pack_message(message))

    def refill(self, peer: Peer) -> None:
        """What it was given has left our memory."""
        peer.credit, peer.draining = self.credit_bytes, False

    def take(self) -> list[Effect]:
        """All that was ordered since the last call."""
        if self._turn_is_wanted and not self._turn_is_ordered:
            self._turn_is_ordered = True
            self._effects.append(NextTurn())
        effects, self._effects = self._effects, []
        return effects
