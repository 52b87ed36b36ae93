"""Compare p2psgd with what was wanted of it beside the others. A rival's run whose time was over before
it reached the target counts with its whole time, so a ratio to it is a lower bound; one that diverged, or
whose hosts ended, never gets there, however soon that was.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.rivals.cases import FAULTY, HOSTS, LAN_MBIT, Task, Way
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.results import Results

LOSS_MAX: Final = 0.1  # of the throughput of the hosts that are not slow


def asynchronous(task: Task) -> Way:
    """Return the way that the others are compared with."""
    return task.ways["p2psgd"]


def rivals_of(task: Task) -> list[Way]:
    """Return what is not p2psgd."""
    return [way for way in task.ways.values() if way.module != "p2psgd_way"]


@dataclass(frozen=True, slots=True)
class Seconds:
    """To the target, of all seeds; `bound`: one or all did not reach it, so it takes longer than that;
    `failure`: why one never would have, if that is so.
    """

    mean: float
    least: float
    most: float
    bound: bool
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"never: {self.failure} after {self.most:.1f}"
        spread = f" ({self.least:.1f} to {self.most:.1f})" if self.least != self.most else ""
        return f"{'> ' if self.bound else ''}{self.mean:.1f}{spread}"


def seconds(outcomes: Sequence[Outcome]) -> Seconds | None:
    """Return the median seconds to the target; None if there are no runs."""
    if not outcomes:
        return None
    each = [outcome.ran_s if outcome.target_s is None else outcome.target_s for outcome in outcomes]
    bound = any(outcome.target_s is None for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.failure]
    if failed:
        each = [outcome.ran_s for outcome in failed]
    return Seconds(statistics.mean(each), min(each), max(each), bound, failed[0].failure if failed else "")


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
    own = asynchronous(results.task)
    loss = slow_loss(results, own, 1000)
    if loss is not None:
        met = "met" if loss < LOSS_MAX else "**missed**"
        words = f"{100 * abs(loss):.0f} % {'fewer' if loss > 0 else 'more'} mini-batches a second"
        sentences.append(
            f"Beside one slow host the others make {words} in {own.label}"
            f" (wanted: under {100 * LOSS_MAX:.0f} % fewer: {met})."
        )
    return sentences


def _at(results: Results, mbit: int) -> str | None:
    task, rivals = results.task, rivals_of(results.task)
    found = {way: taken for way in task.ways.values() if (taken := seconds(results.of(way, mbit)))}
    way = asynchronous(task)
    own = found.get(way)
    if own is None or not any(rival in found for rival in rivals):
        return None
    wanted = task.wanted_ratio if mbit == LAN_MBIT else None
    if own.bound:
        words = f"At {mbit} Mbit/s {way.label}, does not reach the target: {own} s"
        words += " (wanted: **missed**)" if wanted else ""
    else:
        words = f"At {mbit} Mbit/s {way.label}, takes {own} s" + _beside_dense(
            task.ways["ddp"], found, own, wanted
        )
    ahead = [
        rival
        for rival in rivals
        if rival in found and not found[rival].bound and (own.bound or found[rival].mean < own.mean)
    ]
    if ahead:
        sooner = ", ".join(f"{rival.label} ({found[rival]} s)" for rival in ahead)
        words += f". **Sooner there: {sooner}.**"
    else:
        words += _beside_fastest({rival: found[rival] for rival in rivals if rival in found}, own)
    missing = [rival.label for rival in rivals if rival not in found]
    return words + (f" Not measured there: {'; '.join(missing)}." if missing else "")


def _beside_fastest(found: Mapping[Way, Seconds], own: Seconds) -> str:
    """Where p2psgd is the first."""
    times = {rival: taken for rival, taken in found.items() if not taken.bound}
    if not times:
        return ". No rival gets there in its time."
    fastest = min(times, key=lambda rival: times[rival].mean)
    ratio = times[fastest].mean / own.mean
    return f". The fastest alternative, {fastest.label}, takes {ratio:.1f} times as long."


def _beside_dense(dense: Way, found: Mapping[Way, Seconds], own: Seconds, wanted: float | None) -> str:
    taken = found.get(dense)
    if taken is None:
        return ""
    if taken.failure:
        return f", and {dense.label} never gets there ({taken.failure})"
    ratio = taken.mean / own.mean
    verdict = "met" if wanted and ratio >= wanted else "not shown" if taken.bound else "**missed**"
    words = f", and {dense.label}, takes {'at least ' if taken.bound else ''}{ratio:.1f} times as long"
    return words + (f" (wanted {wanted:g}: {verdict})" if wanted else "")
