"""The status of one node as plain data, and the answers about removal, unreachable peers and the ring."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from p2psgd import __version__, formatting
from p2psgd.core.frontier import Origin, name_node, parse_node_id
from p2psgd.core.read_model import MemberView, ReplicaView
from p2psgd.core.view import View
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.run_proposal import count_weights, own_tensors
from p2psgd.net.mesh import Mesh
from p2psgd.observe.figures import Status, number, printable, section, whole
from p2psgd.observe.model import (
    CheckpointFigures,
    PeerReplica,
    Replication,
    SlowLink,
    StallFigures,
    describe_digest,
    describe_replication,
)
from p2psgd.observe.replication_text import WAIT_SAID_S
from p2psgd.storage.identity import Identity
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# What a replica knows, as the figures of a node's status and of `p2psgd digest`.


def observe_replication(
    replica: ReplicaView,
    *,
    checkpoint: CheckpointFigures | None,
    stall: StallFigures | None,
    slow_links: Sequence[SlowLink],
) -> Replication:
    """All of it."""
    return Replication(replica, checkpoint=checkpoint, stall=stall, slow_links=slow_links)


def observe_digest(replica: ReplicaView) -> dict[str, Any]:
    """What `p2psgd digest` shows."""
    return describe_digest(
        node=replica.me.node,
        name=replica.name_of(replica.me.node),
        digest=replica.digest,
        patience_s=replica.patience_s,
        view=replica.view.number,
        founders=replica.founders,
        ready=replica.ready,
        waits=replica.waits,
        rows=replica.frontier,
        scrub=replica.scrub,
        peers=[
            PeerReplica(
                peer.origin.node,
                peer.name,
                linked=True,
                ready=peer.ready,
                view=peer.view,
                rows=None if peer.frontier is None else list(peer.frontier.values()),
            )
            for peer in replica.peers.values()
        ]
        + [
            PeerReplica(each.origin.node, each.name, linked=False, ready=False, view=0, rows=None)
            for each in replica.members
            if not each.linked
        ],
    )


# ----------------------------------------------------------------------------
# `p2psgd remove`: which node a person means, and waiting until the view without it is decided.


WAIT_PATIENCES: Final = 12  # as long as a peer is away before it counts as gone
POLL_S: Final = 0.1
NAME_CHARACTERS_MAX: Final = 64  # as a request may have


def choose_removal(
    text: str,
    *,
    forbid: bool,
    me: int,
    names: Mapping[int, str],
    view: View,
    linked: Set[int],
    two_nodes: str,
) -> int:
    """The node id that `text`, a name or 16 hexadecimal digits, stands for; `linked` are this node's peers.

    UsageError with a sentence if it stands for none, for several or for this node `me`; if the node runs, so
    that it would be admitted again; if it can never be decided, since one of two members is away that would
    have to agree (see `View.quorum`). It need not be a member: then there may be nothing to do, see
    `is_removed`.
    """
    if view.number == 0:
        raise UsageError("the run is not founded yet, so there is no view to remove a node from")
    node = _find_node(text, names, view)
    if node == me:
        raise UsageError("a node does not remove itself: stop it, or ask another member's daemon to do it")
    if me not in view.lives:
        raise UsageError("this node is no member now, so it has no vote: ask a member's daemon")
    if not forbid and node in linked:
        raise UsageError(
            f"{name_node(node, names)} runs and is linked with this node, so it would be admitted again: stop"
            " it first (if it has just died: wait until the status shows that it is away), or give --forbid"
        )
    if is_removed(describe_standing(node, view, names), forbid=forbid):
        return node
    if len(view.members) == 2 and not view.quorum(linked | {me}, two_nodes):
        (other,) = view.lives.keys() - {me}
        both = "both must" if two_nodes == "stall" else "the one with the lower id must"
        raise UsageError(
            f"{name_node(other, names)} is away, and of two members {both} agree to a change "
            f'(two_nodes = "{two_nodes}"): start it again, or p2psgd export the weights of this node and '
            "begin another run with them"
        )
    return node


def _find_node(text: str, names: Mapping[int, str], view: View) -> int:
    stated = parse_node_id(text)
    if stated is not None and stated in view.lives:  # whatever others are called
        return stated
    named = sorted(node for node, name in names.items() if name == text)
    if len(named) > 1:
        ids = ", ".join(f"{node:016x} ({_standing_words(node, view)})" for node in named[:NAMED_MAX])
        raise UsageError(f"{len(named)} nodes are called {text!r:.70}: give the id of one of them, {ids}")
    if named:
        return named[0]
    if stated is not None:
        return stated
    nameless = [f"{member:016x}" for member in sorted(view.lives.keys() - names.keys())]
    known = formatting.listed([*sorted(map(repr, names.values())), *nameless][:20])
    raise UsageError(f"no node is called {text!r:.70}: known are {known}; an id has 16 hexadecimal digits")


def _standing_words(node: int, view: View) -> str:
    if node in view.lives:
        return "a member"
    return "removed for good" if node in view.forbidden else "no member"


def describe_standing(node: int, view: View, names: Mapping[int, str]) -> dict[str, Any]:
    """How a node stands in a view, as the daemon answers it; `since` 0: it is no member."""
    since = view.member_since(Origin(node, view.lives[node])) if node in view.lives else 0
    return {
        "node": name_node(node, names),
        "id": f"{node:016x}",
        "view": view.number,
        "members_total": len(view.members),
        "since": since,
        "forbidden": node in view.forbidden,
    }


def remove_node(client: ControlClient, text: str, *, forbid: bool) -> str:
    """Ask the daemon to remove a node and wait for the view that says so; return what has happened.

    UsageError: refused, or admitted again at once since it still runs, or not decided within 12 patiences,
    with what is missing.
    """
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX:
        raise UsageError(f"no node is called {text!r:.100}: names have 1 to {NAME_CHARACTERS_MAX} characters")
    status: Status = client.request("status")["status"]
    before = whole(section(status, "view"), "number")
    node: str = client.request("remove", node=text, forbid=forbid)["id"]
    wait_s = WAIT_PATIENCES * (number(status, "patience_s") or 0.0)
    deadline = time.monotonic() + wait_s
    while True:
        standing: Status = client.request("member", id=node)["member"]
        if is_removed(standing, forbid=forbid):
            return _done(standing, forbid=forbid, before=before)
        since = whole(standing, "since")
        if not forbid and since > before:
            words = f"{_who(standing)} still runs, and view {since} has admitted it again"
            raise UsageError(f"{words}: stop it first, or give --forbid")
        if time.monotonic() > deadline:
            waited = formatting.duration(wait_s)
            waits = _missing(section(client.request("status")["status"], "view"))
            words = f"{_who(standing)} is still a member after {waited}: {waits}; the members go on trying"
            raise UsageError(words, ExitCode.TEMPORARY)
        time.sleep(POLL_S)


def is_removed(standing: Status, *, forbid: bool) -> bool:
    """The view that this tells of is without the node, and forbids it if it shall."""
    return not whole(standing, "since") and (not forbid or bool(standing.get("forbidden")))


def _who(standing: Status) -> str:
    return printable(standing.get("node", "?"))


def _missing(view: Status) -> str:
    """What keeps the next view from being decided."""
    if view.get("waits"):
        return printable(view["waits"])
    total = whole(view, "members_total")
    linked = sum(bool(member.get("linked")) for member in view.get("members") or ())
    if linked > total // 2:
        return "it is being decided"
    return f"{linked} of {formatting.counted(total, 'member')} are linked, {total // 2 + 1} are needed"


def _done(standing: Status, *, forbid: bool, before: int) -> str:
    members = formatting.counted(whole(standing, "members_total"), "member")
    if whole(standing, "view") == before:
        what = "is forbidden already" if standing.get("forbidden") else "is no member now"
        return f"view {before} has {members}: {_who(standing)} {what}, and there is nothing to remove"
    if forbid:
        again = "ends if it still runs, and is never admitted again"
    else:
        again = "and is admitted again if it comes back"
    decided = f"view {whole(standing, 'view')} with {members} is decided"
    return f"{decided}: {_who(standing)} is removed, {again}"


# ----------------------------------------------------------------------------
# The part of a node's status on peers that it has never been linked with: whom it dials, and members that it
# cannot reach at all. What comes from those comes through others; through whom is said.


ERROR_MAX: Final = 300  # what peers say of themselves must fit into a datagram too, in characters
PLACE_MAX: Final = 80  # and so must names of hosts
NO_ADDRESS: Final = "nobody has told an address of it"


def describe_unmet(
    mesh: Mesh, members: Mapping[int, MemberView], now: float, started: float
) -> list[dict[str, Any]]:
    """Their rows: first the listed ones, in the list's order. `now` and `started`: seconds, monotonic."""
    hints = {dialler.hinted: dialler for dialler in mesh.diallers if dialler.hinted is not None}
    rows, shown = [], set(mesh.news)
    for dialler in mesh.diallers:
        node = dialler.node
        if node is None:  # which node is expected there, if others have told
            places = set(dialler.host)
            node = next((each for each, hint in hints.items() if places & set(hint.host)), None)
        if dialler.ourselves or node in shown:
            continue
        if node is not None:
            shown.add(node)
        rows.append(_row(dialler.called, node, members, now - dialler.since, dialler.words))
    for node, member in members.items():
        if node not in shown and not member.linked:
            rows.append(_row("", node, members, now - started, NO_ADDRESS))
    return rows


