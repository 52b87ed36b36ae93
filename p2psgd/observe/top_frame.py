"""One picture of `p2psgd top`: the frame, a row for each node, and recent rates."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from p2psgd import formatting
from p2psgd.observe.compression import fraction
from p2psgd.observe.figures import (
    NodeFigures,
    PeerFigures,
    Status,
    compression_ratio,
    node_figures,
    number,
    printable,
    section,
    whole,
)
from p2psgd.observe.replication_text import (
    HELD_BACK,
    alone_words,
    ring_words,
    slow_link_words,
    snapshot_words,
    wait_words,
)
from p2psgd.observe.text import trouble_words

# ----------------------------------------------------------------------------
# What became of one node's figures of late: rates from the differences of statuses, the loss over time.
#
# Pure: whoever asks the daemon gives the time. Starts anew when another daemon answers, whose counters do
# too.


WINDOW_S: Final = 5.0  # rates are means over so long
SAMPLES_MAX: Final = 64
LOSSES_MAX: Final = 600
_COUNTS: Final = re.compile(r"(?<![\w-])\d[\d,.]*")  # that change while the wait goes on; not those of names
_TIME: Final = re.compile(r"\d (s|min|h|d)\b")


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted in one status; a peer or a node by its id, a peer without one by its address."""

    mini_batches: int
    sent: int  # bytes
    received: int
    round: int
    peers: Mapping[str, tuple[int, int]]  # bytes sent and received
    updates: Mapping[str, int]  # by origin, of all its lives


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second; None, or nothing of a peer, while there is nothing to compare with."""

    steps: float | None = None
    sent: float | None = None
    received: float | None = None
    rounds: float | None = None
    peers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    updates: Mapping[str, float] = field(default_factory=dict)


class Recent:
    """The last few seconds of one daemon, and its trainer's losses."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=LOSSES_MAX)
        self._samples: deque[tuple[float, Counts]] = deque(maxlen=SAMPLES_MAX)
        self._life: tuple[object, ...] = ()
        self._waits = ""
        self._waits_since = 0.0

    def add(self, status: Status, now: float) -> None:
        """A status that came at `now`, seconds, monotonic."""
        life = (status.get("id"), status.get("incarnation"), status.get("pid"))
        if life != self._life:
            self._life = life
            self._samples.clear()
            self.losses.clear()
            self._waits = ""
        self._samples.append((now, _count(status)))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        loss = number(section(status, "trainer"), "loss")
        if loss is not None:
            self.losses.append(loss)

    def waiting_for(self, words: str, now: float) -> str:
        """`words`, and, if they do not say it, for how long the node was seen to wait for that."""
        kind = _COUNTS.sub("", words)
        if kind != self._waits:
            self._waits, self._waits_since = kind, now
        seen_s = now - self._waits_since
        silent = not words or seen_s < 1 or _TIME.search(words)
        return words if silent else f"{words} (for {formatting.duration(seen_s)} or longer)"

    def rates(self) -> Rates:
        """Means over the last seconds."""
        if len(self._samples) < 2:
            return Rates()
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        span_s = max(ended - began, 1e-3)
        return Rates(
            steps=(after.mini_batches - before.mini_batches) / span_s,
            sent=(after.sent - before.sent) / span_s,
            received=(after.received - before.received) / span_s,
            rounds=(after.round - before.round) / span_s,
            peers={
                key: ((sent - before.peers[key][0]) / span_s, (received - before.peers[key][1]) / span_s)
                for key, (sent, received) in after.peers.items()
                if key in before.peers
            },
            updates={
                key: (count - before.updates[key]) / span_s
                for key, count in after.updates.items()
                if key in before.updates
            },
        )


def _count(status: Status) -> Counts:
    traffic, updates = section(status, "bytes"), defaultdict[str, int](int)
    for row in status.get("frontier") or ():
        updates[str(row.get("id"))] += whole(row, "sequence")
    return Counts(
        mini_batches=whole(section(status, "trainer"), "mini_batches"),
        sent=whole(traffic, "sent"),
        received=whole(traffic, "received"),
        round=whole(section(status, "ring"), "round"),
        peers={
            str(peer.get("id") or peer.get("address")): (
                whole(peer, "bytes_sent"),
                whole(peer, "bytes_received"),
            )
            for peer in status.get("peers") or ()
        },
        updates=updates,
    )


# ----------------------------------------------------------------------------
# The nodes that one node knows of, a row each, and in a sentence what each waits for and since when.
#
# Pure functions of the status JSON. Of itself the node knows all, of a peer what its link shows, of a member
# that it is not linked with what others have told.


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
    stalled_s = formatting.duration(number(stall, "since_s"))
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
    return f"has yet to acknowledge {formatting.size(whole(holder, 'bytes'))} that fill the log"


