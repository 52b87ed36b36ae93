"""The status of a node, made of what its daemon knows: the replica's view, the mesh, the trainer, the disk.

Pure: plain values in, a `NodeStatus` out. It is asked about once a second by everybody who watches; its cost
stands in docs/decisions/operations.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from p2psgd import __version__
from p2psgd.core.frontier import Origin
from p2psgd.core.read_model import LogView, MemberView, PeerView, ReplicaView
from p2psgd.net.mesh import Mesh
from p2psgd.observe.status import (
    ROWS_MAX,
    CheckpointStatus,
    Compression,
    CountersStatus,
    EvaluationStatus,
    EventsStatus,
    ForeignNodeStatus,
    HolderStatus,
    HttpStatus,
    LogStatus,
    MemberStatus,
    NodeState,
    NodeStatus,
    OriginStatus,
    OwnersStatus,
    PaceStatus,
    PeerState,
    PeerStatus,
    RingStatus,
    RunStatus,
    ScrubStatus,
    SlowLinkStatus,
    SnapshotStatus,
    StallStatus,
    TlsStatus,
    TrafficStatus,
    TrainerStatus,
    UpdatesStatus,
    ViewStatus,
)
from p2psgd.storage.identity import Identity
from p2psgd.wire.messages import Fields
from p2psgd.wire.mode import parse_mode

ERROR_MAX: Final = 300  # what peers say of themselves must fit into a datagram too, in characters
PLACE_MAX: Final = 80  # and so must names of hosts
TRIED_MAX: Final = 3  # peers named in a sentence
NO_ADDRESS: Final = "nobody has told an address of it"
REMOVED: Final = "removed from the run for good: nothing but a view is taken of it"


@dataclass(frozen=True)
class Vitals:
    """The values that a status needs beside the replica and the mesh; None: there is none."""

    state: NodeState
    started: float
    now: float
    listen: str
    control: str
    loop_lag_ms: float
    trainer: TrainerStatus
    peer_paces: Mapping[int, float] = field(default_factory=dict)  # steps/s
    replica: ReplicaView | None = None  # before the run is known
    checkpoint: CheckpointStatus | None = None
    stall: StallStatus | None = None
    slow_links: Sequence[SlowLinkStatus] = ()
    congested: bool = False
    stopped_nodes: set[int] = field(default_factory=set)
    alarms: Sequence[str] = ()
    compression: Compression | None = None
    events: EventsStatus | None = None
    http: HttpStatus | None = None
    tls: TlsStatus | None = None
    insecure_plaintext: bool = False
    is_part: bool = False  # the daemon is of one part of a model


def collect_status(identity: Identity, vitals: Vitals, mesh: Mesh | None) -> NodeStatus:
    """Return the status of one node."""
    replica = vitals.replica
    peers = [] if mesh is None else _peers(replica, mesh, vitals)
    ring = None if replica is None else ring_status(replica)
    waits, state = _waits(vitals, peers), vitals.state
    if replica is not None and replica.removed:
        waits, state = _leaving(replica), NodeState.DRAINING
    elif state is NodeState.TRAINING and ring is not None and ring.stands_still:
        state = NodeState.RING_WAITING
    return NodeStatus(
        node=identity.name,
        id=f"{identity.origin.node:016x}",
        incarnation=identity.origin.incarnation,
        pid=os.getpid(),
        version=__version__,
        uptime_s=vitals.now - vitals.started,
        state=state,
        waits=waits,
        listen=vitals.listen,
        plaintext=vitals.tls is None,
        insecure_plaintext=vitals.insecure_plaintext,
        tls=vitals.tls,
        http=vitals.http,
        **(_NO_RUN if replica is None else replica_parts(replica, vitals)),
        ring=ring,
        owners=None if replica is None else owners_status(replica),
        evaluation=None if replica is None else evaluation_status(replica),
        events=vitals.events,
        bytes=TrafficStatus(
            sent=0 if mesh is None else mesh.bytes_sent, received=0 if mesh is None else mesh.bytes_received
        ),
        loop_lag_ms=vitals.loop_lag_ms,
        trainer=vitals.trainer,
        pace=_together(vitals.trainer, peers),
        peers=peers[:ROWS_MAX],
        peers_total=len(peers),
        compression=vitals.compression,
        dropped={} if mesh is None else dict(mesh.dropped),
        doctors=0 if mesh is None else mesh.doctors,
        strangers=[] if mesh is None else _strangers(mesh, vitals.now),
        alarms=vitals.alarms,
    )


# ----------------------------------------------------------------------------
# The replica's part. What is not there before the run is known is not set.


_NO_RUN: Final[Fields] = {
    "run": None,
    "digest": None,
    "coordinate_max": 0,
    "frontier": (),
    "updates": None,
    "log": None,
}


def replica_parts(replica: ReplicaView, vitals: Vitals) -> Fields:
    """Return the fields of a `NodeStatus` that a known run makes up."""
    return {
        "run": _run(replica),
        "digest": f"{replica.digest:016x}",
        "coordinate_max": replica.magnitude_max,
        "origins_total": len(replica.frontier),
        "frontier": [
            OriginStatus(
                node=replica.name_of(row.node),
                id=f"{row.node:016x}",
                incarnation=row.incarnation,
                sequence=row.sequence,
                digest=f"{row.digest:016x}",
            )
            for row in replica.frontier[:ROWS_MAX]
        ],
        "updates": UpdatesStatus(
            sent=replica.sequence,
            applied=replica.tally.applied,
            duplicates=replica.tally.duplicates,
            indices_sent=replica.tally.indices_sent,
            bytes=replica.tally.own_bytes,
        ),
        "failure_timeout_s": replica.failure_timeout_s,
        "ready": replica.ready,
        "not_ready": _leaving(replica) if replica.removed else "" if replica.ready else replica.waits,
        "view": view_status(replica),
        "log": _log(replica.log),
        "checkpoint": vitals.checkpoint,
        "scrub": ScrubStatus(**asdict(replica.scrub)),
        "snapshots": [
            SnapshotStatus(**asdict(each) | {"node": each.name, "id": f"{each.node:016x}"})
            for each in replica.snapshots
        ],
        "stall": None if replica.removed else vitals.stall,
        "slow_links": vitals.slow_links,
        "counters": CountersStatus(**asdict(replica.counters)),
    }


def _run(replica: ReplicaView) -> RunStatus:
    spec = replica.spec
    return RunStatus(
        fingerprint=spec.fingerprint.hex(),
        mode=spec.mode,
        weights=spec.weights,
        quantum_log2=spec.quantum_log2,
        tensors=len(spec.tensors),
        shards=spec.shards,
        label=spec.label,
        two_nodes=spec.two_nodes,
    )


def view_status(replica: ReplicaView) -> ViewStatus:
    """Return the view with its members, this node among them."""
    view, told = replica.view, {member.origin: member for member in replica.members}
    return ViewStatus(
        number=view.number,
        cluster_id=f"{view.cluster_id:016x}",
        member=replica.me in view,
        members=[_member(origin, replica, told.get(origin)) for origin in view.members[:ROWS_MAX]],
        members_total=len(view.members),
        forbidden=[f"{node:016x}" for node in sorted(view.forbidden)[:ROWS_MAX]],
        waits="" if replica.removed else replica.view_waits,
    )


def _member(origin: Origin, replica: ReplicaView, told: MemberView | None) -> MemberStatus:
    """Return a member's row; of a member that never spoke nothing is known but its id."""
    own = origin == replica.me
    return MemberStatus(
        node=replica.name_of(origin.node) if told is None else told.name,
        id=f"{origin.node:016x}",
        incarnation=origin.incarnation,
        own=own,
        linked=own or (told is not None and told.linked),
        ready=replica.ready if own else told is not None and told.ready,
        heard_s=0.0 if own else None if told is None else told.heard_s,
        since=replica.view.member_since(origin),
        lag=0 if own else None if told is None else told.lag,
    )


