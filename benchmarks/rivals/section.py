"""The section of docs/explanation/results.md on what others would take, from docs/explanation/rivals.json."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable
from typing import Final

from benchmarks.pages import table
from benchmarks.rivals import (
    BATCH,
    CASES,
    FAULTY,
    FOUR_PASSES,
    HOSTS,
    KILL_AFTER_S,
    LAN_MBIT,
    SLOWED,
    TARGET,
    WARM_UP,
    WAYS,
    Setting,
    Way,
)
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.plot import PICTURES, draw
from benchmarks.rivals.processors import BUSY_MAX
from benchmarks.rivals.results import AS_GOOD, Results
from benchmarks.rivals.starting import LAST_CALL_S
from benchmarks.rivals.task import HELD_OUT, SHAPE
from benchmarks.rivals.verdicts import ASYNC, seconds, slow_loss, verdicts
from p2psgd.core.timing import Timing

MBITS: Final = (10, LAN_MBIT, 1000)
PAGE_WIDTH: Final = 140
HEADING: Final = "## Beside PyTorch DDP and hivemind"


def section() -> str:
    """Empty while nothing has been measured."""
    results = Results.read()
    if not results.runs:
        return ""
    draw(results)
    return text(results)


def text(results: Results) -> str:
    """Markdown, without a newline at its end."""
    pictures = [f"![{words}]({path.name})" for path, words in PICTURES.items() if path.exists()]
    parts: list[Iterable[str]] = [
        [HEADING],
        [_introduction(results)],
        [f"- {sentence}" for sentence in verdicts(results)],
        _table(results, "way", {"setting": _setting_of(results), **_times(results)}),
        [_below(results)],
        *([picture] for picture in pictures),
        _table(results, "a host's mini-batch", _costs(results)),
        _fault_table(results, "slow"),
        _fault_table(results, "killed"),
        [_measured_on(results)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _introduction(results: Results) -> str:
    machine = ", ".join(f"{name} {words}" for name, words in results.machine.items())
    seeds = sorted({case.seed for case in CASES})
    widths = " - ".join(map(str, (SHAPE.inputs, *SHAPE.hidden, SHAPE.classes)))
    words = f"""`make rivals` ({machine}; seeds {seeds[0]} to {seeds[-1]}, with a fault {seeds[0]}) trains
        a net of {SHAPE.weights:,} weights (ReLU, {widths}) on the 30 minutes of speech that come with
        p2psgd, until the loss on {HELD_OUT:,} frames of unseen voices is {TARGET} nats. {HOSTS} hosts are
        network namespaces on one machine. Each has a link of the given rate, both ways, and an equal part
        of {100 * BUSY_MAX:.0f} % of the machine's processors, by control groups. This is less than a core
        each: at 1 Gbit/s, and for PowerSGD on slower links too, the processors are the limit, and on larger
        machines the gaps would differ. Links have a rate and no delay, which favours all methods that train
        in lock-step.

        All methods train the same PyTorch module by plain SGD, with {BATCH} samples per host and mini-batch,
        in the same order of samples; the rate rises over the first {WARM_UP:,} samples. The settings of each
        method were searched with seed 1, on links of {LAN_MBIT} Mbit/s, or without a rate limit where only
        the learning rate was searched. The fastest settings were chosen, or the first listed of those within
        {100 * (AS_GOOD - 1):.0f} % of the fastest; where none reached the target in a minute, those with the
        lowest loss. DDP exchanges gradients after every mini-batch: accumulation over several mini-batches,
        and local SGD, were not tried. PowerSGD has one bucket, because gloo mixes up several, and therefore
        overlaps nothing. Gloo and p2psgd send plain text here, hivemind encrypts. Nodes of p2psgd keep their
        state in memory (/dev/shm), so no figure includes a disk.

        The loss is that of host 0's weights, written every second and evaluated outside the hosts. The time
        is interpolated between two of them; figures are means of {len(seeds)} seeds, with their range, and a
        single number is of one run. Bytes are all bytes that left the hosts' interfaces, including p2psgd's
        daemons and headers. Of data that the kernel hands over in large pieces, mostly dense gradients, one
        header per piece is counted, which omits up to 5 %.

        {TARGET} nats is early: less than one pass over the frames for most methods, and four passes end near
        {FOUR_PASSES}. The methods' final losses were not compared here; the section above compares p2psgd
        with plain SGD over all epochs.{_later(results)}"""
    return "\n\n".join(textwrap.fill(" ".join(each.split()), PAGE_WIDTH) for each in words.split("\n\n"))


def _below(results: Results) -> str:
    sentences = [
        "`>`: the run did not reach the target in its time; `never`: it would not have reached it later."
        " A method that did not reach it with the first seed was not run with another; nothing is"
        " extrapolated."
    ]
    if edges := "; ".join(filter(None, (_edge(results, way) for way in WAYS.values()))):
        sentences.append(f"Best at the edge of the searched range, so better settings may exist: {edges}.")
    sentences += [f"{WAYS[name].label}: {words}." for name, words in results.why_not.items() if name in WAYS]
    if missing := sum(map(results.needed, CASES)):
        sentences.append(f"**Not measured yet with the best setting: {missing} runs.**")
    sentences += [f"Failed when last tried: {name}: {why}." for name, why in results.failed.items()]
    return " ".join(sentences)


def _later(results: Results) -> str:
    """Describe a run that went on after the target, since nothing lowers its rate."""
    run = results.runs.get(f"{ASYNC.name} {LAN_MBIT} killed 1")
    if run is None or run.target_s is None or run.loss <= TARGET:
        return ""
    least_s, _, least = min(run.curve, key=lambda point: point[2])
    last_s, _, last = run.curve[-1]
    return (
        f" At a constant rate, the asynchronous run with a killed host had its least loss, {least:.2f},"
        f" after {least_s:.0f} s, and {last:.2f} after {last_s:.0f} s: lower the rate over time, as the"
        " recipes do."
    )


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
    ways = [way for way in WAYS.values() if any(name.split()[0] == way.name for name in results.runs)]
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


def _fault_table(results: Results, fault: str) -> list[str]:
    cases = {case.way: case for case in CASES if case.fault == fault and case.name in results.runs}
    if not cases:
        return []
    mbit = next(iter(cases.values())).mbit
    runs = {way: results.runs[case.name] for way, case in cases.items()}
    if fault == "slow":
        title = f"One host of {HOSTS} at {SLOWED:g} of its processors, {mbit} Mbit/s:"
        heads = ["way", "s to the target", "without a slow host", "pace of the other hosts"]
        rows = [
            [
                way.label,
                str(seconds([run])),
                str(seconds(results.of(way, mbit)) or "-"),
                _pace(slow_loss(results, way, mbit)),
            ]
            for way, run in runs.items()
        ]
    else:
        title = (
            f"SIGKILL to all processes of host {FAULTY} after {KILL_AFTER_S:g} s, {mbit} Mbit/s; DDP was"
            f" started by torchrun with a minimum of {HOSTS - 1} hosts, and restarts from the last second's"
            " weights. The time until a death is noticed is a setting: torchrun's keep-alive was not changed,"
            f" its wait for late hosts lowered from 30 to {LAST_CALL_S} s; p2psgd has its failure timeout of"
            f" {Timing().failure_timeout_s:g} s. Without a kill DDP runs without torchrun:"
        )
        heads = ["way", "longest pause of each other host, s", "s to the target", "without a kill"]
        rows = [
            [way.label, _pauses(run), _with_kill(run), str(seconds(results.of(way, mbit)) or "-")]
            for way, run in runs.items()
        ]
    return [title, "", *table(heads, rows)]


def _pace(lost: float | None) -> str:
    return "-" if lost is None else f"{-100 * lost:+.0f} %"


def _with_kill(run: Outcome) -> str:
    before = run.target_s is not None and run.target_s < KILL_AFTER_S
    return f"{seconds([run])}{', before the kill' if before else ''}"


def _pauses(run: Outcome) -> str:
    pauses = ", ".join("**for good**" if each is None else f"{each:.1f}" for each in run.pauses_s)
    return f"{pauses}: {run.words}" if run.words else pauses
