"""The ring of a run in words: its round, its order, and who is waited for and since when.

Pure functions of the status JSON; nothing to say of a node in asynchronous mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from p2psgd.ops import numerals
from p2psgd.ops.figures import Status, number, printable, section, whole

NAMED_MAX: Final = 8  # nodes of a ring in one line
WAIT_SAID_S: Final = 1.0  # rounds take less as a rule: a shorter wait is no news


def ring_lines(status: Status) -> Iterator[tuple[str, str]]:
    """(label, text) for `p2psgd status`."""
    ring = section(status, "ring")
    if not ring:
        return
    facts = [
        f"{printable(ring.get('payload', '?'))}, round {numerals.grouped(whole(ring, 'round'))} is complete"
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
    words = [f"round {numerals.grouped(whole(foremost, 'round'))}"]
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
