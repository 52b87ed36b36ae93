"""The residual pass, against numpy's in-place add on such arrays, and against the pass written in numpy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Figure, best_seconds, checksum
from p2psgd.wire import codec

Floats = NDArray[np.float32]

THRESHOLD = 2.0**-8
# The share of sums of two normal values with this deviation that lie beyond the threshold is about 1/850.
DEVIATION = THRESHOLD / 3.24 / 2**0.5
STREAM_BYTES = 4  # what a weight of a float32 array takes


def pass_in_numpy(source: Floats, delta: Floats, target: Floats, threshold: float) -> NDArray[np.uint32]:
    """Make the same pass in the fewest numpy calls known to us."""
    np.add(source, delta, out=target)
    if not np.isfinite(target).all():
        raise ValueError("a sum is not finite")
    indices = np.flatnonzero(np.abs(target) > np.float32(threshold))
    negative = target[indices] < 0
    target[indices] += np.where(negative, np.float32(threshold), -np.float32(threshold))
    return (indices << 1 | negative).astype(np.uint32)


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, about 1/850 of them sent."""
    weights = 14_600_000 if large else 50_000
    chance = np.random.default_rng(850)
    delta, source = (chance.normal(0, DEVIATION, weights).astype(np.float32) for _ in range(2))
    half = delta.astype(np.float16)
    bits = (delta.view(np.uint32) >> 16).astype(np.uint16)
    brain: Any = SimpleNamespace(dtype=SimpleNamespace(name="bfloat16", isnative=True), view=lambda _: bits)
    target, added, other = np.empty_like(source), source.copy(), np.empty_like(source)
    words = np.empty(codec.indices_max(weights), np.uint32)

    def sweep(values: Any) -> int:
        return codec.residual_pass(source, values, target, words, threshold=THRESHOLD)[0]

    expected = pass_in_numpy(source, delta, target, THRESHOLD)
    residual = target.tobytes()
    count = sweep(delta)
    assert (expected == words[:count]).all()
    assert residual == target.tobytes()

    contenders: dict[str, Callable[[], object]] = {
        "add": lambda: np.add(added, delta, out=added),
        "pass": lambda: sweep(delta),
        "numpy": lambda: pass_in_numpy(source, delta, target, THRESHOLD),
        "float16": lambda: sweep(half),
        "bfloat16": lambda: sweep(brain),
    }
    seconds = dict.fromkeys(contenders, float("inf"))
    for _ in range(40 if large else 2):
        for name, work in contenders.items():
            other.fill(1)  # each contender finds the caches full of what nobody uses
            seconds[name] = min(seconds[name], best_seconds({name: work}, rounds=1)[name])

    def against_add(name: str) -> float:
        return seconds[name] / seconds["add"]

    moved = 3 * STREAM_BYTES * weights  # as the add: two arrays are read, one is written
    return [
        Figure("pass", seconds["pass"] * 1e3, "ms", f"{weights} weights, {count} sent; {checksum(residual)}"),
        Figure("bandwidth", moved / seconds["pass"] / 1e9, "GB/s", "three arrays, each moved once"),
        Figure("bandwidth to in-place add's", 1 / against_add("pass"), "times", "target 0.8"),
        Figure(
            "time to in-place add's",
            against_add("pass"),
            "times",
            f"target 1.25; add {seconds['add'] * 1e3:.3g} ms",
        ),
        Figure("float16, time to in-place add's", against_add("float16"), "times", "of float32"),
        Figure("bfloat16, time to in-place add's", against_add("bfloat16"), "times", "of float32"),
        Figure("speed to numpy's pass", seconds["numpy"] / seconds["pass"], "times", "target 3"),
    ]
