"""Replication and ring in words, for `p2psgd status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from p2psgd import formatting
from p2psgd.observe.figures import Status, node_figures, number, printable, section, whole

# ----------------------------------------------------------------------------
# The same in words, for `p2psgd status`: a line each, none where there is nothing to say.


HELD_BACK = 0.75  # of the log: from here on it is trimmed, so what is left has a reason
RARE = (  # counters worth a word when they are not 0
    ("evictions_seen", "eviction", None),
    ("reapplied", "own update applied again after a snapshot", "own updates applied again after a snapshot"),
    ("quarantines", "quarantine", None),
    ("held_back", "update put off for lack of room", "updates put off for lack of room"),
    (
        "lost_durability",
        "update dropped before all had it on disk",
        "updates dropped before all had them on disk",
    ),
    ("lost_updates", "UPDATE LOST", "UPDATES LOST"),
)


def replication_lines(status: Status) -> list[tuple[str, str]]:
    """(label, text) of every line, empty if the status is of a node without a run."""
    return [
        *_ready(status),
        *_view(status),
        *_members(section(status, "view"), dense=node_figures(status).dense),
        *_stall(section(status, "stall")),
        *_holders(section(status, "log")),
        *_checkpoint(section(status, "checkpoint")),
        *_scrub(section(status, "scrub"), section(status, "counters")),
        *_snapshots(status),
        *_slow_links(status),
        *_counters(section(status, "counters")),
        *_events(section(status, "events")),
    ]


def log_words(log: Status) -> str:
    """What the log holds, in RAM and on disk, of what it may."""
    if not log:
        return ""
    budget = (
        f" of at most {formatting.size(whole(log, 'budget_bytes'))}" if whole(log, "budget_bytes") else ""
    )
    words = (
        f"{formatting.counted(whole(log, 'updates'), 'update')} kept, {formatting.size(whole(log, 'bytes'))}"
    )
    words += budget
    if whole(log, "stored_budget_bytes"):
        stored, limit = whole(log, "stored_bytes"), whole(log, "stored_budget_bytes")
        words += f" in memory, {formatting.size(stored)} of at most {formatting.size(limit)} on disk"
    pressure = number(log, "pressure")
    return f"{words}; {formatting.percent(pressure)} full" if pressure is not None else words


def _ready(status: Status) -> Iterator[tuple[str, str]]:
    if status.get("ready") is False:
        yield "not ready", printable(status.get("not_ready") or "nothing says why")
    elif alone := alone_words(status):
        yield "ready", alone


def alone_words(status: Status) -> str:
    """Of a ready node whose run is not founded: for what that waits, and what the node does meanwhile."""
    view = section(status, "view")
    if not (status.get("ready") and view) or whole(view, "number"):
        return ""
    return unfounded_words(printable(view.get("waits") or ""), ring=bool(status.get("ring")))


def unfounded_words(waits: str, *, ring: bool) -> str:
    """The same of what the first view waits for; in a ring nobody trains alone."""
    meanwhile = "it waits" if ring else "it trains alone, and what it makes counts when the others come"
    return f"but {waits or 'the run is not founded'}; until then {meanwhile}"


def _view(status: Status) -> Iterator[tuple[str, str]]:
    view = section(status, "view")
    if not view:
        return
    if not whole(view, "number"):
        yield "view", "none yet: the run is not founded, and nothing leaves any log"
    else:
        facts = [f"{whole(view, 'number')}, {formatting.counted(whole(view, 'members_total'), 'member')}"]
        facts += [] if view.get("member") else ["this node is not one of them"]
        facts += [f"{len(view['forbidden'])} forbidden"] if view.get("forbidden") else []
        yield "view", ", ".join(facts)
    if view.get("waits") and not alone_words(status):
        yield "view", printable(view["waits"])


def _members(view: Status, *, dense: bool) -> Iterator[tuple[str, str]]:
    listed = view.get("members") or ()
    for member in listed:
        if member.get("own"):
            continue
        heard_s = number(member, "heard_s")
        facts = [
            ("ready" if member.get("ready") else "not ready") if member.get("linked") else "not linked",
            "never heard" if heard_s is None else f"heard of {formatting.duration(heard_s)} ago",
        ]
        if member.get("lag") is not None and not dense:
            facts.append(f"lacks {formatting.counted(whole(member, 'lag'), 'update')} of ours")
        name, node = printable(member.get("node", "?")), printable(member["id"])
        yield "member", f"{node if name == node else f'{name} ({node})'}: {', '.join(facts)}"
    if (unlisted := whole(view, "members_total") - len(listed)) > 0:
        yield "member", f"{unlisted} more are not listed"


def _stall(stall: Status) -> Iterator[tuple[str, str]]:
    if stall:
        since = formatting.duration(number(stall, "since_s"))
        yield "stalled", f"for {since}: {printable(stall.get('words', '?'))}"


def _holders(log: Status) -> Iterator[tuple[str, str]]:
    if (number(log, "pressure") or 0.0) < HELD_BACK:
        return  # what is on its way just now is nobody's fault
    for holder in log.get("holders") or ():
        yield "holds log", f"{printable(holder['node'])}: {formatting.size(whole(holder, 'bytes'))}"


def _checkpoint(checkpoint: Status) -> Iterator[tuple[str, str]]:
    if not checkpoint:
        return
    if whole(checkpoint, "number"):
        age, size = number(checkpoint, "age_s"), formatting.size(whole(checkpoint, "bytes"))
        words = f"{whole(checkpoint, 'number')}, {size}, {formatting.duration(age)} ago"
    else:
        words = "none yet in this life"
    failures = formatting.counted(whole(checkpoint, "failures"), "failure")
    words += f"; {failures}" if whole(checkpoint, "failures") else ""
    words += f"; {printable(checkpoint['trouble'])}" if checkpoint.get("trouble") else ""
    yield "checkpoint", words


def _scrub(scrub: Status, counters: Status) -> Iterator[tuple[str, str]]:
    if scrub.get("clean") is None:
        return
    found = "clean" if scrub["clean"] else "NOT CLEAN"
    words = f"{found} {formatting.duration(number(scrub, 'age_s'))} ago, {whole(scrub, 'count')} in all"
    yield "scrub", words


def _snapshots(status: Status) -> Iterator[tuple[str, str]]:
    for snapshot in status.get("snapshots") or ():
        yield "snapshot", snapshot_words(snapshot)
    counters = section(status, "counters")
    given, taken = whole(counters, "snapshots_given"), whole(counters, "snapshots_taken")
    if given or taken:
        yield "snapshots", f"{given} given, {taken} taken"


def snapshot_words(snapshot: Status) -> str:
    """On its way, from or to whom, and how far."""
    done, total = (formatting.size(whole(snapshot, key)) for key in ("done_bytes", "total_bytes"))
    way = "giving to" if snapshot.get("giving") else "taking from"
    rate = formatting.size(number(snapshot, "bytes_per_s"))
    return f"{way} {printable(snapshot['node'])}: {done} of {total}, {rate}/s"


def _slow_links(status: Status) -> Iterator[tuple[str, str]]:
    for link in status.get("slow_links") or ():
        yield "slow link", f"{printable(link['node'])} {slow_link_words(link)}"


def slow_link_words(link: Status) -> str:
    """What is wrong with a peer that takes less than is made, after its name."""
    available, needed = (formatting.size(number(link, key)) for key in ("available", "needed"))
    words = f"takes {available}/s of updates, all nodes make {needed}/s: it falls behind"
    return f"{words}, and has to leave the run when the log is full"


def _counters(counters: Status) -> Iterator[tuple[str, str]]:
    facts = [
        formatting.counted(whole(counters, key), one, many) for key, one, many in RARE if whole(counters, key)
    ]
    if facts:
        yield "since start", ", ".join(facts)


def _events(events: Status) -> Iterator[tuple[str, str]]:
    if whole(events, "failures"):
        lost = formatting.counted(whole(events, "failures"), "event")
        yield "events", f"{lost} could not be written: {printable(events.get('trouble', '?'))}"


# ----------------------------------------------------------------------------
# The ring of a run in words: its round, its order, and who is waited for and since when.
#
# Pure functions of the status JSON; nothing to say of a node in asynchronous mode.


NAMED_MAX: Final = 8  # nodes of a ring in one line
WAIT_SAID_S: Final = 1.0  # rounds take less as a rule: a shorter wait is no news


def ring_lines(status: Status) -> Iterator[tuple[str, str]]:
    """(label, text) for `p2psgd status`."""
    ring = section(status, "ring")
    if not ring:
        return
    facts = [
        f"{printable(ring.get('payload', '?'))}, round {formatting.grouped(whole(ring, 'round'))} is complete"
    ]
    attempt = f"attempt {whole(ring, 'attempt')} of this view"
    if whole(ring, "attempt"):
        facts.append(f"{attempt} {'is under way' if ring.get('running') else 'has ended'}")
    if not ring.get("active"):
        facts.append("this node only follows: it has no trainer")
    yield "ring", ", ".join(facts)
    if order := _order(ring):
        yield "ring", f"{order}, by {_ORDERS.get(str(ring.get('order_by')), 'id')}"
    if wait := wait_words(ring):
        yield "ring", wait


_ORDERS: Final = {"id": "node id", "measured": "measurement"}


def ring_words(statuses: Sequence[Status]) -> str:
    """The ring of all these nodes in a line; empty if none of them is in one.

    Of several that wait the one with the longest wait is quoted; nobody waits when all have finished.
    """
    rings = [(printable(status.get("node", "?")), section(status, "ring")) for status in statuses]
    told = [(node, ring) for node, ring in rings if ring]
    if not told:
        return ""
    foremost = max((ring for _, ring in told), key=lambda ring: whole(ring, "round"))
    words = [f"round {formatting.grouped(whole(foremost, 'round'))}"]
    words += [f"ring {order}"] if (order := _order(foremost)) else []
    waits = [
        (number(ring, "since_s") or 0.0, f"{node}: {wait}")
        for node, ring in told
        if (wait := wait_words(ring))
    ]
    if waits and any(ring.get("active") for _, ring in told):
        words.append(max(waits)[1])
    return "; ".join(words)


def wait_words(ring: Status) -> str:
    """Who is waited for and since when; empty while it is no news."""
    long = (number(ring, "since_s") or 0.0) >= WAIT_SAID_S
    return printable(ring["waiting_for"]) if ring.get("waiting_for") and long else ""


def _order(ring: Status) -> str:
    """The members around the ring; empty before the first attempt."""
    names = [printable(name) for name in ring.get("order") or ()]
    more = max(whole(ring, "nodes"), len(names)) - NAMED_MAX
    return " > ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
