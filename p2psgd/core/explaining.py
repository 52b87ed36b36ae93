"""Why nothing moves, in one sentence for people."""

from __future__ import annotations

from p2psgd.core.budget import STALL
from p2psgd.core.joining import lacks_floor
from p2psgd.core.parts import Parts
from p2psgd.core.snapshot_taking import SnapshotTaking


def explain(parts: Parts, taking: SnapshotTaking) -> str:
    """Why this node is not READY, or its trainer must wait; empty if neither."""
    frontier = parts.state.frontier
    if parts.ready:
        return _explain_stall(parts) if parts.budget.fullness >= STALL else ""
    if taking.donor is not None:
        share = taking.bytes_taken / (4 * parts.state.spec.weights)
        return f"taking a snapshot from {parts.name_of(taking.donor)}: {min(share, 1):.0%}"
    if parts.quarantined:
        anew = "making them anew from the checkpoint and the log"
        how = anew if parts.mending else "waiting for a member that can give a snapshot"
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
