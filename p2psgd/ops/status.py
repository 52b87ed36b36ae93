"""One node's status as plain data: what `p2psgd status --json` prints and every view is drawn from.

Keys are for machines and stay; `waits` and `error` are sentences for people.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Final

from p2psgd import __version__
from p2psgd.core.node_id import name_node
from p2psgd.core.replica import Replica
from p2psgd.identity import Identity
from p2psgd.ipc.proposal import count_weights, own_tensors
from p2psgd.net.mesh import Mesh
from p2psgd.ops.replication import Replication, describe_replication
from p2psgd.ops.ring_status import describe_ring, stands_still
from p2psgd.ops.unmet import ERROR_MAX, PLACE_MAX, describe_unmet

ROWS_MAX: Final = 128  # peers and origins listed one by one: a status must fit into one datagram,
TRAINING: Final = "training"
REMOVED: Final = "removed from the run for good: nothing but a view is taken of it"


@dataclass(frozen=True)
class Vitals:
    """What a status needs to know beside the replica and the mesh."""

    state: str
    started: float
    now: float
    listen: str
    control: str
    loop_lag_ms: float
    congested: bool
    alarms: list[str]
    stopped_nodes: set[int]
    trainer: dict[str, Any]
    accounts: dict[str, Any]  # "compression" and "recording"
    replication: Replication | None = None  # None before the run is known
    events: dict[str, Any] = field(default_factory=dict)  # EventLog.status()
    http: dict[str, Any] | None = None  # NodeHttp.status(); None: it shows itself nowhere
    tls: dict[str, Any] | None = None  # NodeTls.status(); None: its links are plaintext
    insecure_plaintext: bool = False  # --insecure-plaintext was given


def describe_node(
    identity: Identity, vitals: Vitals, replica: Replica | None, mesh: Mesh | None
) -> dict[str, Any]:
    """The status of one node; JSON-ready."""
    peers = [] if mesh is None else _describe_peers(replica, mesh, vitals)
    ring = describe_ring(replica, vitals.now)
    waits = vitals.state == TRAINING and stands_still(ring)
    return {
        "node": identity.name,
        "id": f"{identity.origin.node:016x}",
        "incarnation": identity.origin.incarnation,
        "pid": os.getpid(),
        "version": __version__,
        "uptime_s": round(vitals.now - vitals.started, 1),
        "state": "waiting for the ring" if waits else vitals.state,
        "waits": _waits(vitals, peers),
        "listen": vitals.listen,
        "plaintext": vitals.tls is None,
        "insecure_plaintext": vitals.insecure_plaintext,
        "tls": vitals.tls,
        "http": vitals.http,
        **_describe_replica(replica),
        **({} if vitals.replication is None else describe_replication(vitals.replication)),
        "ring": ring,
        "events": vitals.events,
        "bytes": {
            "sent": 0 if mesh is None else mesh.bytes_sent,
            "received": 0 if mesh is None else mesh.bytes_received,
        },
        "loop_lag_ms": round(vitals.loop_lag_ms, 1),
        "trainer": vitals.trainer,
        "peers": peers[:ROWS_MAX],
        "peers_total": len(peers),
        **vitals.accounts,
        "dropped": {} if mesh is None else dict(mesh.dropped),
        "doctors": 0 if mesh is None else mesh.doctors,
        "strangers": [] if mesh is None else _describe_strangers(mesh, vitals.now),
        "alarms": vitals.alarms,
    }


def _describe_replica(replica: Replica | None) -> dict[str, Any]:
    if replica is None:
        return {
            "run": None,
            "digest": None,
            "coordinate_max": 0,
            "frontier": [],
            "updates": None,
            "log": None,
        }
    spec = replica.spec
    own = own_tensors(spec.tensors)
    return {
        "run": {
            "fingerprint": spec.fingerprint.hex(),
            "mode": spec.mode,
            "weights": count_weights(own),
            "quantum_log2": spec.quantum_log2,
            "tensors": len(own),
            "shards": (spec.weights - count_weights(own)) // 2,
            "label": spec.label,
            "two_nodes": spec.two_nodes,
        },
        "digest": f"{replica.lattice.digest:016x}",
        "coordinate_max": None if spec.dense else replica.lattice.magnitude_max,
        "origins_total": len(replica.frontier),
        "frontier": [
            {
                "node": name_node(row.node, replica.names),
                "id": f"{row.node:016x}",
                "incarnation": row.incarnation,
                "sequence": row.sequence,
                "digest": f"{row.digest:016x}",
            }
            for row in replica.frontier.rows()[:ROWS_MAX]
        ],
        "updates": {
            "sent": replica.sequence,
            "applied": replica.parts.tally.applied,
            "duplicates": replica.parts.tally.duplicates,
            "indices_sent": replica.parts.tally.indices_sent,
            "bytes": replica.parts.tally.own_bytes,
        },
        "log": {
            "updates": len(replica.log),
            "bytes": replica.log.bytes_held,
            "budget_bytes": replica.log.budget_bytes,
        },
    }


def _describe_peers(replica: Replica | None, mesh: Mesh, vitals: Vitals) -> list[dict[str, Any]]:
    members = (
        {} if vitals.replication is None else {each.origin.node: each for each in vitals.replication.members}
    )
    rows = []
    for node, news in mesh.news.items():
        link = mesh.links.get(node)
        peer = None if replica is None or link is None else replica.peers.get(link.peer)
        barred = peer is not None and peer.barred_at is not None
        quiet_s = 0.0 if peer is None else vitals.now - peer.heard
        connection = None if link is None else link.connection
        if link is None:
            state = "stopped" if node in vitals.stopped_nodes else "lost"
        else:
            state = "suspect" if quiet_s > mesh.patience_s else "connected"
        rows.append(
            {
                "node": news.name,
                "id": f"{node:016x}",
                "address": news.address[:PLACE_MAX],
                "state": state,
                "lag": None if replica is None or peer is None or barred else replica.lag(peer),
                "since_s": round(quiet_s if state == "suspect" else vitals.now - news.since, 1),
                "bytes_sent": news.bytes_sent + (0 if connection is None else connection.bytes_sent),
                "bytes_received": news.bytes_received
                + (0 if connection is None else connection.bytes_received),
                "round_trip_ms": None if connection is None else connection.round_trip_ms,
                "error": REMOVED if barred else news.words[:ERROR_MAX],
                "through": members[node].through if link is None and node in members else "",
            }
        )
    return rows + describe_unmet(mesh, members, vitals.now, vitals.started)


def _describe_strangers(mesh: Mesh, now: float) -> list[dict[str, Any]]:
    """Nodes of other runs that were refused, and how long ago."""
    return [
        {
            "node": each.name,
            "id": f"{each.node:016x}",
            "since_s": round(now - each.at, 1),
            "words": each.words[:ERROR_MAX],
        }
        for each in mesh.strangers
    ]


def _waits(vitals: Vitals, peers: list[dict[str, Any]]) -> str:
    """One sentence on what this node waits for, whom and since when; empty if it does not."""
    if vitals.state == "waiting for a trainer" and vitals.trainer["supervised"]:
        crash, in_s = vitals.trainer["crash"], vitals.trainer["restart_in_s"]
        begins = f"the trainer is started again in {math.ceil(in_s)} s" if in_s else "the trainer is starting"
        return begins + (f"; {crash}" if crash else "")
    if vitals.state == "waiting for a trainer":
        return f"no trainer is attached; start one with P2PSGD_CONTROL={vitals.control}"
    if vitals.state == "draining":
        behind = [f"{peer['node']} to acknowledge {peer['lag']} updates" for peer in peers if peer["lag"]]
        return f"waiting for {', '.join(behind)}" if behind else ""
    if vitals.congested:
        least = min((peer["lag"] for peer in peers if peer["lag"] is not None), default=0)
        return (
            f"the trainer waits: even the fastest peer has yet to acknowledge {least} updates, "
            "so the network or the peers carry less than this node makes"
        )
    if vitals.trainer["waits"]:
        return str(vitals.trainer["waits"])
    away = [peer for peer in peers if peer["state"] in ("dialling", "lost", "suspect")]
    if away and not any(peer["state"] == "connected" for peer in peers):
        each = [
            f"{peer['node']} ({peer['error'] or peer['state']}, {peer['since_s']:.0f} s)" for peer in away[:3]
        ]
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        return f"no peer is linked; trying {', '.join(each)}{more}"
    return ""
