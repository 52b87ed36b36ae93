"""Draw the pictures of the page: end loss by way, and end loss against the bytes that a node sends."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, Final

from benchmarks.learn.cases import TASKS, WAYS
from benchmarks.learn.results import Results
from benchmarks.learn.tables import Row, rows_of
from benchmarks.pictures import can_draw, picture

LOSSES: Final = Path("docs/explanation/learning_loss.png")
BYTES: Final = Path("docs/explanation/learning_bytes.png")
COLOURS: Final = dict(
    zip(
        WAYS,
        (
            *("#1a1a1a", "#1f5fa8", "#6aa5e0", "#2a8a4a", "#8fc79f"),
            *("#e0b060", "#b06a10", "#6b4208", "#c81e1e", "#e08a8a", "#e05a1e", "#f0a060"),
            *("#7a4fa8", "#c9a3e0", "#3fb8af", "#707070", "#b0b0b0", "#404080"),
        ),
        strict=True,
    )
)
MARKERS: Final = {1: "*", 2: "v", 4: "o", 8: "s"}
PANEL_IN: Final = (4.2, 3.7)
COLUMNS: Final = 3


def draw(results: Results) -> None:
    """Write the PNGs; leave them as they are without matplotlib (make .venv/.bench)."""
    tasks = {task: rows for task in TASKS if len(rows := rows_of(results, task)) > 1}
    if not can_draw() or not tasks:
        return
    losses = {
        f"{task}, {nodes} nodes": found
        for task, rows in tasks.items()
        for nodes in TASKS[task].nodes
        if len(found := [row for row in rows if row.nodes in (1, nodes)]) > 1
    }
    for path, fill, panels, legend in (
        (LOSSES, _draw_losses, losses, False),
        (BYTES, _draw_bytes, tasks, True),
    ):
        places = len(panels) + legend
        columns = min(COLUMNS, places)
        lines = -(-places // columns)
        size_in = (PANEL_IN[0] * columns, PANEL_IN[1] * lines)
        with picture(path, size_in, colours=200, nrows=lines, ncols=columns, squeeze=False) as grid:
            cells = list(grid.flat)
            for axes, (task, rows) in zip(cells, panels.items(), strict=False):
                fill(axes, rows)
                axes.set_title(f"{task}, {rows[0].results[0].weights:,} weights", fontsize=9)
                axes.grid(visible=True, alpha=0.25)
            for axes in cells[len(panels) :]:
                axes.set_axis_off()
            if legend:
                _draw_legend(cells[len(panels)], [row for rows in panels.values() for row in rows])


def _draw_losses(axes: Any, rows: list[Row]) -> None:
    """A line for each way: a stroke for each seed, a dot for their mean."""
    shown = [row for row in rows if math.isfinite(row.loss)]
    for place, row in enumerate(reversed(shown)):
        losses = [each.loss for each in row.results]
        axes.plot(losses, [place] * len(losses), "|", color=COLOURS[row.way], markersize=14)
        axes.plot(row.loss, place, "o", color=COLOURS[row.way], markersize=8)
        axes.annotate(
            f"{row.loss:.3f}",
            (row.loss, place),
            xytext=(0, 9),  # above the strokes
            textcoords="offset points",
            ha="center",
            fontsize=8,
            bbox={"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.5},
        )
    names = [WAYS[row.way].label for row in reversed(shown)]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.2)
    low, high = min(row.loss for row in shown), max(row.loss for row in shown)
    axes.set_xlim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    axes.axvline(next((row.loss for row in shown if row.way == "one"), low), color="#1a1a1a", linestyle=":")
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel("test loss, nats")


def _draw_bytes(axes: Any, rows: list[Row]) -> None:
    """A point for each way and number of nodes; the ways of one colour are joined."""
    for way in WAYS:
        own = [row for row in rows if row.way == way and row.sent_bytes and math.isfinite(row.loss)]
        axes.plot(
            [row.sent_bytes / 1e6 for row in own],
            [row.loss for row in own],
            color=COLOURS[way],
            linewidth=0.8,
            alpha=0.6,
        )
        for row in own:
            axes.plot(row.sent_bytes / 1e6, row.loss, MARKERS[row.nodes], color=COLOURS[way], markersize=7)
    for row in rows:
        if WAYS[row.way].alone:
            axes.axhline(row.loss, color=COLOURS[row.way], linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("MB that a node sends in all (logarithmic)")
    axes.set_ylabel("test loss, nats")


def _draw_legend(axes: Any, rows: list[Row]) -> None:
    """Draw a colour for each way and a marker for each number of nodes, in a place of their own."""
    lines: Any = importlib.import_module("matplotlib.lines")
    handles = [
        lines.Line2D(
            [],
            [],
            color=COLOURS[way],
            linestyle=":" if WAYS[way].alone else "-",
            linewidth=1 if WAYS[way].alone else 4,
            label=WAYS[way].label,
        )
        for way in WAYS
        if any(row.way == way for row in rows)
    ]
    handles += [
        lines.Line2D([], [], color="#1a1a1a", marker=MARKERS[nodes], linestyle="", label=f"{nodes} nodes")
        for nodes in sorted({row.nodes for row in rows} - {1})
    ]
    axes.legend(handles=handles, loc="center left", fontsize=9, frameon=False)
