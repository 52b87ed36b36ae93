"""Work on all coordinates, in slices so that no turn of the loop is long: consistent copies and the scrub.

A copy, for a donor's snapshot or a checkpoint, moves on by 256 KiB in each turn. The memory for one copy, 4
bytes a weight, is taken and touched when the replica is made, and used again and again: the kernel gives
fresh memory in pages of 2 MiB, and the turn that touches one first waits for it. Only a copy that is made
while the one before is still being written or sent gets memory of its own. The scrub begins every 12
patiences and takes 60 ticks, 12 s at the usual patience.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.consistent_copy import ConsistentCopy
from p2psgd.core.scrub import Scrub
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.wire.messages import FrontierRow

SLICE: Final = 1 << 16  # coordinates
SCRUB_TICKS: Final = 60

Deliver = Callable[[NDArray[np.int32], list[FrontierRow]], None]


class Sweeping:
    """At most one copy and one scrub at a time."""

    def __init__(self, state: State, timing: Timing, now: float) -> None:
        self.scrub_due = now + timing.gone_s
        self.clean: bool | None = None  # what the last scrub found, None before the first,
        self.scrubbed: float | None = None  # and when it ended
        # Memory for the next copy, touched and not only allocated; None while a copy is in it.
        self.spare: NDArray[np.int32] | None = state.lattice.coordinates.copy()
        self._state = state
        self._timing = timing
        self._copy: ConsistentCopy | None = None
        self._deliver: Deliver | None = None
        self._scrub: Scrub | None = None
        self._at_once = False  # the scrub under way, or the next

    @property
    def copying(self) -> bool:
        """A copy is under way: another must wait."""
        return self._copy is not None

    @property
    def scrubbing(self) -> bool:
        """A scrub is under way."""
        return self._scrub is not None

    def begin_copy(self, deliver: Deliver) -> None:
        """Copy the coordinates; `deliver` gets the copy and its frontier, in asynchronous mode at the moment
        when it is the state of that moment, and sees to it that `take_back` gets the copy when nobody reads
        it any more.
        """
        assert self._copy is None
        live, spare, self.spare = self._state.lattice.coordinates, self.spare, None
        self._copy = ConsistentCopy(live, np.empty_like(live) if spare is None else spare)
        self._deliver = deliver
        self._state.sweeps.append(self._copy)

    def take_back(self, coordinates: NDArray[np.int32]) -> None:
        """A copy is not needed any more: the next one may have its memory."""
        self.spare = coordinates

    def turn(self) -> bool:
        """One slice of the copy; True if another turn is needed."""
        if self._copy is None:
            return False
        if not self._copy.advance(SLICE):
            return True
        copy, deliver = self._copy, self._deliver
        assert deliver is not None
        self._state.sweeps.remove(copy)
        self._copy = self._deliver = None
        deliver(copy.coordinates, self._state.frontier.rows() if copy.rows is None else copy.rows)
        return False

    def scrub_at_once(self, now: float) -> None:
        """Something has shown already that memory is wrong: look at all of it in the next tick, since nothing
        goes on before that is settled.
        """
        if self._scrub is not None:  # it may go over coordinates that were left behind
            self._state.sweeps.remove(self._scrub)
            self._scrub = None
        self.scrub_due, self._at_once = now, True

    def pass_time(self, now: float) -> bool | None:
        """One slice of the scrub, if it is time; its result once it is whole."""
        if self._scrub is None:
            if now < self.scrub_due:
                return None
            self._scrub = Scrub(self._state.lattice)
            self._state.sweeps.append(self._scrub)
        weights = len(self._state.lattice.coordinates)
        result = self._scrub.advance(weights if self._at_once else -(-weights // SCRUB_TICKS))
        if result is not None:
            result &= self._state.fits(self._state.frontier.rows(), self._state.lattice.digest)
            self._state.sweeps.remove(self._scrub)
            self._scrub, self._at_once = None, False
            self.clean, self.scrubbed = result, now
            self.scrub_due = now + self._timing.gone_s
        return result

    def abort(self) -> None:
        """The coordinates were replaced."""
        if self._copy is not None:
            self.take_back(self._copy.coordinates)
        self._copy = self._deliver = self._scrub = None
        self._at_once = False
        self._state.sweeps.clear()
