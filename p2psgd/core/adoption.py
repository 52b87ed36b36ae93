"""From a snapshot that has come whole to a replica that has all it had before, and nothing of it twice.

What is applied here and not in the snapshot is applied to the snapshot's coordinates first, from the log,
some in each turn, while the replica goes on as it is. When all of it is in, the two change places in one
step: nobody ever sees, and nothing is ever sent from, a state in between.
"""

from __future__ import annotations

from typing import Final

from p2psgd.core.contradictions import Place
from p2psgd.core.damage import Damage
from p2psgd.core.frontier import Origin
from p2psgd.core.snapshot_intake import SnapshotIntake
from p2psgd.core.state import State
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow

BYTES_PER_TURN: Final = 128 * 1024  # of frames, each counted with FRAME_BYTES for what it costs by itself
FRAME_BYTES: Final = 512


class ContradictionError(Exception):
    """A snapshot says something else than this node of an origin's digest at an update."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


class Adoption:
    """Of one snapshot by one state; `applied_again` updates so far."""

    def __init__(self, state: State, intake: SnapshotIntake) -> None:
        """`state.lost_by` must have said 0."""
        self.applied_again = 0
        self._state = state
        self._intake = intake
        self._digest = intake.digest
        self._rows = {Origin(row.node, row.incarnation): row for row in intake.rows}
        self._frame_bytes: dict[Origin, int] = {}  # of what was applied again
        self._version = state.frontier.version

    def turn(self) -> bool:
        """Apply some; True when nothing is lacking any more, and `finish` may be called in this turn.

        ContradictionError if the first of an origin does not go on from what the snapshot states, LookupError
        if it is the log here that is wrong. Nothing has changed then.
        """
        frontier = self._state.frontier
        if self._state.spec.dense:
            return True  # nothing is applied to it: the snapshot is what was agreed on, this node is not
        least = frontier.version - self._version + 1  # more than came since the last turn, so that it ends
        self._version = frontier.version
        left = BYTES_PER_TURN
        for origin in frontier:
            while self._sequence(origin) < frontier.sequence(origin):
                if left <= 0 and least <= 0:
                    return False
                left -= self._apply_next(origin) + FRAME_BYTES
                least -= 1
        for origin in self._frame_bytes:
            if self._rows[origin].digest != frontier.digest(origin):
                words = f"the updates of {origin.node:016x} in the log do not lead to its digest"
                raise LookupError(words)
        return True

    def finish(self, *, damaged: bool) -> str:
        """Change places. If the old weights were `damaged`, returns a sentence on which."""
        damage = Damage(self._state) if damaged else None
        self._state.adopt(self._intake, self._rows.values(), self._digest, self._frame_bytes)
        return "" if damage is None else damage.describe(self._intake.rows, self._state)

    def discard(self) -> None:
        """It is not to be finished."""
        self._intake.discard()

    def _sequence(self, origin: Origin) -> int:
        row = self._rows.get(origin)
        return 0 if row is None else row.sequence

    def _apply_next(self, origin: Origin) -> int:
        """One more update of this origin; returns the bytes of its frame."""
        row = self._rows.get(origin) or FrontierRow(*origin, 0, 0)
        header, words, size = next(self._state.held(origin, row.sequence, row.sequence + 1))
        contribution = self._state.contribution(words, header.step)
        if (row.digest + contribution) % 2**64 != header.digest:
            if origin in self._rows and origin not in self._frame_bytes:
                raise ContradictionError((origin, row.sequence))
            who = f"update {header.sequence} of {origin.node:016x} in the log"
            raise LookupError(f"{who} does not go on from the one before")
        magnitude, _ = codec.apply_coordinates(self._intake.coordinates, words, header.step)
        self._intake.magnitude_max = max(self._intake.magnitude_max, magnitude)
        self._digest = (self._digest + contribution) % 2**64
        self._rows[origin] = row._replace(
            sequence=header.sequence, digest=header.digest, mini_batch=header.mini_batch
        )
        self._frame_bytes[origin] = self._frame_bytes.get(origin, 0) + size
        self.applied_again += 1
        return size
