"""Count in the replica how many nodes hold each shard of the data, and how often it was used.

The shard counts are a replica's second vector, whose coordinates follow those of the weights: for each shard
how many nodes hold it, and after these for each how often it was used. A change of theirs goes out with a
mini-batch as one more update, and has the fate of its gradient: what of a node's work has reached the others
is counted there, what was lost with it is not, and joiners, checkpoints and snapshots have the counts like
the weights. What they are used for is data/assignment.py's.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.wire import codec
from p2psgd.wire.update import UpdateHeader, pack_update

Part = tuple[int, NDArray[np.uint32]]  # a step, and words


class ShardCounts:
    """Changes of the counts that one link has made and that are not in its replica yet."""

    def __init__(self, answer: AttachAnswer) -> None:
        self._begin, self._coordinates = answer.weights, answer.coordinates
        self._shards = answer.shards
        self._quantum = 2.0**answer.quantum_log2
        self._changes: list[tuple[int, int]] = []  # coordinate, by how much
        self._done = 0  # so many changes before these are in the replica

    @property
    def made(self) -> int:
        """Return how many changes were made so far."""
        return self._done + len(self._changes)

    def change(self, shard: int, *, held: int = 0, used: int = 0) -> None:
        """Add to a shard's counts."""
        if not 0 <= shard < self._shards:
            raise TrainerError(f"there is no shard {shard} in a run with {self._shards}")
        for coordinate, amount in ((shard, held), (self._shards + shard, used)):
            if amount:
                self._changes.append((self._begin + coordinate, amount))

    def counts(self, replica: NDArray[np.float32], published: int) -> NDArray[np.int64]:
        """Return the counts (2, shards): how many hold each, and how often it was used; `replica` is the
        working copy's vector of them, and the first `published` changes are in it.
        """
        counts = np.rint(replica / np.float32(self._quantum)).astype(np.int64)
        for coordinate, amount in self._left(published):
            counts[coordinate - self._begin] += amount
        both: NDArray[np.int64] = counts.reshape(2, -1)
        return both

    def parts(self, published: int) -> list[Part]:
        """Return the sum of the changes after the first `published`, as updates.

        How often shards were used comes first, since peers may look after any of them: one that nobody holds
        any more and that is not counted as used yet would be taken once more.
        """
        sums: dict[int, int] = defaultdict(int)
        for coordinate, amount in self._left(published):
            sums[coordinate] += amount
        by_step: dict[int, list[int]] = defaultdict(list)
        for coordinate, amount in sorted(sums.items(), reverse=True):
            if amount:
                by_step[abs(amount)].append(coordinate << 1 | (amount < 0))
        return [(magnitude, np.array(words[::-1], np.uint32)) for magnitude, words in by_step.items()]

    def body(self, part: Part) -> bytes:
        """Return the changes as an UPDATE, for the working copy."""
        return pack_unsigned(*part, self._coordinates)

    def _left(self, published: int) -> list[tuple[int, int]]:
        """Forget those that were published; the others."""
        del self._changes[: max(0, published - self._done)]
        self._done = max(self._done, published)
        return self._changes


def pack_unsigned(magnitude: int, words: NDArray[np.uint32], coordinates: int) -> bytes:
    """Return the body of an UPDATE from nowhere, for the working copy of a trainer."""
    header = UpdateHeader(
        node=0, incarnation=1, sequence=1, digest=0, steps=1, magnitude=magnitude, count=len(words)
    )
    return pack_update(header, codec.encode(words, coordinates))