def _log(log: LogView) -> LogStatus:
    holders = [HolderStatus(node=name, id=f"{node:016x}", bytes=held) for node, name, held in log.holders]
    return LogStatus(**asdict(log) | {"pressure": round(log.pressure, 4), "holders": holders})


def ring_status(replica: ReplicaView) -> RingStatus | None:
    """Return the part of rounds, of a ring or of owners; None where no node waits for others."""
    ring = replica.ring
    if ring is None:
        return None
    state = ring.state
    return RingStatus(
        round=state.round,
        payload="owners" if (mode := parse_mode(replica.spec.mode)).owners else mode.payload,
        order=[replica.name_of(node) for node in ring.order[:ROWS_MAX]],
        nodes=len(ring.order),
        generation=state.generation,
        running=state.running,
        active=state.active,
        contributed=state.contributed,
        waiting_for=ring.waiting_for,
        since_s=ring.since_s,
    )


def owners_status(replica: ReplicaView) -> OwnersStatus | None:
    """Return the part of mode `owners`; None in another mode."""
    owners = replica.owners
    if owners is None:
        return None
    fields = asdict(owners)
    first, end = fields.pop("owned")
    return OwnersStatus(first=first, end=end, **fields)


def evaluation_status(replica: ReplicaView) -> EvaluationStatus | None:
    """Return the part of mode `closure`; None in another mode."""
    return None if replica.evaluation is None else EvaluationStatus(**asdict(replica.evaluation))


