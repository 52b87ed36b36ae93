"""The right weights once more: those of a checkpoint, and the updates since then from the log.

Made beside the ones in use, in pieces so that no turn of the loop is long, while updates go on coming; they
are not touched. Nothing that is in memory as a number of its own is relied on: the checkpoint has its digest,
each frame its checksum and the digest that it leads to, and at the end the copy must have the digest that
follows from these.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from p2psgd.core.damage import NAMED_MAX, name_weights
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.lattice import magnitude_of
from p2psgd.core.restored import Restored
from p2psgd.core.scrub import Scrub
from p2psgd.core.state import State
from p2psgd.core.sweeping import SLICE
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow

PIECE_WORDS: Final = 1 << 15  # applied in one turn, in a good millisecond,
UPDATE_WORDS: Final = 256  # where an update takes as long as so many words, however few it has


class Rebuild:
    """From a checkpoint of this replica to its frontier; nobody else may write the checkpoint's coordinates.

    While `advance` has not been True, whoever owns the log keeps what it holds.
    """

    def __init__(self, state: State, saved: Restored) -> None:
        self.coordinates = saved.coordinates
        self.key = state.spec.key
        self.digest = state.digest_of(saved.rows)
        self.magnitude_max = 0  # of the largest coordinate
        self.applied = 0  # updates since the checkpoint
        self._rows = {Origin(row.node, row.incarnation): row for row in saved.rows}
        self._state = state
        self._version = state.frontier.version
        self._scrub = Scrub(self)
        self._compared = 0
        self._wrong: list[int] = []  # the first of the weights that differ,
        self._wrong_count = 0  # and how many there are

    @property
    def rows(self) -> list[FrontierRow]:
        """The frontier of the copy."""
        return sorted(self._rows.values())

    def advance(self) -> bool | None:
        """One piece of the work: None if there is more to do; else the copy has all that the replica has, and
        has (True) or has not (False) the digest that it must have. LookupError if the log no longer
        has a frame that is needed, or has it damaged.
        """
        if not self._catch_up():
            return None
        live, start = self._state.lattice.coordinates, self._compared
        self._compared = min(start + SLICE, len(live))
        part = slice(start, self._compared)
        wrong = np.flatnonzero(live[part] != self.coordinates[part])  # both change alike from here on
        if not self._state.spec.dense:
            self.magnitude_max = max(self.magnitude_max, magnitude_of(self.coordinates[part]))
        self._wrong += (start + wrong[: NAMED_MAX - len(self._wrong)]).tolist()
        self._wrong_count += len(wrong)
        return self._scrub.advance(SLICE)

    def describe(self) -> str:
        """Which of the weights in use are wrong, in one sentence; once `advance` was True."""
        if not self._wrong_count:
            return "no weight was wrong, but the digest kept of them"
        live = self._state.lattice.coordinates
        return name_weights(self._state.spec, live, self.coordinates, self._wrong, self._wrong_count)

    def _row(self, origin: Origin) -> FrontierRow:
        return self._rows.get(origin) or FrontierRow(*origin, 0, 0)

    def _catch_up(self) -> bool:
        """Apply what the copy lacks; False if that was too much for one turn."""
        left, frontier = PIECE_WORDS, self._state.frontier
        least = frontier.version - self._version + 1  # more than came since the last turn, so that it ends
        self._version = frontier.version
        if self._state.spec.dense and self._rows.keys() <= {RING}:
            if self._row(RING).sequence != frontier.sequence(RING):
                before, now = self._row(RING).mini_batch, frontier.round
                raise LookupError(f"it is of round {before}, this node of {now}, and a dense ring has no log")
            return True
        for origin in frontier:
            row = self._row(origin)
            for header, words, _ in self._state.held(origin, row.sequence, frontier.sequence(origin)):
                if left <= 0 and least <= 0:
                    return False
                contribution = self._state.contribution(words, header.step)
                if (row.digest + contribution) % 2**64 != header.digest:
                    raise LookupError(
                        f"update {header.sequence} of {origin.node:016x} does not go on from the one before"
                    )
                magnitude, _ = codec.apply_coordinates(self.coordinates, words, header.step)
                if self._compared:  # what came before is looked at as a whole
                    self.magnitude_max = max(self.magnitude_max, magnitude)
                self._scrub.note(words, header.step)
                self.digest = (self.digest + contribution) % 2**64
                row = FrontierRow(*origin, header.sequence, header.digest, mini_batch=header.mini_batch)
                self._rows[origin] = row
                self.applied += 1
                left -= len(words) + UPDATE_WORDS
                least -= 1
        return True
