"""kill -9 of one of five nodes: what the others notice, and how soon it is back."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines, paced, start_all
from benchmarks.reliability.notes import longest_gap_s
from tests.daemons import until

NODES: Final = 5
RATE: Final = 20.0  # mini-batches/s
REPEATS: Final = 5
AT_ONCE: Final = 3
WINDOW_S: Final = 10.0
PAUSE_WANTED_S: Final = 0.1
BACK_WANTED_S: Final = 10.0
RETURN: Final = ("READY", "first mini-batch", "of that, from its first link to READY")
SMALL_LOG: Final = ("--log-budget", "4", "--log-disk-budget", "0")


def run(directory: Path) -> Report:
    report = Report()
    with machines(NODES, directory=directory / "kill", options=(), trainer=paced(RATE)) as (_, nodes):
        start_all(nodes)
        measure_pauses(nodes, report)
        times = [measure_return(nodes, number % NODES) for number in range(AT_ONCE)]
        tell_return(report, "killed and started again at once", times)
    with machines(NODES, directory=directory / "late", options=SMALL_LOG, trainer=paced(RATE)) as (_, nodes):
        start_all(nodes)
        time.sleep(WINDOW_S)
        victim, other = nodes[-1], nodes[0]
        killed = time.time()
        victim.kill()
        evicted = other.first("evicted", since=killed, timeout_s=180)["at"]
        time.sleep(WINDOW_S)
        returned = measure_return(nodes, victim.number)
        tell_return(report, "away until it was evicted, log of 4 MiB: by snapshot", [returned])
        report.details["evicted_after_s"] = evicted - killed
        report.details["snapshots"] = victim.status()["counters"]["snapshots_taken"]
    return report


def measure_pauses(nodes: list[Machine], report: Report) -> None:
    """The longest gap of each survivor in the time after a kill, less that before it."""
    more, nothing = [], []
    for number in range(REPEATS):
        time.sleep(2 * WINDOW_S)
        victim = nodes[number % NODES]
        at = time.monotonic()
        victim.kill()
        time.sleep(WINDOW_S)
        others = [node.notes().ends() for node in nodes if node is not victim]
        after, before, earlier = (
            [longest_gap_s(ends, begin, begin + WINDOW_S) for ends in others]
            for begin in (at, at - WINDOW_S, at - 2 * WINDOW_S)
        )
        more.append([late - soon for late, soon in zip(after, before, strict=True)])
        nothing.append([late - soon for late, soon in zip(before, earlier, strict=True)])
        victim.start()
        victim.first("ready", since=victim.started)
    report.details["longer_gaps_s"], report.details["longer_gaps_without_kill_s"] = more, nothing
    worst = [max(each) for each in more]
    chance = [max(each) for each in nothing]
    every = [gap for each in more for gap in each]
    report.add(
        "kill -9 of one of five: each survivor's longest pause, after less before",
        f"median {1e3 * statistics.median(every):z.0f} ms of {len(every)}; worst survivor of each kill: "
        f"median {1e3 * statistics.median(worst):.0f}, most {1e3 * max(worst):.0f} ms",
        "at most 100 ms",
        max(worst) <= PAUSE_WANTED_S,
    )
    report.add(
        "the same without a kill, 10 s earlier: what the machine does by itself",
        f"worst survivor: median {1e3 * statistics.median(chance):.0f}, most {1e3 * max(chance):.0f} ms",
    )


def measure_return(nodes: list[Machine], number: int) -> tuple[float, float, float]:
    """Seconds from the start of a node that is killed now to READY and to its first mini-batch, and of them
    those from its first link to READY: before it, two Pythons must start.
    """
    node = nodes[number]
    node.kill()
    known = len(node.notes().sent)
    begin = time.monotonic()
    node.start()
    ready = node.first("ready", since=node.started)["at"] - node.started
    until(lambda: len(node.notes().sent) > known, f"{node.name} trains")
    first = min(end for end in node.notes().ends() if end > begin) - begin
    linked = node.events("link", since=node.started)[0]["at"] - node.started
    return ready, first, ready - linked


def tell_return(report: Report, what: str, times: list[tuple[float, float, float]]) -> None:
    """Lines of the table."""
    for name, seconds in zip(RETURN, zip(*times, strict=True), strict=True):
        report.details[f"{what}: {name}"] = list(seconds)
        each = f"median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s of {len(seconds)}"
        report.add(f"{what}: {name}", each, "less than 10 s", max(seconds) < BACK_WANTED_S)
