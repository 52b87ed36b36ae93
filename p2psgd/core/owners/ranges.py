"""The owners among the members of a view, and the range of the weights that each of them owns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire.update import by_digits

Range = tuple[int, int]

# Each owner costs each node the headers of a contribution and of an update, and relieves the others of what
# comes in. So few own a small net: six, and in large runs about as many as make both equal. In a large net
# headers are little beside a range of this size, and all own. docs/decisions/owners.md has the figures.
OWNERS_MIN: Final = 6
RANGE_WEIGHTS: Final = 2**18


def owner_count(members: int, weights: int) -> int:
    """Return how many of these members own weights: those with the lowest node ids, each at least one. Of an
    owner of none nobody would learn that it has ended a round: it publishes only what it covers.
    """
    return min(members, weights, max(OWNERS_MIN, isqrt(members // 2), weights // RANGE_WEIGHTS))


def range_of(place: int, owners: int, weights: int) -> Range:
    """Return the first weight, and the one after the last, of the owner at this place of the view."""
    return weights * place // owners, weights * (place + 1) // owners


def ranges_of(usable: Sequence[int], owners: int, weights: int) -> list[Range]:
    """Return the ranges that the owners at these places have, ascending, while the others are gone: a range
    goes to the next one, and to the last one what comes after it.
    """
    ends = [range_of(place, owners, weights)[1] for place in usable]
    if ends:
        ends[-1] = weights
    return list(pairwise([0, *ends]))


def cut(words: NDArray[np.uint32], owners: int, weights: int) -> list[NDArray[np.uint32]]:
    """Return the words of each owner's range, in their order: views of `words` uint32 (n,), sorted."""
    ends = [range_of(place, owners, weights)[1] << 1 for place in range(owners - 1)]
    return np.split(words, np.searchsorted(words, np.array(ends, np.uint64)))


def as_updates(
    indices: NDArray[np.int64], values: NDArray[np.int32], *, kinds_max: int, magnitude_max: int
) -> list[tuple[int, NDArray[np.uint32]]]:
    """Return updates, a magnitude and words each, that add exactly `values` (n,), none of them 0, to the
    coordinates `indices` (n,), ascending.

    One for each magnitude among the values if there are at most `kinds_max`; else one for each bit.
    """
    negative = (values < 0).astype(np.uint32)
    sizes = np.abs(values.astype(np.int64))
    words = (indices << 1).astype(np.uint32) | negative
    kinds = np.unique(sizes)
    if len(kinds) <= kinds_max and int(kinds.max(initial=0)) <= magnitude_max:
        return [(int(kind), words[sizes == kind]) for kind in kinds]
    return by_digits(words, sizes, magnitude_max=magnitude_max)
