"""What a dense round must come to, worked out beside the core: sums in the order of the ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]


def ring_sum(shares: Sequence[Numbers | None], *, half: bool) -> Numbers:
    """The sum of a bucket's shares (K,), by place in the ring (None: no share), as it must be at everybody.

    Chunk c begins at place c and goes once around; `half`: what travels is rounded to float16.
    """
    numbers = len(next(share for share in shares if share is not None))
    total = np.zeros(numbers, np.float32)
    places = len(shares)
    for chunk in range(places):
        piece = slice(numbers * chunk // places, numbers * (chunk + 1) // places)
        partial = np.zeros(piece.stop - piece.start, np.float32)
        for step in range(places):
            share = shares[(chunk + step) % places]
            if share is not None:
                partial = partial + share[piece]
            if half:
                partial = partial.astype(np.float16).astype(np.float32)
        total[piece] = partial
    return total


def step_weights(weights: Numbers, sums: Numbers, contributors: int) -> Numbers:
    """The weights after a round: moved by the mean of the shares."""
    return weights + sums * np.float32(1 / contributors)
