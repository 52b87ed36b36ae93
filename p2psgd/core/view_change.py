"""The consequences of a decided view, and the explanation of what keeps a node from being ready."""

from __future__ import annotations

from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import LogEvent, Send, Shutdown
from p2psgd.core.eviction import Eviction
from p2psgd.core.metrics import Counters
from p2psgd.core.node_state import Node
from p2psgd.core.readiness import JoinProgress, lacks_trimmed
from p2psgd.core.retention import Retention
from p2psgd.core.send import Outbound
from p2psgd.core.snapshot_fetch import FetchProgress
from p2psgd.core.state import State
from p2psgd.core.status import StatusSender

# ----------------------------------------------------------------------------
# What decided views mean for this node: it sends them on, the log makes room, READY comes and goes.


VOTES_OVERDRAFT_BYTES: Final = 64 * 1024  # of votes and views that may go out beyond a link's credit
TELLING_TIMEOUTS: Final = 4  # a node that was removed for good goes on for this long


class ViewChange:
    """Follows the decided views of one replica; runs after every event."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        joining: JoinProgress,
        node: Node,
        retention: Retention,
        taking: FetchProgress,
        status_sender: StatusSender,
        eviction: Eviction,
        counters: Counters,
        out: Outbound,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._joining = joining
        self._node = node
        self._retention = retention
        self._taking = taking
        self._status_sender = status_sender
        self._eviction = eviction
        self._counters = counters
        self._out = out
        self._view = cluster.membership.view
        self._removed: float | None = None  # since when this node knows that it was, for good
        self._was_ready = False

    def look(self, now: float) -> None:
        """Carry out the effects of membership, and follow a new view."""
        membership = self._cluster.membership
        effects = membership.effects.copy()
        membership.effects.clear()
        for effect in effects:
            if isinstance(effect, LogEvent) and effect.kind == "evicted":
                self._counters.evictions_seen += 1
            if isinstance(effect, Send):
                peer = self._cluster.peers.get(effect.peer)
                if peer is not None and peer.credit > -VOTES_OVERDRAFT_BYTES:  # else asked again later
                    self._out.send(peer, effect.frame)
            else:
                self._out.emit(effect)
        before = self._view
        changed = membership.view is not before
        if changed:
            self._view = membership.view
            self._eviction.enter_view(before, now)
        if self._cluster.me.node in self._view.forbidden:
            self._end(now)
        if changed or not self._joining.ready:
            self._joining.look(
                self._view,
                membership.admitted_in,
                acks=self._cluster.acks,
                peers=self._cluster.peers,
                frontier=self._state.frontier,
                now=now,
            )
            self._node.follow_readiness()
        if changed:
            self._status_sender.send_to_all(now)  # others wait to hear that this node knows the view
        ready = self._node.ready
        if ready != self._was_ready and not membership.stopping:
            self._was_ready = ready
            self._out.emit(
                LogEvent("ready", "this node is ready")
                if ready
                else LogEvent("unready", f"this node is not ready: {self.explain()}")
            )

    def explain(self) -> str:
        """Return why this node is not READY, or its trainer must wait; empty if neither."""
        frontier = self._state.frontier
        if self._node.ready:
            return self._explain_stall() if self._retention.stalled else ""
        if self._taking.donor is not None:
            share = self._taking.bytes_taken / (4 * self._state.spec.coordinates)
            return f"taking a snapshot from {self._cluster.name_of(self._taking.donor)}: {min(share, 1):.0%}"
        if self._node.quarantined:
            anew = "rebuilding them from the checkpoint and the log"
            how = anew if self._node.repairing else "waiting for a member that can give a snapshot"
            return f"the weights in memory were damaged: {how}"
        if self._cluster.membership.view.number == 0:
            return "looking for the other nodes of the run"
        if self._cluster.membership.admitted_in is None:
            reason = self._cluster.membership.explain()
            return "waiting to be admitted to the run" + (f": {reason}" if reason else "")
        absent = ", ".join(map(self._cluster.name_of, self._joining.absent[:3]))
        if absent:
            return f"waiting for {absent} to learn that this node is back, or to be removed"
        if any(lacks_trimmed(peer, frontier) for peer in self._cluster.peers.values()):
            return "waiting for a member that can give a snapshot"
        lacking = (
            sum(max(0, row.sequence - frontier.sequence(origin)) for origin, row in peer.ahead.items())
            for peer in self._cluster.peers.values()
        )
        return f"catching up: {max(lacking, default=0)} updates behind"

    def _explain_stall(self) -> str:
        who = ", ".join(map(self._cluster.name_of, self._retention.holders[:3])) or "nobody"
        reason = self._cluster.membership.explain()
        return f"the log is full of updates that {who} has not acknowledged" + (
            f", and {reason}" if reason else ""
        )

    def _end(self, now: float) -> None:
        """Stop, since this node was removed for good; a while later, as it may be the only one that can send
        the others the view that says so.
        """
        if self._removed is None:
            self._removed = now
        if now - self._removed >= TELLING_TIMEOUTS * self._cluster.timing.failure_timeout_s:
            self._removed = float("inf")
            words = f"this node was removed for good by view {self._view.number}"
            advice = (
                "to join as another node it needs a new --state, and over TLS a certificate under a new name"
            )
            self._out.emit(Shutdown(f"{words}: {advice}", again=False))
