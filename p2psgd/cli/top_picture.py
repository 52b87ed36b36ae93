"""One picture of `p2psgd top`: the run and this node's figures, then a row for each node it knows.

Pure: the caller gives statuses and times. The words are those of text.py; what is made here is
what takes several statuses (rates, the loss over time) and the layout, cut to the terminal's size: 80 columns
by 24 rows will do.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from p2psgd.base import formatting
from p2psgd.base.formatting import decimals, duration, grouped, printable, size
from p2psgd.observe.status import MemberStatus, NodeStatus, PeerState, PeerStatus
from p2psgd.observe.text import (
    HELD_BACK,
    LABEL_WIDTH,
    alone_words,
    slow_link_words,
    snapshot_words,
    state_word,
    status_lines,
    trouble_words,
)

# ----------------------------------------------------------------------------
# What became of one node's figures of late. Starts anew when another daemon answers, whose counters do too.


WINDOW_S: Final = 5.0  # rates are means over so long
SAMPLES_MAX: Final = 64
LOSSES_MAX: Final = 600
_COUNTS: Final = re.compile(r"(?<![\w-])\d[\d,.]*")  # that change while the wait goes on; not those of names
_TIME: Final = re.compile(r"\d (s|min|h|d)\b")


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second; None, or nothing of a peer, while there is nothing to compare with."""

    steps: float | None = None
    sent: float | None = None  # bytes
    received: float | None = None
    peers: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # bytes sent and received
    updates: Mapping[str, float] = field(default_factory=dict)  # by node, of all its incarnations


def rates_between(before: NodeStatus, after: NodeStatus, span_s: float) -> Rates:
    """Return the differences between two statuses of one daemon over the time between them."""
    old, new = ({peer.key: peer for peer in status.peers} for status in (before, after))
    had, has = (Counter[str](), Counter[str]())
    for status, counts in ((before, had), (after, has)):
        for row in status.frontier:
            counts[row.id] += row.sequence
    sent, received = (
        [getattr(status.bytes, way, 0) for status in (before, after)] for way in ("sent", "received")
    )
    return Rates(
        steps=(after.trainer.mini_batches - before.trainer.mini_batches) / span_s,
        sent=(sent[1] - sent[0]) / span_s,
        received=(received[1] - received[0]) / span_s,
        peers={
            key: (
                (peer.bytes_sent - old[key].bytes_sent) / span_s,
                (peer.bytes_received - old[key].bytes_received) / span_s,
            )
            for key, peer in new.items()
            if key in old
        },
        updates={node: (count - had[node]) / span_s for node, count in has.items() if node in had},
    )


