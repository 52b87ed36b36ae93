"""Sums of floating-point numbers that do not depend on their order: rounded to int64, then added.

The numbers of an evaluation are the gradient, tensor by tensor, and after it the loss. They fall into groups:
each tensor is one, or of very many tensors several together, and the loss. A group has a limit L: its numbers
are below 2^L in magnitude and are rounded to multiples of 2^(L - bits), where `bits` leaves room for the sum
of all portions in 62 bits. So nothing can overflow once a portion fits. The exponent of a group is the least
E such that all its numbers are below 2^E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GROUPS_MAX: Final = 256  # with that of the loss
PORTIONS_MAX: Final = 4096
SUM_BITS: Final = 62
NOTHING: Final = -2000  # the exponent of a group of zeros: below that of any number
EXPONENT_MIN, EXPONENT_MAX = -1080, 1024  # of any other group
PIECE_NUMBERS: Final = 1 << 18  # rounded at once: 2 MiB stay in the cache
POWER_MIN, POWER_MAX = -1022, 1023  # of 2 as a float64 with all its digits

Exponents = NDArray[np.int16]
Sums = NDArray[np.int64]


def count_groups(tensors: int) -> int:
    """Return the number of groups in a run of `tensors` tensors."""
    return min(tensors, GROUPS_MAX - 1) + 1


def borders_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each group begins, and where the last one ends, for tensors of these sizes."""
    groups = count_groups(len(sizes)) - 1
    starts = np.cumsum([0, *sizes])
    first = [len(sizes) * group // groups for group in range(groups)]
    return np.append(starts[first], [starts[-1], starts[-1] + 1]).astype(np.int64)


def bits_of(portions: int) -> int:
    """Return how many bits a portion's numbers have, that the sum of all has at most SUM_BITS."""
    return SUM_BITS - math.ceil(math.log2(portions))


def exponents_of(loss: float, gradient: NDArray[np.float64], borders: NDArray[np.int64]) -> Exponents:
    """Return the exponent of each group; all numbers are finite."""
    found = np.full(len(borders) - 1, NOTHING, np.int16)
    for group, (begin, end) in enumerate(pairwise(borders[:-1])):
        largest = max(float(gradient[begin:end].max()), -float(gradient[begin:end].min()))
        if largest:
            found[group] = math.frexp(largest)[1]
    if loss:
        found[-1] = math.frexp(loss)[1]
    return found


def round_numbers(
    loss: float, gradient: NDArray[np.float64], limits: Exponents, borders: NDArray[np.int64], portions: int
) -> Sums:
    """Round what is within the limits to int64, (P + 1,)."""
    bits = bits_of(portions)
    rounded = np.empty(len(gradient) + 1, np.int64)
    buffer = np.empty(min(len(gradient), PIECE_NUMBERS), np.float64)
    for limit, (begin, end) in zip(limits[:-1], pairwise(borders[:-1]), strict=True):
        for start in range(int(begin), int(end), PIECE_NUMBERS):
            piece = gradient[start : min(start + PIECE_NUMBERS, int(end))]
            scaled = buffer[: len(piece)]
            _scale(piece, bits - int(limit), scaled)
            rounded[start : start + len(piece)] = np.rint(scaled, out=scaled)
    rounded[-1] = int(np.rint(np.ldexp(loss, bits - int(limits[-1]))))
    return rounded


def read_sums(
    sums: Sums, limits: Exponents, borders: NDArray[np.int64], portions: int
) -> tuple[float, NDArray[np.float64]]:
    """Return the loss and the gradient, float64 (P,), of the sums of all portions: infinite if too large."""
    bits = bits_of(portions)
    gradient = np.empty(len(sums) - 1, np.float64)
    with np.errstate(over="ignore"):
        for limit, (begin, end) in zip(limits[:-1], pairwise(borders[:-1]), strict=True):
            _scale(sums[begin:end], int(limit) - bits, gradient[begin:end])
        return float(np.ldexp(np.float64(sums[-1]), int(limits[-1]) - bits)), gradient


def _scale(numbers: NDArray[Any], power: int, scaled: NDArray[np.float64]) -> None:
    """Write numbers x 2^power, as float64 and rounded once. Where 2^power is a float64 a product gives the
    same bits as ldexp, which takes five times as long.
    """
    if POWER_MIN <= power <= POWER_MAX:
        np.multiply(numbers, math.ldexp(1.0, power), out=scaled)
    else:
        np.ldexp(numbers, power, out=scaled)
