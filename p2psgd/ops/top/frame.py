"""One picture of a node's status as lines of text, cut to the terminal's size; 80 columns by 24 rows will do.

A pure function: nothing is asked, nothing kept. Above stand the run and this node's figures, below a row for
each node; what a node waits for stands in its row where the terminal is wide, else under it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from p2psgd.ops import numerals
from p2psgd.ops.compression_text import fraction
from p2psgd.ops.figures import (
    NodeFigures,
    Status,
    compression_ratio,
    node_figures,
    number,
    printable,
    section,
    whole,
)
from p2psgd.ops.replication_text import alone_words
from p2psgd.ops.ring_text import ring_words
from p2psgd.ops.top.nodes import Grade, NodeRow, node_rows
from p2psgd.ops.top.recent import Rates

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
    up = numerals.duration(number(status, "uptime_s"))
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
    words = f"{label}{printable(run.get('mode', '?'))}, {numerals.counted(whole(run, 'weights'), 'weight')}"
    if whole(view, "number"):
        total = numerals.counted(whole(view, "members_total"), "member")
        ready = sum(bool(member.get("ready")) for member in view.get("members") or ())
        words += f"; view {whole(view, 'number')} of {total}, {ready} ready"
    return words


def _training(status: Status, figures: NodeFigures, rates: Rates, room: int) -> str:
    trainer = section(status, "trainer")
    if not trainer.get("attached") and not figures.mini_batches:
        return "no trainer is attached"
    facts = [f"mini-batch {numerals.grouped(figures.mini_batches)}"]
    facts += [f"{numerals.decimals(rates.steps, 1)} steps/s"] if rates.steps is not None else []
    facts += [f"loss {numerals.decimals(figures.loss, 3)}"] if figures.loss is not None else []
    facts += [f"epoch {numerals.decimals(figures.epoch, 2)}"] if figures.epoch is not None else []
    facts += [f"{numerals.grouped(figures.samples_per_s)} samples/s"] if figures.samples_per_s else []
    if figures.test_accuracy is not None:
        facts.append(f"test accuracy {numerals.percent(figures.test_accuracy)}")
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
    return f"{curve}  {numerals.decimals(losses[0], 3)} to {numerals.decimals(losses[-1], 3)}"


def _compression(status: Status, figures: NodeFigures) -> str:
    recent = section(section(status, "compression"), "recent")
    bits = section(recent, "bits")
    sent = sum(whole(bits, name) for name in bits) // 8
    if figures.dense or not sent:
        return ""
    ratio = compression_ratio(figures.weights * whole(recent, "mini_batches"), sent)
    return (
        f"{numerals.decimals(number(recent, 'bits_per_index'), 2)} bits per index, {numerals.times(ratio)} "
        f"less than dense, density {fraction(number(recent, 'density'))}"
    )


def _network(status: Status, figures: NodeFigures, rates: Rates) -> str:
    log = {} if figures.dense else section(status, "log")
    facts = [f"out {_rate(rates.sent)}, in {_rate(rates.received)}"]
    facts += [f"log {100 * pressure:.0f} % full"] if (pressure := number(log, "pressure")) is not None else []
    lag_ms = number(status, "loop_lag_ms")
    facts += [f"loop lag {numerals.decimals(lag_ms, 1)} ms"] if lag_ms is not None else []
    return ", ".join(facts)


def _rate(bytes_per_s: float | None) -> str:
    return numerals.UNKNOWN if bytes_per_s is None else f"{numerals.size(bytes_per_s)}/s"


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
        columns.append(("updates/s", lambda row: numerals.decimals(row.updates, 1)))
    if figures.ring_round is None:
        columns.append(("lag", lambda row: numerals.grouped(row.lag)))
    return [
        *columns,
        ("out", lambda row: _rate(row.sent)),
        ("in", lambda row: _rate(row.received)),
        ("round trip", lambda row: numerals.milliseconds(row.round_trip_ms)),
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