def _peer(peer: PeerFigures, member: Status | None, rates: Rates, said: str, status: Status) -> NodeRow:
    key = peer.id or peer.address
    sent, received = rates.peers.get(key, (None, None))
    grade, state, words = _condition(peer, member, status)
    made = rates.updates.get(str(status.get("id")))
    behind = peer.lag is not None and bool(made) and peer.lag > BEHIND_S * (made or 0.0)
    if said:
        grade, words = (Grade.LATE if grade is Grade.GOOD else grade), words or said
    elif behind and grade is Grade.GOOD and not status.get("ring"):
        seconds = formatting.duration((peer.lag or 0) / (made or 1.0))
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
    since, founded = formatting.duration(peer.since_s), whole(section(status, "view"), "number") > 0
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
        "never heard of" if heard_s is None else f"heard of through others {formatting.duration(heard_s)} ago"
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


# ----------------------------------------------------------------------------
# One picture of a node's status as lines of text, cut to the terminal's size; 80 columns by 24 rows will do.
#
# A pure function: nothing is asked, nothing kept. Above stand the run and this node's figures, below a row
# for each node; what a node waits for stands in its row where the terminal is wide, else under it.


WIDE: Final = 120  # columns from which there is room for a sentence in each row
LABEL_WIDTH: Final = 10
NAME_WIDTH_MAX: Final = 20
SENTENCE_LINES_MAX: Final = 2
INDENT: Final = 4
BARS: Final = "▁▂▃▄▅▆▇█"
BARS_MIN: Final = 8  # fewer say nothing
ALARMS_SHOWN: Final = 2

