"""Updates applied at once, against the same with CuPy, one after the other."""

from __future__ import annotations

import numpy as np

from benchmarks import Figure, checksum
from benchmarks.gpu import Clock
from p2psgd.wire import codec
from tests.gpu.backends import Backend
from tests.wire.arrays import random_words

QUANTUM = 2.0**-20
UPDATES = 64
TARGET_US = 200.0


def run(gpu: Backend, *, large: bool) -> list[Figure]:
    """64 updates of 17,300 indices each, of 14.6 M weights."""
    cupy, clock = gpu.cupy, Clock(gpu, large=large)
    kernels = gpu.load("kernels").Kernels()
    weights = 14_600_000 if large else 50_000
    chance = np.random.default_rng(64)
    updates = [random_words(chance, weights=weights, density=17_300 / 14_600_000) for _ in range(UPDATES)]
    steps = chance.integers(1, 100, UPDATES)
    words = cupy.asarray(np.concatenate(updates))
    offsets = cupy.asarray(np.cumsum([0, *map(len, updates)]).astype(np.uint32))
    amounts = cupy.asarray((steps * QUANTUM).astype(np.float32))
    copy = cupy.zeros(weights, np.float32)
    expected = np.zeros(weights, np.float32)
    codec.apply_weights_together(
        expected, [(one, float(step) * QUANTUM) for one, step in zip(updates, steps, strict=True)]
    )
    kernels.apply(copy, words, offsets, amounts)
    assert copy.get().tobytes() == expected.tobytes()

    def with_cupy() -> None:
        for begin, end, amount in spans:
            own = words[begin:end]
            copy[own >> 1] += cupy.where(own & 1, -amount, amount)

    ends = np.cumsum([len(one) for one in updates]).tolist()
    spans = [
        (begin, end, np.float32(step * QUANTUM))
        for begin, end, step in zip([0, *ends], ends, steps.tolist(), strict=False)
    ]
    own = clock.microseconds(lambda: kernels.apply(copy, words, offsets, amounts))
    other = clock.microseconds(with_cupy)
    note = f"target {TARGET_US:.0f}; {len(words)} indices; {checksum(expected.tobytes())}"
    return [
        Figure(f"{UPDATES} updates at once", own, "us", note),
        Figure("of it an index", own * 1e3 / len(words), "ns"),
        Figure("time of CuPy to the kernel", other / own, "times", "one update after the other"),
    ]
