"""What was wanted of p2psgd beside the others, and what came of it. A run that ended without reaching the
target counts with its whole time, so a ratio to it is a lower bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.rivals import FAULTY, HOSTS, LAN_MBIT, WAYS, Way
from tests.bench.rivals.measure import Outcome
from tests.bench.rivals.results import Results

OURS: Final = tuple(way for way in WAYS.values() if way.module == "p2psgd_way")
RIVALS: Final = tuple(way for way in WAYS.values() if way not in OURS)
ASYNC: Final = WAYS["p2psgd"]
DENSE: Final = WAYS["ddp"]
WANTED_RATIO: Final = 10.0
LOSS_MAX: Final = 0.1  # of the throughput of the hosts that are not slow


@dataclass(frozen=True, slots=True)
class Seconds:
    """To the target, of all seeds; `bound`: one or all did not reach it, so it takes longer than that."""

    mean: float
    least: float
    most: float
    bound: bool

    def __str__(self) -> str:
        spread = f" ({self.least:.1f} to {self.most:.1f})" if self.least != self.most else ""
        return f"{'> ' if self.bound else ''}{self.mean:.1f}{spread}"


def seconds(outcomes: Sequence[Outcome]) -> Seconds | None:
    """None if there are no runs."""
    if not outcomes:
        return None
    each = [outcome.ran_s if outcome.target_s is None else outcome.target_s for outcome in outcomes]
    bound = any(outcome.target_s is None for outcome in outcomes)
    return Seconds(statistics.mean(each), min(each), max(each), bound)


def throughput(outcome: Outcome) -> float:
    """Mini-batches a second of the hosts that no fault is for."""
    return sum(pace for host, pace in enumerate(outcome.steps_per_s[:HOSTS]) if host != FAULTY)


def slow_loss(results: Results, way: Way, mbit: int) -> float | None:
    """By how much of it the throughput of the others falls, as a part, where one host is slow."""
    sound, slow = results.of(way, mbit), results.of(way, mbit, "slow")
    before = statistics.mean(map(throughput, sound)) if sound else 0.0
    return 1 - statistics.mean(map(throughput, slow)) / before if slow and before else None


def verdicts(results: Results) -> list[str]:
    """A sentence for each bandwidth, and one for the slow host."""
    sentences = [words for mbit in (10, LAN_MBIT, 1000) if (words := _at(results, mbit)) is not None]
    loss = slow_loss(results, ASYNC, 1000)
    if loss is not None:
        met = "met" if loss < LOSS_MAX else "**missed**"
        sentences.append(
            f"One slow host takes {100 * loss:.0f} % of the throughput of the others in p2psgd, async"
            f" (wanted: under {100 * LOSS_MAX:.0f} %: {met})."
        )
    return sentences


def _at(results: Results, mbit: int) -> str | None:
    found = {way: taken for way in WAYS.values() if (taken := seconds(results.of(way, mbit)))}
    own = found.get(ASYNC)
    if own is None or not any(rival in found for rival in RIVALS):
        return None
    words = f"At {mbit} Mbit/s p2psgd, async, takes {own} s"
    if dense := found.get(DENSE):
        ratio = dense.mean / own.mean
        least = "at least " if dense.bound else ""
        wanted = ""
        if mbit == LAN_MBIT:
            wanted = f" (wanted {WANTED_RATIO:g}: {'met' if ratio >= WANTED_RATIO else '**missed**'})"
        words += f", and {DENSE.label} takes {least}{ratio:.1f} times as long{wanted}"
    ahead = [rival for rival in RIVALS if rival in found and found[rival].mean < own.mean]
    if ahead:
        sooner = ", ".join(f"{rival.label} ({found[rival]} s)" for rival in ahead)
        return f"{words}. **Sooner there: {sooner}.**"
    return f"{words}. No rival is sooner."
