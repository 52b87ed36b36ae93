"""Reports a local run: a display while it runs, a summary and a report at its end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from p2psgd.base import formatting
from p2psgd.ipc.part import combine_digests
from p2psgd.observe.compression import describe_nodes, fraction
from p2psgd.observe.status import (
    Compression,
    NodeStatus,
    TrafficStatus,
    UpdatesStatus,
    UpdateSums,
    bits_per_index,
    compression_ratio,
)
from p2psgd.observe.text import describe_steps, live_table, progress_line, steps_words
from p2psgd.storage.files import replacing
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# The report of a local run (`--report`): figures for machines, as JSON without NaN.
#
# Sums are over all nodes, those that were lost included as far as they were heard; `replicas_identical`
# speaks of the nodes that were alive at the end. `rounds` and what is said of a round are of a ring, null
# elsewhere; `bytes_sent_per_round` counts all that the node sent, however little of it rounds were; `step`
# is in observe/text.py. `compression_ratio` is 32 bits x weights per mini-batch / bits sent per mini-batch
# and peer, headers and frames included. `compression` (see observe/compression.py) is of the own updates of
# all nodes; its rows of tensors are of those that could be asked at the end.


Report = dict[str, Any]  # plain values, as JSON has them


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The way in which a local run ended."""

    statuses: Sequence[NodeStatus]  # one per node, the last one heard, in the order of their ranks
    wall_s: float
    recipe: str | None
    trainer: str | None = None  # the command of the user's own
    speeds: Mapping[str, float | None] = field(default_factory=dict)  # samples/s over the time in training
    paces: Mapping[str, float | None] = field(default_factory=dict)  # steps/s over the same time
    identical: bool = False
    digest: int | None = None
    parts: int | None = None  # of the model in each node; each part of a node has a status of its own
    part_digests: Sequence[int] = ()  # of all parts, where they were compared and are identical
    digests: Mapping[str, int] = field(default_factory=dict)  # of the replicas that were compared
    accuracies: Mapping[str, float] = field(
        default_factory=dict
    )  # of these replicas, on the recipe's test samples
    ends: Sequence[str] = ()  # where scripts have ended whose weights therefore were not compared
    lost: Mapping[str, str] = field(default_factory=dict)  # node -> what became of it
    # of the nodes that could still be asked
    compression: Mapping[str, Compression | None] = field(default_factory=dict)


def build_report(outcome: Outcome) -> Report:
    """Return the report as plain values."""
    nodes, count = outcome.statuses, outcome.parts or 1
    run = next((status.run for status in nodes if status.run), None)
    runs = [next((status.run for status in nodes[part::count] if status.run), None) for part in range(count)]
    parts = [f"{digest:016x}" for digest in outcome.part_digests]
    compression = describe_nodes(
        [outcome.compression.get(node.node) or node.compression for node in nodes], run.weights if run else 0
    )
    return {
        "nodes": len(nodes) // count,
        **({"parts": count, "part_digests": parts} if outcome.parts else {}),
        "mode": run.mode if run else None,
        "rounds": max((node.ring.round for node in nodes if node.ring), default=None),
        "rounds_per_s": _rounds_per_s(outcome),
        "step": describe_steps([node.trainer for node in nodes]),
        "weights": sum(each.weights for each in runs if each),
        "quantum": 2.0**run.quantum_log2 if run else None,
        "wall_s": round(outcome.wall_s, 3),
        "bits_per_index": bits_per_index(nodes),
        "compression_ratio": compression_ratio(nodes),
        "compression": compression.model_dump(exclude_unset=True) if compression else None,
        "replicas_identical": outcome.identical,
        "ended_apart": [*outcome.ends],
        "digest": combine_digests(parts) if outcome.parts and parts else _hexadecimal(outcome.digest),
        "test_accuracy": next(iter(outcome.accuracies.values()), None) if outcome.identical else None,
        "per_node": [_node(status, outcome) for status in nodes],
        "lost": [{"node": node, "why": why} for node, why in outcome.lost.items()],
        "recipe": outcome.recipe,
        "trainer": outcome.trainer,
    }


def write_report(path: Path, report: Report) -> None:
    """Write the report whole or not at all: a reader never sees a part of it. Raises OSError."""
    text = json.dumps(_finite(report), indent=2, allow_nan=False) + "\n"
    with replacing(path, mode=0o666) as file:
        file.write(text.encode())


def _node(status: NodeStatus, outcome: Outcome) -> Report:
    trainer, traffic = status.trainer, status.bytes or TrafficStatus()
    updates, rounds = status.updates or UpdatesStatus(), status.ring.round if status.ring else 0
    return {
        "node": status.node,
        "steps": trainer.steps,
        "steps_per_s": outcome.paces.get(status.node),
        "samples": trainer.samples,
        "samples_per_s": outcome.speeds.get(status.node),
        "updates_sent": updates.sent,
        "updates_applied": updates.applied,
        "indices_sent": updates.indices_sent,
        "bytes_sent": traffic.sent,
        "bytes_received": traffic.received,
        "bytes_sent_per_round": traffic.sent / rounds if rounds else None,
        "step": describe_steps([trainer]),
        "loss": trainer.loss,
        "test_accuracy": outcome.accuracies.get(status.node, trainer.test_accuracy),
        "digest": _hexadecimal(outcome.digests.get(status.node)),
        "frontier": [origin.model_dump() for origin in status.frontier],
        "bits_per_index": status.bits_per_index,
        "compression_ratio": status.compression_ratio,
        "duplicates": updates.duplicates,
        "dropped": dict(status.dropped),
        "reloads": trainer.reloads,
        "copies_mended": trainer.copies_mended,
        "restarts": trainer.restarts,
        "alarms": [*status.alarms],
    }


