"""A residual that is NaN or infinite somewhere: those weights get zero, and a person is told.

No `send` leaves such a residual: it refuses a delta that would. Code that writes outside its arrays in the
trainer's process does, and faulty memory. Every later `send` is then refused, in every trainer that gets it.

Zero, and not the residual of the mini-batch before, since that one still holds what was sent after it: it
would be sent twice. All other weights keep what was proposed for them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

CHECKED_WEIGHTS: Final = 1 << 18  # at a time: about 0.2 ms, and 256 KiB of memory


def make_finite(residual: NDArray[np.float32]) -> int:
    """Set to zero what of it is NaN or infinite; return how many weights that were."""
    unfinite = 0
    for begin in range(0, residual.size, CHECKED_WEIGHTS):
        piece = residual[begin : begin + CHECKED_WEIGHTS]
        finite = np.isfinite(piece)
        if not finite.all():
            piece[~finite] = 0
            unfinite += piece.size - int(np.count_nonzero(finite))
    return unfinite


def describe_unfinite(unfinite: int, weights: int, zeroed: str) -> str:
    """The alarm; `zeroed` has zero there, such as "the checkpoint"."""
    return (
        f"the trainer's residual was NaN or infinite at {unfinite:,} of {weights:,} weights, and {zeroed} has"
        " zero there: no delta does that, since send refuses it; look in the training script for what writes"
        " outside its arrays, and test the memory of this machine and of its GPU"
    )