class Recent:
    """The last few seconds of one daemon, and its trainer's losses."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=LOSSES_MAX)
        self._samples: deque[tuple[float, NodeStatus]] = deque(maxlen=SAMPLES_MAX)
        self._waits = ""
        self._waits_since = 0.0

    def add(self, status: NodeStatus, now: float) -> None:
        """Take in a status that came at `now`, seconds, monotonic."""
        if self._samples and _daemon(self._samples[-1][1]) != _daemon(status):
            self._samples.clear()
            self.losses.clear()
            self._waits = ""
        self._samples.append((now, status))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        if status.trainer.loss is not None:
            self.losses.append(status.trainer.loss)

    def waiting_for(self, words: str, now: float) -> str:
        """Return `words`, and, if they do not say it, for how long the node was seen to wait for that."""
        kind = _COUNTS.sub("", words)
        if kind != self._waits:
            self._waits, self._waits_since = kind, now
        seen_s = now - self._waits_since
        silent = not words or seen_s < 1 or _TIME.search(words)
        return words if silent else f"{words} (for {duration(seen_s)} or longer)"

    def rates(self) -> Rates:
        """Return means over the last seconds."""
        if len(self._samples) < 2:
            return Rates()
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        return rates_between(before, after, max(ended - began, 1e-3))


def _daemon(status: NodeStatus) -> tuple[str, int, int]:
    return status.id, status.incarnation, status.pid


# ----------------------------------------------------------------------------
# The nodes that one node knows of, a row each, and in a sentence what each waits for and since when.
#
# Of itself the node knows all, of a peer what its link shows, of a member that it is not linked with what
# others have told.


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
    words: str  # what it waits for and since when; empty: nothing
    updates: float | None = None
    lag: int | None = None
    sent: float | None = None  # to it, in bytes
    received: float | None = None
    round_trip_ms: float | None = None
    own: bool = False


def node_rows(status: NodeStatus, rates: Rates, waits: str) -> list[NodeRow]:
    """Return this node first, which waits for `waits`; then those who need a person, then the others."""
    members = status.view.members if status.view else ()
    others = {member.id: member for member in members if not member.own}
    said = _said_of(status)
    rows = [
        _peer(peer, others.get(peer.id or ""), rates, said.get(peer.id or "", ""), status)
        for peer in status.peers
    ]
    linked = {peer.id for peer in status.peers}
    rows += [_absent(member, rates) for key, member in others.items() if key not in linked]
    rows.sort(key=lambda row: (list(Grade).index(row.grade), row.name))
    grade, updates = Grade.LATE if waits else Grade.GOOD, rates.updates.get(status.id)
    return [NodeRow(status.node, state_word(status), grade, waits, updates, own=True), *rows]


def own_waits(status: NodeStatus) -> str:
    """Return what this node waits for, the gravest first and each once; empty if it does not."""
    stall, view, trainer, alone = status.stall, status.view, status.trainer, alone_words(status)
    next_view = f"the next view: {view.waits}" if view and view.waits else ""
    said: list[str] = []
    for words in (
        f"{stall.words} (for {duration(stall.since_s)})" if stall else "",
        status.not_ready,
        status.waits,
        status.ring.wait if status.ring else "",
        f"ready, {alone}" if alone else next_view,
        f"the trainer: {trainer.waits}" if trainer.waits else "",
        "" if trainer.attached else trainer.crash,
    ):
        bare = words.removeprefix("the trainer: ")
        if words and not any(bare in other for other in said):
            said.append(words)
    return "; ".join(said[:2])


def _said_of(status: NodeStatus) -> dict[str, str]:
    """Return what the status says elsewhere of single peers, by id."""
    said = {each.id: snapshot_words(each) for each in status.snapshots}
    if status.log is not None and (status.log.pressure or 0.0) >= HELD_BACK:
        said |= {
            each.id: f"has yet to acknowledge {size(each.bytes)} that fill the log"
            for each in status.log.holders
        }
    return said | {each.id: slow_link_words(each) for each in status.slow_links}


def _peer(
    peer: PeerStatus, member: MemberStatus | None, rates: Rates, said: str, status: NodeStatus
) -> NodeRow:
    sent, received = rates.peers.get(peer.key, (None, None))
    grade, state, words = _condition(peer, member, founded=bool(status.view and status.view.number))
    made = rates.updates.get(status.id) or 0.0
    if said:
        grade, words = (Grade.LATE if grade is Grade.GOOD else grade), words or said
    elif grade is Grade.GOOD and not status.ring and 0 < BEHIND_S * made < (peer.lag or 0):
        grade, words = Grade.LATE, f"is {duration((peer.lag or 0) / made)} behind this node's updates"
    return NodeRow(
        name=peer.node or peer.address or "?",
        state=state,
        grade=grade,
        words=words,
        updates=rates.updates.get(peer.id or ""),
        lag=peer.lag,
        sent=sent,
        received=received,
        round_trip_ms=peer.round_trip_ms,
    )


def _condition(peer: PeerStatus, member: MemberStatus | None, *, founded: bool) -> tuple[Grade, str, str]:
    """Return how it stands with a peer: grade, state, and a sentence if there is something to say."""
    since, trouble, stranger = duration(peer.since_s), trouble_words(peer), member is None and founded
    why = f": {trouble}" if trouble else ""
    match peer.state:
        case PeerState.CONNECTED:
            ready = member is not None and member.ready
            what = "not a member of the run" if stranger else "its replica is not complete yet"
            late = (Grade.LATE, "linked" if stranger else "joining", f"linked for {since}, {what}")
            return (Grade.GOOD, "ready", "") if ready else late
        case PeerState.SUSPECT:
            return Grade.BAD, "silent", f"has said nothing for {since}"
        case PeerState.STOPPED:
            return Grade.GONE, "stopped", f"stopped {since} ago"
        case PeerState.LOST if stranger:
            return Grade.GONE, "gone", f"gone for {since}, no member any more{why}"
        case PeerState.LOST:
            return (Grade.LATE if peer.through else Grade.BAD), "gone", f"gone for {since}{why}"
        case PeerState.DIALLING if peer.through:
            return Grade.LATE, "indirect", f"{trouble}, for {since}"
        case PeerState.DIALLING:
            return Grade.BAD, "dialling", f"not reached for {since}{why}"


def _absent(member: MemberStatus, rates: Rates) -> NodeRow:
    """Return the row of a member that this node is not linked with, nor knows an address of."""
    ago = f"heard of through others {duration(member.heard_s)} ago"
    words = f"not linked with this node, {'never heard of' if member.heard_s is None else ago}"
    updates = rates.updates.get(member.id)
    return NodeRow(member.node, "not linked", Grade.BAD, words, updates, member.lag)


# ----------------------------------------------------------------------------
# The picture.


WIDE: Final = 120  # columns from which there is room for a sentence in each row
SHOWN: Final = ("run", "trainer", "ring", "updates", "traffic", "log", "view")  # lines of a status
NAME_WIDTH_MAX: Final = 20
SENTENCE_LINES_MAX: Final = 2
INDENT: Final = 4
BARS: Final = "▁▂▃▄▅▆▇█"
BARS_MIN: Final = 8  # fewer say nothing
ALARMS_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to draw. `trouble`: why the status is an old one, or empty; `clock`: the time now."""

    status: NodeStatus
    rates: Rates
    losses: Sequence[float]
    waits: str
    trouble: str = ""
    clock: str = ""


