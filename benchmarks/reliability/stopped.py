"""A daemon that stops reading (SIGSTOP) for a minute: what the others notice, and how it comes back."""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines, paced, start_all
from benchmarks.reliability.notes import Notes, travel_s
from tests.daemons import until

NODES: Final = 4
RATE: Final = 20.0
BEFORE_S: Final = 60.0
STOPPED_S: Final = 60.0
SETTLE_S: Final = 2.0  # at the end of each time: what was sent then may still be on its way
LOG_MIB: Final = 2
OPTIONS: Final = ("--log-budget", f"{LOG_MIB}", "--log-disk-budget", "0")  # so that it must be evicted
CHANGE_WANTED: Final = 0.1


def run(directory: Path) -> Report:
    report = Report()
    with machines(NODES, directory=directory / "stopped", options=OPTIONS, trainer=paced(RATE)) as (_, nodes):
        start_all(nodes)
        victim, others = nodes[-1], nodes[:-1]
        time.sleep(10)
        begin = time.monotonic()
        rss_before = watch_rss(others, BEFORE_S)
        stopped, stopped_at = time.monotonic(), time.time()
        victim.daemon.process.send_signal(signal.SIGSTOP)
        rss_during = watch_rss(others, STOPPED_S)
        goes_on, goes_on_at = time.monotonic(), time.time()
        victim.daemon.process.send_signal(signal.SIGCONT)
        notes = {node.status()["id"]: node.notes() for node in others}
        tell_latency(report, notes, (begin, stopped - SETTLE_S), (stopped, goes_on - SETTLE_S))
        grown = [max(late) - max(soon) for late, soon in zip(rss_during, rss_before, strict=True)]
        report.details["rss_kib"] = {
            "before": list(map(max, rss_before)),
            "during": list(map(max, rss_during)),
        }
        report.add(
            "memory of the others while it reads nothing",
            f"{max(grown) / 1024:+.1f} MiB at most",
            f"no more than the log of {LOG_MIB} MiB",
            max(grown) <= 1024 * LOG_MIB,
        )
        evicted = others[0].events("evicted", since=stopped_at)
        when = f"evicted after {evicted[0]['at'] - stopped_at:.0f} s" if evicted else "never evicted"
        until(lambda: victim.status().get("ready") and lag(victim, others) < 2 * RATE, "it is back")
        back = time.time() - goes_on_at
        snapshots = victim.events("snapshot taken", since=goes_on_at)
        how = "by snapshot" if snapshots else "by replay"
        report.add("it goes on after 60 s", f"{when}; ready and up to date {how} after {back:.1f} s")
        report.details["events"] = [node.timeline(stopped_at) for node in (victim, others[0])]
        report.details |= {"evicted": bool(evicted), "snapshots": len(snapshots), "back_s": back}
    return report


def watch_rss(nodes: list[Machine], for_s: float) -> list[list[int]]:
    """Resident memory of each in KiB, once a second."""
    seen: list[list[int]] = [[] for _ in nodes]
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        for node, row in zip(nodes, seen, strict=True):
            row.append(node.rss_kib())
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
    return seen


def lag(node: Machine, others: list[Machine]) -> int:
    """Updates that another has applied and this one has not."""
    applied = [sum(row["sequence"] for row in each.status()["frontier"]) for each in (node, *others)]
    return int(max(applied[1:]) - applied[0])


def tell_latency(
    report: Report, notes: dict[str, Notes], before: tuple[float, float], during: tuple[float, float]
) -> None:
    """From `send` on one node to the weights of another: before and during."""
    old, new = (np.array(travel_s(notes, *when)) for when in (before, during))
    sent = sum(during[0] <= begin <= during[1] for each in notes.values() for begin, _ in each.sent.values())
    for share in (0.5, 0.99):
        was, now = float(np.quantile(old, share)), float(np.quantile(new, share))
        change = now / was - 1
        report.details[f"p{100 * share:.0f}_s"] = {"before": was, "during": now}
        target = ("changes by less than 10 %", change < CHANGE_WANTED) if share == 0.99 else ("", None)
        name = "median" if share == 0.5 else "99th percentile"
        report.add(
            f"one of four reads nothing: {name} of an update's way between the others",
            f"{1e3 * now:.1f} ms, before {1e3 * was:.1f}: {100 * change:+.0f} %",
            *target,
        )
    # The same comparison within the time before shows what chance does.
    middle = statistics.fmean(before)
    halves = [
        np.quantile(travel_s(notes, *each), 0.99) for each in ((before[0], middle), (middle, before[1]))
    ]
    report.add(
        "the same between the two halves of the time before: what chance does",
        f"{100 * (halves[1] / halves[0] - 1):+.0f} %",
    )
    report.details["arrived"] = len(new) / (sent * (len(notes) - 1))
