"""Formation of a ring: what members report, when an attempt may begin, and in which order members follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.state import State
from p2psgd.core.view import View
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import ROUND_MAX, LinkRow, RingState

# ----------------------------------------------------------------------------
# What each linked member has told of its standing in the ring, by its last STATUS.
#
# A standing counts within the view that its teller knew: attempts are numbered anew in each.


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


# ----------------------------------------------------------------------------
# The order of a ring: by node id, or such that no slow link is in it that need not be.
#
# A round passes through all links at once, so it takes as long as the slowest of them: that one counts
# first, then all together. Only the head chooses; the others are told. Finding the very best order is the
# travelling salesman's problem; the nearest next node, improved a little where there are few, is good
# enough.


SEGMENT_BYTES: Final = 256 * 1024  # what a link sends at a time
UNKNOWN_US: Final = 10_000_000  # a link that nobody has measured is taken last
MEASURED_MAX: Final = 64  # members of a ring whose order is chosen: more would stall the loop, 0.2 s for 200
IMPROVED_MAX: Final = 16  # and of one that is improved: 330 changes are tried in a pass, some 2 ms
PASSES_MAX: Final = 8

Measured = Mapping[Origin, Iterable[LinkRow]]  # by member, what it has measured
Cost = Callable[[Origin, Origin], float]


def is_chosen(members: int) -> bool:
    """A ring of so many goes by what was measured; three are a ring in any order."""
    return 4 <= members <= MEASURED_MAX


def choose_order(members: Iterable[Origin], told: Measured | None = None) -> tuple[Origin, ...]:
    """Around the ring, the head first; by node id unless it is `told` what members have measured, or if they
    are very many.
    """
    by_id = sorted(members)
    if told is None or not is_chosen(len(by_id)):
        return tuple(by_id)
    cost = cost_of(told)
    order, left = by_id[:1], by_id[1:]
    while left:
        nearest = min(left, key=lambda each: (cost(order[-1], each), each))
        left.remove(nearest)
        order.append(nearest)
    return tuple(_improved(order, cost) if len(order) <= IMPROVED_MAX else order)


def cost_of(told: Measured) -> Cost:
    """Microseconds that a segment takes from one member to another, by whichever of the two says more."""
    costs: dict[tuple[int, int], float] = {}
    for member, rows in told.items():
        for row in rows:
            cost = row.round_trip_us / 2
            if row.kib_per_s:
                cost += SEGMENT_BYTES / 1024 / row.kib_per_s * 1e6
            pair = min(member.node, row.node), max(member.node, row.node)
            costs[pair] = max(cost, costs.get(pair, 0.0))

    def cost_between(one: Origin, other: Origin) -> float:
        return costs.get((min(one.node, other.node), max(one.node, other.node)), UNKNOWN_US)

    return cost_between


def measure_ring(order: Sequence[Origin], cost: Cost) -> tuple[float, float]:
    """Its slowest link, and all of them together."""
    costs = [cost(one, other) for one, other in pairwise([*order, order[0]])]
    return max(costs), sum(costs)


def _improved(order: list[Origin], cost: Cost) -> list[Origin]:
    best = measure_ring(order, cost)
    for _ in range(PASSES_MAX):
        before = best
        for changed in _changes(order):
            length = measure_ring(changed, cost)
            if length < best:
                order, best = changed, length
        if best == before:
            break
    return order


def _changes(order: list[Origin]) -> Iterator[list[Origin]]:
    """Each stretch turned around, and each member but the head put elsewhere."""
    for start in range(1, len(order)):
        for end in range(start + 2, len(order) + 1):
            yield order[:start] + order[start:end][::-1] + order[end:]
        rest = order[:start] + order[start + 1 :]
        for place in range(1, len(order)):
            yield [*rest[:place], order[start], *rest[place:]]


# ----------------------------------------------------------------------------
# Whether an attempt may begin: all members are there, idle, and have the same replica.
#
# The head, the member with the lowest node id, judges it by what the others have told it; all others judge
# it by the same rules, to say what the ring waits for.


MEASURING_PATIENCES: Final = 2  # then the ring is formed by what is known
NAMED_MAX: Final = 3  # of those who are waited for: a sentence is to be read


class Formation:
    """Of one replica."""

    def __init__(
        self, cluster: Cluster, state: State, *, node: Node, standings: Standings, mode: Mode
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._node = node
        self._standings = standings
        self._dense = mode.dense
        self._measured = mode.order == "measured"
        self.begun = False  # an attempt of this run is known
        self._founded: float | None = None  # since when this node knows a view

    def hindrance(self, mine: RingState, now: float) -> str:
        """Why no attempt can begin, in words that name who is waited for; empty if one can."""
        view = self._cluster.membership.view
        if not view.number:
            return "the run is not founded"
        if self._founded is None:
            self._founded = now
        if self._cluster.membership.stopping:
            return "this node is leaving"
        if not self._node.ready:
            return "this node is not ready"
        if len(view.members) < 2:
            alone = f"this is the only member of view {view.number}"
            return f"a ring needs two nodes, and {alone}: start another node, or train in asynchronous mode"
        return self._absent(now) or self._unready() or self._unlike(mine) or self._passive(mine, now)

    def order(self, mine: RingState) -> tuple[Origin, ...]:
        """Around the ring, by what is known now."""
        members = self._cluster.membership.view.members
        return choose_order(members, self._told(mine) if self._measured else None)

    def order_by(self, mine: RingState) -> str:
        """What an order that is chosen now goes by, as far as this node knows: by node id, if nobody has
        measured anything.
        """
        measured = self._measured and is_chosen(len(self._cluster.membership.view.members))
        return "measured" if measured and any(self._told(mine).values()) else "id"

    def _told(self, mine: RingState) -> Measured:
        """What all members have measured."""
        told = {
            each: told.state.links for each, told in self._standings.within(self._cluster.membership.view)
        }
        return {**told, self._cluster.me: mine.links}

    def linked_to(self) -> list[Origin]:
        """Whom this node must be linked to: the head to all, all to the head and to their neighbours; to all
        if anybody may become a neighbour.
        """
        if self._measured:
            return self._cluster.other_members
        order = choose_order(self._cluster.membership.view.members)
        me = self._cluster.me
        if me not in order:
            return []
        if me == order[0]:
            return list(order[1:])
        place = order.index(me)
        wanted = {order[0], order[place - 1], order[(place + 1) % len(order)]}
        return sorted(wanted)

    def _absent(self, now: float) -> str:
        """By their own words: nobody vouches for another's standing."""
        view = self._cluster.membership.view
        since = now - self._cluster.timing.patience_s
        silent = []
        for member in self.linked_to():
            told = self._standings.of(member, view)
            if told is None or told.at < since or member not in self._cluster.peers:
                silent.append(member)
        if silent and len(view.members) == 2:  # whatever two_nodes says: there is no ring of one
            again = self._cluster.name_of(silent[0])
            return f"of two nodes both wait when they lose each other: start {again} again"
        return f"{self._name(silent)} not heard in view {view.number}" if silent else ""

    def _unready(self) -> str:
        peers = self._members()
        leaving = [peer.origin for peer in peers if peer.state is PeerState.LEAVING]
        unready = [peer.origin for peer in peers if not peer.ready]
        if leaving:
            return f"{self._name(leaving)} about to leave"
        return f"{self._name(unready)} not ready" if unready else ""

    def _unlike(self, mine: RingState) -> str:
        """A dense round that changed no weight left no trace in the replica: whoever gave to it and does not
        have its sums is to be given them first.
        """
        states = {each: told.state for each, told in self._standings.within(self._cluster.membership.view)}
        busy = [each for each, state in states.items() if state.running]
        if busy:
            return f"{self._name(busy)} still in an attempt"
        other = [each.origin for each in self._members() if not self._is_same(each)]
        if other:
            return f"{self._name(other)} without the same replica yet"
        states[self._cluster.me] = mine
        last = max(state.round for state in states.values())
        if last >= ROUND_MAX:
            far = [each for each, state in states.items() if state.round == last]
            again = "stop all nodes and start them again"
            return f"{self._name(far)} at round {last}, the last there can be: {again}"
        behind = [each for each, state in states.items() if state.round == last - 1 and state.contributed]
        if self._dense and behind:
            return f"{self._name(behind)} without the sums of round {last} yet"
        return ""

    def _is_same(self, peer: Peer) -> bool:
        frontier, told = self._state.frontier, peer.status or {}
        return len(told) == len(frontier) and all(
            frontier.at(origin) == (row.sequence, row.digest) for origin, row in told.items()
        )

    def _passive(self, mine: RingState, now: float) -> str:
        """The first attempt waits for all founders and their trainers, so that two runs of a recipe begin
        alike; not for ever, since one of them may never come.
        """
        view, founders = self._cluster.membership.view, self._cluster.membership.founders
        states = {each: told.state for each, told in self._standings.within(view)} | {self._cluster.me: mine}
        active = {each for each, state in states.items() if state.active}
        assert self._founded is not None
        self.begun |= any(state.round or state.attempt for state in states.values())
        self.begun |= len(self._state.frontier) > 0
        if not self.begun and now - self._founded < self._cluster.timing.gone_s:
            if len(view.members) < founders:
                left_s = self._cluster.timing.gone_s - (now - self._founded)
                who = f"{len(view.members)} of {founders} are members"
                return f"round 1 waits for all founders: {who}, for {left_s:.0f} s more at most"
            passive = [each for each in view.members if each not in active]
            if passive:
                return f"round 1 waits for all trainers, {self._name(passive)} without one yet"
        patience_s = self._cluster.timing.patience_s
        if self._measured and not self.begun and now - self._founded < MEASURING_PATIENCES * patience_s:
            blind = [each for each, state in states.items() if len(state.links) < len(view.members) - 1]
            if blind:
                return f"{self._name(blind)} still measuring its links"
        return "" if active else "no node has a trainer yet"

    def _members(self) -> list[Peer]:
        view = self._cluster.membership.view
        return [peer for peer in self._cluster.peers.values() if peer.origin in view]

    def _name(self, members: list[Origin]) -> str:
        """As the subject of what is the matter with them."""
        names = ["this node" if each == self._cluster.me else self._cluster.name_of(each) for each in members]
        more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
        named = names[:NAMED_MAX] + more
        return f"{', '.join(named)} {'is' if len(named) == 1 else 'are'}"
