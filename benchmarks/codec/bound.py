"""Compute how many bits an update must take, and how many the plainest form of the same code takes.

The bound is for a uniform choice of indices: where their density differs by layer or over time, a code that
adapts may need less.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.codec.sets import Words

RICE_MAX = 24


def bound_bits(words: Words, weights: int) -> float:
    """log2 C(weights, count), and the entropy of "the same sign as the one before"."""
    count = len(words)
    choices = math.lgamma(weights + 1) - math.lgamma(count + 1) - math.lgamma(weights - count + 1)
    return choices / math.log(2) + sign_bits(words)


def sign_bits(words: Words) -> float:
    """Return the fewest bits for the signs: one for the first, then the entropy of change or no change."""
    if len(words) < 2:
        return float(len(words))
    changes = np.count_nonzero(np.diff(words & 1))
    pairs = len(words) - 1
    return 1 + sum(part * math.log2(pairs / part) for part in (changes, pairs - changes) if part)


def rice_bits(words: Words) -> int:
    """Return the bits of an update under the best single Rice parameter, one bit for each sign, no header."""
    gaps = gaps_of(words)
    return min(int((gaps >> k).sum(dtype=np.int64)) + (k + 2) * len(gaps) for k in range(RICE_MAX + 1))


def gaps_of(words: Words) -> Words:
    """Return the gap between each index and the one before."""
    indices = words >> 1
    gaps = np.empty_like(indices)
    gaps[0] = indices[0]
    np.subtract(indices[1:], indices[:-1], out=gaps[1:])
    gaps[1:] -= 1
    return gaps
