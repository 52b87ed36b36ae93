"""The residual pass, against numpy's in-place add on such arrays, and against the pass written in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.bench import Figure, best_seconds, checksum

Floats = NDArray[np.float32]

THRESHOLD = 2.0**-8
# The share of sums of two normal values with this deviation that lie beyond the threshold is about 1/850.
DEVIATION = THRESHOLD / 3.24 / 2**0.5


def pass_in_numpy(residual: Floats, delta: Floats, threshold: float) -> NDArray[np.uint32]:
    """The same pass in the fewest numpy calls known to us."""
    if not np.isfinite(delta).all():
        raise ValueError("delta is not finite")
    np.add(residual, delta, out=residual)
    indices = np.flatnonzero(np.abs(residual) > np.float32(threshold))
    negative = residual[indices] < 0
    residual[indices] += np.where(negative, np.float32(threshold), -np.float32(threshold))
    return (indices << 1 | negative).astype(np.uint32)


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, about 1/850 of them sent."""
    weights = 14_600_000 if large else 50_000
    chance = np.random.default_rng(850)
    delta, start = (chance.normal(0, DEVIATION, weights).astype(np.float32) for _ in range(2))
    native, plain, added = start.copy(), start.copy(), start.copy()
    words = np.empty(codec.indices_max(weights), np.uint32)

    count, _ = codec.residual_pass(native, delta, words, threshold=THRESHOLD)
    assert (pass_in_numpy(plain, delta, THRESHOLD) == words[:count]).all()
    assert native.tobytes() == plain.tobytes()
    result = checksum(native.tobytes())

    contenders: dict[str, tuple[Floats, Callable[[], object]]] = {
        "pass": (native, lambda: codec.residual_pass(native, delta, words, threshold=THRESHOLD)),
        "add": (added, lambda: np.add(added, delta, out=added)),
        "numpy": (plain, lambda: pass_in_numpy(plain, delta, THRESHOLD)),
    }
    seconds = dict.fromkeys(contenders, float("inf"))
    for _ in range(20 if large else 2):
        for name, (residual, work) in contenders.items():
            residual[:] = (
                start  # every pass sends the same, and each contender finds the caches in the same state
            )
            seconds[name] = min(seconds[name], best_seconds({name: work}, rounds=1)[name])
    moved = 4 * 4 * weights  # delta is read twice (looked through, then added), the residual read and written
    added_bytes = 3 * 4 * weights
    bandwidth = moved / seconds["pass"]
    return [
        Figure("pass", seconds["pass"] * 1e3, "ms", f"{weights} weights, {count} sent; {result}"),
        Figure("bandwidth", bandwidth / 1e9, "GB/s", "bytes that the pass reads and writes"),
        Figure(
            "bandwidth to in-place add's", bandwidth / (added_bytes / seconds["add"]), "times", "target 0.8"
        ),
        Figure(
            "time to in-place add's",
            seconds["pass"] / seconds["add"],
            "times",
            f"add {seconds['add'] * 1e3:.3g} ms",
        ),
        Figure("speed to numpy's pass", seconds["numpy"] / seconds["pass"], "times", "target 3"),
    ]
