"""Decides which samples a mini-batch or a round uses, and how long a run is."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import UsageError
from p2psgd.recipes.recipe import Recipe

# ----------------------------------------------------------------------------
# Which samples a mini-batch uses, and how far along the run it is.
#
# One endless walk over the data is shared by all nodes: position p is sample number p % samples of the
# permutation of epoch p // samples. Rank 0 alone walks the first positions, the warm start; the positions
# after them are dealt out one by one, rank i of n taking those with p % n = i. So over all ranks every
# sample is used exactly once per epoch, the total does not depend on the number of ranks, and step m
# of a rank follows from m by arithmetic: a trainer that was killed continues from its count of steps
# and from nothing else.
#
# Permutations come from the seed and the epoch alone, by sorting PCG64's raw output, which numpy promises
# never to change. A mini-batch may cross from one epoch into the next. The permutation of the epoch in work
# is held in memory (8 bytes a sample).


Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Walk:
    """The part of one rank in the walk over `samples` training samples.

    `warm_steps` steps are walked by rank 0 alone. `positions` is where the walk of all ranks
    ends, None for a walk without an end.
    """

    samples: int
    batch: int
    rank: int
    world_size: int
    warm_steps: int
    positions: int | None

    @property
    def own_warm_steps(self) -> int:
        """Return how many of the first steps of this rank belong to the warm start."""
        return self.warm_steps if self.rank == 0 else 0

    @property
    def steps(self) -> int | None:
        """Return how many steps this rank has in all, the last one possibly short; None without an end."""
        if self.positions is None:
            return None
        return self.own_warm_steps + -(-self._dealt // self.batch)

    @property
    def _dealt(self) -> int:
        """Return how many positions after the warm start fall to this rank."""
        assert self.positions is not None
        return max(0, -(-(self.positions - self._first_dealt) // self.world_size))

    @property
    def _first_dealt(self) -> int:
        """This rank's first position after the warm start: position p falls to rank p % world_size."""
        warm = self.warm_steps * self.batch
        return warm + (self.rank - warm) % self.world_size

    def at(self, step: int) -> Indices:
        """Return the positions of step number `step` (from 0) of this rank, ascending; empty past the end."""
        own_warm = self.own_warm_steps
        if step < own_warm:
            start = step * self.batch
            positions = np.arange(start, start + self.batch, dtype=np.int64)
        else:
            first = (step - own_warm) * self.batch
            turns = np.arange(first, first + self.batch, dtype=np.int64)
            positions = self._first_dealt + self.world_size * turns
        return positions if self.positions is None else positions[positions < self.positions]

    def samples_before(self, step: int) -> int:
        """Return how many samples this rank has used in its first `step` steps."""
        used = step * self.batch
        if self.positions is None:
            return used
        return min(used, self.own_warm_steps * self.batch + self._dealt)


class Order:
    """Turns positions of the walk into indices of samples; remembers the permutations last used."""

    REMEMBERED = 2  # a mini-batch touches at most two epochs, unless the data are smaller than it

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._permutations: OrderedDict[int, Indices] = OrderedDict()

    def rows(self, positions: Indices) -> Indices:
        """Return the indices of the samples at these positions; both (n,)."""
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
    """Return the learning rate of Strom's schedule: constant for `hold_epochs`, halved there and again after
    every `halve_every_epochs`.

    `epoch` is the progress of the run in epochs, with fraction [Strom 2015, section 4].
    """
    if epoch < hold_epochs:
        return start
    return start * 0.5 ** (1 + int((epoch - hold_epochs) / halve_every_epochs))


# ----------------------------------------------------------------------------
# How long one trainer's part of a run is, and how far it has come.
#
# A run is as long as its recipe's epochs, unless it is given a number of steps per node or a time.
# Then the learning rate's schedule is stretched or squeezed with it, so that a short run is the whole recipe
# in small, and the warm start is a fraction of the node's own steps, or of the time.
#
# By epochs and by steps everything follows from the count of steps alone. A run by time cannot
# know how many samples it will use: its warm start ends after a part of the time, what was walked until
# then is known only then, and from there on the walk goes by the same rule; a sample near that seam may be
# used twice or left out once.


NEARLY_DONE = 1 - 1e-9  # the end itself would begin another halving
UNENDING = 2**40  # mini-batches; the warm start of a run by time, until the time has come


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """A trainer's part of a run: its part of the samples, and for how long if not by the recipe's epochs.

    `rank` of `world_size`; `steps`: steps of this node, or rounds of a ring, the warm start's
    among them. UsageError when a number is out of range.
    """

    rank: int
    world_size: int
    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        check_length(self.steps, self.seconds)