def draw(picture: Picture, *, width: int, height: int | None = None, bars: bool = True) -> list[Text]:
    """Return the lines, each of at most `width` columns.

    Args:
        height: how many there may be; None: as it takes.
        bars: whether the terminal has characters for them.
    """
    status = picture.status
    rows = node_rows(status, picture.rates, picture.waits)
    above = [_heading(picture, rows[0], width), *_facts(picture, width - LABEL_WIDTH, bars=bars)]
    below = [Text(printable(f"alarm: {alarm}"), style="red") for alarm in status.alarms[-ALARMS_SHOWN:]]
    room = None if height is None else max(height - len(above) - len(below) - 1, 1)
    lines = [*above, Text(), *_table(rows, status, width=width, room=room), *below][:height]
    for line in lines:
        if line.cell_len > width:
            line.truncate(width)
    return lines


def _heading(picture: Picture, own: NodeRow, width: int) -> Text:
    status = picture.status
    if picture.trouble:
        words = printable(f" {status.node}: {picture.trouble}")
        return Text(set_cell_size(words, width), style="bold white on red")
    ready = "" if status.ready is None else ", ready" if status.ready else ", not ready"
    ready += ", run not founded" if alone_words(status) else ""
    ready += ", plaintext" if status.plaintext else ""
    left = printable(f" {status.node}: {status.state}{ready}")
    right = f"up {duration(status.uptime_s)}  {picture.clock} "
    space = max(width - cell_len(left) - cell_len(right), 1)
    style = f"bold black on {'yellow' if own.words else 'green'}"
    return Text(f"{left}{' ' * space}{right}", style=style)


def _facts(picture: Picture, room: int, *, bars: bool) -> list[Text]:
    """Return the lines of `p2psgd status` that change, the rates, and the loss over time."""
    lines = ((label, printable(words)) for label, words in status_lines(picture.status) if label in SHOWN)
    facts = [(label, _fitted(words, room)) for label, words in lines]
    facts += [("rates", _rates(picture.rates)), ("loss", _loss(picture.losses, room) if bars else "")]
    return [Text.assemble((f"{label:<{LABEL_WIDTH}}", "dim"), words) for label, words in facts if words]


def _fitted(words: str, room: int) -> str:
    """Return as many of the facts in a line as there is room for."""
    while cell_len(words) > room and (end := max(words.rfind(", "), words.rfind("; "))) > 0:
        words = words[:end]
    return words


