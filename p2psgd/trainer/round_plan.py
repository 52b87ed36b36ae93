"""What one trainer does in each round of a ring, and how many rounds there are.

Everything follows from the number of the round, which is the same at all nodes: the samples, the learning
rate, the end. So all train at one rate whatever has happened to one of them, two runs of the same recipe do
the same, and all end after the same round; a node that was away for some rounds has left their samples out.

The walk is that of schedule.py: in the gentle start share 0 has a mini-batch in each round and the others
have none, then all have one. A dense ring needs no gentle start, since the mean of N mini-batches is one
large mini-batch: there is none, and round m uses what mini-batch m of a single node with N times the batch
would.

A run by time cannot know its rounds: each node goes by its own clock, which may differ from the others' by a
round at the end of the gentle start, at a halving of the rate and at the end. Whoever is at the end leaves,
and the others go on without it for the rest of their time. Such a run is never the same twice.
"""

from __future__ import annotations

import dataclasses

from p2psgd.trainer.plan import NEARLY_DONE, UNENDING, check_length, check_share
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.schedule import Indices, Walk


class RoundPlan:
    """The rounds of one share, counted from 1."""

    def __init__(
        self, recipe: Recipe, samples: int, share: tuple[int, int], steps: int | None, seconds: float | None
    ) -> None:
        """Plan for `samples` training samples; give `steps` (rounds, the gentle start's among them),
        `seconds`, or neither.

        Raises UsageError when a number is out of range.
        """
        index, shares = share
        check_length(steps, seconds)
        check_share(index, shares)
        self._recipe = recipe
        self._seconds = seconds
        self._gentle_part = 0.0 if recipe.run.trains.dense else recipe.gentle_start
        positions: int | None = None
        self.rounds: int | None = None
        if steps is not None:
            gentle = round(self._gentle_part * steps)
            self.rounds = steps
            positions = (gentle + shares * (steps - gentle)) * recipe.batch
        elif seconds is not None:
            gentle = UNENDING if self._gentle_part else 0
        else:
            positions = recipe.epochs * samples
            gentle = int(self._gentle_part * positions) // recipe.batch
            whole, rest = divmod(positions - gentle * recipe.batch, shares * recipe.batch)
            self.rounds = gentle + whole + (rest >= shares)  # a last one only with a sample for each
        self.walk = Walk(samples, recipe.batch, index, shares, gentle, positions)

    def settle_gentle_start(self, rounds: int) -> None:
        """In a run by time: the gentle start was so many rounds; elsewhere it is settled."""
        if self.walk.gentle_batches == UNENDING:
            self.walk = dataclasses.replace(self.walk, gentle_batches=rounds)

    def look_at_time(self, number: int, *, elapsed_s: float) -> None:
        """Before the round of this number: end the gentle start of a run by time if its time has come."""
        if self._seconds is not None and elapsed_s >= self._gentle_part * self._seconds:
            self.settle_gentle_start(number - 1)

    def gentle(self, number: int) -> bool:
        """Whether share 0 alone trains in this round."""
        return number <= self.walk.gentle_batches

    def positions(self, number: int) -> Indices:
        """Positions in the walk of this share's samples of a round, none if it only follows."""
        walk = self.walk
        if walk.share == 0:
            return walk.at(number - 1)
        return walk.at(number - 1 - walk.gentle_batches) if not self.gentle(number) else walk.at(0)[:0]

    def over(self, number: int, *, elapsed_s: float) -> bool:
        """Whether this round is no longer part of the run."""
        if self._seconds is not None:
            return elapsed_s >= self._seconds
        assert self.rounds is not None
        return number > self.rounds

    def epoch(self, number: int, *, elapsed_s: float) -> float:
        """How far the recipe's schedule is in this round, the same for all shares: 0 to its epochs."""
        if self._seconds is not None:
            done = elapsed_s / self._seconds
        else:
            assert self.walk.positions is not None
            done = self.first_position(number) / self.walk.positions
        return self._recipe.epochs * min(NEARLY_DONE, done)

    def first_position(self, number: int) -> int:
        """The least position of all shares' samples in this round."""
        gentle, batch = self.walk.gentle_batches, self.walk.batch
        alone = min(number - 1, gentle)
        return (alone + (number - 1 - alone) * self.walk.shares) * batch
