"""Show which instruction-set path of the native core runs here, why, and how fast: `python -m
benchmarks.cpu`.

The rates are those of one thread on data of a middling net, the best of many rounds in which the paths take
turns, so that a slow moment of the machine hits all. Those in benchmarks compare with limits and peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from p2psgd.base import formatting
from p2psgd.wire import codec
from p2psgd.wire.cpu_paths import VARIABLE, CpuPath, cpu_path, cpu_paths, forced_cpu_path, use_cpu_path

WEIGHTS = 2**22  # 16 MB of float32: more than most second-level caches
COUNT = WEIGHTS // 850  # what tau = 4 sends in [Strom 2015]
THRESHOLD = 2.0**-8
ROUNDS_MIN = 3


@dataclass(frozen=True, slots=True)
class Work:
    """Something that the core does, and how many of its units one call does."""

    name: str
    unit: str
    units: float
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate of one kind of work: how much of it each path does in a second, in the work's unit, by the path's
    name.
    """

    name: str
    unit: str
    by_path: dict[str, float]


def works() -> list[Work]:
    """Return the kinds of work, each on its own arrays; each may be called any number of times."""
    chance = np.random.default_rng(850)
    indices = np.sort(chance.choice(WEIGHTS, COUNT, replace=False))
    words = (indices << 1 | chance.integers(0, 2, COUNT)).astype(np.uint32)
    room = np.empty(codec.indices_max(WEIGHTS), np.uint32)
    payload = codec.encode(words, WEIGHTS)
    coordinates = np.zeros(WEIGHTS, np.int32)
    delta = chance.normal(0, THRESHOLD / 3.24, WEIGHTS).astype(np.float32)  # one in 850 lies beyond it
    source, target = np.zeros(WEIGHTS, np.float32), np.ones(WEIGHTS, np.float32)

    def sweep() -> None:
        codec.residual_pass(source, delta, target, room, threshold=THRESHOLD)

    return [
        Work("encode", "M indices/s", COUNT / 1e6, lambda: codec.encode(words, WEIGHTS)),
        Work("decode", "M indices/s", COUNT / 1e6, lambda: codec.decode_into(payload, room[:COUNT], WEIGHTS)),
        Work("residual pass", "M weights/s", WEIGHTS / 1e6, sweep),
        Work("apply", "M indices/s", COUNT / 1e6, lambda: codec.apply_coordinates(coordinates, words, 1)),
        Work("digest", "M indices/s", COUNT / 1e6, lambda: codec.digest_words(words, 1, 850)),
        Work("CRC-32C", "GB/s", len(payload) / 1e9, lambda: codec.crc32c(payload)),
    ]


def measure(budget_s: float) -> list[Rate]:
    """The rates of every path that runs here, in about `budget_s`; the path in use stays the same."""
    before, paths = cpu_path(), [path.name for path in cpu_paths() if path.runs_here]
    try:
        measured = works()
        return [_rate(work, paths, budget_s / len(measured)) for work in measured]
    finally:
        use_cpu_path(before)


def _rate(work: Work, paths: Sequence[str], budget_s: float) -> Rate:
    best = dict.fromkeys(paths, float("inf"))
    end, rounds = time.perf_counter() + budget_s, 0
    while rounds < ROUNDS_MIN or time.perf_counter() < end:
        rounds += 1
        for path in paths:
            use_cpu_path(path)
            begin = time.perf_counter()
            work.call()
            best[path] = min(best[path], time.perf_counter() - begin)
    return Rate(work.name, work.unit, {path: work.units / seconds for path, seconds in best.items()})


def render_paths(paths: Sequence[CpuPath], in_use: str, forced: str | None) -> str:
    """A line for each path: what it demands, whether it runs here, whether it is in use and why."""
    why = f"{VARIABLE} says so" if forced == in_use else "it is the best that does"
    lines = []
    for path in paths:
        state = "runs here" if path.runs_here else "does not run here"
        if path.name == in_use:
            state += f" and is in use, as {why}"
        lines.append(f"  {path.name:<10} needs {path.demand}: {state}")
    return "\n".join(["instruction-set paths of the native core", *lines])


def render_rates(rates: Sequence[Rate]) -> str:
    """A table: a work in each row, a path in each column, as a rate and as a multiple of the first path's."""
    first, *_ = paths = list(rates[0].by_path)
    lines = [" " * 28 + "".join(f"{path:>18}" for path in paths)]
    for rate in rates:
        cells = (
            f"{formatting.decimals(value, 1):>11}{formatting.times(value / rate.by_path[first]):>7}"
            for value in rate.by_path.values()
        )
        lines.append(f"  {rate.name:<14}{rate.unit:<12}" + "".join(cells))
    return "\n".join(lines)


def report(budget_s: float = 2.0) -> str:
    """Measure for about `budget_s` and return paths and rates as text."""
    about = f"one thread, updates of {formatting.grouped(COUNT)} of {formatting.grouped(WEIGHTS)} weights"
    rates = render_rates(measure(budget_s))
    return "\n".join([render_paths(cpu_paths(), cpu_path(), forced_cpu_path()), "", about, rates])


if __name__ == "__main__":
    print(report())
