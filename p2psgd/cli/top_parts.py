"""`p2psgd top` of a node that trains a model in parts: all parts at a glance, a row for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from p2psgd.base.formatting import printable, size
from p2psgd.cli.top import History
from p2psgd.node.parts import read_parts
from p2psgd.observe.parts import parts_lines
from p2psgd.observe.status import NodeState, NodeStatus
from p2psgd.observe.text import live_table, progress_words

NOTHING_RUNS: Final = "no `p2psgd node --parts` runs in this directory"


def draw_parts(places: Sequence[Path], histories: Sequence[History], clock: str) -> RenderableType:
    """Return what runs all parts, and a row for each; their daemons have these state directories."""
    now = time.monotonic()
    statuses = [_row(place, history, now) for place, history in zip(places, histories, strict=True)]
    known = [history.status for history in histories if history.status is not None]
    name = known[0].node if known else places[0].parent.name
    title = ", ".join(filter(None, [name, progress_words(known[:1]), clock]))
    running = read_parts(places[0].parent)
    lines = [NOTHING_RUNS] if running is None else [*parts_lines(running)]
    lines += [_traffic([history for history in histories if not history.trouble(now)])]
    more = f"one part in full: p2psgd top --state {places[0]}"
    table = live_table(statuses, title=printable(title), sums=False)
    return Group(*map(Text, lines), table, Text(printable(more), style="dim"))


def _traffic(histories: Sequence[History]) -> str:
    """Return the bytes of all parts in a second; of those that have answered twice."""
    rates = [history.rates() for history in histories]
    out, into = (size(sum(each.get(way, 0.0) for each in rates)) for way in ("sent", "received"))
    return f"rates       out {out}/s, in {into}/s"


def _row(place: Path, history: History, now: float) -> NodeStatus:
    """Return the last status of a part under its name; of one that does not answer, that it is lost."""
    name, trouble = place.name.replace("-", " "), history.trouble(now)
    if trouble or history.status is None:
        return NodeStatus(node=name, state=NodeState.LOST, waits=trouble or "no answer yet")
    return history.status.model_copy(update={"node": name})