def _rounds_per_s(outcome: Outcome) -> float | None:
    """Return how many steps a node of a ring took in a second of the time in which it took steps, as a
    mean.
    """
    if not any(status.ring for status in outcome.statuses):
        return None
    each = [describe_steps([status.trainer]) for status in outcome.statuses]
    speeds = [1000 / steps["step_ms"] for steps in each if steps is not None]
    return round(sum(speeds) / len(speeds), 3) if speeds else None


def _hexadecimal(digest: int | None) -> str | None:
    return None if digest is None else f"{digest:016x}"


def _finite(value: Any) -> Any:
    """Return the value with null in the place of every NaN and infinity, which JSON has no words for."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
        case _:
            return value


# ----------------------------------------------------------------------------
# What a local run says at its end, from its report alone: what was trained, and is it the same bits.


COLUMNS = ("node", "steps", "steps/s", "samples", "samples/s", "out", "in", "sent", "received", "loss")
WIDTHS = (8, 12, 10, 10, 10, 8, 8, 9, 9, 6)
OF_SAMPLES = ("samples", "samples/s")  # not where no script has said how many samples a step has
OF_STEPS = ("steps/s",)  # only there
OF_UPDATES = ("out", "in")  # not in a dense ring


def summary_text(report: Report) -> str:
    """Return the summary as lines of text."""
    trained = (
        f"trained recipe {report['recipe']}"
        if report["recipe"]
        else f"ran {formatting.printable(report['trainer'])}"
    )
    weights = formatting.counted(report["weights"], "weight")
    model = f" ({weights}, {report['mode']} mode)" if report["mode"] else ""
    dense = parse_mode(report["mode"]).dense if report["mode"] else False
    sampled = any(node["samples"] for node in report["per_node"])
    without = (OF_STEPS if sampled else OF_SAMPLES) + (OF_UPDATES if dense else ())
    nodes, wall_time = formatting.counted(report["nodes"], "node"), formatting.duration(report["wall_s"])
    lines = [
        f"{nodes} {trained}{model} in {wall_time}",
        _row(COLUMNS, without),
        *(_row(_figures(node), without) for node in report["per_node"]),
        *([_row(_figures(_total(report)), without)] if len(report["per_node"]) > 1 else []),
        *_notes(report),
        f"replicas       {replicas_sentence(report)}",
    ]
    if report["rounds"] is not None:
        sent = [node["bytes_sent_per_round"] or 0 for node in report["per_node"]]
        words = [f"{report['rounds']:,}", f"{formatting.size(sum(sent) / len(sent))} sent by a node in each"]
        if report["rounds_per_s"] is not None:
            words.insert(1, f"{formatting.decimals(report['rounds_per_s'], 1)} a second")
        lines.append(f"rounds         {', '.join(words)}")
    if report["step"] is not None:
        lines.append(f"step           {steps_words(report['step'])}")
    if report["test_accuracy"] is not None:
        lines.append(f"test accuracy  {formatting.percent(report['test_accuracy'])}")
    if report["compression_ratio"] is not None:
        lines.append(
            f"compression    {formatting.times(report['compression_ratio'])} against float32 gradients, "
            f"{formatting.decimals(report['bits_per_index'], 2)} bits per index, headers included"
        )
    if report["compression"] is not None:
        total = UpdateSums(**report["compression"]["total"])
        lines.append(f"density        {fraction(total.density)} of the weights changed by a step")
    return "\n".join(lines)


def replicas_sentence(report: Report) -> str:
    """Return whether the replicas that are left are identical, and how many there are."""
    live = len(report["per_node"]) - len(report["lost"])
    if not live:
        return "none left"
    if not report["replicas_identical"]:
        return "NOT identical"
    if report["ended_apart"]:
        return "identical, but trained weights are of different moments: only those of one were compared"
    if live == 1:
        return f"one, digest {report['digest']}"
    if "parts" in report:
        each = ", ".join(f"part {part} {digest}" for part, digest in enumerate(report["part_digests"]))
        words = f"all {live} of {formatting.counted(report['parts'], 'part')} identical, byte by byte"
        return f"{words}, digest {report['digest']}: {each}"
    both = "both" if live == 2 else f"all {live}"
    return f"{both} identical, byte by byte, digest {report['digest']}"


def lost_sentence(report: Report) -> str:
    """Return which nodes were lost and what the others have: why a run with losses fails."""
    lost = [f"{entry['node']} was lost ({in_short(entry['why'])})" for entry in report["lost"]]
    live = len(report["per_node"]) - len(lost)
    if not live:
        return f"{formatting.listed(lost)}; no replica is left"
    if not report["replicas_identical"]:
        rest = (
            "the other replicas are not identical" if live > 1 else "the other replica is not as it should be"
        )
    else:
        rest = f"the other {live} replicas are identical" if live > 1 else "the other replica is whole"
    return f"{formatting.listed(lost)}; {rest}"


def in_short(why: str) -> str:
    """Return what became of a lost node without its last words, which the report shows once."""
    return why.partition(": ")[0]


def _row(cells: Sequence[str], without: Sequence[str]) -> str:
    """Align the cells under the headings, but for some columns; fits 80 columns with counts of up to seven
    digits.
    """
    first, *others = (
        (cell, width)
        for heading, cell, width in zip(COLUMNS, cells, WIDTHS, strict=True)
        if heading not in without
    )
    return f"{first[0]:<{first[1]}}" + "".join(f" {cell:>{width - 1}}" for cell, width in others)


def _figures(node: Report) -> list[str]:
    return [
        node["node"],
        _count(node["steps"], 11),
        formatting.decimals(node["steps_per_s"], 1),
        _count(node["samples"] or None, 9),  # a script may report none
        _count(node["samples_per_s"], 9),
        _count(node["updates_sent"], 7),
        _count(node["updates_applied"], 7),
        formatting.size(node["bytes_sent"]),
        formatting.size(node["bytes_received"]),
        formatting.decimals(node["loss"], 3),
    ]


def _count(value: float | None, width: int) -> str:
    """Return a whole number with commas where that fits, else its first digits."""
    words = formatting.grouped(value)
    return words if len(words) <= width else formatting.short(value)


def _total(report: Report) -> Report:
    """Return the figures of all nodes together: sums, and the mean loss; of speeds and losses, of those that
    have one.
    """
    nodes = report["per_node"]
    sums = ("steps", "samples", "updates_sent", "updates_applied", "bytes_sent", "bytes_received")
    rates = {key: [node[key] for node in nodes if node[key]] for key in ("steps_per_s", "samples_per_s")}
    losses = [node["loss"] for node in nodes if node["loss"] is not None]
    return {
        "node": "all",
        **{key: sum(node[key] for node in nodes) for key in sums},
        **{key: sum(known) if known else None for key, known in rates.items()},
        "loss": sum(losses) / len(losses) if losses else None,
    }


def _notes(report: Report) -> list[str]:
    """Return a line for each node with which something was out of the ordinary, and one for each alarm."""
    lost = {entry["node"]: entry["why"] for entry in report["lost"]}
    lines = []
    for node in report["per_node"]:
        facts = [f"lost ({lost[node['node']]})"] if node["node"] in lost else []
        facts += [formatting.counted(node["restarts"], "trainer restart")] if node["restarts"] else []
        facts += [
            f"dropped {count:,} x {reason}" for reason, count in sorted(node["dropped"].items()) if count
        ]
        lines += [f"{node['node']}: {', '.join(facts)}"] if facts else []
        if first := [formatting.printable(words) for words in node["alarms"][:1]]:
            more = formatting.counted(len(node["alarms"]) - 1, "more alarm")
            lines.append(
                f"{node['node']}: alarm: {first[0]}" + (f"; {more}" if len(node["alarms"]) > 1 else "")
            )
    lines += [f"not compared: {formatting.printable(ends)}" for ends in report["ended_apart"]]
    return lines


# ----------------------------------------------------------------------------
# How a local run shows itself: a table that is redrawn on a terminal, a line every few seconds elsewhere.


LINE_EVERY_S = 5.0
SAME_EVERY_S = 60.0  # a line with the same words as the one before


class Display:
    """Context that shows a run's statuses on `console`; the last table stays on the terminal."""

    def __init__(self, console: Console, heading: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._heading = heading
        self._clock = clock
        self._began = clock()
        self._next_line = self._began + LINE_EVERY_S
        self._said, self._said_at = "", self._began
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            # No refresh thread: this process forks, and redraws by itself whenever there is something new.
            self._live = Live(
                console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        else:
            self.say(self._heading)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, phase: str, statuses: Sequence[NodeStatus], *, at_once: bool = False) -> None:
        """Show these statuses; where lines are printed, only every few seconds or `at_once`, and the same
        words once a minute.
        """
        now = self._clock()
        elapsed = formatting.duration(now - self._began)
        if self._live is not None:
            title = f"{self._heading}, {elapsed}: {phase}"
            self._live.update(live_table(statuses, title=title), refresh=True)
        elif at_once or now >= self._next_line:
            self._next_line = now + LINE_EVERY_S
            words = ": ".join(filter(None, (phase, progress_line(statuses))))
            if words != self._said or now >= self._said_at + SAME_EVERY_S:
                self._said, self._said_at = words, now
                self.say(f"{elapsed}, {words}")

    def say(self, *lines: str) -> None:
        """Print lines, above the table if there is one."""
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
