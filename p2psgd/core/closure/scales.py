"""The limits to which numbers are rounded, agreed without a word: they follow from the last evaluation.

Both rules depend on the exponents of all portions alone, and not on which node computed what, or when: the
same evaluations give the same limits whatever happened on the way.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from p2psgd.wire.fixed_point import EXPONENT_MAX, NOTHING, Exponents

FIRST: Final = 8  # of the very first attempt, which only measures if this is far off
HEADROOM: Final = 10  # bits that numbers may grow by from one evaluation to the next
SLACK: Final = 20  # bits that they may shrink by, HEADROOM included, before rounding is too coarse


def first_limits(groups: int) -> Exponents:
    """Return the limits of a run's first evaluation."""
    return np.full(groups, FIRST, np.int16)


def next_limits(limits: Exponents, exponents: Exponents) -> Exponents:
    """Return those of the next evaluation, after one with these limits and exponents."""
    grown = np.minimum(exponents + HEADROOM, EXPONENT_MAX)
    return np.where(exponents == NOTHING, limits, grown).astype(np.int16)


def corrected_limits(limits: Exponents, exponents: Exponents) -> Exponents | None:
    """Return other limits with which the evaluation must be made again; None if it may stand.

    The exponents are of all portions at this point, so with these nothing is refused again.
    """
    wrong = (exponents > limits) | ((exponents != NOTHING) & (exponents < limits - SLACK))
    if not wrong.any():
        return None
    return np.where(exponents == NOTHING, limits, exponents).astype(np.int16)
