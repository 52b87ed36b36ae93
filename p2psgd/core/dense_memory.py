"""The memory of a dense ring that daemon and trainer share, as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUMBERS_MIN: Final = 1 << 18  # also in a run of few weights: scripts sum arrays of their own through it
CHANGES: Final = 0  # kinds of bucket: changes of the run's weights,
ARRAY: Final = 1  # a script's own array


@dataclass(frozen=True, slots=True, eq=False)
class DenseMemory:
    """`shares` float32 (M,): what this node's trainer gives to the round, its own until it opens the next
    one; `arrays` float32 (M,): the same of an array, which may come while changes are being made. `sums`
    float32 (2, M): what the ring makes of all shares; rounds take the two halves in turn, so that a trainer
    can read the last sums while the next come in. M = max(P, NUMBERS_MIN).
    """

    shares: NDArray[np.float32]
    arrays: NDArray[np.float32]
    sums: NDArray[np.float32]

    def given(self, kind: int) -> NDArray[np.float32]:
        """Where buckets of this kind lie."""
        return self.arrays if kind == ARRAY else self.shares


def make_dense_memory(weights: int) -> DenseMemory:
    """Of a node that has had no trainer yet."""
    numbers = max(weights, NUMBERS_MIN)
    shares, arrays = np.zeros((2, numbers), np.float32)
    return DenseMemory(shares, arrays, np.zeros((2, numbers), np.float32))
