"""The changes that one node wants in the view it knows, and their outcome.

A linked node should be a member, in its present incarnation; a node that said GOODBYE, holds the others back
or was removed by a person should not. An evicted node is admitted again after a time that doubles, or a node
too slow for the run would come and go without end. Every node keeps that time for itself: a view does not say
why it was decided.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final

from p2psgd.core.effects import LogEvent
from p2psgd.core.frontier import name_node
from p2psgd.core.timing import Timing
from p2psgd.core.view import View
from p2psgd.wire.messages import MEMBERS_MAX

NAMED_MAX: Final = 3
PAROLE_PER_TIMEOUT: Final = 128  # an eviction longer ago than that no longer lengthens the back-off


@dataclass(slots=True)
class _Eviction:
    """The number of recent evictions of a node, and the time of the last."""

    times: int
    at: float


class PendingChanges:
    """The changes that one node wants at the moment."""

    def __init__(self, timing: Timing) -> None:
        self.leaving: set[int] = set()  # said GOODBYE
        self.evict_requests: dict[
            int, str
        ] = {}  # members to evict, and why; it is said of the life in the view
        self._stopping: dict[int, str] = {}  # this node itself once it said so, and why
        self._removals: dict[int, bool] = {}  # nodes a person wants out, and whether for good
        self._evictions: dict[int, _Eviction] = {}
        self._timing = timing
        self._next: tuple[tuple[View, dict[int, int], set[int], set[int]], View] | None = None

    def leave(self, me: int, why: str) -> None:
        """Leave, and want no other change any more; `why` for people, or empty."""
        self._stopping = {me: f": {why}" if why else ""}

    def remove(self, node: int, *, forbid: bool, view: View) -> None:
        """Remove a node at a person's request, which stands until a view shows it."""
        if forbid or node in view.incarnations:
            self._removals[node] = forbid or self._removals.get(node, False)

    @property
    def to_remove(self) -> Set[int]:
        """Return the nodes that a person wants removed."""
        return self._removals.keys()

    def tick(self, now: float) -> None:
        """Forget evictions of long ago."""
        if not self._evictions:
            return
        parole_s = PAROLE_PER_TIMEOUT * self._timing.failure_timeout_s
        self._evictions = {node: past for node, past in self._evictions.items() if now - past.at <= parole_s}

    def fulfilled(self, view: View, here: Mapping[int, int]) -> bool:
        """Return whether nothing is to change, as nearly always: all linked nodes are members, none should
        go.
        """
        return (
            not (self._removals or self.evict_requests or self.leaving)
            and here.items() <= view.incarnations.items()
        )

    def next_view(
        self,
        view: View,
        here: Mapping[int, int],
        *,
        evict: Set[int],
        ready: bool,
        removing: bool = True,
        needed: Set[int] = frozenset(),
        now: float,
    ) -> View | None:
        """Return the view after `view` as this node wants it; None if nothing changes.

        `here`: incarnations of the linked nodes, this one included. `evict`: members that READY members would
        evict; only a READY node removes those that said GOODBYE. `removing`: carry out people's removals.
        `needed`: nodes that stay unless their removal is for good.
        """
        known = view.incarnations
        new = {node: life for node, life in here.items() if known.get(node) != life}  # few of a thousand
        back = {node for node, life in new.items() if life > known.get(node, life)}
        removals = self._removals.items() if removing else ()
        wanted_out = {node: forbid for node, forbid in removals if forbid or node not in needed}
        remove = (wanted_out.keys() | evict - back) & view.incarnations.keys()
        if ready:
            remove |= self.leaving & view.incarnations.keys()
        for_good = {node for node, forbid in wanted_out.items() if forbid} - view.forbidden
        forbid = set(sorted(for_good)[: MEMBERS_MAX - len(view.forbidden)])
        out = remove | self._removals.keys() | self.leaving | view.forbidden
        renewed = {node: here[node] for node in sorted(back - out)}
        joiners = sorted(new.keys() - out - known.keys() - self._held_off(now))
        admit = renewed | {node: here[node] for node in joiners[: MEMBERS_MAX - len(view.members)]}
        if not admit and not remove and not forbid:
            return None
        changes = view, admit, remove, forbid
        if self._next is None or self._next[0] != changes:  # it is asked for at each message
            self._next = changes, view.replace(admit, remove, forbid)
        proposal = self._next[1]
        return proposal if proposal.members else None

    def take_note(
        self,
        before: View,
        view: View,
        *,
        linked: Set[int],
        told: Mapping[int, Collection[int]],
        names: Mapping[int, str],
        now: float,
    ) -> list[LogEvent]:
        """Return events on what `view` changed in `before`, and drop the changes that came true. `told`: the
        members that each linked node reported it would evict.
        """
        notes = []
        if before.number:
            gone = sorted(before.incarnations.keys() - view.incarnations.keys())
            for node in gone:
                requesters = [
                    name_node(each, names) for each, evict_requests in told.items() if node in evict_requests
                ]
                notes.append(self._part(node, view, name_node(node, names), requesters, now))
            for node, incarnation in view.members:
                if before.incarnations.get(node) != incarnation:
                    words = f"{name_node(node, names)} was admitted by view {view.number}"
                    notes.append(LogEvent("admitted", words, node))
        same = before.incarnations.items() & view.incarnations.items()
        self.evict_requests = {
            node: why
            for node, why in self.evict_requests.items()
            if (node, view.incarnations.get(node)) in same
        }
        self.leaving &= view.incarnations.keys() | linked
        self._removals = {
            node: forbid
            for node, forbid in self._removals.items()
            if node in view.incarnations or (forbid and node not in view.forbidden)
        }
        return notes

    def _held_off(self, now: float) -> set[int]:
        backoff_s = self._timing.backoff_s
        return {node for node, past in self._evictions.items() if now - past.at < backoff_s(past.times)}

    def _part(self, node: int, view: View, name: str, requesters: list[str], now: float) -> LogEvent:
        if node in view.forbidden:
            return LogEvent("removed", f"{name} was removed for good by view {view.number}", node)
        if node in self._removals:
            return LogEvent("removed", f"{name} was removed by view {view.number}", node)
        if node in self._stopping:
            return LogEvent("left", f"this node left with view {view.number}{self._stopping[node]}", node)
        if node in self.leaving:
            return LogEvent("left", f"{name} left with view {view.number}", node)
        past = self._evictions.get(node)
        self._evictions[node] = _Eviction(1 if past is None else past.times + 1, now)
        why = self.evict_requests.get(node, "another member asked for it")
        if node not in self.evict_requests and requesters:
            why = f"{', '.join(requesters[:NAMED_MAX])} asked for it; see the events there"
        return LogEvent("evicted", f"{name} was evicted by view {view.number}: {why}", node)
