"""The replication part of a status, and the comparison of replicas that `p2psgd digest` prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from p2psgd import formatting
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.read_model import LogView, MemberView, ReplicaView, ScrubView
from p2psgd.ipc.client import ControlClient
from p2psgd.observe.figures import Status, number, printable, section, whole
from p2psgd.wire.messages import FrontierRow

# ----------------------------------------------------------------------------
# How much of a run a replica holds, in the words of people: updates, or in a dense ring rounds.


class Row(Protocol):
    """Of a frontier: that of a STATUS, or that of a checkpoint."""

    @property
    def node(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def mini_batch(self) -> int: ...


def count_applied(row: Row) -> int:
    """Updates of this origin; of the one row of a dense ring, whose sequence bears the view too, rounds."""
    return row.mini_batch if is_ring(row) else row.sequence


def is_ring(row: Row) -> bool:
    """It is that one row."""
    return Origin(row.node, row.incarnation) == RING


def unit_of(rows: Iterable[Row]) -> str:
    """What is counted there."""
    return "round" if any(map(is_ring, rows)) else "update"


# ----------------------------------------------------------------------------
# Are the replicas equal, now? What `p2psgd digest` prints: one node's answer about itself and its peers.
#
# Two replicas are compared by what their nodes say in STATUS: for each origin the last sequence applied and
# the running digest there. Where both have applied the same number, the digests must be equal, even while
# training goes on. That they say so of the weights as they lie in memory is what the scrub adds.


PEERS_MAX: Final = 256  # an answer must fit into one datagram
SCRUB_PATIENCES: Final = 12  # to wait for one; it takes 2.4 of a loop that is not late
POLL_S: Final = 0.05
NAMED_MAX: Final = 8  # in one sentence

IDENTICAL: Final = "identical"  # the same frontier, the same digests
AGREES: Final = "agrees"  # equal where both have applied the same; one is ahead somewhere
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"  # what it has is not known: it has not said so yet, or is not linked


@dataclass(frozen=True, slots=True)
class PeerReplica:
    """What one peer said last, linked or not; `rows` None: nothing yet."""

    node: int
    name: str
    linked: bool
    ready: bool
    view: int
    rows: Sequence[FrontierRow] | None


def describe_digest(
    *,
    node: int,
    name: str,
    digest: int,
    patience_s: float,
    view: int,
    founders: int,
    ready: bool,
    waits: str,
    rows: Sequence[FrontierRow],
    scrub: ScrubView,
    peers: Iterable[PeerReplica],
) -> dict[str, Any]:
    """The answer to a `digest` request, JSON-ready: this is where its keys are defined.

    `founders`: how many nodes found the run, this one included; `waits`: why it is not ready; `rows`: its
    own frontier.
    """
    compared = sorted((_compare(rows, peer) for peer in peers), key=_by_verdict)
    return {
        "node": name,
        "id": f"{node:016x}",
        "digest": f"{digest:016x}",
        "patience_s": patience_s,
        "view": view,
        "founders": founders,
        "ready": ready,
        "waits": waits,
        "updates": sum(map(count_applied, rows)),  # or so many rounds, if that is the `unit`
        "unit": unit_of(rows),
        "scrub": asdict(scrub),
        "peers": compared[:PEERS_MAX],
        "peers_total": len(compared),
        "differ_total": sum(peer["verdict"] == DIFFERS for peer in compared),
        "unknown_total": sum(peer["verdict"] == UNKNOWN for peer in compared),
    }


def _by_verdict(peer: Status) -> int:
    """What a person must look at comes first: of many peers not all are listed."""
    return [DIFFERS, UNKNOWN, AGREES, IDENTICAL].index(peer["verdict"])


def _compare(rows: Sequence[FrontierRow], peer: PeerReplica) -> dict[str, Any]:
    ours = {Origin(row.node, row.incarnation): row for row in rows}
    theirs = {Origin(row.node, row.incarnation): row for row in peer.rows or ()}
    lacks = 0 if peer.rows is None else sum(_excess(row, theirs.get(origin)) for origin, row in ours.items())
    ahead = sum(_excess(row, ours.get(origin)) for origin, row in theirs.items())
    differing = [
        row
        for origin, row in ours.items()
        if (other := theirs.get(origin)) and row.sequence == other.sequence and row.digest != other.digest
    ]
    if peer.rows is None:
        verdict = UNKNOWN
    elif differing:
        verdict = DIFFERS
    else:
        verdict = AGREES if lacks or ahead else IDENTICAL
    return {
        "node": peer.name,
        "id": f"{peer.node:016x}",
        "linked": peer.linked,
        "ready": peer.ready,
        "view": peer.view,
        "lacks": lacks,  # updates that we have and it has not,
        "ahead": ahead,  # and the other way round, by its last word
        "verdict": verdict,
        "differs_at": [
            {
                "id": f"{row.node:016x}",
                "incarnation": row.incarnation,
                "sequence": row.sequence,
                "count": count_applied(row),
            }
            for row in differing[:1]
        ],
    }


def _excess(row: FrontierRow, other: FrontierRow | None) -> int:
    """By how much a row is ahead: at least by 1 if it is at all, as the same round may be of a later view."""
    if other is None:
        return count_applied(row)
    return max(row.sequence > other.sequence, count_applied(row) - count_applied(other))


def scrub_and_report(client: ControlClient, *, patiences: float = SCRUB_PATIENCES) -> dict[str, Any]:
    """Have the daemon scrub its replica now and return its answer when that is done.

    If it is not after so many patiences, what an earlier scrub found does not count.
    """
    report: dict[str, Any] = client.request("digest", scrub=True)["digest"]
    deadline = time.monotonic() + patiences * (number(report, "patience_s") or 0.0)
    before = report["scrub"]
    while report["scrub"]["count"] <= before["count"]:
        if time.monotonic() > deadline:
            report["scrub"]["clean"] = None
            return report
        time.sleep(POLL_S)
        report = client.request("digest", scrub=False)["digest"]
    if report["scrub"]["quarantines"] > before["quarantines"]:
        report["scrub"]["clean"] = False  # also if a snapshot has mended it already
    return report


def find_fault(report: Status) -> str:
    """Why this report does not prove the replicas equal, in one sentence; "" if it does."""
    match section(report, "scrub").get("clean"):
        case True:
            faults = []
        case False:
            faults = ["the weights in memory are not what the digest says"]
        case _:
            faults = ["no scrub of the memory has finished"]
    differ, unknown = whole(report, "differ_total"), whole(report, "unknown_total")
    faults += [f"{_who(report, DIFFERS, differ)}: another replica"] if differ else []
    faults += [f"{_who(report, UNKNOWN, unknown)}: not compared"] if unknown else []
    if not whole(report, "view") and whole(report, "founders") > 1:
        others = ": there is nobody to compare with" if not whole(report, "peers_total") else ""
        faults.append(f"the run is not founded{others}")
    return "; ".join(faults)


def _who(report: Status, verdict: str, total: int) -> str:
    """Some of the peers of that verdict, and how many more there are."""
    peers = [peer for peer in report.get("peers") or () if peer.get("verdict") == verdict]
    names = [printable(peer.get("node", "?")) for peer in peers][:NAMED_MAX]
    return formatting.listed([*names, f"{total - len(names)} more"] if total > len(names) else names)


def render_digest(report: Status) -> str:
    """The answer as lines of text."""
    ready = "ready" if report.get("ready") else f"not ready: {printable(report.get('waits') or '?')}"
    unit = printable(report.get("unit") or "update")
    lines = [
        f"{printable(report.get('node', '?'))}: digest {printable(report.get('digest', '?'))} after "
        f"{formatting.counted(whole(report, 'updates'), unit)}, view {whole(report, 'view')}, {ready}",
        f"scrub     {_scrub(section(report, 'scrub'))}",
        *(f"peer      {_peer(peer, unit)}" for peer in report.get("peers") or ()),
    ]
    unlisted = whole(report, "peers_total") - len(report.get("peers") or ())
    lines += [f"peers     {unlisted} more are not listed"] if unlisted > 0 else []
    lines += [] if report.get("peers") else ["peers     none: there is nothing to compare with"]
    return "\n".join(lines)


def _scrub(scrub: Status) -> str:
    match scrub.get("clean"):
        case True:
            words = "clean: the digest was recomputed from the weights in memory and is the same"
        case False:
            words = "NOT CLEAN: the weights in memory are not what the digest says; something changed them"
        case _:
            return "none has finished since it was asked for"
    return f"{words} ({formatting.duration(number(scrub, 'age_s'))} ago)"


def _peer(peer: Status, unit: str) -> str:
    facts = [
        "linked" if peer.get("linked") else "not linked, by its last word",
        "ready" if peer.get("ready") else "not ready",
        f"view {whole(peer, 'view')}",
    ]
    if peer.get("verdict") == UNKNOWN and not peer.get("linked"):
        return f"{printable(peer.get('node', '?'))}: not compared, since it is not linked: ask it there"
    lacks, ahead = whole(peer, "lacks"), whole(peer, "ahead")
    facts += [f"lacks {formatting.counted(lacks, unit)} of ours"] if lacks else []
    facts += [f"has {formatting.counted(ahead, unit)} that we lack"] if ahead else []
    return f"{printable(peer.get('node', '?'))}: {_verdict(peer, unit)} ({', '.join(facts)})"


def _verdict(peer: Status, unit: str) -> str:
    match peer.get("verdict"):
        case "identical":
            return "identical"
        case "agrees":
            return "equal where both have applied the same"
        case "differs":
            at: Status = next(iter(peer.get("differs_at") or ()), {})
            if unit != "update":
                return f"DIFFERS at {unit} {whole(at, 'count')}"
            return (
                f"DIFFERS at update {whole(at, 'sequence')} of {printable(at.get('id', '?'))}"
                f"/{whole(at, 'incarnation')}"
            )
        case _:
            return "has not said yet what it has"


# ----------------------------------------------------------------------------
# The part of a node's status that tells whether an update can be lost: view, log, checkpoint, snapshots.
#
# Plain values in, JSON-ready data out. Whoever holds the replica fills them in; replication_text.py says
# them in words.


MEMBERS_MAX: Final = 128  # listed one by one: a status must fit into one datagram


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """The last checkpoint on disk: `number` 0 is none yet, and `age_s` None. `trouble`: why the last attempt
    failed, or what the disk has been at for too long; empty if all is well.
    """

    number: int
    age_s: float | None
    bytes: int
    failures: int
    trouble: str


@dataclass(frozen=True, slots=True)
class StallFigures:
    """Why this node's trainer waits, and for how long it has."""

    words: str
    since_s: float


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A peer that takes less than all origins make, in bytes/s of updates; see node/backpressure.py."""

    node: int
    name: str
    needed: float
    available: float


@dataclass(frozen=True, slots=True)
class Replication:
    """What a status tells of it: the replica, and what the node around it keeps and measures."""

    replica: ReplicaView
    checkpoint: CheckpointFigures | None
    stall: StallFigures | None
    slow_links: Sequence[SlowLink]


def describe_replication(state: Replication) -> dict[str, Any]:
    """The keys of the status that this makes up."""
    replica = state.replica
    return {
        "patience_s": replica.patience_s,
        "ready": replica.ready,
        "not_ready": "" if replica.ready else replica.waits,
        "view": _describe_view(replica),
        "log": _describe_log(replica.log),
        "checkpoint": None if state.checkpoint is None else _rounded(asdict(state.checkpoint)),
        "scrub": _rounded(asdict(replica.scrub)),
        "snapshots": [_rounded(_with_id(asdict(snapshot))) for snapshot in replica.snapshots],
        "stall": None if state.stall is None else _rounded(asdict(state.stall)),
        "slow_links": [_rounded(_with_id(asdict(link))) for link in state.slow_links],
        "counters": asdict(replica.counters),
    }


def _describe_view(replica: ReplicaView) -> dict[str, Any]:
    view = replica.view
    told = {member.origin: member for member in replica.members}
    return {
        "number": view.number,
        "founding": f"{view.founding:016x}",
        "member": replica.me in view,
        "members": [
            _describe_member(origin, replica, told.get(origin)) for origin in view.members[:MEMBERS_MAX]
        ],
        "members_total": len(view.members),
        "forbidden": [f"{node:016x}" for node in sorted(view.forbidden)[:MEMBERS_MAX]],
        "waits": replica.view_waits,
    }


def _describe_member(origin: Origin, replica: ReplicaView, told: MemberView | None) -> dict[str, Any]:
    """One row; of this node itself, everything is known, of one that never spoke, nothing but its id."""
    own = origin == replica.me
    heard_s = 0.0 if own else None if told is None else told.heard_s
    return {
        "node": replica.name_of(origin.node) if told is None else told.name,
        "id": f"{origin.node:016x}",
        "incarnation": origin.incarnation,
        "own": own,
        "linked": own or (told is not None and told.linked),
        "ready": replica.ready if own else told is not None and told.ready,
        "heard_s": None if heard_s is None else round(heard_s, 1),
        "since": replica.view.member_since(origin),  # the view that took this life in
        "lag": 0 if own else None if told is None else told.lag,
    }


def _describe_log(log: LogView) -> dict[str, Any]:
    return {
        "updates": log.updates,
        "bytes": log.bytes,
        "budget_bytes": log.budget_bytes,
        "stored_bytes": log.stored_bytes,
        "stored_budget_bytes": log.stored_budget_bytes,
        "pressure": round(log.pressure, 4),
        "holders": [{"node": name, "id": f"{node:016x}", "bytes": held} for node, name, held in log.holders],
    }


def _with_id(fields: dict[str, Any]) -> dict[str, Any]:
    """The row with `node` as a name and `id` as everywhere in a status."""
    node = fields.pop("node")
    return {"node": fields.pop("name"), "id": f"{node:016x}", **fields}


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 1) if isinstance(value, float) else value for key, value in fields.items()}
