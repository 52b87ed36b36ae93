"""The consequences of a decided view, and the explanation of what keeps a node from being ready."""

from __future__ import annotations

from typing import Final

from p2psgd.core.context import Parts
from p2psgd.core.effects import Halt, Note, Send
from p2psgd.core.eviction import Upkeep
from p2psgd.core.readiness import lacks_floor
from p2psgd.core.retention import STALL
from p2psgd.core.snapshot import SnapshotTaking
from p2psgd.core.status import Statuses

# ----------------------------------------------------------------------------
# Why nothing moves, in one sentence for people.


def explain(parts: Parts, taking: SnapshotTaking) -> str:
    """Why this node is not READY, or its trainer must wait; empty if neither."""
    frontier = parts.state.frontier
    if parts.ready:
        return _explain_stall(parts) if parts.budget.fullness >= STALL else ""
    if taking.donor is not None:
        share = taking.bytes_taken / (4 * parts.state.spec.weights)
        return f"taking a snapshot from {parts.name_of(taking.donor)}: {min(share, 1):.0%}"
    if parts.node.quarantined:
        anew = "making them anew from the checkpoint and the log"
        how = anew if parts.node.repairing else "waiting for a member that can give a snapshot"
        return f"the weights in memory were damaged: {how}"
    if parts.membership.view.number == 0:
        return "looking for the other nodes of the run"
    if parts.membership.admitted_in is None:
        reason = parts.membership.explain()
        return "waiting to be admitted to the run" + (f": {reason}" if reason else "")
    absent = ", ".join(map(parts.name_of, parts.joining.absent[:3]))
    if absent:
        return f"waiting for {absent} to learn that this node is back, or to be removed"
    if any(lacks_floor(peer, frontier) for peer in parts.peers.values()):
        return "waiting for a member that can give a snapshot"
    lacking = (
        sum(max(0, row.sequence - frontier.sequence(origin)) for origin, row in peer.ahead.items())
        for peer in parts.peers.values()
    )
    return f"catching up: {max(lacking, default=0)} updates behind"


def _explain_stall(parts: Parts) -> str:
    who = ", ".join(map(parts.name_of, parts.budget.holders[:3])) or "nobody"
    reason = parts.membership.explain()
    return f"the log is full of updates that {who} has not acknowledged" + (
        f", and {reason}" if reason else ""
    )


# ----------------------------------------------------------------------------
# What decided views mean for this node: others hear of them, the log makes room, READY comes and goes.


VOTES_OVERDRAFT_BYTES: Final = 64 * 1024  # so much of deciding views may go out beyond a link's credit
TELLING_PATIENCES: Final = 4  # a node that was removed for good goes on so long


class Following:
    """Of one replica, after every event."""

    def __init__(self, parts: Parts, statuses: Statuses, upkeep: Upkeep, taking: SnapshotTaking) -> None:
        self._parts = parts
        self._statuses = statuses
        self._upkeep = upkeep
        self._taking = taking
        self._view = parts.membership.view
        self._removed: float | None = None  # since when this node knows that it was, for good
        self._was_ready = False

    def look(self, now: float) -> None:
        """Pass on what membership wants, and see what its news mean for this node."""
        parts, membership = self._parts, self._parts.membership
        for effect in membership.take_effects():
            if isinstance(effect, Note) and effect.kind == "evicted":
                parts.counters.evictions_seen += 1
            if isinstance(effect, Send):
                peer = parts.peers.get(effect.peer)
                if peer is not None and peer.credit > -VOTES_OVERDRAFT_BYTES:  # else asked again later
                    parts.out.send(peer, effect.frame)
            else:
                parts.out.order(effect)
        before = self._view
        changed = membership.view is not before
        if changed:
            self._view = membership.view
            self._upkeep.enter_view(before, now)
        if parts.me.node in self._view.forbidden:
            self._end(now)
        if changed or not parts.joining.ready:
            parts.joining.look(
                self._view,
                membership.admitted_in,
                acks=parts.acks,
                peers=parts.peers,
                frontier=parts.state.frontier,
                now=now,
            )
            parts.node.follow_readiness()
        if changed:
            self._statuses.send_to_all(now)  # others wait to hear that this node knows the view
        ready = parts.ready
        if ready != self._was_ready and not membership.stopping:
            self._was_ready = ready
            parts.out.order(
                Note("ready", "this node is ready")
                if ready
                else Note("unready", f"this node is not ready: {explain(parts, self._taking)}")
            )

    def _end(self, now: float) -> None:
        """This node was removed for good. It may be the only one that knows: it stays to tell the others."""
        if self._removed is None:
            self._removed = now
        if now - self._removed >= TELLING_PATIENCES * self._parts.timing.patience_s:
            self._removed = float("inf")
            words = f"this node was removed for good by view {self._view.number}"
            advice = (
                "to join as another node it needs a new --state, and over TLS a certificate under a new name"
            )
            self._parts.out.order(Halt(f"{words}: {advice}", again=False))