def _row(
    called: str, node: int | None, members: Mapping[int, MemberView], since_s: float, words: str
) -> dict[str, Any]:
    member, called = None if node is None else members.get(node), called[:PLACE_MAX]
    return {
        "node": called if member is None else member.name,
        "id": None if node is None else f"{node:016x}",
        "address": called,
        "state": "dialling",
        "lag": None,
        "since_s": round(since_s, 1),
        "bytes_sent": 0,
        "bytes_received": 0,
        "round_trip_ms": None,
        "error": words[:ERROR_MAX],
        "through": "" if member is None else member.through,
    }


# ----------------------------------------------------------------------------
# What a node's status says about its ring: the round, the order, and who is waited for.


NAMED_MAX: Final = 128  # members listed one by one: a status must fit into one datagram


def describe_ring(replica: ReplicaView | None) -> dict[str, Any] | None:
    """None in asynchronous mode, and before the run is known. `round` is the last complete one; `order` the
    members of the last attempt, around the ring, and `order_by` what that order goes by, "id" also if it
    should have been measured and nothing was; `since_s` tells how long ago that round was completed, or the
    attempt began or ended; `links` what this node has measured of its own.
    """
    ring = None if replica is None else replica.ring
    if replica is None or ring is None:
        return None
    mode, state = parse_mode(replica.spec.mode), ring.state
    return {
        "round": state.round,
        "payload": mode.payload,
        "order_by": ring.order_by,
        "order": [replica.name_of(node) for node in ring.order[:NAMED_MAX]],
        "nodes": len(ring.order),
        "attempt": state.attempt,
        "running": state.running,
        "active": state.active,
        "contributed": state.contributed,
        "waiting_for": ring.waiting_for,
        "since_s": round(ring.since_s, 1),
        "links": [
            {
                "node": replica.name_of(row.node),
                "round_trip_ms": row.round_trip_us / 1000,
                "bytes_per_s": 1024 * row.kib_per_s,
            }
            for row in state.links[:NAMED_MAX]
        ],
    }


