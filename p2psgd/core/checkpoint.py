"""The core's part of a checkpoint: a consistent copy, its frontier, and the frames that go with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.context import Parts
from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import FrontierRow


class Checkpoints:
    """One at a time, from `want` to `written`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wanted = False
        self._writing: dict[Origin, int] | None = None
        self._coordinates: NDArray[np.int32] | None = None  # lent to who writes them

    def want(self) -> None:
        """A checkpoint is due."""
        self._wanted = True
        self.try_begin()

    def try_begin(self) -> None:
        """Begin the copy that is wanted; later, if another is under way or being written, or the weights are
        damaged.
        """
        busy = self._parts.sweeping.copying or self._writing is not None
        if self._wanted and not busy and not self._parts.node.quarantined:
            self._parts.sweeping.begin_copy(self._order)

    def _order(self, coordinates: NDArray[np.int32], rows: list[FrontierRow]) -> None:
        self._wanted = False
        state = self._parts.state
        self._coordinates = coordinates
        self._writing = {Origin(row.node, row.incarnation): row.sequence for row in rows}
        tail = state.log.tail(self._saved_by_others)
        self._parts.out.order(WriteCheckpoint(coordinates, rows, state.digest_of(rows), tail, state.rounds))

    def _saved_by_others(self, origin: Origin) -> int:
        acks, others = self._parts.acks, self._parts.other_members
        return min((acks.durable(member, origin) for member in others), default=0)

    def written(self, *, successfully: bool) -> None:
        """The copy ordered last is on disk, or could not be written."""
        if successfully and self._writing is not None:
            self._parts.saved.clear()
            self._parts.saved.update(self._writing)
        self._writing = None
        if self._coordinates is not None:
            self._parts.state.log.release()
            self._parts.sweeping.take_back(self._coordinates)
            self._coordinates = None
