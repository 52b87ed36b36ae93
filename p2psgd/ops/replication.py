"""The part of a node's status that tells whether an update can be lost: view, log, checkpoint, snapshots.

Plain values in, JSON-ready data out. Whoever holds the replica fills them in; ops/replication_text.py says
them in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from p2psgd.core.counters import Counters
from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.ops.digest_report import ScrubFigures

MEMBERS_MAX: Final = 128  # listed one by one: a status must fit into one datagram
HOLDERS_MAX: Final = 8  # those who hold back most of the log


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """One other member of the view: `heard_s` since there was any news of it, from itself or, while it is
    not linked, through others; None: never. `lag`: own updates that it is not known to have applied.
    `through`: who passes on its updates, or at least news of it, while it is not linked; empty: nobody.
    """

    origin: Origin
    name: str
    linked: bool
    ready: bool
    heard_s: float | None
    lag: int | None
    through: str = ""


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The log in RAM and, beyond it, on disk. `pressure`: share of what it may hold, counting own updates
    that are not acknowledged by their smaller share. `holders`: (node, name, bytes it has not acknowledged),
    the most first.
    """

    updates: int
    bytes: int
    budget_bytes: int
    stored_bytes: int = 0
    stored_budget_bytes: int = 0
    pressure: float = 0.0
    holders: Sequence[tuple[int, str, int]] = ()


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
class SnapshotFigures:
    """A snapshot on its way, to or from a peer."""

    node: int
    name: str
    giving: bool
    done_bytes: int
    total_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class StallFigures:
    """Why this node's trainer waits, and for how long it has."""

    words: str
    since_s: float


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A peer that takes less than all origins make, in bytes/s of updates; see ops/link_speeds.py."""

    node: int
    name: str
    needed: float
    available: float


@dataclass(frozen=True, slots=True)
class Replication:
    """What a status tells of it. `waits`: why it is not ready; `view_waits`: who waits for what before the
    next view is decided; both empty if there is nothing to say.
    """

    patience_s: float
    ready: bool
    waits: str
    me: Origin
    view: View
    view_waits: str
    members: Sequence[MemberFigures]
    log: LogFigures
    checkpoint: CheckpointFigures | None
    scrub: ScrubFigures
    snapshots: Sequence[SnapshotFigures]
    stall: StallFigures | None
    slow_links: Sequence[SlowLink]
    counters: Counters


def describe_replication(state: Replication) -> dict[str, Any]:
    """The keys of the status that this makes up."""
    return {
        "patience_s": state.patience_s,
        "ready": state.ready,
        "not_ready": state.waits,
        "view": _describe_view(state),
        "log": _describe_log(state.log),
        "checkpoint": None if state.checkpoint is None else _rounded(asdict(state.checkpoint)),
        "scrub": _rounded(asdict(state.scrub)),
        "snapshots": [_rounded(_with_id(asdict(snapshot))) for snapshot in state.snapshots],
        "stall": None if state.stall is None else _rounded(asdict(state.stall)),
        "slow_links": [_rounded(_with_id(asdict(link))) for link in state.slow_links],
        "counters": asdict(state.counters),
    }


def _describe_view(state: Replication) -> dict[str, Any]:
    view = state.view
    told = {member.origin: member for member in state.members}
    return {
        "number": view.number,
        "founding": f"{view.founding:016x}",
        "member": state.me in view,
        "members": [
            _describe_member(origin, state, told.get(origin)) for origin in view.members[:MEMBERS_MAX]
        ],
        "members_total": len(view.members),
        "forbidden": [f"{node:016x}" for node in sorted(view.forbidden)[:MEMBERS_MAX]],
        "waits": state.view_waits,
    }


def _describe_member(origin: Origin, state: Replication, told: MemberFigures | None) -> dict[str, Any]:
    """One row; of this node itself, everything is known, of one that never spoke, nothing but its id."""
    own = origin == state.me
    heard_s = 0.0 if own else None if told is None else told.heard_s
    return {
        "node": f"{origin.node:016x}" if told is None else told.name,
        "id": f"{origin.node:016x}",
        "incarnation": origin.incarnation,
        "own": own,
        "linked": own or (told is not None and told.linked),
        "ready": state.ready if own else told is not None and told.ready,
        "heard_s": None if heard_s is None else round(heard_s, 1),
        "since": state.view.member_since(origin),  # the view that took this life in
        "lag": 0 if own else None if told is None else told.lag,
    }


def _describe_log(log: LogFigures) -> dict[str, Any]:
    return {
        "updates": log.updates,
        "bytes": log.bytes,
        "budget_bytes": log.budget_bytes,
        "stored_bytes": log.stored_bytes,
        "stored_budget_bytes": log.stored_budget_bytes,
        "pressure": round(log.pressure, 4),
        "holders": [
            {"node": name, "id": f"{node:016x}", "bytes": held}
            for node, name, held in log.holders[:HOLDERS_MAX]
        ],
    }


def _with_id(fields: dict[str, Any]) -> dict[str, Any]:
    """The row with `node` as a name and `id` as everywhere in a status."""
    node = fields.pop("node")
    return {"node": fields.pop("name"), "id": f"{node:016x}", **fields}


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 1) if isinstance(value, float) else value for key, value in fields.items()}