def stands_still(ring: Mapping[str, Any] | None) -> bool:
    """Whether a trainer that takes part in this ring has had nothing to do for a while: it waits for others,
    and not they for it.
    """
    if ring is None or not ring["active"] or not ring["waiting_for"] or ring["since_s"] < WAIT_SAID_S:
        return False
    return bool(ring["contributed"] or not ring["running"])


# ----------------------------------------------------------------------------
# One node's status as plain data: what `p2psgd status --json` prints and every view is drawn from.
#
# Keys are for machines and stay; `waits` and `error` are sentences for people.


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


def describe_node(identity: Identity, vitals: Vitals, mesh: Mesh | None) -> dict[str, Any]:
    """The status of one node; JSON-ready."""
    replica = None if vitals.replication is None else vitals.replication.replica
    peers = [] if mesh is None else _describe_peers(replica, mesh, vitals)
    ring = describe_ring(replica)
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


def _describe_replica(replica: ReplicaView | None) -> dict[str, Any]:
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
        "digest": f"{replica.digest:016x}",
        "coordinate_max": replica.magnitude_max,
        "origins_total": len(replica.frontier),
        "frontier": [
            {
                "node": replica.name_of(row.node),
                "id": f"{row.node:016x}",
                "incarnation": row.incarnation,
                "sequence": row.sequence,
                "digest": f"{row.digest:016x}",
            }
            for row in replica.frontier[:ROWS_MAX]
        ],
        "updates": {
            "sent": replica.sequence,
            "applied": replica.tally.applied,
            "duplicates": replica.tally.duplicates,
            "indices_sent": replica.tally.indices_sent,
            "bytes": replica.tally.own_bytes,
        },
    }


def _describe_peers(replica: ReplicaView | None, mesh: Mesh, vitals: Vitals) -> list[dict[str, Any]]:
    members = {} if replica is None else {each.origin.node: each for each in replica.members}
    rows = []
    for node, news in mesh.news.items():
        link = mesh.links.get(node)
        peer = None if replica is None or link is None else replica.peers.get(link.peer)
        barred = peer is not None and peer.barred
        quiet_s = 0.0 if peer is None else peer.silent_s
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
                "lag": None if peer is None or barred else peer.lag,
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
