"""The section of docs/explanation/results.md on what others would take, from the JSON files of the tasks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Final

from benchmarks.pages import table
from benchmarks.rivals.cases import (
    DELAY_MS,
    FAULTY,
    HOSTS,
    KILL_AFTER_S,
    LAN_MBIT,
    SLOWED,
    Case,
    Setting,
    Way,
)
from benchmarks.rivals.introduction import introduction
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.plot import draw, pictures
from benchmarks.rivals.results import Results
from benchmarks.rivals.starting import LAST_CALL_S
from benchmarks.rivals.tasks import TASKS
from benchmarks.rivals.verdicts import asynchronous, seconds, slow_loss, verdicts
from p2psgd.core.timing import Timing

MBITS: Final = (10, LAN_MBIT, 1000)
HEADINGS: Final = {
    "speech": "## Beside PyTorch DDP and hivemind",
    "gpt": "### A byte-level GPT with AdamW",
}


def section() -> str:
    """Return all tasks' parts; empty while nothing has been measured."""
    measured = [results for task in TASKS.values() if (results := Results.read(task)).runs]
    for results in measured:
        draw(results)
    return "\n\n".join(map(text, measured))


def text(results: Results) -> str:
    """Return the Markdown of a task, without a newline at its end."""
    shown = [f"![{words}]({path.name})" for path, words in pictures(results.task).items() if path.exists()]
    sentences = [*verdicts(results), *filter(None, [_computing(results)])]
    parts: list[Iterable[str]] = [
        [HEADINGS[results.task.name]],
        [introduction(results)],
        [f"- {sentence}" for sentence in sentences],
        _table(results, "way", {"setting": _setting_of(results), **_times(results)}),
        [_below(results)],
        *([picture] for picture in shown),
        _table(results, "a host's mini-batch", _costs(results)),
        *(part(results) for part in (_delayed_table, _slow_table, _killed_table)),
        [_measured_on(results)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _computing(results: Results) -> str:
    """Return a sentence on the time in which the hosts of p2psgd compute, where it was counted."""
    way = asynchronous(results.task)
    counted = {
        mbit: [run.computing for run in results.of(way, mbit) if run.computing is not None] for mbit in MBITS
    }
    found = [
        f"{100 * statistics.mean(parts):.0f} % at {mbit} Mbit/s" for mbit, parts in counted.items() if parts
    ]
    if not found:
        return ""
    return (
        f"{way.label}, computes for a part of the time, {', '.join(found)}: the part of the clock's time that"
        " the training processes spend in forward and backward passes, in clipping, and in the optimizer's"
        " own step. The rest is p2psgd's work in these processes, all waiting, and loading samples. The"
        " daemons share the processors with them, so their work makes both parts longer."
    )


def _below(results: Results) -> str:
    sentences = [
        "`>`: the run did not reach the target in its time; `never`: it would not have reached it later."
        " A method that did not reach it with the first seed was not run with another; nothing is"
        " extrapolated."
    ]
    if edges := "; ".join(filter(None, (_edge(results, way) for way in results.task.ways.values()))):
        sentences.append(f"Best at the edge of the searched range, so better settings may exist: {edges}.")
    ways = results.task.ways
    sentences += [f"{ways[name].label}: {words}." for name, words in results.why_not.items() if name in ways]
    if missing := sum(map(results.needed, results.task.cases)):
        sentences.append(f"**Not measured yet with the best setting: {missing} runs.**")
    sentences += [f"Failed when last tried: {name}: {why}." for name, why in results.failed.items()]
    return " ".join(sentences)


def _measured_on(results: Results) -> str:
    runs = list(results.runs.values())
    loads = [run.load for run in runs]
    commits = ", ".join(dict.fromkeys(run.commit for run in runs))
    return (
        f"Measured at commits {commits}. Load before a run, the run before it included: {min(loads):.1f} to"
        f" {max(loads):.1f}."
    )


Cell = Callable[[Way], str]


def _table(results: Results, first: str, columns: dict[str, Cell]) -> list[str]:
    ways = [
        way for way in results.task.ways.values() if any(name.split()[0] == way.name for name in results.runs)
    ]
    return table([first, *columns], [[way.label, *(cell(way) for cell in columns.values())] for way in ways])


def _setting_of(results: Results) -> Cell:
    """Return the settings of this way's runs; several, if they come from different searches."""

    def cell(way: Way) -> str:
        own = [run.setting for name, run in results.runs.items() if name.split()[0] == way.name]
        return "; ".join(dict.fromkeys(map(words, own)))

    return cell


def _edge(results: Results, way: Way) -> str:
    """Words, if a number of the best setting is the least or the largest that was tried, the rate with what
    else is set.
    """
    best = results.best(way)
    if best is None:
        return ""
    found = []
    for name, value in best.items():
        alike = [each for each in way.settings if name != "rate" or {**each, "rate": value} == best]
        tried = sorted({each[name] for each in alike})
        if not isinstance(value, str) and value in (tried[0], tried[-1]):
            of = f"of {tried[0]} to {tried[-1]}" if len(tried) > 1 else "alone"
            found.append(f"{name.replace('_', ' ')} {value} {of}")
    return f"{way.label}, {', '.join(found)}" if found else ""


def words(setting: Setting) -> str:
    """`rate 0.3, whole steps 2`."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items())


def _times(results: Results) -> dict[str, Cell]:
    def cell(mbit: int) -> Cell:
        return lambda way: str(seconds(results.of(way, mbit)) or "-")

    return {f"s at {mbit} Mbit/s": cell(mbit) for mbit in MBITS}


def _costs(results: Results) -> dict[str, Cell]:
    def mean(value: Callable[[Outcome], float | None], mbit: int, form: str) -> Cell:
        def cell(way: Way) -> str:
            values = [each for each in map(value, results.of(way, mbit)) if each is not None]
            return form.format(statistics.mean(values)) if values else "-"

        return cell

    columns: dict[str, Cell] = {}
    for mbit in MBITS:
        columns[f"ms at {mbit} Mbit/s"] = mean(_step_ms, mbit, "{:.0f}")
    for mbit in MBITS:
        columns[f"kB at {mbit} Mbit/s"] = mean(lambda each: each.step_bytes / 1e3, mbit, "{:,.1f}")
    whole = mean(lambda each: each.bytes_sent / 1e6, LAN_MBIT, "{:,.0f}")
    columns[f"MB of all hosts, in the whole run at {LAN_MBIT} Mbit/s"] = whole
    return columns


def _step_ms(outcome: Outcome) -> float | None:
    return None if outcome.step_s is None else 1e3 * outcome.step_s


def _runs_with(results: Results, fault: str) -> tuple[int, dict[Way, Outcome]]:
    """Return the bandwidth of the cases with a fault, and by way the outcomes of those that were measured."""
    cases: list[Case] = [case for case in results.task.cases if case.fault == fault]
    runs = {case.way: results.runs[case.name] for case in cases if case.name in results.runs}
    ways = list(results.task.ways.values())
    return cases[0].mbit if cases else 0, {way: runs[way] for way in ways if way in runs}


def _slow_table(results: Results) -> list[str]:
    mbit, runs = _runs_with(results, "slow")
    title = f"One host of {HOSTS} at {SLOWED:g} of its processors, {mbit} Mbit/s:"
    heads = ["way", "s to the target", "without a slow host", "pace of the other hosts"]
    rows = [
        [way.label, str(seconds([run])), _sound(results, way, mbit), _pace(slow_loss(results, way, mbit))]
        for way, run in runs.items()
    ]
    return [title, "", *table(heads, rows)] if rows else []


def _killed_table(results: Results) -> list[str]:
    mbit, runs = _runs_with(results, "killed")
    kept = "the last second's weights"
    if (every_s := results.task.snapshot_every_s) != 1:
        kept = f"weights and the optimizer's state of the last {every_s:g} s"
    title = (
        f"SIGKILL to all processes of host {FAULTY} after {KILL_AFTER_S:g} s, {mbit} Mbit/s; DDP was"
        f" started by torchrun with a minimum of {HOSTS - 1} hosts, and restarts from {kept}."
        " The time until a death is noticed is a setting: torchrun's keep-alive was not changed,"
        f" its wait for late hosts lowered from 30 to {LAST_CALL_S} s; p2psgd has its failure timeout of"
        f" {Timing().failure_timeout_s:g} s. Without a kill DDP runs without torchrun:"
    )
    heads = ["way", "longest pause of each other host, s", "s to the target", "without a kill"]
    rows = [
        [way.label, _pauses(run), _with_kill(run), _sound(results, way, mbit)] for way, run in runs.items()
    ]
    return [title, "", *table(heads, rows)] if rows else []


def _delayed_table(results: Results) -> list[str]:
    mbit, runs = _runs_with(results, "delayed")
    title = (
        f"With a delay of {DELAY_MS} ms from host to host, so {2 * DELAY_MS} ms for a round trip, {mbit}"
        " Mbit/s; a process takes the place of the bridge between the hosts and holds every packet, of all"
        " programs, for that time:"
    )
    heads = ["way", "s to the target", "without the delay", "ms for a host's mini-batch", "without the delay"]
    rows = [
        [way.label, str(seconds([run])), _sound(results, way, mbit), *_paces(results, way, run, mbit)]
        for way, run in runs.items()
    ]
    return [title, "", *table(heads, rows)] if rows else []


def _sound(results: Results, way: Way, mbit: int) -> str:
    """Return the seconds to the target without a fault."""
    return str(seconds(results.of(way, mbit)) or "-")


def _paces(results: Results, way: Way, run: Outcome, mbit: int) -> list[str]:
    """Return the milliseconds of a mini-batch in this run, and without a fault."""
    groups = ([run], results.of(way, mbit))
    times = [[each for each in map(_step_ms, group) if each is not None] for group in groups]
    return [f"{statistics.mean(each):.0f}" if each else "-" for each in times]


def _pace(lost: float | None) -> str:
    return "-" if lost is None else f"{-100 * lost:+.0f} %"


def _with_kill(run: Outcome) -> str:
    before = run.target_s is not None and run.target_s < KILL_AFTER_S
    return f"{seconds([run])}{', before the kill' if before else ''}"


def _pauses(run: Outcome) -> str:
    pauses = ", ".join("**for good**" if each is None else f"{each:.1f}" for each in run.pauses_s)
    return f"{pauses}: {run.words}" if run.words else pauses