_Cell = Callable[[NodeRow], str]


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to draw. `trouble`: why the status is an old one, or empty; `clock`: the time now."""

    status: Status
    rates: Rates
    losses: Sequence[float]
    waits: str
    trouble: str = ""
    clock: str = ""


def draw(picture: Picture, *, width: int, height: int | None = None, bars: bool = True) -> list[Text]:
    """The lines, each of at most `width` columns; `height`: how many there may be, None: as it takes. `bars`:
    whether the terminal has characters for them.
    """
    figures = node_figures(picture.status)
    rows = node_rows(picture.status, picture.rates, picture.waits)
    above = [_heading(picture, figures, rows, width), *_facts(picture, figures, width, bars)]
    alarms = [printable(alarm) for alarm in picture.status.get("alarms") or ()][-ALARMS_SHOWN:]
    below = [Text(f"alarm: {alarm}", style="red") for alarm in alarms]
    room = None if height is None else max(height - len(above) - len(below) - 1, 1)
    lines = [*above, Text(), *_table(rows, figures, width=width, room=room), *below]
    return [_cut(line, width) for line in lines[:height]]


def _heading(picture: Picture, figures: NodeFigures, rows: Sequence[NodeRow], width: int) -> Text:
    status = picture.status
    if picture.trouble:
        return Text(set_cell_size(f" {figures.node}: {picture.trouble}", width), style="bold white on red")
    state = printable(status.get("state", "starting"))
    ready = ", ready" if status.get("ready") else ", not ready" if "ready" in status else ""
    ready += ", run not founded" if alone_words(status) else ""
    ready += ", plaintext" if status.get("plaintext") else ""
    up = formatting.duration(number(status, "uptime_s"))
    left, right = f" {figures.node}: {state}{ready}", f"up {up}  {picture.clock} "
    space = max(width - cell_len(left) - cell_len(right), 1)
    return Text(
        f"{left}{' ' * space}{right}", style=f"bold black on {'yellow' if rows[0].words else 'green'}"
    )


def _facts(picture: Picture, figures: NodeFigures, width: int, bars: bool) -> list[Text]:
    status, rates = picture.status, picture.rates
    room = width - LABEL_WIDTH
    lines = [
        _fact("run", _run(status)),
        _fact("training", _training(status, figures, rates, room)),
        _fact("loss", _loss(picture.losses, room) if bars else ""),
        _fact("updates", _compression(status, figures)),
        _fact("network", _network(status, figures, rates)),
        _fact("ring", ring_words([status]) if status.get("ring") else ""),
    ]
    return [line for line in lines if line is not None]


def _fact(label: str, words: str) -> Text | None:
    return Text.assemble((f"{label:<{LABEL_WIDTH}}", "dim"), words) if words else None


def _run(status: Status) -> str:
    run, view = section(status, "run"), section(status, "view")
    if not run:
        return "none yet: the first trainer brings it"
    label = f"{printable(run['label'])}: " if run.get("label") else ""
    words = f"{label}{printable(run.get('mode', '?'))}, {formatting.counted(whole(run, 'weights'), 'weight')}"
    if whole(view, "number"):
        total = formatting.counted(whole(view, "members_total"), "member")
        ready = sum(bool(member.get("ready")) for member in view.get("members") or ())
        words += f"; view {whole(view, 'number')} of {total}, {ready} ready"
    return words


def _training(status: Status, figures: NodeFigures, rates: Rates, room: int) -> str:
    trainer = section(status, "trainer")
    if not trainer.get("attached") and not figures.mini_batches:
        return "no trainer is attached"
    facts = [f"mini-batch {formatting.grouped(figures.mini_batches)}"]
    facts += [f"{formatting.decimals(rates.steps, 1)} steps/s"] if rates.steps is not None else []
    facts += [f"loss {formatting.decimals(figures.loss, 3)}"] if figures.loss is not None else []
    facts += [f"epoch {formatting.decimals(figures.epoch, 2)}"] if figures.epoch is not None else []
    facts += [f"{formatting.grouped(figures.samples_per_s)} samples/s"] if figures.samples_per_s else []
    if figures.test_accuracy is not None:
        facts.append(f"test accuracy {formatting.percent(figures.test_accuracy)}")
    while len(facts) > 1 and cell_len(", ".join(facts)) > room:
        facts.pop()
    return ", ".join(facts)


def _loss(losses: Sequence[float], room: int) -> str:
    """The losses that were seen, from the first to the last; means if there are more than columns."""
    if len(losses) < 2 or room < BARS_MIN:
        return ""
    width = min(len(losses), room - len("0000.000 to 0000.000  "))
    if width < 2:
        return ""
    edges = [len(losses) * place // width for place in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    curve = "".join(BARS[min(int((mean - low) / span * len(BARS)), len(BARS) - 1)] for mean in means)
    return f"{curve}  {formatting.decimals(losses[0], 3)} to {formatting.decimals(losses[-1], 3)}"


def _compression(status: Status, figures: NodeFigures) -> str:
    recent = section(section(status, "compression"), "recent")
    bits = section(recent, "bits")
    sent = sum(whole(bits, name) for name in bits) // 8
    if figures.dense or not sent:
        return ""
    ratio = compression_ratio(figures.weights * whole(recent, "mini_batches"), sent)
    return (
        f"{formatting.decimals(number(recent, 'bits_per_index'), 2)} bits per index, "
        f"{formatting.times(ratio)} less than dense, density {fraction(number(recent, 'density'))}"
    )


def _network(status: Status, figures: NodeFigures, rates: Rates) -> str:
    log = {} if figures.dense else section(status, "log")
    facts = [f"out {_rate(rates.sent)}, in {_rate(rates.received)}"]
    facts += [f"log {100 * pressure:.0f} % full"] if (pressure := number(log, "pressure")) is not None else []
    lag_ms = number(status, "loop_lag_ms")
    facts += [f"loop lag {formatting.decimals(lag_ms, 1)} ms"] if lag_ms is not None else []
    return ", ".join(facts)


def _rate(bytes_per_s: float | None) -> str:
    return formatting.UNKNOWN if bytes_per_s is None else f"{formatting.size(bytes_per_s)}/s"


# -- the nodes


def _table(rows: Sequence[NodeRow], figures: NodeFigures, *, width: int, room: int | None) -> list[Text]:
    """A heading and the rows, of which those that say most stand first; the rest is counted."""
    columns = _columns(figures)
    cells = [[cell(row) for _, cell in columns] for row in rows]
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
            states = [each.state for each in rows[place:]]
            counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            lines.append(Text(f"and {more} more: {counts}", style="dim"))
            break
        lines += block
    return lines


def _columns(figures: NodeFigures) -> list[tuple[str, _Cell]]:
    columns: list[tuple[str, _Cell]] = [("node", lambda row: row.name), ("state", lambda row: row.state)]
    if not figures.dense:
        columns.append(("updates/s", lambda row: formatting.decimals(row.updates, 1)))
    if figures.ring_round is None:
        columns.append(("lag", lambda row: formatting.grouped(row.lag)))
    return [
        *columns,
        ("out", lambda row: _rate(row.sent)),
        ("in", lambda row: _rate(row.received)),
        ("round trip", lambda row: formatting.milliseconds(row.round_trip_ms)),
    ]


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Names and states on the left, figures on the right."""
    left = [set_cell_size(text, width) for text, width in zip(texts[:2], widths[:2], strict=True)]
    right = [f"{text:>{width}}" for text, width in zip(texts[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right])


def _block(row: NodeRow, text: str, table: int, beside: int, width: int) -> list[Text]:
    """A row and its sentence, of two lines at most."""
    style = "bold" if row.own else "dim" if row.grade is Grade.GONE else ""
    line = Text(text, style=style)
    line.highlight_regex(rf"(?<=  ){row.state}(?=  )", row.grade.value)
    if not row.words:
        return [line]
    indent = table + 2 if beside else INDENT
    folded = _folded(row.words, beside or width - INDENT)
    style = row.grade.value
    if beside:
        line.append(f"  {folded[0]}", style=style)
        return [line, *(Text(f"{'':{indent}}{more}", style=style) for more in folded[1:])]
    return [line, *(Text(f"{'':{indent}}{more}", style=style) for more in folded)]


def _folded(words: str, width: int) -> list[str]:
    """The sentence in lines of that width, cut where it would take too many."""
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
    return [_shortened(line, width) for line in kept]


def _shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 3, 0)) + "..."


def _cut(line: Text, width: int) -> Text:
    if line.cell_len > width:
        line.truncate(width)
    return line