def _rates(rates: Rates) -> str:
    steps = f"{decimals(rates.steps, 1)} steps/s, " if rates.steps is not None else ""
    return f"{steps}out {_rate(rates.sent)}, in {_rate(rates.received)}"


def _loss(losses: Sequence[float], room: int) -> str:
    """Return the losses that were seen, from the first to the last; means if there are more than columns."""
    width = min(len(losses), room - len("0000.000 to 0000.000  "))
    if width < 2 or room < BARS_MIN:
        return ""
    edges = [len(losses) * place // width for place in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    curve = "".join(BARS[min(int((mean - low) / span * len(BARS)), len(BARS) - 1)] for mean in means)
    return f"{curve}  {decimals(losses[0], 3)} to {decimals(losses[-1], 3)}"


def _rate(bytes_per_s: float | None) -> str:
    return formatting.UNKNOWN if bytes_per_s is None else f"{size(bytes_per_s)}/s"


# -- the nodes


def _table(rows: Sequence[NodeRow], status: NodeStatus, *, width: int, room: int | None) -> list[Text]:
    """Return a heading and the rows, of which those that say most stand first; the rest is counted."""
    columns = _columns(status)
    cells = [[printable(cell(row)) for _, cell in columns] for row in rows]
    names = [heading for heading, _ in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    widths[0] = min(widths[0], NAME_WIDTH_MAX)
    table = sum(widths) + 2 * (len(widths) - 1)
    beside = width - table - 2 if width >= WIDE else 0
    lines = [Text(_joined(names, widths) + ("  remark" if beside else ""), style="bold")]
    for place, (row, texts) in enumerate(zip(rows, cells, strict=True)):
        block = _block(row, _joined(texts, widths), table, beside, width)
        more = len(rows) - place
        if room is not None and len(lines) + len(block) > room - (more > 1):
            states = Counter(each.state for each in rows[place:])
            counts = ", ".join(f"{count} {state}" for state, count in states.items())
            lines.append(Text(f"and {more} more: {counts}", style="dim"))
            break
        lines += block
    return lines


def _columns(status: NodeStatus) -> list[tuple[str, Callable[[NodeRow], str]]]:
    columns: list[tuple[str, Callable[[NodeRow], str]]] = [
        ("node", lambda row: row.name),
        ("state", lambda row: row.state),
    ]
    if not status.dense:
        columns.append(("updates/s", lambda row: decimals(row.updates, 1)))
    if status.ring is None:
        columns.append(("lag", lambda row: grouped(row.lag)))
    return [
        *columns,
        ("out", lambda row: _rate(row.sent)),
        ("in", lambda row: _rate(row.received)),
        ("round trip", lambda row: formatting.milliseconds(row.round_trip_ms)),
    ]


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Put names and states on the left, figures on the right."""
    left = [set_cell_size(text, width) for text, width in zip(texts[:2], widths[:2], strict=True)]
    right = [f"{text:>{width}}" for text, width in zip(texts[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right])


def _block(row: NodeRow, text: str, table: int, beside: int, width: int) -> list[Text]:
    """Return a row and its sentence, of two lines at most: beside it, or under it."""
    line = Text(text, style="bold" if row.own else "dim" if row.grade is Grade.GONE else "")
    line.highlight_regex(rf"(?<=  ){row.state}(?=  )", row.grade.value)
    if not row.words:
        return [line]
    indent = table + 2 if beside else INDENT
    folded = [
        Text(f"{'':{indent}}{words}", style=row.grade.value)
        for words in _folded(printable(row.words), beside or width - INDENT)
    ]
    if not beside:
        return [line, *folded]
    line.append(folded[0].plain[table:], style=row.grade.value)
    return [line, *folded[1:]]


def _folded(words: str, width: int) -> list[str]:
    """Return the sentence in lines of that width, cut where it would take too many."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    kept = lines[:SENTENCE_LINES_MAX]
    if len(lines) > len(kept):
        kept[-1] = f"{kept[-1]} {' '.join(lines[len(kept) :])}"
    return [
        line if cell_len(line) <= width else f"{set_cell_size(line, max(width - 3, 0))}..." for line in kept
    ]
