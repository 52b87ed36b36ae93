"""What a replica knows, as the figures of a node's status and of `p2psgd digest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from p2psgd.core.acks import NEVER
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.ops.digest_report import PeerReplica, ScrubFigures, describe_digest
from p2psgd.ops.replication import (
    HOLDERS_MAX,
    CheckpointFigures,
    LogFigures,
    MemberFigures,
    Replication,
    SlowLink,
    SnapshotFigures,
    StallFigures,
)

LOOKED_AT_MAX: Final = 64


def observe_replication(
    replica: Replica,
    now: float,
    *,
    checkpoint: CheckpointFigures | None,
    stall: StallFigures | None,
    slow_links: Sequence[SlowLink],
) -> Replication:
    """All of it."""
    return Replication(
        patience_s=replica.timing.patience_s,
        ready=replica.ready,
        waits="" if replica.ready else replica.waiting_for(),
        me=replica.me,
        view=replica.membership.view,
        view_waits=replica.membership.explain(),
        members=[_member(replica, member, now) for member in _others(replica)],
        log=_log(replica),
        checkpoint=checkpoint,
        scrub=_scrub(replica, now),
        snapshots=_snapshots(replica, now),
        stall=stall,
        slow_links=slow_links,
        counters=replace(replica.parts.counters, lost_durability=replica.log.lost_durability),
    )


def observe_digest(replica: Replica, now: float) -> dict[str, Any]:
    """What `p2psgd digest` shows."""
    return describe_digest(
        node=replica.me.node,
        name=replica.name_of(replica.me),
        digest=replica.lattice.digest,
        patience_s=replica.timing.patience_s,
        view=replica.membership.view.number,
        founders=replica.membership.founders,
        ready=replica.ready,
        waits=replica.waiting_for(),
        rows=replica.frontier.rows(),
        scrub=_scrub(replica, now),
        peers=[
            PeerReplica(
                peer.origin.node,
                peer.name,
                linked=True,
                ready=peer.ready,
                view=peer.view,
                rows=None if peer.status is None else list(peer.status.values()),
            )
            for peer in replica.peers.values()
        ]
        + [
            PeerReplica(each.node, replica.name_of(each), linked=False, ready=False, view=0, rows=None)
            for each in _others(replica)
            if each not in replica.peers
        ],
    )


def _others(replica: Replica) -> list[Origin]:
    return [member for member in replica.membership.view.members if member != replica.me]


def _member(replica: Replica, member: Origin, now: float) -> MemberFigures:
    """What is known of it, from itself or, while it is not linked, through others."""
    peer, heard = replica.peers.get(member), replica.parts.acks.heard(member)
    if peer is not None:
        heard = peer.heard
    return MemberFigures(
        member,
        replica.name_of(member),
        linked=peer is not None,
        ready=peer is not None and peer.ready,
        heard_s=None if heard == NEVER else now - heard,
        lag=None if heard == NEVER else replica.sequence - replica.parts.acks.applied(member, replica.me),
        through="" if peer is not None else _through(replica, member, now - heard),
    )


def _through(replica: Replica, member: Origin, silent_s: float) -> str:
    """Which linked peer passes on what comes from a member that is not linked, if it is heard of at all."""
    carriers = (replica.parts.carriers.get(member.node), replica.parts.acks.teller(member))
    linked = [each for each in carriers if each is not None and each != member and each in replica.peers]
    return replica.name_of(linked[0]) if linked and silent_s <= replica.timing.patience_s else ""


def _log(replica: Replica) -> LogFigures:
    """`holders` of all members, but of no more than 64 as long as the log has room and nobody is named."""
    log = replica.log
    held_by = {
        member: log.pinned_bytes(partial(replica.parts.acks.applied, member))
        for member in replica.parts.budget.holders[:HOLDERS_MAX] or _others(replica)[:LOOKED_AT_MAX]
    }
    return LogFigures(
        updates=len(log),
        bytes=log.bytes_held,
        budget_bytes=log.budget_bytes,
        stored_bytes=log.bytes_stored,
        stored_budget_bytes=log.store_budget_bytes,
        pressure=max(log.pressure, replica.parts.budget.fullness),
        holders=[
            (member.node, replica.name_of(member), held)
            for member, held in sorted(held_by.items(), key=lambda row: -row[1])
            if held
        ],
    )


def _scrub(replica: Replica, now: float) -> ScrubFigures:
    sweeping = replica.parts.sweeping
    return ScrubFigures(
        count=replica.parts.counters.scrubs,
        quarantines=replica.parts.counters.quarantines,
        running=sweeping.scrubbing,
        clean=sweeping.clean,
        age_s=None if sweeping.scrubbed is None else now - sweeping.scrubbed,
    )


def _snapshots(replica: Replica, now: float) -> list[SnapshotFigures]:
    figures = []
    for peer in replica.peers.values():
        feed = peer.feed
        if feed is not None:
            rate = feed.bytes_sent / max(now - feed.began, 1e-3)
            figures.append(
                SnapshotFigures(peer.origin.node, peer.name, True, feed.bytes_sent, feed.bytes_total, rate)
            )
    taking = replica.snapshots.taking
    if taking.donor is not None:
        rate = taking.bytes_taken / max(now - taking.began, 1e-3)
        total = 4 * replica.spec.weights
        name = replica.name_of(taking.donor)
        figures.append(SnapshotFigures(taking.donor.node, name, False, taking.bytes_taken, total, rate))
    return figures
