"""One trainer's work in a ring: a share of each round, from the first to the last.

In a sparse ring the round's share is what send() makes of a gradient; in a dense one it is minus the learning
rate times the gradient, layer by layer as back-propagation has it ready, so that the ring adds up the later
layers while the earlier ones are computed. At the end of a round all nodes have the same weights. What is
done in which round is round_plan.py's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from p2psgd.trainer.kept_state import KeptState
from p2psgd.trainer.net import Vector, layer_tensors
from p2psgd.trainer.recipe_training import LOOK_EVERY_S, Circumstances, RecipeTraining, TrainingLink
from p2psgd.trainer.round_plan import RoundPlan
from p2psgd.trainer.schedule import Indices
from p2psgd.trainer.step_times import Part

EMPTY_ROUND_S = 0.02  # after a round that brought nothing: share 0 may be starting again, and without this
# the gentle start would be over when it is back


class RingLink(TrainingLink, Protocol):
    """And what training in rounds needs besides."""

    @property
    def round(self) -> int:
        """The number of the round that this node gives to next."""

    def skip(self) -> int:
        """Give an empty share to the round of a sparse ring."""

    @property
    def proposed(self) -> Mapping[str, Vector]:
        """In a dense ring: this node's share of the round, by tensor, to be written."""

    def allreduce_begin(self, name: str) -> None:
        """In a dense ring: this tensor of the share is whole."""

    def allreduce_wait(self) -> int:
        """In a dense ring: change the weights by the mean of all shares."""


class RingTraining(RecipeTraining[RoundPlan, RingLink]):
    """Round after round. Time counts from the first: how long the nodes took to be all there is no part of
    it.
    """

    def run(self) -> None:
        """Train until the last round, or the daemon or a signal asks for the end."""
        with self._times.outside_steps("wait for the ring"):
            self._wait()
            if self._link.round == 1:
                self._begin = self._clock()
            self._receive()
        while not self._ended():
            positions = self._plan.positions(self._link.round)
            if len(positions):
                self._take_part(self._link.round, positions)
            else:
                self._follow(self._link.round)
        self._progress.ends(None if self._interrupted() else self._test_accuracy())

    def _passed_s(self, met: Circumstances, kept: KeptState | None) -> float:
        """By the clock of the life before: the wait for the first round is no part of that."""
        if kept is None or kept.kept_at is None:
            return super()._passed_s(met, kept)
        return kept.elapsed_s + max(0.0, time.time() - kept.kept_at)

    def _ended(self) -> bool:
        elapsed_s = self._elapsed_s()
        self._plan.look_at_time(self._link.round, elapsed_s=elapsed_s)
        return self._stopped() or self._plan.over(self._link.round, elapsed_s=elapsed_s)

    def _wait(self) -> None:
        """Until the next round is open, or the end is asked for."""
        while not self._link.wait(LOOK_EVERY_S) and not self._stopped():
            pass

    def _receive(self) -> int:
        """What the round has brought; nothing, at once, if the end was asked for before it was complete."""
        return 0 if self._stopped() else self._link.receive()

    def _follow(self, number: int) -> None:
        """Give nothing to this round."""
        self._progress.waits(
            f"share 0 trains alone for the gentle start, round {number} of {self._plan.walk.gentle_batches}"
            if self._plan.gentle(number)
            else f"no samples are left for this share in round {number}"
        )
        with self._times.outside_steps(f"round {number}, without this share"):
            self._link.skip()
            self._wait()
            brought = self._receive()
        if not brought:
            time.sleep(EMPTY_ROUND_S)

    def _take_part(self, number: int, positions: Indices) -> None:
        """One mini-batch, and its round."""
        link = self._link
        elapsed_s = self._elapsed_s()
        with self._times.step(f"round {number}"):
            if self._sending is None:
                loss = self._give_dense(positions, self._learning_rate(number, elapsed_s))
            else:
                loss = self._send_sparsely(number, positions, elapsed_s)
            with self._times.part("wait for the round", Part.WAITING):
                self._wait()
            with self._times.part("apply the round", Part.ADDING):
                if self._sending is None and not self._stopped():
                    link.allreduce_wait()
                else:
                    self._receive()
        epoch = self._plan.first_position(number) / self._plan.walk.samples
        self._progress.trained(len(positions), loss, epoch)

    def _give_dense(self, positions: Indices, rate: float) -> float:
        link = self._link
        proposed = link.proposed

        def begin(layer: int) -> None:
            for name in reversed(layer_tensors(layer)):  # all nodes in one order
                proposed[name][...] *= np.float32(-rate)
                with self._times.part(f"begin {name}", Part.SENDING):
                    link.allreduce_begin(name)

        def later(layer: int) -> None:
            left.append(layer)

        left: list[int] = []
        ready = begin if self._overlap else later
        loss = self._gradients.take(link.weights, positions, gradient=proposed, ready=ready)
        self._check_loss(loss)
        for layer in left:
            begin(layer)
        return loss

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.epoch(number, elapsed_s=elapsed_s)
