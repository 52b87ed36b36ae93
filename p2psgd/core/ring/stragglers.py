"""Stragglers of a ring: members that hold it back, and members that a generation left one round behind."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.ring.formation import Formation, RingStates
from p2psgd.core.ring.rounds import Rounds
from p2psgd.core.state import State
from p2psgd.wire.ring_messages import RingState

# ----------------------------------------------------------------------------
# Stragglers: which members hold the ring back, for how long, and which of them a READY member would evict.
#
# Times are those of the node's `RunningClock`: for a pause of its own it blames no member. None is evicted if
# that would leave a ring of one.


UNREADY_TIMEOUTS: Final = 12  # a snapshot takes its time


class StragglerVotes:
    """A replica's votes against members that hold the ring back; `look` several times a second."""

    def __init__(
        self, cluster: Cluster, *, node: Node, ring_states: RingStates, formation: Formation
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._ring_states = ring_states
        self._formation = formation
        self._since: dict[tuple[Hashable, ...], float] = {}  # what is the matter, and since when

    def look(self, mine: RingState, missing: list[Origin], now: float) -> dict[Origin, str]:
        """Return the members that hold the ring back, and in which words; `missing`: the members whose
        contribution to the round under way has not come.
        """
        timing = self._cluster.timing
        matters = self._matters(mine, missing)
        self._since = {matter: self._since.get(matter, now) for matter in matters}
        late = {}
        for matter, words in matters.items():
            kind, member = matter[0], matter[1]
            assert isinstance(member, Origin)
            since = self._since[matter]
            if kind == "silent":
                since = max(since, self._heard(member))
            limit_s = timing.failure_timeout_s * (UNREADY_TIMEOUTS if kind == "unready" else 1)
            blamed = now - since >= limit_s
            if kind == "share":  # what it told meanwhile may have crossed its share
                told = self._ring_states.of(member, self._cluster.membership.view)
                blamed = blamed and told is not None and told.at >= since + limit_s
            if blamed and member not in late:
                late[member] = f"{words} for {now - since:.1f} s"
        return late if len(self._cluster.membership.view.members) - len(late) >= 2 else {}

    def _matters(self, mine: RingState, missing: list[Origin]) -> dict[tuple[Hashable, ...], str]:
        """Return what holds the ring up, by kind and member, the worst first."""
        view = self._cluster.membership.view
        matters: dict[tuple[Hashable, ...], str] = {}
        if (
            self._cluster.me not in view
            or not self._node.ready
            or self._cluster.membership.stopping
            or len(view.members) < 2
        ):
            return matters
        if not self._ring_states.active(view, mine=mine.active):
            return matters  # nobody waits
        for member in self._cluster.other_members:
            matters["silent", member, view.number] = "it is silent while the ring waits"
        if mine.running:
            if mine.contributed:
                self._add_late_shares(matters, mine, missing)
            return matters
        for member in self._formation.linked_to():
            if member not in self._cluster.peers:
                matters["unlinked", member, view.number] = "a link of it that the ring needs was missing"
        for member in self._cluster.other_members:
            peer = self._cluster.peers.get(member)
            if peer is not None and not peer.ready:
                matters["unready", member, view.number] = "the ring has waited for it to be ready"
        return matters

    def _add_late_shares(
        self, matters: dict[tuple[Hashable, ...], str], mine: RingState, missing: list[Origin]
    ) -> None:
        """Add the members whose contribution is late, if most have given theirs: else the pace is that of the
        others, and this node is quick.
        """
        view, number = self._cluster.membership.view, mine.round + 1
        late = []
        for member in missing:
            told = self._ring_states.of(member, view)
            if told is None or not told.state.active or told.state.contributed:
                continue
            if (told.state.round, told.state.generation) == (mine.round, mine.generation):
                late.append(member)
        if 2 * len(late) < len(view.members):
            words = f"its trainer has not given its share of round {number}"
            matters |= {("share", member, view.number, number): words for member in late}

    def _heard(self, member: Origin) -> float:
        """Return when there was news of a member last, from itself or through others."""
        peer = self._cluster.peers.get(member)
        direct = float("-inf") if peer is None else peer.last_seen
        return max(direct, self._cluster.acks.heard(member))


# ----------------------------------------------------------------------------
# Members that a dense generation has left one round behind: who of the others gives them that round's sums.
#
# In a sparse ring stragglers ask for the updates that they lack. No member asks for sums: they are kept for
# one round, and a node that has them sees from a STATUS which member does not.


WAITING_TIMEOUTS: Final = 2  # for each node before this one: it has most likely begun to give
Rows = dict[Origin, tuple[int, int]]  # by origin, sequence and digest


class ResultServer:
    """A replica's service of the last result; `serve` while idle, several times a second."""

    def __init__(self, cluster: Cluster, state: State, *, ring_states: RingStates, rounds: Rounds) -> None:
        self._cluster = cluster
        self._state = state
        self._ring_states = ring_states
        self._rounds = rounds
        self._before: Rows = {}  # the frontier before the last completed round,
        self._after: Rows = {}  # and after it
        self._since: float | None = None  # when a member was first seen that lacks it

    def begin(self) -> None:
        """Note that all members are at this frontier."""
        self._after, self._since = self._rows(), None

    def completed(self) -> None:
        """Note that another round is complete."""
        self._before, self._after = self._after, self._rows()

    def _rows(self) -> Rows:
        return {origin: row[:2] for origin, row in self._state.frontier.items()}

    def serve(self, now: float) -> None:
        """Give the last round to those that lack it and nothing else, if this node is the one to do it: the
        first, or the next if those before it have not: who came to the ring after that round has no sums.
        """
        view, done = self._cluster.membership.view, self._rounds.done
        told = dict(self._ring_states.within(view))
        if any(each.state.running for each in told.values()):
            return
        lacking = [
            peer
            for member, each in told.items()
            if (peer := self._cluster.peers.get(member)) is not None
            and each.state.round == done - 1
            and self._builds_on(peer)
        ]
        self._since = (now if self._since is None else self._since) if lacking else None
        before = sum(each.state.round >= done and member < self._cluster.me for member, each in told.items())
        wait_s = before * WAITING_TIMEOUTS * self._cluster.timing.failure_timeout_s
        if self._since is None or now - self._since < wait_s:
            return
        for peer in lacking:
            self._rounds.give_result(peer, now)

    def _builds_on(self, peer: Peer) -> bool:
        """Return whether the peer is where this node was before that round. One that changed no weight left
        no trace.
        """
        rows = {origin: (row.sequence, row.digest) for origin, row in (peer.status or {}).items()}
        return rows == self._before
