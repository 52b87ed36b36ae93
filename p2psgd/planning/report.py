"""Predictions as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2psgd.ops import numerals
from p2psgd.planning import traffic
from p2psgd.planning.prediction import Part, Prediction
from p2psgd.planning.setting import NODES_MAX, Setting

NOTES: Final = (
    "Communication binds from: so many nodes make it the bottleneck, not computing.",
    "async: all overlaps, and the step is its busiest part; in a ring they add up.",
    "How far such predictions were off: docs/scaling.md.",
)


def render(setting: Setting, predictions: Sequence[Prediction]) -> RenderableType:
    """A column for each prediction; fits 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for each in predictions:
        table.add_column(each.way.value, justify="right")
    for name, words in ROWS:
        table.add_row(name, *(words(each) for each in predictions))
    for part in Part:
        busy = [each.parts.get(part) for each in predictions]
        if any(busy):
            table.add_row(f"  {part.value}", *(_milliseconds(each) for each in busy))
    return Group(
        *(Text(line) for line in heading(setting)),
        Text(),
        table,
        Text(),
        *(Text(note, "dim") for note in NOTES),
    )


def heading(setting: Setting) -> list[str]:
    """What was asked, and what an update is."""
    density = setting.indices / setting.weights
    frame = traffic.update_bytes(setting.weights, setting.indices)
    return [
        f"{setting.weights:,} weights on {numerals.counted(setting.nodes, 'node')}, links of "
        f"{setting.link_bit_per_s / 1e6:,.4g} Mbit/s, {_milliseconds(setting.computing_s)} to compute "
        f"a mini-batch of {setting.samples:,}",
        f"an update: {setting.indices:,} indices (1 of {1 / density:,.0f}), "
        f"{8 * frame / setting.indices:.1f} bits each with all headers, {numerals.size(frame)}; "
        f"a whole gradient: {numerals.size(traffic.FLOAT_BYTES * setting.weights)}",
    ]


def describe(setting: Setting, prediction: Prediction) -> dict[str, Any]:
    """JSON-ready; units in the names."""
    return {
        "way": prediction.way.value,
        "nodes": prediction.nodes,
        "step_s": prediction.step_s,
        "steps_per_s": prediction.steps_per_s,
        "samples_per_s": prediction.samples_per_s,
        "speed_up": prediction.speed_up,
        "sent_bytes_per_step": prediction.sent_bytes,
        "sent_bytes_per_s": prediction.sent_bytes / prediction.step_s,
        "link_share": prediction.link_share,
        "bottleneck": prediction.bottleneck.value,
        "parts_s": {part.value: busy_s for part, busy_s in prediction.parts.items()},
        "communication_binds_from_nodes": prediction.binds_from and prediction.binds_from[0],
        "communication_binds_by": prediction.binds_from and prediction.binds_from[1].value,
        "update_indices": setting.indices,
        "update_bytes": traffic.update_bytes(setting.weights, setting.indices),
    }


def _milliseconds(seconds: float | None) -> str:
    return numerals.milliseconds(None if seconds is None else 1e3 * seconds)


def _binds_from(prediction: Prediction) -> str:
    found = prediction.binds_from
    return f"over {NODES_MAX:,}" if found is None else numerals.counted(found[0], "node")


def _binds_by(prediction: Prediction) -> str:
    found = prediction.binds_from
    return numerals.UNKNOWN if found is None else found[1].value


ROWS: Final[tuple[tuple[str, Callable[[Prediction], str]], ...]] = (
    ("samples/s", lambda each: numerals.grouped(each.samples_per_s)),
    ("mini-batches/s", lambda each: numerals.decimals(each.steps_per_s, 1)),
    ("times one node", lambda each: f"{each.speed_up:.1f} of {each.nodes}"),
    ("a node sends, a step", lambda each: numerals.size(each.sent_bytes)),
    ("a node sends, a second", lambda each: numerals.size(each.sent_bytes / each.step_s)),
    ("of its link", lambda each: f"{100 * each.link_share:.1f} %"),
    ("bottleneck", lambda each: each.bottleneck.value),
    ("communication binds from", _binds_from),
    ("  there it is", _binds_by),
    ("step", lambda each: _milliseconds(each.step_s)),
)
