"""The state of one linked peer: its life-cycle, its cursors into the log, and its acknowledgements."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.snapshot_feed import SnapshotFeed
from p2psgd.wire.messages import ConfirmedRow, FrontierRow

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
    PAUSED = "paused"  # the log lacks what comes next for it: it was sent TRIMMED
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
# is up; others serve a FETCH and end. Credit bounds what is on its way through a link: it is spent by sending
# and comes back when the link has drained.


@dataclass(frozen=True, slots=True, eq=False)
class StatusTables:
    """The tables of a STATUS: rows by origin, and by node whose STATUS comes."""

    rows: Mapping[Origin, FrontierRow]
    confirmed: Mapping[int, ConfirmedRow]

    def since(self, before: StatusTables) -> StatusTables | None:
        """Return the rows that `before` has otherwise or lacks; None if it has one that is no more."""
        if before.rows.keys() - self.rows.keys() or before.confirmed.keys() - self.confirmed.keys():
            return None
        return StatusTables(
            {origin: row for origin, row in self.rows.items() if before.rows.get(origin) != row},
            {node: row for node, row in self.confirmed.items() if before.confirmed.get(node) != row},
        )


@dataclass(slots=True)
class Cursor:
    """Send `next` and what follows, up to `last`; None follows the origin for ever.

    `parked`: the peer was sent TRIMMED up to here, and nothing is sent until its STATUS shows that others
    have filled it; then it is sent what follows, or the next TRIMMED if the log has lost that too. 0: it was
    not.
    """

    next: int
    last: int | None
    parked: int = 0
    begun: bool = False  # its first frame was looked at


@dataclass(slots=True)
class Peer(Lifecycle[PeerState]):
    """A linked peer, from LinkOpened to LinkClosed.

    `check` states its invariants.
    """

    origin: Origin
    name: str
    last_seen: float
    last_progress: float  # when it last brought an update of its own, or showed that we lack none
    credit: int  # bytes that may still be given to the link
    status: Mapping[Origin, FrontierRow] | None = None  # its last STATUS, None before the first,
    confirmed: Mapping[int, ConfirmedRow] = field(default_factory=dict)  # and the nodes whose STATUS it gets
    told: StatusTables | None = None  # what our last STATUS to it had
    ahead: Mapping[Origin, FrontierRow] = field(default_factory=dict)  # of it what was beyond our frontier
    compared: int = -1  # and the version of our frontier then
    view: int = 0  # the latest view it has told
    ready: bool = False  # it says that it is
    barred_at: float = 0.0  # while BARRED: since when that is known, or since when it has brought no view
    cursors: dict[Origin, Cursor] = field(default_factory=dict)
    own_sent: int = 0  # the last of our own updates that the link was given
    status_due: float = 0.0
    applied_bytes: int = 0  # from this peer since our last STATUS to it,
    applied_updates: int = 0  # and how many updates they were
    loss: float | None = None  # of its trainer, for people
    acknowledged: float = 0.0  # when it last acknowledged more of our own updates
    caught_up: bool = False  # on this link it has been close behind us before
    feed: SnapshotFeed | None = None  # the snapshot it is being given

    def __post_init__(self) -> None:
        Lifecycle.__init__(self, PEER)  # super() does not work in a dataclass with slots

    @property
    def barred(self) -> bool:
        """Return whether the peer's node was removed for good."""
        return self.state is PeerState.BARRED

    def learn_status(
        self, rows: Mapping[Origin, FrontierRow], ahead: Mapping[Origin, FrontierRow], version: int
    ) -> None:
        """Take in what the peer has applied, and what of it is `ahead` of our frontier of that version."""
        self.status, self.ahead, self.compared = rows, ahead, version
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

    def drop_cursor(self, origin: Origin) -> None:
        """Send the peer the updates of an origin no more: another node relays them to it."""
        del self.cursors[origin]
        self._follow_facts()

    def pause(self, cursor: Cursor, trimmed_to: int) -> None:
        """Send the peer no more along this cursor for now: it was sent TRIMMED up to `trimmed_to`."""
        cursor.parked = trimmed_to
        self._follow_facts()

    def resume(self, cursor: Cursor) -> None:
        """Go on along the cursor, since others have filled the gap."""
        cursor.parked = 0
        self._follow_facts()

    def leave(self) -> None:
        """Note the peer's GOODBYE, which may come more than once."""
        if self.state is not PeerState.LEAVING:
            self.move(PeerState.LEAVING)

    def bar(self, now: float) -> None:
        """Bar the peer, whose node was removed for good: its reports do not count, and it gets nothing."""
        self.move(PeerState.BARRED)
        self.barred_at = now
        self.status, self.ahead, self.feed = None, {}, None
        self.ready = self.caught_up = False
        self.cursors.clear()

    def _follow_facts(self) -> None:
        """Move to the state that follows from what was sent and received; LEAVING is for good."""
        if self.state in (PeerState.LEAVING, PeerState.BARRED):
            return
        if self.feed is not None:
            state = PeerState.SNAPSHOTTING
        elif self.status is None:
            state = PeerState.LINKED
        elif any(cursor.parked for cursor in self.cursors.values()):
            state = PeerState.PAUSED
        else:
            state = PeerState.REPLICATING
        if state is not self.state:
            self.move(state)

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

    def trimmed_to(self, origin: Origin) -> int:
        """Return up to where the peer's log is trimmed of `origin`, by its report."""
        row = None if self.status is None else self.status.get(origin)
        return 0 if row is None else row.trimmed_to

    def holds(self, origin: Origin, applied: int) -> bool:
        """Return whether the peer's log holds what comes after `applied`."""
        return self.has(origin) > applied >= self.trimmed_to(origin)