class Plan:
    """The walk of one rank, its end, and its progress."""

    def __init__(self, recipe: Recipe, samples: int, part: RunPart) -> None:
        """Plan for `samples` training samples."""
        self._recipe = recipe
        self.seconds = part.seconds
        positions: int | None = None
        if part.steps is not None:
            warm = round(recipe.warm_start * part.steps)
            self._positions = (warm + part.world_size * part.steps) * recipe.batch
        elif part.seconds is not None:
            warm = UNENDING if recipe.warm_start else 0
        else:
            positions = self._positions = recipe.epochs * samples
            warm = int(recipe.warm_start * positions) // recipe.batch
        self.walk = Walk(samples, recipe.batch, part.rank, part.world_size, warm, positions)
        self.steps = self.walk.steps if part.steps is None else part.steps

    def warm_start_over(self, steps: int, *, elapsed_s: float) -> bool:
        """Say whether all ranks may train, now that rank 0 has taken this many steps."""
        if self.seconds is not None:
            return elapsed_s >= self._recipe.warm_start * self.seconds
        return steps >= self.walk.warm_steps

    def settle_warm_start(self, steps: int) -> None:
        """In a run by time, begin the dealing out after this many steps of rank 0; elsewhere it is
        settled."""
        if self.walk.warm_steps == UNENDING:
            self.walk = dataclasses.replace(self.walk, warm_steps=steps)

    def over(self, *, steps: int, elapsed_s: float) -> bool:
        """Say whether this rank has done its part."""
        if self.seconds is not None:
            return elapsed_s >= self.seconds
        assert self.steps is not None
        return steps >= self.steps

    def epoch(self, position: int, *, elapsed_s: float) -> float:
        """Return how far the recipe's schedule is at this position of the walk, 0 to the recipe's epochs."""
        done = elapsed_s / self.seconds if self.seconds is not None else position / self._positions
        return self._recipe.epochs * min(NEARLY_DONE, done)


def check_rank(index: int, world_size: int) -> None:
    """Refuse a rank that does not exist."""
    if not 0 <= index < world_size:
        raise UsageError(f"rank {index}/{world_size} does not exist: give i/n with i from 0 to n - 1")


def check_length(steps: int | None, seconds: float | None) -> None:
    """Refuse a length that is none."""
    if steps is not None and seconds is not None:
        raise UsageError("give steps or seconds, not both")
    if steps is not None and steps < 1:
        raise UsageError(f"steps = {steps} is refused: a node makes at least one step")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"seconds = {seconds:g} is refused: it must be above 0")


# ----------------------------------------------------------------------------
# What one trainer does in each round of a ring, and how many rounds there are.
#
# Everything follows from the number of the round, which is the same at all nodes: the samples, the learning
# rate, the end. So all train at one rate whatever has happened to one of them, two runs of the same recipe
# do the same, and all end after the same round; a node that was away for some rounds has left their samples
# out.
#
# The walk is that of Walk: in the warm start rank 0 has a mini-batch in each round and the others
# have none, then all have one. A dense ring needs no warm start, since the mean of N mini-batches is one
# large mini-batch: there is none, and round m uses what mini-batch m of a single node with N times the batch
# would.
#
# A run by time cannot know its rounds: each node goes by its own clock, which may differ from the others' by
# a round at the end of the warm start, at a halving of the rate and at the end. A node at the end
# leaves, and the others go on without it for the rest of their time. Such a run is never the same twice.


class RoundPlan:
    """The rounds of one rank, counted from 1."""

    def __init__(self, recipe: Recipe, samples: int, part: RunPart) -> None:
        """Plan for `samples` training samples."""
        self._recipe = recipe
        self._seconds = part.seconds
        self._warm_part = 0.0 if recipe.run.trains.dense else recipe.warm_start
        positions: int | None = None
        self.rounds: int | None = None
        if part.steps is not None:
            warm = round(self._warm_part * part.steps)
            self.rounds = part.steps
            positions = (warm + part.world_size * (part.steps - warm)) * recipe.batch
        elif part.seconds is not None:
            warm = UNENDING if self._warm_part else 0
        else:
            positions = recipe.epochs * samples
            warm = int(self._warm_part * positions) // recipe.batch
            whole, rest = divmod(positions - warm * recipe.batch, part.world_size * recipe.batch)
            self.rounds = warm + whole + (rest >= part.world_size)  # a last one only with a sample for each
        self.walk = Walk(samples, recipe.batch, part.rank, part.world_size, warm, positions)

    def settle_warm_start(self, rounds: int) -> None:
        """Set the rounds of the warm start in a run by time; elsewhere they are settled."""
        if self.walk.warm_steps == UNENDING:
            self.walk = dataclasses.replace(self.walk, warm_steps=rounds)

    def look_at_time(self, number: int, *, elapsed_s: float) -> None:
        """End the warm start of a run by time, before the round of this number, if its time has come."""
        if self._seconds is not None and elapsed_s >= self._warm_part * self._seconds:
            self.settle_warm_start(number - 1)

    def warm(self, number: int) -> bool:
        """Return whether rank 0 alone trains in this round."""
        return number <= self.walk.warm_steps

    def positions(self, number: int) -> Indices:
        """Return the positions in the walk of this rank's samples of a round, none if it only follows."""
        walk = self.walk
        if walk.rank == 0:
            return walk.at(number - 1)
        return walk.at(number - 1 - walk.warm_steps) if not self.warm(number) else walk.at(0)[:0]

    def over(self, number: int, *, elapsed_s: float) -> bool:
        """Return whether this round is no longer part of the run."""
        if self._seconds is not None:
            return elapsed_s >= self._seconds
        assert self.rounds is not None
        return number > self.rounds

    def epoch(self, number: int, *, elapsed_s: float) -> float:
        """Return how far the recipe's schedule is in this round, the same for all ranks: 0 to its epochs."""
        if self._seconds is not None:
            done = elapsed_s / self._seconds
        else:
            assert self.walk.positions is not None
            done = self.first_position(number) / self.walk.positions
        return self._recipe.epochs * min(NEARLY_DONE, done)

    def first_position(self, number: int) -> int:
        """Return the least position of all ranks' samples in this round."""
        warm, batch = self.walk.warm_steps, self.walk.batch
        alone = min(number - 1, warm)
        return (alone + (number - 1 - alone) * self.walk.world_size) * batch
