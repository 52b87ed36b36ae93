"""Words as the core takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def uint32(words: Sequence[int]) -> NDArray[np.uint32]:
    return np.array(words, np.uint32)


def random_words(chance: np.random.Generator, *, weights: int, density: float) -> NDArray[np.uint32]:
    """Each index with probability `density`, each with a sign at random."""
    indices = np.flatnonzero(chance.random(weights) < density)
    return (indices << 1 | chance.integers(0, 2, len(indices))).astype(np.uint32)
