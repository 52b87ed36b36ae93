"""A fifth node enters while four train, over 100 Mbit/s, past the logs: so with a snapshot of all weights."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines, paced, start_all
from benchmarks.reliability.notes import rate
from benchmarks.reliability.probed_node import read_notes
from tests.daemons import until

WEIGHTS: Final = 14_600_000  # 58.4 MB
INDICES: Final = WEIGHTS // 850
RATE: Final = 2.0  # mini-batches/s of each node
LINK_BYTES_PER_S: Final = 100e6 / 8
JOINS: Final = 3
BEFORE_S: Final = 15.0
OPTIONS: Final = ("--log-budget", "8", "--log-disk-budget", "0")
STALL_WANTED_S: Final = 0.005
DROP_WANTED: Final = 0.05


def run(directory: Path) -> Report:
    report = Report()
    trainer = paced(RATE, WEIGHTS, INDICES)
    with machines(5, directory=directory / "join", options=OPTIONS, trainer=trainer) as (_, nodes):
        joiner, others = nodes[-1], nodes[:-1]
        start_all(others, probed=True)
        until(lambda: all(map(has_trimmed, others)), "the logs are trimmed", timeout_s=240)
        joins = [measure_join(joiner, others) for _ in range(JOINS)]
    report.details["joins"] = joins
    tell(report, joins)
    return report


def has_trimmed(node: Machine) -> bool:
    status = node.status()
    made = sum(row["sequence"] for row in status.get("frontier", []))
    return bool(made and status["log"]["updates"] < made)


def measure_join(joiner: Machine, others: list[Machine]) -> dict[str, Any]:
    """Measure the join of a node that is new to the run, and its clean leave."""
    time.sleep(BEFORE_S)
    clock = time.time() - time.monotonic()
    joiner.start()
    until(lambda: joiner.events("ready", since=joiner.started), "the joiner is ready", timeout_s=120)
    ready = joiner.events("ready", since=joiner.started)[0]["at"]
    taken = joiner.events("snapshot taken", since=joiner.started)[0]
    donor = next(node for node in others if node.name == taken["node"])
    given = donor.events("snapshot given", since=joiner.started)[0]["at"]
    began = joiner.started - clock
    # The copy for the snapshot is made before it is given; so long it takes at most.
    during = read_notes(donor.probe_path, given - clock - 2, taken["at"] - clock)
    before = read_notes(donor.probe_path, began - BEFORE_S, began)
    ends = [node.notes().ends() for node in others]
    found = {
        "ready_s": ready - joiner.started,
        "transfer_s": taken["at"] - given,
        "bytes": 4 * WEIGHTS,
        "lateness_s": {"before": worst(before), "during": worst(during)},
        "rate": {
            "before": statistics.fmean(rate(each, began - BEFORE_S, began) for each in ends),
            "during": statistics.fmean(rate(each, began, ready - clock) for each in ends),
        },
    }
    joiner.daemon.stop()
    shutil.rmtree(joiner.state)  # the next time it is somebody else
    joiner.notes_path.unlink(missing_ok=True)
    return found


def worst(notes: Any) -> dict[str, float]:
    """Return the worst delay of the loop's timers, and how long the loop computed; see probed_node.py."""
    late = np.maximum(notes[:, 1], 0)
    busy = np.minimum(late, notes[:, 2])
    return {
        "most": float(late.max()),
        "p99.9": float(np.quantile(late, 0.999)),
        "computing_most": float(busy.max()),
        "computing_p99.9": float(np.quantile(busy, 0.999)),
    }


def tell(report: Report, joins: list[dict[str, Any]]) -> None:
    """The lines of the table."""
    median = statistics.median
    least = 4 * WEIGHTS / LINK_BYTES_PER_S
    transfer = median(join["transfer_s"] for join in joins)
    report.add(
        "a fifth joins four: from its start to READY", f"{median(join['ready_s'] for join in joins):.1f} s"
    )
    report.add(
        f"snapshot of {4 * WEIGHTS / 1e6:.0f} MB over 100 Mbit/s",
        f"{transfer:.1f} s, {transfer / least:.2f} times what the link needs for these bytes alone",
        f"{least:.1f} s at line rate",
    )
    for key, words in (("computing_most", "the loop computing"), ("most", "with waits for a processor")):
        before, during = (
            median(join["lateness_s"][when][key] for join in joins) for when in ("before", "during")
        )
        report.add(
            f"donor's longest stall, {words}",
            f"{1e3 * during:.1f} ms during, {1e3 * before:.1f} ms before: {1e3 * (during - before):+.1f} ms",
            "less than 5 ms more",
            during - before < STALL_WANTED_S,
        )
    before, during = (median(join["rate"][when] for join in joins) for when in ("before", "during"))
    report.add(
        "mini-batches/s of each of the four while it joins",
        f"{during:.3f}, before {before:.3f}: {100 * (during / before - 1):+.1f} %",
        "drops by less than 5 %",
        1 - during / before < DROP_WANTED,
    )