# ----------------------------------------------------------------------------
# Peers: those that were linked, then those that are dialled, in the list's order, then members whose address
# no node has reported. What comes from a member that is not linked comes through others, which are named.


def _peers(replica: ReplicaView | None, mesh: Mesh, vitals: Vitals) -> list[PeerStatus]:
    members = {each.origin.node: each for each in replica.members} if replica else {}
    if replica is not None and replica.removed:  # nothing comes from them any more, on no way
        members = {node: replace(each, through="") for node, each in members.items()}
    rows = []
    for node, news in mesh.news.items():
        link = mesh.links.get(node)
        peer = None if replica is None or link is None else replica.peers.get(link.peer)
        connection = None if link is None else link.connection
        state, since_s = _link_state(node, peer, mesh, vitals)
        barred = peer is not None and peer.barred
        rows.append(
            PeerStatus(
                node=news.name,
                id=f"{node:016x}",
                address=news.address[:PLACE_MAX],
                state=state,
                lag=None if peer is None or barred else peer.lag,
                loss=None if peer is None else peer.loss,
                steps_per_s=vitals.peer_paces.get(node),
                since_s=vitals.now - news.since if since_s is None else since_s,
                bytes_sent=news.bytes_sent + (0 if connection is None else connection.bytes_sent),
                bytes_received=news.bytes_received + (0 if connection is None else connection.bytes_received),
                round_trip_ms=None if connection is None else connection.round_trip_ms,
                error=REMOVED if barred else news.words[:ERROR_MAX],
                through=members[node].through if link is None and node in members else "",
            )
        )
    return rows + _unlinked_peers(mesh, members, vitals)


def _together(trainer: TrainerStatus, peers: Sequence[PeerStatus]) -> PaceStatus | None:
    """Return the pace of all nodes that train; None if no other does."""
    known = [trainer.steps_per_s, *(peer.steps_per_s for peer in peers)]
    paces = [steps_per_s for steps_per_s in known if steps_per_s]
    return PaceStatus(nodes=len(paces), steps_per_s=sum(paces)) if len(paces) > 1 else None


def _link_state(
    node: int, peer: PeerView | None, mesh: Mesh, vitals: Vitals
) -> tuple[PeerState, float | None]:
    """Return the state, and for how long if that is not since the last change of the link."""
    if node not in mesh.links:
        return PeerState.STOPPED if node in vitals.stopped_nodes else PeerState.LOST, None
    if peer is not None and peer.silent_s > mesh.failure_timeout_s:
        return PeerState.SUSPECT, peer.silent_s
    return PeerState.CONNECTED, None


