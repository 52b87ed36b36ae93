"""Write the measured part of docs/explanation/learning.md. The prose around it stays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.learn.cases import CASES, SEARCH_SEED, TASKS, WAYS, Case, Task
from benchmarks.learn.plot import BYTES, LOSSES
from benchmarks.learn.results import Results, needed
from benchmarks.learn.tables import main_table, search_table, verdicts

PAGE: Final = Path("docs/explanation/learning.md")
OPTIMIZERS: Final = {
    "adamw": "AdamW with betas 0.9 and 0.99 and weight decay 0.1",
    "muon": "Muon with momentum 0.95 for the matrices of the layers (its updates scaled to those of AdamW),"
    " and AdamW as above for the rest",
    "sgd": "SGD with momentum 0.9 and weight decay 0.0001",
}
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def write(results: Results, path: Path = PAGE) -> None:
    """Replace what stands between the marks."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} lacks the lines {BEGIN!r} and {END!r}")
    path.write_text(before + "\n\n".join([begin, *_parts(results), end]) + after, encoding="utf-8")


def _parts(results: Results) -> Iterable[str]:
    measured = [task for task in TASKS.values() if any(case.task == task.name for case in results)]
    if not measured:
        yield "Nothing has been measured yet."
        return
    yield "## Pictures"
    yield "Test loss at the end. Less is better."
    yield f"![Test loss at the end, by way]({LOSSES.name})"
    yield "The same against the bytes that a node sends in all. Lower and further left is better."
    yield f"![Test loss against the bytes that a node sends]({BYTES.name})"
    for task in measured:
        yield from _task(results, task)
    yield "## What was measured where"
    yield _where(results)
    yield _missing(results)


def _task(results: Results, task: Task) -> Iterable[str]:
    yield f"## {task.name}"
    yield _sentence(task, next(each.weights for case, each in results.items() if case.task == task.name))
    yield "\n".join(main_table(results, task.name))
    for nodes in task.nodes:
        if found := verdicts(results, task.name, nodes):
            yield f"With {nodes} nodes, by the seeds that both ways have:"
            yield "\n".join(found)
    yield f"The search, test loss with seed {SEARCH_SEED}:"
    yield "\n".join(search_table(results, task.name))


def _sentence(task: Task, weights: int) -> str:
    if task.model == "gpt":
        size = f"width {task.width}, {task.layers} layers, context {task.context}"
        words = (
            f"A byte-level GPT of {weights:,} weights ({size}) learns the sources of Python's own standard "
            "library. The loss is in nats a byte, on files that nobody trains on."
        )
    else:
        words = (
            f"A convolutional net of {weights:,} weights with batch norm learns the 8 x 8 digits that come "
            "with p2psgd (UCI optdigits: 1,437 to train, 360 to test). The loss is in nats a digit. One "
            "digit is 0.28 %, and one that is wrong by 3 nats changes the mean loss by 0.008: smaller "
            "differences mean nothing."
        )
    total = f"{task.batches:,} batches of {task.batch} in all"
    return f"{words} {OPTIMIZERS[task.optimizer]}; {total}."


def _where(results: Results) -> str:
    days = sorted({each.at for each in results.values()})
    loads = [each.load for each in results.values()]
    hours = sum(each.ran_s for each in results.values()) / 3600
    words = (
        f"{len(results)} trainings, {hours:.1f} hours in all, from {days[0]} to {days[-1]}. The load before "
        f"each was {min(loads):.1f} to {max(loads):.1f}, the case before it included."
    )
    commits: dict[str, set[str]] = {}
    for each in results.values():
        where, _, commit = each.where.partition(", commit ")
        commits.setdefault(where, set()).add(commit)
    places = [f"- {where}; commits {', '.join(sorted(found))}" for where, found in sorted(commits.items())]
    return "\n".join([words, "", *places])


def _missing(results: Results) -> str:
    left = [case for case in CASES if case not in results and needed(results, case)]
    if not left:
        return "All cases are measured."
    counts: dict[str, int] = {}
    for case in left:
        counts[_group(case)] = counts.get(_group(case), 0) + 1
    lines = [f"- {group}: {count}" for group, count in counts.items()]
    return "\n".join([f"Not measured yet, {len(left)} cases:", "", *lines])


def _group(case: Case) -> str:
    return f"{case.task}, {WAYS[case.way].label}"
