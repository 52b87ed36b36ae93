"""Work on all weights in slices: the scrub that verifies them, and consistent copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow

# ----------------------------------------------------------------------------
# A copy of the coordinates as of one moment, made slice by slice while updates go on.
#
# Where the coordinates are replaced as a whole, by a round of a dense ring, the copy goes on with the old
# ones and is that of the moment before.
#
# Updates are additions, so the copied part is kept equal to the live one by adding to both. When the last
# slice is copied, the copy is the live array of that moment: no turn of the loop copies more than a slice,
# and no update waits.


class ConsistentCopy:
    """A copy in the making: `coordinates` int32 (P,); what `advance` has not reached is undefined."""

    def __init__(self, coordinates: NDArray[np.int32], into: NDArray[np.int32]) -> None:
        """Copy the live coordinates int32 (P,), which stay the same array until the copy is done or left
        behind, into memory of the same shape.
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

    def note(self, words: NDArray[np.uint32], magnitude: int) -> None:
        """Add an update that the live weights just got to the copied part."""
        codec.apply_coordinates(self.coordinates, words_below(words, self._copied), magnitude)

    def leave_behind(self, rows: list[FrontierRow], digest: int) -> None:
        """Go on with the old weights, since the replica has others now. The old ones are at the frontier
        `rows`, and nothing changes them before this copy is done.
        """
        del digest  # it follows from the rows
        if self.rows is None:
            self.rows = rows

    def reads(self, coordinates: NDArray[np.int32]) -> bool:
        """Return whether it copies these coordinates."""
        return self._live is coordinates


def words_below(words: NDArray[np.uint32], end: int) -> NDArray[np.uint32]:
    """Return those of an update's words, sorted by index, whose index is below `end`."""
    return words[: np.searchsorted(words, np.uint32(end << 1))] if end < codec.WEIGHTS_MAX else words


# ----------------------------------------------------------------------------
# The scrub: does memory still hold what was written to it?
#
# The digest is recomputed from the coordinates themselves, slice by slice, and compared with the running
# one, which only ever saw the updates. Updates between two slices count for the slices already seen, so the
# sum at the end is that of one moment. A round of a dense ring replaces all coordinates: the scrub then goes
# on with the old ones, which show as well whether this memory keeps what is written to it.


