"""Sums up results over seeds, and compares p2psgd with the other ways."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from benchmarks.learn.cases import TASKS, WAYS, search
from benchmarks.learn.results import Result, Results, best_rate
from benchmarks.pages import table

OURS: Final = tuple(name for name in WAYS if name.startswith("p2psgd"))
NONE: Final = ""  # not measured
HEADS: Final = (
    "way",
    "nodes",
    "rate",
    "seeds",
    "test loss",
    "to one process",
    "kB a node sends",
    "to float32",
    "to DDP",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The results of a way on a task with so many nodes, at its best rate, for all measured seeds."""

    way: str
    nodes: int
    by_seed: Mapping[int, Result]

    @property
    def results(self) -> list[Result]:
        """Return the results of all seeds."""
        return list(self.by_seed.values())

    @property
    def loss(self) -> float:
        """Return the mean over seeds; NaN if one diverged."""
        return mean(each.loss for each in self.results)

    @property
    def sent_bytes(self) -> float:
        """Return the mean over seeds, of a node."""
        return mean(each.sent_bytes for each in self.results)

    @property
    def accuracy(self) -> float | None:
        """Return the mean over seeds, where the task has one."""
        found = [each.accuracy for each in self.results if each.accuracy is not None]
        return mean(found) if found else None

    def above(self, other: Row) -> float | None:
        """Return how much higher the loss is than another way's, by the seeds that both have."""
        both = [seed for seed in self.by_seed if seed in other.by_seed]
        return mean(self.by_seed[seed].loss - other.by_seed[seed].loss for seed in both) if both else None


def rows_of(results: Results, task: str) -> list[Row]:
    """Return a row for each way and number of nodes whose rate is known, by way."""
    rows = []
    for way, nodes in places(task):
        rate = best_rate(results, task, way, nodes)
        found = {
            case.seed: each
            for case, each in results.items()
            if (case.task, case.way, case.nodes) == (task, way, nodes) and rate == each.rate
        }
        if found:
            rows.append(Row(way, nodes, dict(sorted(found.items()))))
    return rows


def places(task: str) -> list[tuple[str, int]]:
    """Return each way and number of nodes that the task is run with, by number of nodes."""
    return [
        (way, nodes) for nodes in (1, *TASKS[task].nodes) for way in WAYS if WAYS[way].alone == (nodes == 1)
    ]


def main_table(results: Results, task: str) -> list[str]:
    """Lines of Markdown: a line for each row."""
    rows = rows_of(results, task)
    by_place = {(row.way, row.nodes): row for row in rows}
    one = by_place.get(("one", 1))
    accuracy = ("digits right",) if any(row.accuracy is not None for row in rows) else ()
    lines = []
    for row in rows:
        ddp = by_place.get(("ddp", row.nodes))
        cells = [
            WAYS[row.way].label,
            f"{row.nodes}",
            f"{row.results[0].rate:g}{_edge(task, row)}",
            f"{len(row.results)}",
            _spread([each.loss for each in row.results]),
            f"{above:+.3f}" if one and row is not one and (above := row.above(one)) is not None else NONE,
            f"{row.sent_bytes / 1e3:,.0f}",
            f"{_float32_bytes(task, row) / row.sent_bytes:,.0f}x fewer" if row.sent_bytes else NONE,
            f"{ddp.sent_bytes / row.sent_bytes:,.1f}x fewer" if ddp and row.sent_bytes else NONE,
        ]
        if accuracy:
            cells.append(f"{100 * row.accuracy:.2f} %" if row.accuracy is not None else NONE)
        lines.append(cells)
    return table((*HEADS, *accuracy), lines)


def _float32_bytes(task: str, row: Row) -> float:
    """Return what a node would send with whole gradients for each other node in each step."""
    return 4 * row.results[0].weights * (row.nodes - 1) * TASKS[task].batches / row.nodes


def search_table(results: Results, task: str) -> list[str]:
    """Lines of Markdown: the loss of each way at each rate, the best in bold."""
    rates, lines = TASKS[task].rates, []
    for way, nodes in places(task):
        by_rate = {case.rate: results.get(case) for case in search(task, way, nodes)}
        found = [by_rate[rate] for rate in rates]
        if not any(found):
            continue
        best = best_rate(results, task, way, nodes)
        cells = [_loss(each.loss) if each else NONE for each in found]
        bold = [f"**{cell}**" if rate == best else cell for rate, cell in zip(rates, cells, strict=True)]
        lines.append([WAYS[way].label, f"{nodes}", *bold])
    return table(("way", "nodes", *(f"rate {rate:g}" for rate in rates)), lines)


def verdicts(results: Results, task: str, nodes: int) -> list[str]:
    """Return a sentence for each of p2psgd's ways: beside which other ways it ends lower, and sends less."""
    rows = [row for row in rows_of(results, task) if row.nodes in (1, nodes)]
    others = [row for row in rows if row.way not in OURS]
    found = []
    for ours in (row for row in rows if row.way in OURS):
        above = {WAYS[row.way].label: ours.above(row) for row in others}
        lower = [label for label, much in above.items() if much is not None and much < 0]
        higher = [label for label, much in above.items() if much is not None and not much < 0]
        more = [WAYS[row.way].label for row in others if 0 < row.sent_bytes < ours.sent_bytes]
        parts = [
            f"ends **higher** than {_list(higher)}" if higher else "",
            f"ends lower than {_list(lower)}" if lower else "",
            f"sends **more** than {_list(more)}" if more else "",
        ]
        words = "; ".join(filter(None, parts)) or "has nothing to be compared with"
        found.append(f"- {WAYS[ours.way].label}: {words}.")
    return found


def _edge(task: str, row: Row) -> str:
    """Mark a best rate at the end of the list: a rate beyond it may be better."""
    best, rates = row.results[0].rate, TASKS[task].rates
    return " (lowest tried)" if best == rates[0] else " (highest tried)" if best == rates[-1] else ""


def _spread(losses: Sequence[float]) -> str:
    if len(losses) < 2:
        return _loss(losses[0])
    return f"{_loss(mean(losses))} ({_loss(min(losses))} to {_loss(max(losses))})"


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