def _unlinked_peers(mesh: Mesh, members: Mapping[int, MemberView], vitals: Vitals) -> list[PeerStatus]:
    hints = {dialler.hinted: dialler for dialler in mesh.dialer.dialers if dialler.hinted is not None}
    rows, shown = [], set(mesh.news)
    for dialler in mesh.dialer.dialers:
        node = dialler.node
        if node is None:  # which node is expected there, if others have told
            places = set(dialler.host)
            node = next((each for each, hint in hints.items() if places & set(hint.host)), None)
        if dialler.ourselves or node in shown:
            continue
        if node is not None:
            shown.add(node)
        rows.append(
            _unlinked(dialler.called, node, members.get(node or 0), vitals.now - dialler.since, dialler.words)
        )
    for node, member in members.items():
        if node not in shown and not member.linked:
            rows.append(_unlinked("", node, member, vitals.now - vitals.started, NO_ADDRESS))
    return rows


def _unlinked(
    called: str, node: int | None, member: MemberView | None, since_s: float, words: str
) -> PeerStatus:
    called = called[:PLACE_MAX]
    return PeerStatus(
        node=called if member is None else member.name,
        id=None if node is None else f"{node:016x}",
        address=called,
        state=PeerState.DIALLING,
        lag=None,
        since_s=since_s,
        bytes_sent=0,
        bytes_received=0,
        round_trip_ms=None,
        error=words[:ERROR_MAX],
        through="" if member is None else member.through,
    )


def _strangers(mesh: Mesh, now: float) -> list[ForeignNodeStatus]:
    return [
        ForeignNodeStatus(
            node=each.name, id=f"{each.node:016x}", since_s=now - each.at, words=each.words[:ERROR_MAX]
        )
        for each in mesh.strangers
    ]


# ----------------------------------------------------------------------------
# The wait of the node in one sentence: for what, for which nodes and since when; empty if there is none.


def _leaving(replica: ReplicaView) -> str:
    return f"this node was removed for good by view {replica.view.number}: it ends once the others know"


def _waits(vitals: Vitals, peers: Sequence[PeerStatus]) -> str:
    trainer, lags = vitals.trainer, [peer for peer in peers if peer.lag is not None]
    if vitals.state is NodeState.WAITING and trainer.supervised:
        in_s = trainer.restart_in_s
        begins = f"the trainer is started again in {math.ceil(in_s)} s" if in_s else "the trainer is starting"
        return begins + (f"; {trainer.crash}" if trainer.crash else "")
    if vitals.state is NodeState.WAITING:
        if vitals.is_part:  # others start these
            return "no rank of the group has attached yet"
        return f"no trainer is attached; start one with P2PSGD_CONTROL={vitals.control}"
    if vitals.state is NodeState.DRAINING:
        behind = [f"{peer.node} to acknowledge {peer.lag} updates" for peer in lags if peer.lag]
        return f"waiting for {', '.join(behind)}" if behind else ""
    if vitals.congested:
        least = min((peer.lag for peer in lags if peer.lag is not None), default=0)
        return (
            f"the trainer waits: even the fastest peer has yet to acknowledge {least} updates, "
            "so the network or the peers carry less than this node makes"
        )
    if trainer.waits:
        return trainer.waits
    away = [peer for peer in peers if peer.state in (PeerState.DIALLING, PeerState.LOST, PeerState.SUSPECT)]
    if away and not any(peer.state is PeerState.CONNECTED for peer in peers):
        each = [f"{peer.node} ({peer.error or peer.state}, {peer.since_s or 0:.0f} s)" for peer in away]
        more = f" and {len(away) - TRIED_MAX} more" if len(away) > TRIED_MAX else ""
        return f"no peer is linked; trying {', '.join(each[:TRIED_MAX])}{more}"
    return ""
