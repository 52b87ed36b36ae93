"""Which samples a mini-batch uses, and how far along the run it is.

One endless walk over the data is shared by all nodes: position p is sample number p % samples of the
permutation of epoch p // samples. Share 0 alone walks the first positions, the gentle start; the positions
after them are dealt out one by one, share i of n taking those with p % n = i. So over all shares every sample
is used exactly once per epoch, the total does not depend on the number of shares, and mini-batch m of a share
follows from m by arithmetic: a trainer that was killed continues from its count of mini-batches and from
nothing else.

Permutations come from the seed and the epoch alone, by sorting PCG64's raw output, which numpy promises never
to change. A mini-batch may cross from one epoch into the next. The permutation of the epoch in work is held
in memory (8 bytes a sample).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Walk:
    """The part of one share in the walk over `samples` training samples.

    `gentle_batches` mini-batches are walked by share 0 alone. `positions` is where the walk of all shares
    ends, None for a walk without an end.
    """

    samples: int
    batch: int
    share: int
    shares: int
    gentle_batches: int
    positions: int | None

    @property
    def own_gentle_batches(self) -> int:
        """How many of this share's first mini-batches belong to the gentle start."""
        return self.gentle_batches if self.share == 0 else 0

    @property
    def mini_batches(self) -> int | None:
        """How many mini-batches this share has in all, the last one possibly short; None without an end."""
        if self.positions is None:
            return None
        return self.own_gentle_batches + -(-self._dealt // self.batch)

    @property
    def _dealt(self) -> int:
        """How many positions after the gentle start fall to this share."""
        assert self.positions is not None
        return max(0, -(-(self.positions - self._first_dealt) // self.shares))

    @property
    def _first_dealt(self) -> int:
        """This share's first position after the gentle start: every position p falls to share p % shares."""
        gentle = self.gentle_batches * self.batch
        return gentle + (self.share - gentle) % self.shares

    def at(self, mini_batch: int) -> Indices:
        """Positions of mini-batch number `mini_batch` (from 0) of this share, ascending; empty past the
        end."""
        own_gentle = self.own_gentle_batches
        if mini_batch < own_gentle:
            start = mini_batch * self.batch
            positions = np.arange(start, start + self.batch, dtype=np.int64)
        else:
            first = (mini_batch - own_gentle) * self.batch
            turns = np.arange(first, first + self.batch, dtype=np.int64)
            positions = self._first_dealt + self.shares * turns
        return positions if self.positions is None else positions[positions < self.positions]

    def samples_before(self, mini_batch: int) -> int:
        """How many samples this share has used in its first `mini_batch` mini-batches."""
        used = mini_batch * self.batch
        if self.positions is None:
            return used
        return min(used, self.own_gentle_batches * self.batch + self._dealt)


class Order:
    """Turns positions of the walk into indices of samples; remembers the permutations last used."""

    REMEMBERED = 2  # a mini-batch touches at most two epochs, unless the data are smaller than it

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._permutations: OrderedDict[int, Indices] = OrderedDict()

    def rows(self, positions: Indices) -> Indices:
        """Indices of the samples at these positions; both (n,)."""
        epochs, places = np.divmod(positions, self._samples)
        rows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._permutation(int(epoch))[places[here]]
        return rows

    def _permutation(self, epoch: int) -> Indices:
        known = self._permutations.get(epoch)
        if known is None:
            keys = np.random.PCG64(np.random.SeedSequence([self._seed, epoch])).random_raw(self._samples)
            known = np.argsort(keys, kind="stable")
            self._permutations[epoch] = known
            if len(self._permutations) > self.REMEMBERED:
                self._permutations.popitem(last=False)
        return known


def learning_rate(start: float, epoch: float, *, hold_epochs: float, halve_every_epochs: float) -> float:
    """Strom's schedule: constant for `hold_epochs`, halved there and again after every `halve_every_epochs`.

    `epoch` is the progress of the run in epochs, with fraction [Strom 2015, section 4].
    """
    if epoch < hold_epochs:
        return start
    return start * 0.5 ** (1 + int((epoch - hold_epochs) / halve_every_epochs))
