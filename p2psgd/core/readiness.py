"""Readiness: how a node becomes READY, a member whose replica is complete, and what it waits for
(VIEWS.md, 20).

A newcomer, a restarted node and an evicted one go the same way: (1) a view holds this incarnation;
(2) the barrier: every other member knows that view or a later one, so that whatever it trims from now on
this node has acknowledged; (3) this node has all that those members had applied when it passed the barrier,
by replay or by snapshot. A start of all nodes from their checkpoints needs no rule of its own.
Members of the first view pass at once: nothing was trimmed before it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.acks import Acknowledgements
from p2psgd.core.frontier import RING, Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.core.timing import Timing
from p2psgd.core.view import View

FOUNDED = 1


class Readiness(enum.Enum):
    """States of an incarnation on its way to READY."""

    OUTSIDE = "outside"  # no view holds it
    ALONE = "alone"  # no view is known: it trains by itself, as if it were the run
    BARRIER = "barrier"  # a member; others do not know of it yet
    CATCHING_UP = "catching up"  # all members know of it; it lacks some of what they had then
    COMPLETE = "complete"  # it has all of that


_ADMITTED_ANEW: Final = "a view leaves it out, or admits it anew"
READINESS: Final = Transitions(
    "readiness",
    Readiness.OUTSIDE,
    {
        Readiness.OUTSIDE: {
            Readiness.ALONE: "no view for one failure timeout",
            Readiness.BARRIER: "a view holds this incarnation",
        },
        Readiness.ALONE: {Readiness.OUTSIDE: "a view holds this incarnation"},
        Readiness.BARRIER: {
            Readiness.OUTSIDE: _ADMITTED_ANEW,
            Readiness.CATCHING_UP: "every other member knows that view",
        },
        Readiness.CATCHING_UP: {
            Readiness.OUTSIDE: _ADMITTED_ANEW,
            Readiness.BARRIER: "a member leaves on whose word it relied, or of which it lacked something",
            Readiness.COMPLETE: "it has all that the members had",
        },
        Readiness.COMPLETE: {Readiness.OUTSIDE: _ADMITTED_ANEW},
    },
)


class JoinProgress(Lifecycle[Readiness]):
    """Progress of one incarnation to READY; `ready` may also be lost again."""

    def __init__(self, me: Origin, timing: Timing, now: float) -> None:
        super().__init__(READINESS)
        self.absent: list[Origin] = []  # members that the barrier waits for
        self._me = me
        self._since: int | None = None  # the view that took this life in
        self._alone_until = now + timing.failure_timeout_s
        self._reporters: dict[Origin, Origin] = {}  # by member: who told that it knows that view,
        self._targets: dict[Origin, dict[Origin, int]] = {}  # and what each of those had applied
        self._members: tuple[Origin, ...] = ()  # of the view at the last look
        self._known_from = 0  # the view that every other member must know

    @property
    def ready(self) -> bool:
        """Return whether this node has a complete replica, or is alone."""
        return self.state in (Readiness.COMPLETE, Readiness.ALONE)

    @property
    def passed(self) -> bool:
        """Return whether every other member knows a view that holds this incarnation and is late enough."""
        return self.state in (Readiness.CATCHING_UP, Readiness.COMPLETE)

    def look(
        self,
        view: View,
        admitted_in: int | None,
        *,
        acks: Acknowledgements,
        peers: Mapping[Origin, Peer],
        frontier: Frontier,
        now: float,
    ) -> None:
        """Judge anew, after any news."""
        if view.number == 0:
            if not self.ready and now >= self._alone_until:
                self.move(Readiness.ALONE)
            return
        if admitted_in != self._since:  # also if it was out in between and never heard of it
            self._since = admitted_in
            self._members, self._known_from = view.members, view.number
            # Not the view of the admission: a member that has left since is not among these members.
            if self.state is not Readiness.OUTSIDE:
                self.move(Readiness.OUTSIDE)
        if admitted_in is None or self.ready:
            return
        again = self._note_leavers(view, peers, frontier)
        gone = {member for member in self._reporters if member not in view}
        for member in gone:
            del self._reporters[member]
        again |= any(
            member.node in view.incarnations for member in gone
        )  # what it had is for its new life to tell
        if not self.passed or again or any(reporter not in view for reporter in self._reporters.values()):
            self._try_barrier(view, admitted_in, acks)
        if self.passed and self._has_all(view, peers, frontier):
            self.move(Readiness.COMPLETE)

    def _note_leavers(self, view: View, peers: Mapping[Origin, Peer], frontier: Frontier) -> bool:
        """Return whether a member has left of which this node lacks something, or may do so. A snapshot that
        it gave to another member may have taken its place, and only a STATUS with this view shows that.
        """
        before, self._members = self._members, view.members
        if before is view.members:
            return False
        for member in before:
            if member in view:
                continue
            met = self.passed and member in self._targets and frontier.dominates(self._target(member, peers))
            if not met:
                self._known_from, self._reporters = view.number, {}
                return True
        return False

    def _try_barrier(self, view: View, admitted_in: int, acks: Acknowledgements) -> None:
        if self.state is not Readiness.BARRIER:
            self.move(Readiness.BARRIER)
            self._reporters = {}
        others = [] if admitted_in == FOUNDED else [each for each in view.members if each != self._me]
        known = {member: by for member, by in self._reporters.items() if by in view}
        self._reporters = {}
        for member in others:  # which may be a thousand; who has told it once knows the view
            reporter = known.get(member)
            if reporter is None:
                number, reporter = acks.latest(member)
                if reporter is None or reporter not in view or number < self._known_from:
                    continue
            self._reporters[member] = reporter
        self.absent = [member for member in others if member not in self._reporters]
        passed = not self.absent
        if passed:
            self.move(Readiness.CATCHING_UP)
            self._targets = {reporter: acks.all_applied(reporter) for reporter in self._reporters.values()}

    def _has_all(self, view: View, peers: Mapping[Origin, Peer], frontier: Frontier) -> bool:
        reporters = set(self._reporters.values())
        return all(frontier.dominates(self._target(reporter, peers)) for reporter in reporters) and not any(
            lacks_trimmed(peer, frontier) for peer in peers.values() if peer.origin in view
        )

    def _target(self, reporter: Origin, peers: Mapping[Origin, Peer]) -> dict[Origin, int]:
        """Return what a reporter had applied then. In a dense ring no more than it has now: with damaged
        weights it may have taken those of an earlier round, and nobody has more of that.
        """
        target, peer = self._targets[reporter], peers.get(reporter)
        if RING in target and peer is not None:
            return {RING: min(target[RING], peer.has(RING))}
        return target


def lacks_trimmed(peer: Peer, frontier: Frontier) -> bool:
    """Return whether the peer's log no longer holds something that this node lacks."""
    return bool(peer.ahead) and any(
        row.trimmed_to > frontier.sequence(origin) for origin, row in peer.ahead.items()
    )
