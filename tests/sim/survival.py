"""Whether a run can still decide views after what is to be done to it: votes that burn with a disk are gone
for good, and without a quorum there is nothing left to check.

The core keeps a quorum by itself when nodes leave or are evicted. It cannot when a machine burns, nor when a
person has another removed meanwhile. Votes are not passed on, so of a quorum one must reach all the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from p2psgd.core.view import View
from tests.sim.agreement import Agreement
from tests.sim.daemon import Daemon
from tests.sim.disk import Disk
from tests.sim.faults import Fault, Unlinked
from tests.sim.places import place_of


class Survival:
    """Of one run."""

    def __init__(self, agreement: Agreement, faults: Iterable[Fault]) -> None:
        self._agreement = agreement
        self._apart = {(each.node, each.other) for each in faults if isinstance(each, Unlinked)}

    def is_sure(self, disks: list[Disk], daemons: list[Daemon], *, removed: Set[int] = frozenset()) -> bool:
        """With these disks alone whatever view comes next can be followed by another. `removed`: nodes that a
        person is about to have removed.
        """
        nodes = {disk.node for disk in disks}
        wishes = [daemon.replica.membership._changes for daemon in daemons]
        evict_requests = removed | {node for each in wishes for node in each._removals}
        views = set(self._at_stake(disks, daemons))
        views |= {
            view.replace({}, evict_requests & view.incarnations.keys(), set())
            for view in views
            if view.number
        }
        return all(self.can_decide(view, nodes) for view in views if view.members or not view.number)

    def can_decide(self, view: View, nodes: Set[int]) -> bool:
        """One of these nodes, if need be a member, reaches as many of them as it takes to follow the view."""
        return any(
            self._agreement.is_quorum(view, {node for node in nodes if self._reach(proposer, node)})
            for proposer in nodes
            if not view.number or proposer in view.incarnations
        )

    def can_spare(self, evict_requests: Set[int], nodes: Set[int]) -> bool:
        """Once the unwanted are out of the latest view, these nodes can decide what follows it."""
        latest = self._agreement.latest
        gone = evict_requests & latest.incarnations.keys()
        rest = latest.replace({}, gone, set())
        return not gone or not rest.members or self.can_decide(rest, nodes)

    def _reach(self, one: int, other: int) -> bool:
        places = place_of(one), place_of(other)
        return places not in self._apart and places[::-1] not in self._apart

    def _at_stake(self, disks: list[Disk], daemons: list[Daemon]) -> Iterator[View]:
        """The latest view, the latest that a disk knows of, and all that may have been decided since."""
        yield self._agreement.latest
        yield max((disk.votes.view for disk in disks), key=lambda view: view.number)
        yield from (disk.votes.value for disk in disks if disk.votes.value is not None)
        for daemon in daemons:
            attempt = daemon.replica.membership._consensus.attempt
            if attempt is not None:
                yield attempt.value or attempt.proposal