class Summed(Protocol):
    """Coordinates int32 (P,), and the digest that they should have under the run's `key`."""

    @property
    def coordinates(self) -> NDArray[np.int32]: ...
    @property
    def key(self) -> int: ...
    @property
    def digest(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class _LeftBehind:
    """Coordinates that were the replica's until they were replaced."""

    coordinates: NDArray[np.int32]
    key: int
    digest: int


class Scrub:
    """Verifies weights, one round after another. Make a new one after `QuantizedWeights.replace`, or call
    `leave_behind` before it.
    """

    def __init__(self, lattice: Summed) -> None:
        self._lattice = lattice
        self._seen = 0
        self._digest = 0

    def advance(self, count: int) -> bool | None:
        """Add up the next `count` coordinates. None if the round goes on; else it is over, the next one
        begins, and the coordinates have (True) or have not (False) the digest that they should have.
        """
        lattice = self._lattice
        end = min(self._seen + count, len(lattice.coordinates))
        part = codec.digest_coordinates(lattice.coordinates[self._seen : end], lattice.key, self._seen)
        self._digest = (self._digest + part) % 2**64
        self._seen = end
        if end < len(lattice.coordinates):
            return None
        intact = self._digest == lattice.digest
        self._seen = self._digest = 0
        return intact

    def note(self, words: NDArray[np.uint32], magnitude: int) -> None:
        """Count an update that the weights got, or gets before the next `advance`."""
        part = codec.digest_words(words_below(words, self._seen), magnitude, self._lattice.key)
        self._digest = (self._digest + part) % 2**64

    def leave_behind(self, rows: list[FrontierRow], digest: int) -> None:
        """Go on with the present weights, which have `digest` and stay as they are until this round is
        over: the replica is about to get others.
        """
        del rows
        if not isinstance(self._lattice, _LeftBehind):
            self._lattice = _LeftBehind(self._lattice.coordinates, self._lattice.key, digest)

    def reads(self, coordinates: NDArray[np.int32]) -> bool:
        """Return whether it verifies these coordinates."""
        return self._lattice.coordinates is coordinates


# ----------------------------------------------------------------------------
# Work on all coordinates, in slices so that no turn of the loop is long: consistent copies and the scrub.
#
# A copy, for a donor's snapshot or a checkpoint, moves on by 256 KiB in each turn. The memory for one copy,
# 4 bytes a weight, is taken and touched when the replica is made, and used again and again: the kernel gives
# fresh memory in pages of 2 MiB, and the turn that touches one first waits for it. Only a copy that is made
# while the one before is still being written or sent gets memory of its own. The scrub begins every 12
# failure timeouts and takes 60 ticks, 12 s at the usual failure timeout.


SLICE: Final = 1 << 16  # coordinates
SCRUB_TICKS: Final = 60

Deliver = Callable[[NDArray[np.int32], list[FrontierRow]], None]


class SliceScanner:
    """Runs at most one copy and one scrub at a time."""

    def __init__(self, state: State, timing: Timing, now: float) -> None:
        self.scrub_due = now + timing.gone_s
        self.clean: bool | None = None  # what the last scrub found, None before the first,
        self.scrubbed: float | None = None  # and when it ended
        # Memory for the next copy, touched and not only allocated; None while a copy is in it.
        self.spare: NDArray[np.int32] | None = state.lattice.coordinates.copy()
        self._state = state
        self._timing = timing
        self.copying: ConsistentCopy | None = None  # while it is under way another must wait
        self._deliver: Deliver | None = None
        self._scrub: Scrub | None = None
        self._at_once = False  # the scrub under way, or the next

    @property
    def scrubbing(self) -> bool:
        """Return whether a scrub is under way."""
        return self._scrub is not None

    def begin_copy(self, deliver: Deliver) -> None:
        """Copy the coordinates; `deliver` gets the copy and its frontier, in asynchronous mode at the moment
        when it is the state of that moment, and sees to it that `take_back` gets the copy when nobody reads
        it any more.
        """
        assert self.copying is None
        live, spare, self.spare = self._state.lattice.coordinates, self.spare, None
        self.copying = ConsistentCopy(live, np.empty_like(live) if spare is None else spare)
        self._deliver = deliver
        self._state.sweeps.append(self.copying)

    def take_back(self, coordinates: NDArray[np.int32]) -> None:
        """Take back the memory of a copy for the next one."""
        self.spare = coordinates

    def turn(self) -> bool:
        """Copy one slice; True if another turn is needed."""
        if self.copying is None:
            return False
        if not self.copying.advance(SLICE):
            return True
        copy, deliver = self.copying, self._deliver
        assert deliver is not None
        self._state.sweeps.remove(copy)
        self.copying = self._deliver = None
        deliver(copy.coordinates, self._state.frontier.rows() if copy.rows is None else copy.rows)
        return False

    def scrub_soon(self, now: float) -> None:
        """Have the next scrub begin now, and take its usual time."""
        self.scrub_due = now

    def scrub_at_once(self, now: float) -> None:
        """Verify all of the memory in the next tick: something has shown already that it is wrong, and
        nothing goes on before that is settled.
        """
        if self._scrub is not None:  # it may go over coordinates that were left behind
            self._state.sweeps.remove(self._scrub)
            self._scrub = None
        self.scrub_due, self._at_once = now, True

    def tick(self, now: float) -> bool | None:
        """Scrub one slice, if it is time; return the result once the scrub is whole."""
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
        """Drop copy and scrub, since the weights were replaced."""
        if self.copying is not None:
            self.take_back(self.copying.coordinates)
        self.copying = self._deliver = self._scrub = None
        self._at_once = False
        self._state.sweeps.clear()
