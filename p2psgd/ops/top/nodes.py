"""The nodes that one node knows of, a row each, and in a sentence what each waits for and since when.

Pure functions of the status JSON. Of itself the node knows all, of a peer what its link shows, of a member
that it is not linked with what others have told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from p2psgd.ops import numerals
from p2psgd.ops.figures import PeerFigures, Status, node_figures, number, printable, section, whole
from p2psgd.ops.replication_text import HELD_BACK, alone_words, slow_link_words, snapshot_words
from p2psgd.ops.ring_text import wait_words
from p2psgd.ops.status_text import trouble_words
from p2psgd.ops.top.recent import Rates

BEHIND_S: Final = 2.0  # so much of its own work that a peer has not acknowledged is worth a word


class Grade(Enum):
    """How much a row needs a person, the most first."""

    BAD = "red"
    LATE = "yellow"
    GONE = "dim"
    GOOD = "green"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node; None is not known. Rates are per second, `lag` counts this node's updates that it lacks."""

    name: str
    state: str
    grade: Grade
    updates: float | None
    lag: int | None
    sent: float | None  # to it, in bytes
    received: float | None
    round_trip_ms: float | None
    words: str  # what it waits for and since when; empty: nothing
    own: bool = False


def node_rows(status: Status, rates: Rates, waits: str) -> list[NodeRow]:
    """This node first, which waits for `waits`; then those who need a person, then all others by name."""
    figures, members = node_figures(status), _members(status)
    said = _said_of(status)
    rows = [_peer(peer, members.get(peer.id), rates, said.get(peer.id, ""), status) for peer in figures.peers]
    linked = {peer.id for peer in figures.peers}
    rows += [_absent(member, rates) for key, member in members.items() if key not in linked]
    rows.sort(key=lambda row: (list(Grade).index(row.grade), row.name))
    own = NodeRow(
        name=figures.node,
        state=figures.state,
        grade=Grade.GOOD if not waits else Grade.LATE,
        updates=rates.updates.get(str(status.get("id"))),
        lag=None,
        sent=None,
        received=None,
        round_trip_ms=None,
        words=waits,
        own=True,
    )
    return [own, *rows]


def own_waits(status: Status) -> str:
    """What this node waits for, the gravest first and each once; empty if it does not."""
    stall, ring, view, trainer = (section(status, key) for key in ("stall", "ring", "view", "trainer"))
    said: list[str] = []
    alone = alone_words(status)
    next_view = f"the next view: {printable(view['waits'])}" if view.get("waits") else ""
    stalled_s = numerals.duration(number(stall, "since_s"))
    for words in (
        f"{printable(stall['words'])} (for {stalled_s})" if stall.get("words") else "",
        printable(status.get("not_ready") or ""),
        printable(status.get("waits") or ""),
        wait_words(ring),
        f"ready, {alone}" if alone else next_view,
        f"the trainer: {printable(trainer['waits'])}" if trainer.get("waits") else "",
    ):
        bare = words.removeprefix("the trainer: ")
        if words and not any(bare in other for other in said):
            said.append(words)
    crash = printable(trainer.get("crash") or "")
    if crash and not trainer.get("attached") and not any(crash in each for each in said):
        said.append(crash)
    return "; ".join(said[:2])


def _members(status: Status) -> dict[str, Status]:
    listed = section(status, "view").get("members") or ()
    return {str(member.get("id")): member for member in listed if not member.get("own")}


def _said_of(status: Status) -> dict[str, str]:
    """What the status says elsewhere of single peers, by id."""
    said = {str(each.get("id")): snapshot_words(each) for each in status.get("snapshots") or ()}
    log = section(status, "log")
    if (number(log, "pressure") or 0.0) >= HELD_BACK:
        said |= {str(each.get("id")): _holds(each) for each in log.get("holders") or ()}
    return said | {str(each.get("id")): slow_link_words(each) for each in status.get("slow_links") or ()}


def _holds(holder: Status) -> str:
    return f"has yet to acknowledge {numerals.size(whole(holder, 'bytes'))} that fill the log"


def _peer(peer: PeerFigures, member: Status | None, rates: Rates, said: str, status: Status) -> NodeRow:
    key = peer.id or peer.address
    sent, received = rates.peers.get(key, (None, None))
    grade, state, words = _condition(peer, member, status)
    made = rates.updates.get(str(status.get("id")))
    behind = peer.lag is not None and bool(made) and peer.lag > BEHIND_S * (made or 0.0)
    if said:
        grade, words = (Grade.LATE if grade is Grade.GOOD else grade), words or said
    elif behind and grade is Grade.GOOD and not status.get("ring"):
        seconds = numerals.duration((peer.lag or 0) / (made or 1.0))
        grade, words = Grade.LATE, f"is {seconds} behind this node's updates"
    return NodeRow(
        name=peer.node,
        state=state,
        grade=grade,
        updates=rates.updates.get(peer.id),
        lag=peer.lag,
        sent=sent,
        received=received,
        round_trip_ms=peer.round_trip_ms,
        words=words,
    )


def _condition(peer: PeerFigures, member: Status | None, status: Status) -> tuple[Grade, str, str]:
    """How it stands with a peer: grade, state, and a sentence if there is something to say."""
    since, founded = numerals.duration(peer.since_s), whole(section(status, "view"), "number") > 0
    if peer.state == "suspect":
        return Grade.BAD, "silent", f"has said nothing for {since}"
    if peer.state != "connected":
        return _unlinked(peer, since, member_once=member is None and founded)
    if member is not None and member.get("ready"):
        return Grade.GOOD, "ready", ""
    if member is None and founded:
        return Grade.LATE, "linked", f"linked for {since}, not a member of the run"
    return Grade.LATE, "joining", f"linked for {since}, its replica is not complete yet"


def _unlinked(peer: PeerFigures, since: str, *, member_once: bool) -> tuple[Grade, str, str]:
    trouble = trouble_words(peer)
    why = f": {trouble}" if trouble else ""
    grade = Grade.LATE if peer.through else Grade.BAD
    match peer.state:
        case "stopped":
            return Grade.GONE, "stopped", f"stopped {since} ago"
        case "lost" if member_once:
            return Grade.GONE, "gone", f"gone for {since}, no member any more{why}"
        case "lost":
            return grade, "gone", f"gone for {since}{why}"
        case _ if peer.through:
            return grade, "indirect", f"{trouble}, for {since}"
        case _:
            return grade, "dialling", f"not reached for {since}{why}"


def _absent(member: Status, rates: Rates) -> NodeRow:
    """A member that this node is not linked with, nor knows an address of."""
    heard_s = number(member, "heard_s")
    heard = (
        "never heard of" if heard_s is None else f"heard of through others {numerals.duration(heard_s)} ago"
    )
    return NodeRow(
        name=printable(member.get("node") or "?"),
        state="not linked",
        grade=Grade.BAD,
        updates=rates.updates.get(str(member.get("id"))),
        lag=None if member.get("lag") is None else whole(member, "lag"),
        sent=None,
        received=None,
        round_trip_ms=None,
        words=f"not linked with this node, {heard}",
    )
