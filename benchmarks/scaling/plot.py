"""Draw the picture of docs/explanation/scaling.md: N nodes beside N times one, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.pictures import COLOURS, can_draw, picture
from benchmarks.scaling import PAPER_STEP_S, Case
from benchmarks.scaling.measure import Measured
from benchmarks.scaling.model import predict

LINE: Final = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)


def draw(results: Sequence[tuple[Case, Measured, Measured]], path: Path) -> None:
    """Writes a PNG; leaves it as it is without matplotlib (make .venv/.bench)."""
    if not can_draw() or not results:
        return
    groups: dict[tuple[Any, ...], list[tuple[Case, Measured, Measured]]] = {}
    for each in results:
        case = each[0]
        if case.computing_s == PAPER_STEP_S:
            groups.setdefault((case.way.value, case.weights, case.link_mbit), []).append(each)
    with picture(path, (8.4, 5.2), colours=255) as axes:
        for colour, (key, group) in zip(COLOURS[: len(groups)], groups.items(), strict=True):
            draw_group(axes, key, group, colour)
        axes.set_xscale("log", base=2)
        axes.set_xticks([2, 4, 8, 16, 32, 64])
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_ylim(0, 1.08)
        axes.set_xlabel(f"nodes, whose steps compute for {1e3 * PAPER_STEP_S:g} ms")
        axes.set_ylabel("steps/s, as part of N times one node's")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize=8, loc="lower left")
        axes.set_title(
            "Lines: predicted, dotted for a machine to each node. Points: measured, on two processors.",
            fontsize=8,
        )


def draw_group(
    axes: Any, key: tuple[Any, ...], group: Sequence[tuple[Case, Measured, Measured]], colour: str
) -> None:
    way, weights, mbit = key
    cases = [replace(group[0][0], nodes=nodes) for nodes in LINE]
    shared = [each.predict() for each in cases]
    own = [predict(each.way, replace(each.setting, cores=None)) for each in cases]
    axes.plot(LINE, [each.speed_up / each.nodes for each in shared], color=colour, linewidth=1.2)
    axes.plot(LINE, [each.speed_up / each.nodes for each in own], color=colour, linewidth=1, linestyle=":")
    axes.plot(
        [case.nodes for case, _, _ in group],
        [measured.steps_per_s / (case.nodes * alone.steps_per_s) for case, measured, alone in group],
        color=colour,
        marker="o",
        linestyle="none",
        label=f"{way}, {weights / 1e6:g} M weights, {mbit:g} Mbit/s",
    )
