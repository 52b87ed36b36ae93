"""What all nodes must agree on: one view for each number, decided by a quorum of the one before, durably."""

from __future__ import annotations

from collections import defaultdict

from p2psgd.core.frontier import Origin
from p2psgd.core.view import NO_VIEW, Ballot, View, Votes
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import Accepted, Prepare, Promise, parse_message
from tests.sim.outcome import Violation

VOTES = frozenset((FrameType.PREPARE, FrameType.PROMISE, FrameType.ACCEPTED))


class Agreement:
    """Sees all votes that reach a disk, and all views that a node takes over."""

    def __init__(self, *, bootstrap_expect: int, two_nodes: str) -> None:
        self.latest = NO_VIEW
        self.races = 0  # views for which two nodes made proposals
        self._views: dict[int, View] = {0: NO_VIEW}
        self._accepted: dict[View, set[int]] = defaultdict(set)
        self._proposers: dict[int, set[int]] = defaultdict(set)
        self._bootstrap_expect = bootstrap_expect
        self._two_nodes = two_nodes

    def saved(self, node: int, votes: Votes) -> None:
        """A node's votes are on its disk."""
        if votes.value is not None:
            self._accepted[votes.value].add(node)

    def is_quorum(self, view: View, nodes: set[int]) -> bool:
        """These nodes can decide what follows `view`."""
        if view.number == 0:
            return len(nodes) >= self._bootstrap_expect // 2 + 1
        return view.quorum(nodes, self._two_nodes)

    def member_since(self, life: Origin, number: int) -> int:
        """Number of the first of those views, without a break up to this one, that hold the life."""
        while number > 1 and life in self._views[number - 1]:
            number -= 1
        return number

    def holds(self, life: Origin, number: int) -> bool:
        """The life is a member of that view."""
        return life in self._views[number]

    def last_joined(self, number: int) -> int:
        """Number of the last view up to this one that admitted a life."""
        while (
            number > 1
            and self._views[number].incarnations.items() <= self._views[number - 1].incarnations.items()
        ):
            number -= 1
        return number

    def taken_over(self, who: str, view: View) -> None:
        """A node now knows this view."""
        known = self._views.get(view.number)
        if known is None:
            before = self._views.get(view.number - 1)
            if before is None:
                raise Violation("view", f"{who} has view {view.number}, nobody ever had {view.number - 1}")
            if not self.is_quorum(before, self._accepted[view]):
                accepted = sorted(self._accepted[view])
                words = f"{who} has view {view.number}, on the disks of {accepted} alone: {before} decides"
                raise Violation("quorum", words)
            if not before.forbidden <= view.forbidden or view.forbidden & view.incarnations.keys():
                raise Violation("forbidden", f"{view} follows {before}: nobody comes back from there")
            self._views[view.number] = view
            self.latest = max(self.latest, view, key=lambda each: each.number)
        elif known != view:
            raise Violation("view", f"{who} has {view}, others have {known}")

    def believe(self, view: View) -> None:
        """A node now knows this view, in a run in which it may be made up."""
        if view.number > self.latest.number:
            self.latest = view

    def check_vote(self, me: Origin, frame: bytes, disk: Votes) -> None:
        """A node sends a vote, which must only tell of what is on its disk."""
        match parse_message(FrameType(frame[4]), frame[5:]):
            case Prepare() as prepare:
                proposers = self._proposers[prepare.view]
                proposers.add(me.node)
                self.races += len(proposers) == 2
            case Promise() as promise:
                ballot = Ballot(promise.accepted_round, promise.accepted_node)
                self._check_disk(me, promise, Ballot(promise.round, promise.node), ballot, disk)
            case Accepted() as accepted:
                ballot = Ballot(accepted.round, accepted.node)
                self._check_disk(me, accepted, ballot, ballot, disk)
            case _:
                pass

    def _check_disk(
        self, me: Origin, vote: Promise | Accepted, promised: Ballot, accepted: Ballot, disk: Votes
    ) -> None:
        number = disk.view.number + 1
        if vote.view < number or (
            vote.view == number and promised <= disk.promised and accepted <= disk.accepted
        ):
            return
        raise Violation("durable", f"node {me.node} sends {vote}, and its disk has only {disk}")
