"""A recipe at work on one share of the data: what training in rounds (ring_training.py) and without them
(training.py) have in common.

Where it goes on after a crash or a restart follows from the link's count of mini-batches, and from what it
has kept: taus, rate, time, and the mean loss. These files know no signals, files or command lines.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from p2psgd.trainer.backend import HOST, Backend
from p2psgd.trainer.data import Dataset
from p2psgd.trainer.evaluation import loss_and_accuracy
from p2psgd.trainer.gradients import Gradients, check_loss
from p2psgd.trainer.kept_state import KeptState, read_kept
from p2psgd.trainer.net import Vector
from p2psgd.trainer.plan import Plan
from p2psgd.trainer.progress import Progress, Reports
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.round_plan import RoundPlan
from p2psgd.trainer.schedule import Indices, learning_rate
from p2psgd.trainer.sparse_sending import SparseLink, SparseSending
from p2psgd.trainer.step_times import Part, StepTimes, Timed
from p2psgd.trainer.trace import Trace

LOOK_EVERY_S = 0.25  # how soon a wait notices a signal


class TrainingLink(Reports, Timed, SparseLink, Protocol):
    """What every training needs of a link, in rounds or not; p2psgd.attach() gives one."""

    @property
    def weights(self) -> Vector:
        """(P,) as of the last receive() and send()."""

    @property
    def mini_batches(self) -> int:
        """How often this node's trainers have sent, over all their lives."""

    @property
    def stopping(self) -> bool:
        """The daemon asks for an end."""

    def receive(self) -> int:
        """Apply what has arrived; returns how many updates."""

    @property
    def restored(self) -> Mapping[str, Any] | None:
        """What an earlier trainer of this node kept last, if one did."""

    def keep(self, make_state: Callable[[], Mapping[str, Any]]) -> None:
        """Have what this returns kept for a later one."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstances:
    """Of a training, besides what it trains.

    `backend` computes gradients; the link's arrays are of its kind. `interrupted` is asked between
    mini-batches. `elapsed_s` of a run by time have passed before. `overlap` false: a dense share is begun
    only when all of it is whole, to measure what overlapping gains.
    """

    backend: Backend = HOST
    interrupted: Callable[[], bool] = lambda: False
    elapsed_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    trace: Trace | None = None
    overlap: bool = True


PlanType = TypeVar("PlanType", bound=Plan | RoundPlan)
LinkType = TypeVar("LinkType", bound=TrainingLink)


class RecipeTraining(abc.ABC, Generic[PlanType, LinkType]):
    """Of one life of a trainer, which goes on where an earlier one ended."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: PlanType,
        link: LinkType,
        met: Circumstances,
    ) -> None:
        self._backend = met.backend
        self._recipe, self._dataset, self._plan, self._link = recipe, dataset, plan, link
        self._interrupted, self._clock, self._overlap = met.interrupted, met.clock, met.overlap
        kept = read_kept(link.restored)
        self._begin: float = met.clock() - self._passed_s(met, kept)
        self._times = StepTimes(link, met.trace)
        self._gradients = Gradients(recipe, dataset, self._times, met.backend)
        self._sending: SparseSending | None = None  # none in a dense ring
        if not recipe.run.trains.dense:
            self._sending = SparseSending(recipe, self._gradients.shape, link)
            self._gradient = met.backend.xp.empty(self._gradients.shape.weights, "float32")
        if kept:
            plan.settle_gentle_start(kept.gentle_batches)
        if kept and self._sending is not None:
            self._sending.restore(kept.taus)
            if kept.mini_batches == link.mini_batches:
                self._sending.rate = kept.rate
        samples = plan.walk.samples_before(link.mini_batches)
        self._progress = Progress(
            link, samples, met.clock, loss=kept.loss if kept else None, more=self._times.figures
        )
        link.keep(self._keep)

    @abc.abstractmethod
    def run(self) -> None:
        """Train until the end of the plan, or until the daemon or a signal asks for the end.

        Raises UsageError when the training diverges; the link's own errors pass through.
        """

    @abc.abstractmethod
    def _epoch(self, number: int, elapsed_s: float) -> float:
        """How far the recipe's schedule is at a mini-batch or round, from 1: 0 to its epochs."""

    def _passed_s(self, met: Circumstances, kept: KeptState | None) -> float:
        """How much of a run by time was over before this life."""
        return max(met.elapsed_s, kept.elapsed_s if kept else 0.0)

    def _keep(self) -> dict[str, Any]:
        """What a later life goes on from, as of the last mini-batch."""
        sending = self._sending
        return KeptState(
            mini_batches=self._link.mini_batches,
            elapsed_s=self._elapsed_s(),
            gentle_batches=self._plan.walk.gentle_batches,
            taus=tuple(sending.taus) if sending else (),
            rate=sending.rate if sending else None,
            loss=self._progress.loss,
            kept_at=time.time(),
        ).as_dict()

    def _elapsed_s(self) -> float:
        return self._clock() - self._begin

    def _stopped(self) -> bool:
        return self._interrupted() or self._link.stopping

    def _learning_rate(self, number: int, elapsed_s: float) -> float:
        return learning_rate(
            self._recipe.learning_rate,
            self._epoch(number, elapsed_s),
            hold_epochs=self._recipe.hold_epochs,
            halve_every_epochs=self._recipe.halve_every_epochs,
        )

    def _send_sparsely(self, number: int, positions: Indices, elapsed_s: float) -> float:
        """Take and send the gradient of mini-batch or round `number`, of the samples at these positions of
        the walk; return their mean loss. In a short mini-batch a sample weighs as much as in any other.
        """
        sending = self._sending
        assert sending is not None, "shares of a dense ring are given otherwise"
        loss = self._gradients.take(self._link.weights, positions, gradient=self._gradient)
        self._check_loss(loss)
        if len(positions) < self._recipe.batch:
            self._gradient *= len(positions) / self._recipe.batch
        if sending.rate is None and number > 1:
            sending.rate = self._learning_rate(number - 1, elapsed_s)
        rate = self._learning_rate(number, elapsed_s)
        with self._times.part("send update", Part.SENDING):
            sending.send(self._gradient, rate)
        return loss

    def _check_loss(self, loss: float) -> None:
        taus = self._sending.taus if self._sending else []
        check_loss(loss, self._recipe, mini_batches=self._link.mini_batches, taus=taus)

    def _test_accuracy(self) -> float:
        shape, test = self._gradients.shape, self._dataset.test
        return loss_and_accuracy(shape, self._link.weights, test, self._backend)[1]
