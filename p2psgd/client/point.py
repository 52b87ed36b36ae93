"""The point at which a trainer trains that adds its own residual: weights + residual, in arrays of the
script.

A link that knows the point needs no delta. What a step has changed is in the point already, so the residual
is point - weights, in one pass. A send moves a part of it from the residual to the weights, and leaves the
point where it is; a received update moves both. So no array of all weights is added up beside that pass.

The point is float32 and rounds where the weights are exact. While it stays where it is, what it is off by is
in the residual of the next pass, and so is not lost. Where it is set anew, the residual below half a unit in
its last place is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec

Floats = NDArray[np.float32]
Amounts = Sequence[tuple[NDArray[np.uint32], float]]  # words, and how far each moves a weight

PIECE_NUMBERS = 1 << 18  # moved at a time, so that a difference stays in the cache


class Point:
    """A point in contiguous float32 arrays, which have all weights one after the other."""

    def __init__(self, arrays: Sequence[Floats]) -> None:
        self.move_to(arrays)

    def move_to(self, arrays: Sequence[Floats]) -> None:
        """Go on in other memory, whose numbers are the point."""
        self._arrays = list(arrays)
        self._begins = [0, *accumulate(each.size for each in arrays)]

    @property
    def size(self) -> int:
        """The number of weights."""
        return self._begins[-1]

    def pieces(self, begin: int, end: int, *, most: int | None = None) -> Iterator[tuple[int, Floats]]:
        """Yield what lies in a range of weights, and where each begins; no piece has over `most` weights."""
        place = bisect_right(self._begins, begin) - 1
        while begin < end:
            start, array = self._begins[place], self._arrays[place]
            stop = min(end, self._begins[place + 1])
            if most is not None:
                stop = min(stop, begin + most)
            if stop > begin:
                yield begin, array[begin - start : stop - start]
            begin = stop
            place += begin == self._begins[place + 1]

    def set_to(self, weights: Floats, residual: Floats | None) -> None:
        """Become weights + residual, (P,) both, or the weights."""
        for begin, piece in self.pieces(0, self.size):
            end = begin + piece.size
            if residual is None:
                piece[...] = weights[begin:end]
            else:
                np.add(weights[begin:end], residual[begin:end], out=piece)

    def replace(self, weights: Floats, fetch: Callable[[], None]) -> None:
        """Go along while `fetch` gives the `weights` (P,) other numbers, at the same distance from them."""
        for begin, piece in self.pieces(0, self.size):
            np.subtract(piece, weights[begin : begin + piece.size], out=piece)
        try:
            fetch()
        finally:  # else the script would be left with the distance as its model
            for begin, piece in self.pieces(0, self.size):
                np.add(piece, weights[begin : begin + piece.size], out=piece)

    def apply(self, amounts: Amounts) -> None:
        """Apply updates, whose words may be of coordinates beyond the weights, too."""
        cuts = np.array(self._begins, np.int64) << 1
        places = [np.searchsorted(words, cuts) for words, _ in amounts]
        for number, array in enumerate(self._arrays):
            begin = np.uint32(cuts[number])
            parts = [
                (words[its[number] : its[number + 1]] - begin, amount)
                for (words, amount), its in zip(amounts, places, strict=True)
                if its[number] < its[number + 1]
            ]
            if parts:
                codec.apply_weights_together(array, parts)

    def waiting(self, weights: Floats) -> Callable[[NDArray[np.int64]], Floats]:
        """Return what gives the residual of the next pass at some places."""

        def at(places: NDArray[np.int64]) -> Floats:
            found: Floats = np.empty(places.size, np.float32)
            order = places.argsort(kind="stable")  # quick: they ascend, but for one place or so
            ascending = places[order]
            cuts = np.searchsorted(ascending, self._begins).tolist()
            for array, start, begin, end in zip(self._arrays, self._begins, cuts, cuts[1:], strict=False):
                found[order[begin:end]] = array[ascending[begin:end] - start]
            return found - weights[places]

        return at

    def largest(self, weights: Floats) -> float:
        """Return the largest magnitude in the residual of the next pass."""
        largest = 0.0
        for begin, piece in self.pieces(0, self.size, most=PIECE_NUMBERS):
            largest = max(largest, float(np.abs(piece - weights[begin : begin + piece.size]).max()))
        return largest

    def is_finite(self, begin: int, end: int) -> bool:
        """Return whether no number in a range is NaN or infinite."""
        return all(bool(np.isfinite(piece).all()) for _, piece in self.pieces(begin, end, most=PIECE_NUMBERS))
