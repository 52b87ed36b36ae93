"""The state of one linked peer, and the effects that the handling of one event collects."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.effects import Effect, ReportDrained, Send, SendFloats, Yield
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.snapshot_feed import SnapshotFeed
from p2psgd.wire.messages import FrontierRow, Message, pack_message

# ----------------------------------------------------------------------------
# The life-cycle of a linked peer, as of etcd's Progress.
#
# What it is sent depends on it: our updates to one that replicates; none to one that is paused, until its
# STATUS shows that others have filled the gap; pieces of a snapshot, beside whatever its cursors say, to one
# that is fed; a view and nothing else to one that is barred.


class PeerState(enum.Enum):
    """States of a linked peer."""

    LINKED = "linked"  # no STATUS has come
    REPLICATING = "replicating"  # it follows our updates, by being sent them or by asking
    PAUSED = "paused"  # the log lacks what comes next for it: it was sent GAP
    SNAPSHOTTING = "snapshotting"  # a snapshot is on its way to it
    LEAVING = "leaving"  # it said GOODBYE
    BARRED = "barred"  # its node was removed for good


_FED: Final = "it asks for a snapshot"
_LEAVES: Final = "GOODBYE"
_REMOVED: Final = "a view removes its node for good"
PEER: Final = Transitions(
    "peer",
    PeerState.LINKED,
    {
        PeerState.LINKED: {
            PeerState.REPLICATING: "its first STATUS",
            PeerState.PAUSED: "its first STATUS, after it asked for what the log lacks",
            PeerState.SNAPSHOTTING: _FED,
            PeerState.LEAVING: _LEAVES,
            PeerState.BARRED: _REMOVED,
        },
        PeerState.REPLICATING: {
            PeerState.PAUSED: "the log lacks our next update for it",
            PeerState.SNAPSHOTTING: _FED,
            PeerState.LEAVING: _LEAVES,
            PeerState.BARRED: _REMOVED,
        },
        PeerState.PAUSED: {
            PeerState.REPLICATING: "its STATUS is beyond the gap, or it asks anew",
            PeerState.SNAPSHOTTING: _FED,
            PeerState.LEAVING: _LEAVES,
            PeerState.BARRED: _REMOVED,
        },
        PeerState.SNAPSHOTTING: {
            PeerState.REPLICATING: "all of it is sent, or it is withdrawn",
            PeerState.PAUSED: "the same, and the log lacks our next update for it",
            PeerState.LINKED: "the same, and no STATUS has come",
            PeerState.LEAVING: _LEAVES,
            PeerState.BARRED: _REMOVED,
        },
        PeerState.LEAVING: {PeerState.BARRED: _REMOVED},
        PeerState.BARRED: {},
    },
)

# ----------------------------------------------------------------------------
# The peer as a replica knows it: its cursors into the log, its acknowledgements, its signs of life.
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
    """One linked peer, from LinkOpened to LinkClosed.

    What always holds is in `check`.
    """

    origin: Origin
    name: str
    last_seen: float
    last_progress: float  # when it last brought an update of its own, or showed that we lack none
    credit: int  # bytes that may still be given to the link
    status: Mapping[Origin, FrontierRow] | None = None  # its last STATUS, None before the first
    ahead: Mapping[Origin, FrontierRow] = field(default_factory=dict)  # of it what was beyond our frontier
    view: int = 0  # the latest view it has told
    ready: bool = False  # it says that it is
    barred_at: float = 0.0  # while BARRED: since when that is known, or since when it has brought no view
    cursors: dict[Origin, Cursor] = field(default_factory=dict)
    status_due: float = 0.0
    applied_bytes: int = 0  # from this peer since our last STATUS to it,
    applied_updates: int = 0  # and how many updates they were
    loop_lag_ms: int = 0
    acknowledged: float = 0.0  # when it last acknowledged more of our own updates
    caught_up: bool = False  # on this link it has been close behind us before
    feed: SnapshotFeed | None = None  # the snapshot it is being given
    _life: Lifecycle[PeerState] = field(default_factory=lambda: Lifecycle(PEER))

    @property
    def state(self) -> PeerState:
        """The present state."""
        return self._life.state

    @property
    def barred(self) -> bool:
        """The peer's node was removed for good."""
        return self._life.state is PeerState.BARRED

    def learn_status(self, rows: Mapping[Origin, FrontierRow], ahead: Mapping[Origin, FrontierRow]) -> None:
        """Take in what the peer has applied, and which part of that is beyond our frontier."""
        self.status, self.ahead = rows, ahead
        self._follow_facts()

    def begin_feed(self, feed: SnapshotFeed) -> None:
        """Begin to send the peer a snapshot."""
        self.feed = feed
        self._follow_facts()

    def end_feed(self) -> None:
        """End the snapshot, which is sent as a whole, or withdrawn."""
        self.feed = None
        self._follow_facts()

    def replace_cursor(self, origin: Origin, cursor: Cursor) -> None:
        """Send the peer the updates of an origin along this cursor from now on."""
        self.cursors[origin] = cursor
        self._follow_facts()

    def pause(self, cursor: Cursor, floor: int) -> None:
        """It was sent GAP up to `floor`: it gets no more along this cursor for now."""
        cursor.parked = floor
        self._follow_facts()

    def resume(self, cursor: Cursor) -> None:
        """Go on along the cursor, since others have filled the gap."""
        cursor.parked = 0
        self._follow_facts()

    def leave(self) -> None:
        """Note the peer's GOODBYE, which may come more than once."""
        if self._life.state is not PeerState.LEAVING:
            self._life.move(PeerState.LEAVING)

    def bar(self, now: float) -> None:
        """Bar the peer, whose node was removed for good: its reports do not count, and it gets nothing."""
        self._life.move(PeerState.BARRED)
        self.barred_at = now
        self.status, self.ahead, self.feed = None, {}, None
        self.ready = self.caught_up = False
        self.cursors.clear()

    def _follow_facts(self) -> None:
        """Move to the state that follows from what was sent and received; LEAVING is for good."""
        if self._life.state in (PeerState.LEAVING, PeerState.BARRED):
            return
        if self.feed is not None:
            state = PeerState.SNAPSHOTTING
        elif self.status is None:
            state = PeerState.LINKED
        elif any(cursor.parked for cursor in self.cursors.values()):
            state = PeerState.PAUSED
        else:
            state = PeerState.REPLICATING
        if state is not self._life.state:
            self._life.move(state)

    def check(self, frontier: Frontier, *, credit_bytes: int) -> None:
        """Assert what always holds between two events."""
        assert self.credit <= credit_bytes, "it has more credit than a link is given"
        for origin, cursor in self.cursors.items():
            last = frontier.sequence(origin)
            assert 1 <= cursor.next <= last + 1, f"cursor at {cursor.next}, the last update is {last}"
            assert cursor.last is None or cursor.next <= cursor.last <= last, (
                "a cursor that should have ended"
            )
            assert not cursor.parked or cursor.last is None, "a cursor that ends is paused"
        match self.state:
            case PeerState.LINKED:
                assert self.status is None
                assert self.feed is None
            case PeerState.REPLICATING:
                assert self.status is not None
                assert not any(cursor.parked for cursor in self.cursors.values())
            case PeerState.PAUSED:
                assert self.status is not None
                assert any(cursor.parked for cursor in self.cursors.values())
            case PeerState.SNAPSHOTTING:
                assert self.feed is not None
            case PeerState.BARRED:
                assert self.status is None
                assert self.feed is None
                assert not self.cursors
                assert not self.ready
            case PeerState.LEAVING:
                pass

    def has(self, origin: Origin) -> int:
        """Return the last sequence of `origin` that the peer has reported as applied."""
        row = None if self.status is None else self.status.get(origin)
        return 0 if row is None else row.sequence

    def floor(self, origin: Origin) -> int:
        """Return up to where the peer's log is trimmed of `origin`, by its report."""
        row = None if self.status is None else self.status.get(origin)
        return 0 if row is None else row.floor

    def holds(self, origin: Origin, applied: int) -> bool:
        """Return whether the peer's log holds what comes after `applied`."""
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
        """Collect an effect."""
        self._effects.append(effect)

    def order_turn(self) -> None:
        """Ask the shell for one Resumed in the next turn of the loop."""
        self._turn_is_wanted = True

    def turn_passed(self) -> None:
        """Note that Resumed has come."""
        self._turn_is_wanted = self._turn_is_ordered = False

    def send(self, peer: Peer, frame: bytes) -> None:
        """Send a whole frame to a peer, whatever its credit."""
        self._effects.append(Send(peer.origin, frame))
        self._spend(peer, len(frame))

    def send_floats(self, peer: Peer, head: bytes, numbers: memoryview) -> None:
        """Send a frame whose numbers stay where they are (SendFloats), whatever the peer's credit."""
        self._effects.append(SendFloats(peer.origin, head, numbers))
        self._spend(peer, len(head) + numbers.nbytes)

    def _spend(self, peer: Peer, frame_bytes: int) -> None:
        had_credit = peer.credit > 0
        peer.credit -= frame_bytes
        if had_credit and peer.credit <= 0:
            self._effects.append(ReportDrained(peer.origin))

    def say(self, peer: Peer, message: Message) -> None:
        """Send a control message to a peer."""
        self.send(peer, pack_message(message))

    def refill(self, peer: Peer) -> None:
        """Renew the credit of a peer whose link has drained."""
        peer.credit = self.credit_bytes

    def take(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        if self._turn_is_wanted and not self._turn_is_ordered:
            self._turn_is_ordered = True
            self._effects.append(Yield())
        effects, self._effects = self._effects, []
        return effects
