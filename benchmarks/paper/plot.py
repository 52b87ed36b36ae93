"""The pictures of the paper's section in docs/explanation/results.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.paper.cases import NODE_COUNTS, PAPER, SIZES, SUM_TAUS, Case
from benchmarks.paper.tables import PAPER_SIZES, PAPER_TAUS, Measured, runs
from benchmarks.pictures import COLOURS, can_draw, picture, plain_ticks

EPOCHS, TAUS, MODELS = (Path(f"docs/explanation/results_{name}.png") for name in ("epochs", "tau", "size"))
SIZE_IN: Final = (6.4, 4.0)


def draw(measured: Measured) -> None:
    """Writes PNGs; leaves them as they are without matplotlib (make .venv/.bench)."""
    if not can_draw() or not measured:
        return
    for path, draw_one in ((EPOCHS, _draw_epochs), (TAUS, _draw_taus), (MODELS, _draw_sizes)):
        with picture(path, SIZE_IN) as axes:
            draw_one(axes, measured)
            axes.grid(visible=True, alpha=0.25)


def _draw_epochs(axes: Any, measured: Measured) -> None:
    counts = (0, *NODE_COUNTS)
    for colour, nodes in zip(COLOURS[: len(counts)], counts, strict=True):
        row = measured.get(Case(nodes=nodes))
        if row is None:
            continue
        label = "plain SGD" if nodes == 0 else f"{nodes} node{'s' if nodes > 1 else ''}"
        axes.plot(
            *_points(row.curve), marker=".", color=colour, label=label, linestyle="--" if not nodes else "-"
        )
    axes.set_xticks(range(1, PAPER.epochs + 1))
    axes.set_xlabel("epoch, all nodes together")
    axes.set_ylabel("frames right, unseen voices, %")
    axes.legend(fontsize=8, loc="lower right")
    axes.set_title(f"{_net(PAPER.hidden)}, seed 1", fontsize=9)


def _draw_taus(axes: Any, measured: Measured) -> None:
    found = {
        sum_tau: rows for sum_tau in SUM_TAUS if (rows := runs(measured, Case(nodes=4, sum_tau=sum_tau)))
    }
    taus = list(found)
    for rows, sum_tau in zip(found.values(), taus, strict=True):
        axes.plot(
            [sum_tau] * len(rows), [100 * row.accuracy for row in rows], ".", color=COLOURS[1], alpha=0.5
        )
    means = [mean(100 * row.accuracy for row in rows) for rows in found.values()]
    axes.plot(taus, means, color=COLOURS[1], label="accuracy, 4 nodes (left)")
    if plain := runs(measured, Case(nodes=0)):
        level = mean(100 * row.accuracy for row in plain)
        axes.axhline(level, color=COLOURS[1], linestyle="--", linewidth=1, label="plain SGD (left)")
    axes.set_xlabel("tau, in units of the summed gradient of a mini-batch")
    axes.set_ylabel("frames right, unseen voices, %")
    right = axes.twinx()
    right.set_yscale("log")
    right.set_ylabel("compression")
    plain_ticks(right.yaxis)
    ratios = [mean(row.ratio or 0 for row in rows) for rows in found.values()]
    right.plot(taus, ratios, marker=".", color=COLOURS[0], label="compression in bytes (right)")
    paper = [(float(tau), _number(ratio)) for tau, _, ratio, _ in PAPER_TAUS]
    right.plot(*zip(*paper, strict=True), ":", color=COLOURS[0], label="the paper's, 14.6 M weights (right)")
    lines = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    labels = [line.get_label() for line in lines]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    axes.legend(lines, labels, fontsize=8, **below)


def _draw_sizes(axes: Any, measured: Measured) -> None:
    points = []
    for name, hidden in SIZES.items():
        if rows := runs(measured, replace(Case(nodes=4), hidden=hidden)):
            points.append((rows[0].weights / 1e6, mean(row.ratio or 0 for row in rows), name))
    points.sort()
    axes.plot(
        [x for x, _, _ in points],
        [y for _, y, _ in points],
        marker="o",
        color=COLOURS[0],
        label="here, 4 nodes",
    )
    for x, y, name in points:
        axes.annotate(name, (x, y), xytext=(6, -10), textcoords="offset points", fontsize=7)
    paper = [(float(size), _number(ratio)) for _, size, ratio, _ in PAPER_SIZES]
    axes.plot(
        *zip(*paper, strict=True), marker="s", linestyle=":", color=COLOURS[1], label="the paper, 40 nodes"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    axes.set_xlabel("weights, millions")
    axes.set_ylabel("compression")
    axes.legend(fontsize=8, loc="upper left")


def _points(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [epoch for epoch, _ in curve], [100 * accuracy for _, accuracy in curve]


def _number(words: str) -> float:
    return float(words.replace(",", ""))


def _net(hidden: Sequence[int]) -> str:
    return f"{len(hidden)} hidden layers of {hidden[0]} sigmoids"
