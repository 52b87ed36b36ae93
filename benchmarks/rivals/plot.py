"""The pictures of the section: time to the target, and loss against time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.pictures import can_draw, picture
from benchmarks.rivals.cases import LAN_MBIT, Task
from benchmarks.rivals.results import Results
from benchmarks.rivals.verdicts import seconds

SHORTEST_S: Final = 5.0  # where bars begin
COLOURS: Final = {  # by the name of the way
    "ddp": "#1a1a1a",
    "ddp-fp16": "#7a7a7a",
    "ddp-8": "#7a7a7a",
    "powersgd-1": "#1f5fa8",
    "powersgd-4": "#6aa5e0",
    "hivemind": "#7a4fa8",
    "p2psgd": "#c81e1e",
    "p2psgd-ring": "#2a8a4a",
    "p2psgd-dense": "#8fc79f",
}


def pictures(task: Task) -> dict[Path, str]:
    """Return the words for each picture of a task: that of times, and that of curves."""
    return {
        task.data.with_name(f"{task.stem}_times.png"): "seconds to the target loss by way and bandwidth",
        task.data.with_name(f"{task.stem}_curves.png"): f"loss against time at {LAN_MBIT} Mbit/s",
    }


def draw(results: Results) -> None:
    """Writes the PNGs; leaves them as they are without matplotlib (make .venv/.bench)."""
    if not can_draw():
        return
    for path, fill in zip(pictures(results.task), (draw_times, draw_curves), strict=True):
        with picture(path, (8.4, 4.6)) as axes:
            fill(axes, results)
            axes.grid(visible=True, alpha=0.25)
            axes.legend(fontsize=8)


def draw_times(axes: Any, results: Results) -> None:
    """A group of bars for each bandwidth; a bar with an arrow: not reached in so long."""
    task = results.task
    mbits = sorted({case.mbit for case in task.cases})
    width = 0.9 / len(task.ways)
    for number, way in enumerate(task.ways.values()):
        label = way.label
        for group, mbit in enumerate(mbits):
            taken = seconds(results.of(way, mbit))
            if taken is None or taken.failure:
                continue
            place = group + (number - (len(task.ways) - 1) / 2) * width
            axes.bar(place, taken.mean, width, color=COLOURS[way.name], label=label)
            axes.vlines(place, taken.least, taken.most, color="#000000", linewidth=1)
            if taken.bound:
                axes.annotate("↑", (place, taken.mean), ha="center", va="bottom")
            label = "_nolegend_"
    axes.set_yscale("log")
    axes.set_ylim(SHORTEST_S, 2 * max(case.limit_s for case in task.cases))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(-0.5, len(mbits) - 0.5)
    axes.set_xticks(range(len(mbits)), [f"{mbit} Mbit/s" for mbit in mbits])
    axes.set_ylabel(f"seconds to a loss of {task.target}")
    axes.set_title("An arrow: not reached in that time. No bar: never, or not measured.", fontsize=8)


def draw_curves(axes: Any, results: Results) -> None:
    """Draw the loss curves of the first seed."""
    for way in results.task.ways.values():
        outcomes = results.of(way, LAN_MBIT)
        if outcomes and outcomes[0].curve:
            times, _, losses = zip(*outcomes[0].curve, strict=True)
            axes.plot(times, losses, color=COLOURS[way.name], label=way.label, linewidth=1.2)
    axes.axhline(results.task.target, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"seconds, at {LAN_MBIT} Mbit/s")
    axes.set_ylabel("held-out loss, nats")
