"""Formation of a ring: what members report, and when a generation may begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.state import State
from p2psgd.core.view import View
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring_messages import ROUND_MAX, RingState

# ----------------------------------------------------------------------------
# What each linked member has reported of its standing in the ring, by its last STATUS.
#
# A standing counts within the view that its teller knew: generations are numbered anew in each.


@dataclass(frozen=True, slots=True)
class Told:
    """The ring state that a STATUS, which came at `at`, reported."""

    state: RingState
    view: int
    at: float


class RingStates:
    """The ring states that all linked peers have reported."""

    def __init__(self) -> None:
        self._told: dict[Origin, Told] = {}

    def on_state(self, peer: Origin, state: RingState, view: int, now: float) -> None:
        """Take in a STATUS."""
        self._told[peer] = Told(state, view, now)

    def forget(self, peer: Origin) -> None:
        """Forget what was reported on a link that is gone."""
        self._told.pop(peer, None)

    def of(self, member: Origin, view: View) -> Told | None:
        """Return what a member reported last, if it knew this view; None also if nothing came from it
        directly.
        """
        told = self._told.get(member)
        return told if told is not None and told.view == view.number else None

    def within(self, view: View) -> Iterator[tuple[Origin, Told]]:
        """Yield all that members reported who knew this view."""
        for peer, told in self._told.items():
            if told.view == view.number and peer in view:
                yield peer, told

    def generations(self, view: View) -> int:
        """Return the highest generation of this view that was reported."""
        return max((told.state.generation for _, told in self.within(view)), default=0)

    def rounds(self, view: View) -> int:
        """Return the highest round that was reported to be complete."""
        return max((told.state.round for _, told in self.within(view)), default=0)

    def active(self, view: View, *, mine: bool) -> bool:
        """Return whether some member has a trainer that takes part; `mine`: this node has."""
        return mine or any(told.state.active for _, told in self.within(view))

    def all_given(self, generation: int, done: int, view: View) -> bool:
        """Return whether all members with a trainer have given their share of the round after `done`, in this
        generation.
        """
        states = [told.state for _, told in self.within(view)]
        return all(
            not state.active or state.round > done or (state.generation == generation and state.contributed)
            for state in states
        )

    def quitter(self, generation: int, view: View) -> Origin | None:
        """Return a member that is out of this generation, or of a later one, as it reports."""
        for peer, told in self.within(view):
            if told.state.generation >= generation and not told.state.running:
                return peer
        return None


# ----------------------------------------------------------------------------
# Whether a generation may begin: all members are there, idle, and have the same replica.
#
# The head, the member with the lowest node id, judges it by what the others have reported; all others judge
# it by the same rules, to say what the ring waits for.


NAMED_MAX: Final = 3  # of those who are waited for: a sentence is to be read


class Formation:
    """The judgement of one replica on whether a generation may begin."""

    def __init__(
        self, cluster: Cluster, state: State, *, node: Node, ring_states: RingStates, mode: Mode
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._node = node
        self._ring_states = ring_states
        self._dense = mode.dense
        self.begun = False  # a generation of this run is known
        self._founded: float | None = None  # since when this node knows a view

    def hindrance(self, mine: RingState, now: float) -> str:
        """Return why no generation can begin, in words that name who is waited for; empty if one can."""
        view = self._cluster.membership.view
        if not view.number:
            return "the cluster has not formed"
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

    def linked_to(self) -> list[Origin]:
        """Return the members that this node must be linked to: the head to all, all to the head and to their
        neighbours.
        """
        order = self._cluster.membership.view.members
        me = self._cluster.me
        if me not in order:
            return []
        if me == order[0]:
            return list(order[1:])
        place = order.index(me)
        wanted = {order[0], order[place - 1], order[(place + 1) % len(order)]}
        return sorted(wanted)

    def _absent(self, now: float) -> str:
        """Name the members that were not heard themselves: nobody vouches for another's standing."""
        view = self._cluster.membership.view
        since = now - self._cluster.timing.failure_timeout_s
        silent = []
        for member in self.linked_to():
            told = self._ring_states.of(member, view)
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
        """Name the members whose replica differs, or that lack the last sums. A dense round that changed no
        weight left no trace in the replica: a member that gave to it and lacks its sums must get them first.
        """
        states = {each: told.state for each, told in self._ring_states.within(self._cluster.membership.view)}
        busy = [each for each, state in states.items() if state.running]
        if busy:
            return f"{self._name(busy)} still in a generation"
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
        """Name what the first generation waits for: all nodes of the bootstrap and their trainers, so that
        two runs of a recipe begin alike; not for ever, since one of them may never come.
        """
        view, bootstrap_expect = self._cluster.membership.view, self._cluster.membership.bootstrap_expect
        states = {each: told.state for each, told in self._ring_states.within(view)} | {
            self._cluster.me: mine
        }
        active = {each for each, state in states.items() if state.active}
        assert self._founded is not None
        self.begun |= any(state.round or state.generation for state in states.values())
        self.begun |= len(self._state.frontier) > 0
        if not self.begun and now - self._founded < self._cluster.timing.gone_s:
            if len(view.members) < bootstrap_expect:
                left_s = self._cluster.timing.gone_s - (now - self._founded)
                who = f"{len(view.members)} of {bootstrap_expect} are members"
                return f"round 1 waits for all nodes of the bootstrap: {who}, for {left_s:.0f} s more at most"
            passive = [each for each in view.members if each not in active]
            if passive:
                return f"round 1 waits for all trainers, {self._name(passive)} without one yet"
        return "" if active else "no node has a trainer yet"

    def _members(self) -> list[Peer]:
        view = self._cluster.membership.view
        return [peer for peer in self._cluster.peers.values() if peer.origin in view]

    def _name(self, members: list[Origin]) -> str:
        """Return their names as the subject of a sentence."""
        names = ["this node" if each == self._cluster.me else self._cluster.name_of(each) for each in members]
        more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
        named = names[:NAMED_MAX] + more
        return f"{', '.join(named)} {'is' if len(named) == 1 else 'are'}"
