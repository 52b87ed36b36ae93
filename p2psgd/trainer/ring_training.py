"""One trainer's work in a ring: a share of each round, from the first to the last.

In a sparse ring the round's share is what send() makes of a gradient; in a dense one it is minus the learning
rate times the gradient, layer by layer as back-propagation has it ready, so that the ring adds up the later
layers while the earlier ones are computed. At the end of a round all nodes have the same weights. What is
done in which round is round_plan.py's; this file knows no signals, files or command lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from p2psgd.trainer.data import Dataset
from p2psgd.trainer.evaluation import loss_and_accuracy
from p2psgd.trainer.gradients import Gradients, check_loss
from p2psgd.trainer.kept_state import KeptState, read_kept
from p2psgd.trainer.net import Vector, layer_tensors
from p2psgd.trainer.progress import Progress
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.round_plan import RoundPlan
from p2psgd.trainer.schedule import Indices, learning_rate
from p2psgd.trainer.sparse_sending import SparseLink, SparseSending
from p2psgd.trainer.step_times import Part, StepTimes
from p2psgd.trainer.trace import Trace
from p2psgd.trainer.training import LOOK_EVERY_S, KeepingLink

EMPTY_ROUND_S = 0.02  # after a round that brought nothing: share 0 may be starting again, and without this
# the gentle start would be over when it is back


class RingLink(KeepingLink, SparseLink, Protocol):
    """What training in rounds needs besides."""

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


class RingTraining:
    """A recipe at work on one share of the data, in rounds."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: RoundPlan,
        link: RingLink,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        elapsed_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        overlap: bool = True,
    ) -> None:
        """As Training's, but that time counts from the first round: how long the nodes took to be all there
        is no part of it. `overlap` false: a dense share is begun only when all of it is whole, to measure
        what overlapping gains.
        """
        self._recipe, self._dataset, self._plan, self._link = recipe, dataset, plan, link
        self._interrupted, self._clock, self._overlap = interrupted, clock, overlap
        kept = read_kept(link.restored)
        self._begin: float = clock() - max(elapsed_s, kept.elapsed_s if kept else 0.0)
        self._times = StepTimes(link, trace)
        self._gradients = Gradients(recipe, dataset, self._times)
        self._sending: SparseSending | None = None
        if not recipe.run.trains.dense:
            self._sending = SparseSending(recipe, self._gradients.shape, link)
            self._gradient = np.empty(self._gradients.shape.weights, np.float32)
        if kept:
            plan.settle_gentle_start(kept.gentle_batches)
        if kept and self._sending is not None:
            self._sending.restore(kept.taus)
            if kept.mini_batches == link.mini_batches:
                self._sending.rate = kept.rate
        samples = plan.walk.samples_before(link.mini_batches)
        self._progress = Progress(
            link, samples, clock, loss=kept.loss if kept else None, more=self._times.figures
        )
        link.keep(self._keep)

    def run(self) -> None:
        """Train until the last round, or the daemon or a signal asks for the end.

        Raises UsageError when the training diverges; the link's own errors pass through.
        """
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
        accuracy = None
        if not self._interrupted():
            _, accuracy = loss_and_accuracy(self._gradients.shape, self._link.weights, self._dataset.test)
        self._progress.ends(accuracy)

    def _keep(self) -> dict[str, Any]:
        """What a later life goes on from, as of the last round."""
        sending = self._sending
        return KeptState(
            mini_batches=self._link.mini_batches,
            elapsed_s=self._elapsed_s(),
            gentle_batches=self._plan.walk.gentle_batches,
            taus=tuple(sending.taus) if sending else (),
            rate=sending.rate if sending else None,
            loss=self._progress.loss,
        ).as_dict()

    def _elapsed_s(self) -> float:
        return self._clock() - self._begin

    def _stopped(self) -> bool:
        return self._interrupted() or self._link.stopping

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
                loss = self._give_sparse(self._sending, number, positions, elapsed_s)
            with self._times.part("wait for the round", Part.WAITING):
                self._wait()
            with self._times.part("apply the round", Part.ADDING):
                if self._sending is None and not self._stopped():
                    link.allreduce_wait()
                else:
                    self._receive()
        epoch = self._plan.first_position(number) / self._plan.walk.samples
        self._progress.trained(len(positions), loss, epoch)

    def _give_sparse(
        self, sending: SparseSending, number: int, positions: Indices, elapsed_s: float
    ) -> float:
        loss = self._gradients.take(self._link.weights, positions, gradient=self._gradient)
        self._check_loss(loss, sending.taus)
        if sending.rate is None and number > 1:
            sending.rate = self._learning_rate(number - 1, elapsed_s)
        with self._times.part("send update", Part.SENDING):
            sending.send(self._gradient, self._learning_rate(number, elapsed_s))
        return loss

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
        self._check_loss(loss, [])
        for layer in left:
            begin(layer)
        return loss

    def _check_loss(self, loss: float, taus: list[float]) -> None:
        check_loss(loss, self._recipe, mini_batches=self._link.mini_batches, taus=taus)

    def _learning_rate(self, number: int, elapsed_s: float) -> float:
        return learning_rate(
            self._recipe.learning_rate,
            self._plan.epoch(number, elapsed_s=elapsed_s),
            hold_epochs=self._recipe.hold_epochs,
            halve_every_epochs=self._recipe.halve_every_epochs,
        )
