"""What each linked member has told of its standing in the ring, by its last STATUS.

A standing counts within the view that its teller knew: attempts are numbered anew in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.wire.ring import RingState


@dataclass(frozen=True, slots=True)
class Told:
    """By one STATUS, which came at `at`."""

    state: RingState
    view: int
    at: float


class Standings:
    """Of all linked peers."""

    def __init__(self) -> None:
        self._told: dict[Origin, Told] = {}

    def hear(self, peer: Origin, state: RingState, view: int, now: float) -> None:
        """A STATUS has come."""
        self._told[peer] = Told(state, view, now)

    def forget(self, peer: Origin) -> None:
        """The link is gone: what was said on it is void."""
        self._told.pop(peer, None)

    def of(self, member: Origin, view: View) -> Told | None:
        """What a member told last, if it knew this view; None also if nothing came from it directly."""
        told = self._told.get(member)
        return told if told is not None and told.view == view.number else None

    def within(self, view: View) -> Iterator[tuple[Origin, Told]]:
        """All that was told by members that knew this view."""
        for peer, told in self._told.items():
            if told.view == view.number and peer in view:
                yield peer, told

    def attempts(self, view: View) -> int:
        """The highest attempt of this view that was told of."""
        return max((told.state.attempt for _, told in self.within(view)), default=0)

    def rounds(self, view: View) -> int:
        """The highest round that was told to be complete."""
        return max((told.state.round for _, told in self.within(view)), default=0)

    def active(self, view: View, *, mine: bool) -> bool:
        """Some member has a trainer that takes part; `mine`: this node has."""
        return mine or any(told.state.active for _, told in self.within(view))

    def all_given(self, attempt: int, done: int, view: View) -> bool:
        """All who have a trainer have given their share of the round after `done`, in this attempt."""
        states = [told.state for _, told in self.within(view)]
        return all(
            not state.active or state.round > done or (state.attempt == attempt and state.contributed)
            for state in states
        )

    def quitter(self, attempt: int, view: View) -> Origin | None:
        """Who has told that it is out of this attempt, or of a later one."""
        for peer, told in self.within(view):
            if told.state.attempt >= attempt and not told.state.running:
                return peer
        return None
