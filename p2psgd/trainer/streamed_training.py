"""Mini-batch after mini-batch on shards that the nodes share out among them as they go (data/shards.py).

There are no shares: a node trains on whichever shard it takes next, and the run is over when every shard was
used in every epoch. How far that is, which the learning rate follows, all nodes read from the same counts.
Share 0, which trains alone in the gentle start, is the only share with a meaning.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Final, Protocol

import numpy as np

from p2psgd.data.shards import shuffled
from p2psgd.data.turn import ShardLink, Use
from p2psgd.trainer.data import Dataset, samples_of
from p2psgd.trainer.plan import NEARLY_DONE, Plan
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.recipe_training import Circumstances
from p2psgd.trainer.training import AsyncLink, Training

NO_SHARE: Final = (1, 2)  # of a node that was told none: it is not the first one
UNLIMITED: Final = 2**20 - 1  # epochs of a run by mini-batches or by time


class StreamedLink(AsyncLink, ShardLink, Protocol):
    """And what dealing out shards needs besides."""


class StreamedPlan(Plan):
    """How long a run on shards is: `samples` in all of them."""

    def __init__(
        self, recipe: Recipe, samples: int, share: tuple[int, int], steps: int | None, seconds: float | None
    ) -> None:
        super().__init__(recipe, samples, share, steps, seconds)
        self.walk = dataclasses.replace(self.walk, positions=None)  # of which only the gentle start is walked
        self._steps = steps

    @property
    def epochs(self) -> int:
        """At most so many."""
        return self._recipe.epochs if self._steps is None and self.seconds is None else UNLIMITED

    def over(self, *, mini_batches: int, elapsed_s: float) -> bool:
        """Say whether this node has done its part, whatever is left of the data."""
        if self._steps is None and self.seconds is None:
            return False
        return super().over(mini_batches=mini_batches, elapsed_s=elapsed_s)

    def progress(self, through: float, *, mini_batches: int, elapsed_s: float) -> float:
        """How far the recipe's schedule is, 0 to its epochs; `through` the data the nodes are, in epochs."""
        if self.seconds is not None:
            done = elapsed_s / self.seconds
        elif self._steps is not None:
            done = mini_batches / self._steps
        else:
            done = through / self._recipe.epochs
        return self._recipe.epochs * min(NEARLY_DONE, done)


class StreamedTraining(Training):
    """Of one life of a trainer."""

    _plan: StreamedPlan

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: StreamedPlan,
        link: StreamedLink,
        met: Circumstances,
    ) -> None:
        """`dataset` has shards."""
        super().__init__(recipe, dataset, plan, link, met)
        shards = dataset.shards
        assert shards is not None
        self._shards, self._shard_link = shards, link
        self._samples = np.array([shard.samples for shard in shards.list.shards])
        self._through = 0.0  # the data, in epochs

    def run(self) -> None:
        """Train until all shards were used, or the daemon or a signal asks for the end."""
        self._wait_for_gentle_start()
        uses = self._shards.each(
            self._shard_link, epochs=self._plan.epochs, says=self._say, ended=self._ended
        )
        with contextlib.closing(uses):
            for use in uses:
                if not self._train_on_shard(use):
                    break
        self._end()

    def _train_on_shard(self, use: Use) -> bool:
        """All of it; False if the end has come before."""
        samples = samples_of(use.shard, use.arrays, "train")
        self._gradients.turn_to(samples)
        order = shuffled(use, self._recipe.seed)
        used = np.minimum(self._shard_link.shard_counts[1], self._plan.epochs)
        total = int(self._samples.sum())
        before = float(used @ self._samples)
        for begin in range(0, len(order), self._recipe.batch):
            if self._ended():
                return False
            rows = order[begin : begin + self._recipe.batch]
            self._through = (before + begin) / total
            if begin + len(rows) == len(order):
                use.count_as_used()
            self._settle_gentle_start()
            self._train_on(rows, self._through)
        return True

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.progress(self._through, mini_batches=number - 1, elapsed_s=elapsed_s)

    def _say(self, words: str) -> None:
        if words:
            self._progress.waits(words)
