"""The residual in shared memory, which outlives every trainer, and the check that all of it is finite."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.ipc import layout
from p2psgd.ipc.segments import Access, create_segment, map_segment

# ----------------------------------------------------------------------------
# A residual that is NaN or infinite somewhere: those weights get zero, and an alarm reports it.
#
# No `send` leaves such a residual: it refuses a delta that would. Code that writes outside its arrays in the
# trainer's process does, and faulty memory. Every later `send` is then refused, in every trainer that gets
# it.
#
# Zero, and not the residual of the mini-batch before, since that one still holds what was sent after it: it
# would be sent twice. All other weights keep what was proposed for them.


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
    """Return the alarm; `zeroed` has zero there, such as "the checkpoint"."""
    return (
        f"the trainer's residual was NaN or infinite at {unfinite:,} of {weights:,} weights, and {zeroed} has"
        " zero there: no delta does that, since send refuses it; look in the training script for what writes"
        " outside its arrays, and test the memory of this machine and of its GPU"
    )


# ----------------------------------------------------------------------------
# The segment: two halves, of which one is current (ring_buffer.py), and the copy that a trainer makes for a
# checkpoint.
#
# While no trainer is attached the residual stands still and can be lent as it is; the next trainer then gets
# a copy. What a trainer has left is looked through before the next one gets it, slice by slice. A trainer
# that keeps its residual elsewhere leaves a copy of it, perhaps of some mini-batches ago. In a dense ring
# there is no residual: its segment is never touched and takes no memory.


class ResidualSegment:
    """The residual of one node's trainers in a run of `weights` weights.

    The first trainer goes on with `residual`, float32 (P,), or zeros, which is `age` mini-batches behind.
    `unfinite` counts the weights that `check` has set to zero, until somebody sets it to 0.
    """

    def __init__(
        self,
        weights: int,
        *,
        dense: bool = False,
        residual: NDArray[np.float32] | None = None,
        age: int = 0,
    ) -> None:
        self.age = age  # mini-batches that it is behind, as of the last trainer's end
        self.unfinite = 0
        self._weights = weights
        self._dense = dense
        self._lent = False
        self._half = 0
        self._checked = weights if residual is None else 0  # so many of its weights are finite
        self._descriptor, self._parts = self._make(residual)

    def check(self) -> bool:
        """Look through a slice of what the next trainer gets, and set to zero what of it is NaN or infinite.

        Returns True once the whole of it is finite.
        """
        begin, end = self._checked, min(self._checked + CHECKED_WEIGHTS, self._weights)
        if not np.isfinite(self._parts[self._half, begin:end]).all():
            if self._lent:
                self._renew()
            parts = self._map(self._descriptor, Access.WRITE)
            self.unfinite += make_finite(parts[self._half, begin:end])
        self._checked = end
        return end == self._weights

    def hand_over(self) -> tuple[int, int]:
        """Return the segment's descriptor for a trainer, and the half that has the residual."""
        assert self._checked == self._weights, "check() comes first"
        if self._lent:
            self._renew()
        return self._descriptor, self._half

    def lend(self) -> NDArray[np.float32] | None:
        """Return the residual, float32 (P,), read-only, while no trainer is attached; it will never change.

        None: there is none in a dense ring.
        """
        if self._dense:
            return None
        self._lent = True
        half: NDArray[np.float32] = self._parts[self._half]
        return half

    @property
    def kept(self) -> NDArray[np.float32] | None:
        """The trainer's copy of its residual, float32 (P,), read-only, as it gave it with its last state;
        None in a dense ring.
        """
        return None if self._dense else self._parts[layout.RESIDUAL_PARTS - 1]

    def take_back(self, *, half: int, age: int) -> None:
        """Note that the trainer is gone: this half is current, and `age` steps old."""
        self._half, self.age = half, age
        if not self._dense:
            self._checked = 0

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            del self._parts  # a map holds a descriptor of its own

    def _make(self, residual: NDArray[np.float32] | None) -> tuple[int, NDArray[np.float32]]:
        """Make a segment with this residual in the current half; return its descriptor, and a map of it for
        reading.
        """
        descriptor = create_segment("p2psgd-residual", 4 * layout.RESIDUAL_PARTS * self._weights)
        try:
            if residual is not None:
                self._map(descriptor, Access.WRITE)[self._half] = residual
            parts = self._map(descriptor, Access.READ)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, parts

    def _renew(self) -> None:
        """Copy the residual to a new segment; existing maps of the old one stay as they are.

        If that fails, nothing has changed.
        """
        descriptor, parts = self._make(self._parts[self._half])
        os.close(self._descriptor)
        self._descriptor, self._parts, self._lent = descriptor, parts, False

    def _map(self, descriptor: int, access: Access) -> NDArray[np.float32]:
        count = layout.RESIDUAL_PARTS * self._weights
        parts = map_segment(descriptor, np.float32, count, access)
        return parts.reshape(layout.RESIDUAL_PARTS, self._weights)
