"""What of a node survives its crash: votes, two checkpoints, own updates; as checkpointer.py has it kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.events import Restored
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.update_log import Tail, UnreadableTailError
from p2psgd.core.view import NO_VOTES, Votes
from p2psgd.wire import codec
from tests.core.stores import MemoryStore

CHECKPOINTS_KEPT = 2


class Disk:
    """One node's. `full`: how many faults keep anything from being written now."""

    def __init__(self, node: int, key: int) -> None:
        self.key = key  # of the run's digests
        self.node = node
        self.incarnations = 0
        self.full = 0
        self.store: MemoryStore | None = None  # of the life that runs
        self.votes: Votes = NO_VOTES
        self.checkpoints: list[WriteCheckpoint] = []  # the newest last
        self.own: list[tuple[Origin, int, bytes]] = []  # in order of their making

    def fill(self) -> None:
        """From now on nothing can be written."""
        self.full += 1
        if self.store is not None:
            self.store.writable = False

    def empty(self) -> None:
        """One reason less."""
        self.full -= 1
        if self.store is not None:
            self.store.writable = not self.full

    def keep(self, checkpoint: WriteCheckpoint) -> bool:
        """One more checkpoint, unless memory is damaged."""
        if codec.digest_coordinates(checkpoint.coordinates, self.key) != checkpoint.digest:
            return False
        try:
            tail = Tail.of(checkpoint.tail)
        except UnreadableTailError:
            tail = checkpoint.tail.readable(lambda frame: True)
        written = replace(checkpoint, coordinates=checkpoint.coordinates.copy(), tail=tail)
        self.checkpoints = [*self.checkpoints, written][-CHECKPOINTS_KEPT:]
        return True

    def release_own(self) -> None:
        """Own updates that are in all checkpoints kept go."""
        oldest = {Origin(row.node, row.incarnation): row.sequence for row in self.checkpoints[0].rows}
        self.own = [each for each in self.own if each[1] > oldest.get(each[0], 0)]

    def damage(self) -> None:
        """The newest checkpoint, if it is not the only one, cannot be read any more."""
        if len(self.checkpoints) == CHECKPOINTS_KEPT:
            self.checkpoints.pop()

    def abandon(self) -> None:
        """What a replica could go on from is moved out of the way; votes stay."""
        self.checkpoints, self.own = [], []

    def restored(self, spec: RunSpec, initial: NDArray[np.int32]) -> Restored | None:
        """What a new life begins with: the newest checkpoint that fits its digest, and own updates."""
        found = self.newest()
        if found is None and self.own:
            found = Restored(initial.copy(), [], codec.digest_coordinates(initial, spec.key), [], [])
        return None if found is None else self._beyond(found)

    def newest(self) -> Restored | None:
        """The newest checkpoint that fits its digest, without own updates."""
        for saved in reversed(self.checkpoints):
            if codec.digest_coordinates(saved.coordinates, self.key) == saved.digest:
                tail = list(saved.tail)
                return Restored(
                    saved.coordinates.copy(), saved.rows, saved.digest, tail, [], saved.rounds, saved.covers
                )
        return None

    def _beyond(self, found: Restored) -> Restored:
        applied = {Origin(row.node, row.incarnation): row.sequence for row in found.rows}
        own = []
        for origin, sequence, frame in self.own:
            if sequence == applied.get(origin, 0) + 1:
                own.append(frame)
                applied[origin] = sequence
        return replace(found, own=own)
