"""What a node may ask others for, and the frames of its log that a snapshot it gives must bring.

A tail is compared for every origin: with what the other members have really applied, and with what their
acknowledgements told when the snapshot began, both of those that were members from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final

from p2psgd.core.events import (
    Event,
    FrameReceived,
    PeerMessage,
    SnapshotStart,
    SnapshotTail,
    UpdateBody,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.readiness import FOUNDED
from p2psgd.core.replica import Replica
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import SnapshotEnd
from p2psgd.wire.update import parse_update
from tests.sim.ledger import label
from tests.sim.outcome import Violation
from tests.sim.whole import Grave

EXCHANGED: Final = {
    FrameType.FETCH,
    FrameType.SNAPSHOT_REQUEST,
    FrameType.SNAPSHOT_META,
    FrameType.SNAPSHOT_TAIL,
    FrameType.SNAPSHOT_END,
}

Members = frozenset[tuple[Origin, int]]  # each with the view since which it has been one
Lives = Callable[[Origin], Grave | None]  # a life as it is, or as it ended; None if it never began


@dataclass(slots=True)
class _Tail:
    """Of one snapshot on its way."""

    view: int  # number of the donor's when it began
    members: Members  # of that, but for the donor and the asker
    known: dict[Origin, int]  # up to where the donor knew then that all of these had each origin
    last: dict[Origin, int]  # of each origin the number of its next frame, should one come: the newest first


class Exchange:
    """Of one life."""

    def __init__(self, replica: Replica, incarnations: Lives, lying: Container[Origin] = ()) -> None:
        """`lying`: liars' lives, of which nobody can know what they have."""
        self._replica = replica
        self._lying = lying
        self._lives = incarnations
        self._tails: dict[Origin, _Tail] = {}  # by asker
        self._replaced_by: Event | None = None  # the latest event with which the replica was replaced
        self._published_by: Event | None = None  # the latest event in which the node published
        self._held_back = 0  # updates so far,
        self._lacked_bytes = 0  # and the bytes of the last one, if none was applied since

    def replaced(self, event: Event) -> None:
        """The replica was replaced as a whole with this event: nothing tells any more what its log was, nor
        what it was when a snapshot went out with the same event. What was held back has come with it.
        """
        self._tails.clear()
        self._replaced_by = event
        self._lacked_bytes = 0

    def published(self, event: Event) -> None:
        """Note that the node has applied updates of its own: these may have filled the log again."""
        self._published_by = event

    def received(self, update: UpdateBody, *, applied: bool) -> None:
        """An update came, and was applied or not."""
        held_back = self._replica.counters.held_back
        if held_back > self._held_back:
            self._held_back, self._lacked_bytes = held_back, len(update.body)
        elif applied:
            self._lacked_bytes = 0

    def sent(self, peer: Origin, frame: bytes, event: Event) -> None:
        """Check a frame of EXCHANGED, which the node sends to `peer` because of `event`."""
        if frame[4] == FrameType.FETCH:
            self._check_need(event)
        elif frame[4] == FrameType.SNAPSHOT_REQUEST:
            self._check_request()
        elif not self._replica.spec.dense and event is not self._replaced_by:
            self._follow(peer, parse_peer_message(FrameType(frame[4]), frame[PREFIX.size :]))

    def _check_need(self, event: Event) -> None:
        """Violation if the node asks for updates that its log has no room for. Two cases are right: an update
        has come and shows that one before it is missing; and the log was filled by a ring, or by the node's
        own updates, after the question.
        """
        if is_update(event) or self._replica.ring is not None or event is self._published_by:
            return
        if self._lacked_bytes and not self._replica.log.room(self._lacked_bytes):
            who = f"{label(self._replica.me)} asks for updates while its log has no room for the"
            raise Violation("asking", f"{who} {self._lacked_bytes} bytes that it held back")

    def _check_request(self) -> None:
        """The barrier: all that were members when this life became one, or before, know that it is one."""
        view, me = self._replica.membership.view, self._replica.me
        since = view.member_since(me)
        if since is None:
            raise Violation("barrier", f"{label(me)} asks for a snapshot, and is no member of its view")
        for member, joined in self._members(without=me) if since != FOUNDED else ():
            life = self._lives(member)
            if member in self._lying:
                continue
            if joined <= since and (life is None or life.view < since):
                words = f"{label(me)} asks for a snapshot, while {label(member)} does not know view {since}"
                raise Violation("barrier", f"{words}, by which it is a member")

    def _members(self, *, without: Origin) -> Members:
        view, me = self._replica.membership.view, self._replica.me
        return frozenset(
            row for row in zip(view.members, view.since, strict=True) if row[0] not in {me, without}
        )

    def _follow(self, asker: Origin, message: PeerMessage | None) -> None:
        match message:
            case SnapshotStart():
                members, acks = self._members(without=asker), self._replica.acks
                last = {Origin(row.node, row.incarnation): row.sequence for row in message.rows}
                incarnations = [member for member, _ in members]
                known = {origin: acks.stable(origin, incarnations) for origin in last}
                self._tails[asker] = _Tail(self._replica.membership.view.number, members, known, last)
            case SnapshotTail() if asker in self._tails:
                header, _ = parse_update(message.body, self._replica.spec.coordinates)
                self._take(asker, Origin(header.node, header.incarnation), header.sequence)
            case SnapshotEnd():
                tail = self._tails.pop(asker, None)
                if tail is not None and not message.reason:
                    self._check_tail(asker, tail)
            case _:
                pass

    def _take(self, asker: Origin, origin: Origin, sequence: int) -> None:
        tail = self._tails[asker]
        expected = tail.last.get(origin, 0)
        who = f"{label(self._replica.me)} gives {label(asker)}"
        if sequence != expected or not expected:
            raise Violation("tail", f"{who} update {sequence} of {label(origin)} in place of {expected}")
        if tail.view == self._replica.membership.view.number and sequence <= tail.known[origin]:
            words = f"{who} update {sequence} of {label(origin)}, though it knew that all members had"
            raise Violation("tail", f"{words} {tail.known[origin]} of them")
        tail.last[origin] -= 1

    def _check_tail(self, asker: Origin, tail: _Tail) -> None:
        floor_of = self._replica.log.trimmed_to
        members = tail.members & self._members(without=asker)
        incarnations = {member: self._lives(member) for member, _ in members if member not in self._lying}
        for origin, last in tail.last.items():
            for member in _lacking(incarnations, origin, max(last, 0)):
                if floor_of(origin) < last:
                    who = f"{label(self._replica.me)} gave {label(asker)} a snapshot"
                    words = f"without {label(origin)}'s update {last}, which is in its log"
                    raise Violation("tail", f"{who} {words}, and {label(member)} lacks it")


def _lacking(incarnations: dict[Origin, Grave | None], origin: Origin, sequence: int) -> Iterable[Origin]:
    """Who has not applied that update."""
    for member, life in incarnations.items():
        if (0 if life is None else life.rows.get(origin, 0)) < sequence:
            yield member


def is_update(event: Event) -> bool:
    """Whether a peer's update came."""
    return isinstance(event, FrameReceived) and isinstance(event.message, UpdateBody)
