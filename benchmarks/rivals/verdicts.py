"""Compare p2psgd with what was wanted of it beside the others. A rival's run whose time was over before
it reached the target counts with its whole time, so a ratio to it is a lower bound; one that diverged, or
whose hosts ended, never gets there, however soon that was.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.rivals import FAULTY, HOSTS, LAN_MBIT, WAYS, Way
from benchmarks.rivals.measure import Outcome
from benchmarks.rivals.results import Results

OURS: Final = tuple(way for way in WAYS.values() if way.module == "p2psgd_way")
RIVALS: Final = tuple(way for way in WAYS.values() if way not in OURS)
ASYNC: Final = WAYS["p2psgd"]
DENSE: Final = WAYS["ddp"]
WANTED_RATIO: Final = 10.0
LOSS_MAX: Final = 0.1  # of the throughput of the hosts that are not slow


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
    loss = slow_loss(results, ASYNC, 1000)
    if loss is not None:
        met = "met" if loss < LOSS_MAX else "**missed**"
        words = f"{100 * abs(loss):.0f} % {'fewer' if loss > 0 else 'more'} mini-batches a second"
        sentences.append(
            f"Beside one slow host the others make {words} in p2psgd, async"
            f" (wanted: under {100 * LOSS_MAX:.0f} % fewer: {met})."
        )
    return sentences


def _at(results: Results, mbit: int) -> str | None:
    found = {way: taken for way in WAYS.values() if (taken := seconds(results.of(way, mbit)))}
    own = found.get(ASYNC)
    if own is None or not any(rival in found for rival in RIVALS):
        return None
    if own.bound:
        words = f"At {mbit} Mbit/s {ASYNC.label}, does not reach the target: {own} s"
        words += " (wanted: **missed**)" if mbit == LAN_MBIT else ""
    else:
        words = f"At {mbit} Mbit/s {ASYNC.label}, takes {own} s" + _beside_dense(found, own, mbit)
    ahead = [
        rival
        for rival in RIVALS
        if rival in found and not found[rival].bound and (own.bound or found[rival].mean < own.mean)
    ]
    if ahead:
        sooner = ", ".join(f"{rival.label} ({found[rival]} s)" for rival in ahead)
        words += f". **Sooner there: {sooner}.**"
    else:
        words += _beside_fastest(found, own)
    missing = [rival.label for rival in RIVALS if rival not in found]
    return words + (f" Not measured there: {'; '.join(missing)}." if missing else "")


def _beside_fastest(found: Mapping[Way, Seconds], own: Seconds) -> str:
    """Where p2psgd is the first."""
    times = {rival: found[rival] for rival in RIVALS if rival in found and not found[rival].bound}
    if not times:
        return ". No rival gets there in its time."
    fastest = min(times, key=lambda rival: times[rival].mean)
    ratio = times[fastest].mean / own.mean
    return f". The fastest alternative, {fastest.label}, takes {ratio:.1f} times as long."


def _beside_dense(found: Mapping[Way, Seconds], own: Seconds, mbit: int) -> str:
    dense = found.get(DENSE)
    if dense is None:
        return ""
    if dense.failure:
        return f", and {DENSE.label} never gets there ({dense.failure})"
    ratio = dense.mean / own.mean
    wanted = ""
    if mbit == LAN_MBIT:
        verdict = "met" if ratio >= WANTED_RATIO else "not shown" if dense.bound else "**missed**"
        wanted = f" (wanted {WANTED_RATIO:g}: {verdict})"
    return f", and {DENSE.label}, takes {'at least ' if dense.bound else ''}{ratio:.1f} times as long{wanted}"
