"""How long one trainer's part of a run is, and how far it has come.

A run is as long as its recipe's epochs, unless it is given a number of mini-batches per node or a time. Then
the learning rate's schedule and the gentle start are stretched or squeezed with it, so that a short run is
the whole recipe in small.

By epochs and by mini-batches everything follows from the count of mini-batches alone. A run by time cannot
know how many samples it will use: its gentle start ends after a part of the time, what was walked until then
is known only then, and from there on the walk goes by the same rule; a sample near that seam may be used
twice or left out once.
"""

from __future__ import annotations

import dataclasses
import math

from p2psgd.errors import UsageError
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.schedule import Walk

NEARLY_DONE = 1 - 1e-9  # the end itself would begin another halving
UNENDING = 2**40  # mini-batches; the gentle start of a run by time, until the time has come


class Plan:
    """The walk of one share, its end, and its progress."""

    def __init__(
        self, recipe: Recipe, samples: int, share: tuple[int, int], steps: int | None, seconds: float | None
    ) -> None:
        """Plan for `samples` training samples; give `steps` (mini-batches of this node), `seconds`, or
        neither.

        Raises UsageError when a number is out of range.
        """
        index, shares = share
        check_length(steps, seconds)
        check_share(index, shares)
        self._recipe = recipe
        self.seconds = seconds
        positions: int | None = None
        if steps is not None:
            gentle = round(recipe.gentle_start * steps)
            self._positions = (gentle + shares * steps) * recipe.batch
        elif seconds is not None:
            gentle = UNENDING if recipe.gentle_start else 0
        else:
            positions = self._positions = recipe.epochs * samples
            gentle = int(recipe.gentle_start * positions) // recipe.batch
        self.walk = Walk(samples, recipe.batch, index, shares, gentle, positions)
        self.mini_batches = self.walk.mini_batches if steps is None else steps

    def gentle_start_over(self, mini_batches: int, *, elapsed_s: float) -> bool:
        """Say whether all shares may train, now that share 0 has taken this many mini-batches."""
        if self.seconds is not None:
            return elapsed_s >= self._recipe.gentle_start * self.seconds
        return mini_batches >= self.walk.gentle_batches

    def settle_gentle_start(self, mini_batches: int) -> None:
        """In a run by time, begin the dealing out after this many mini-batches of share 0; elsewhere it is
        settled."""
        if self.walk.gentle_batches == UNENDING:
            self.walk = dataclasses.replace(self.walk, gentle_batches=mini_batches)

    def over(self, *, mini_batches: int, elapsed_s: float) -> bool:
        """Say whether this share has done its part."""
        if self.seconds is not None:
            return elapsed_s >= self.seconds
        assert self.mini_batches is not None
        return mini_batches >= self.mini_batches

    def epoch(self, position: int, *, elapsed_s: float) -> float:
        """How far the recipe's schedule is at this position of the walk, 0 to the recipe's epochs."""
        done = elapsed_s / self.seconds if self.seconds is not None else position / self._positions
        return self._recipe.epochs * min(NEARLY_DONE, done)


def check_share(index: int, shares: int) -> None:
    """Refuse a share that does not exist."""
    if not 0 <= index < shares:
        raise UsageError(f"share {index}/{shares} does not exist: give i/n with i from 0 to n - 1")


def check_length(steps: int | None, seconds: float | None) -> None:
    """Refuse a length that is none."""
    if steps is not None and seconds is not None:
        raise UsageError("give steps or seconds, not both")
    if steps is not None and steps < 1:
        raise UsageError(f"steps = {steps} is refused: a node trains at least one mini-batch")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"seconds = {seconds:g} is refused: it must be above 0")
