"""A copy of the coordinates as of one moment, made slice by slice while updates go on.

Where the coordinates are replaced as a whole, by a round of a dense ring, the copy goes on with the old ones
and is that of the moment before.

Updates are additions, so the copied part is kept equal to the live one by adding to both. When the last
slice is copied, the copy is the live array of that moment: no turn of the loop copies more than a slice, and
no update waits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow


class ConsistentCopy:
    """`coordinates` is the copy, int32 (P,); what of it `advance` has not reached holds anything."""

    def __init__(self, coordinates: NDArray[np.int32], into: NDArray[np.int32]) -> None:
        """Of the live coordinates int32 (P,), that stay the same array until the copy is done or left behind,
        into memory of the same shape.
        """
        self.coordinates = into
        self.rows: list[FrontierRow] | None = None  # its frontier, if the replica has left it behind
        self._live = coordinates
        self._copied = 0

    def advance(self, count: int) -> bool:
        """Copy the next `count` coordinates. True when all are copied; then it is the live array of now, or
        that at `rows`, and stays so if no more updates are noted.
        """
        end = min(self._copied + count, len(self._live))
        self.coordinates[self._copied : end] = self._live[self._copied : end]
        self._copied = end
        return end == len(self._live)

    def note(self, words: NDArray[np.uint32], step: int) -> None:
        """The live coordinates were just updated: the same for what is copied of them."""
        codec.apply_coordinates(self.coordinates, words_below(words, self._copied), step)

    def leave_behind(self, rows: list[FrontierRow], digest: int) -> None:
        """The replica has other coordinates now; these are at the frontier `rows`, and nobody changes them
        before this is done.
        """
        del digest  # whoever gets the copy works it out of the rows
        if self.rows is None:
            self.rows = rows

    def reads(self, coordinates: NDArray[np.int32]) -> bool:
        """It copies these."""
        return self._live is coordinates


def words_below(words: NDArray[np.uint32], end: int) -> NDArray[np.uint32]:
    """Those of an update's words, sorted by index, whose index is below `end`."""
    return words[: np.searchsorted(words, np.uint32(end << 1))] if end < codec.WEIGHTS_MAX else words
