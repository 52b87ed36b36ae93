"""One trainer's work on its link: wait for the gentle start, then mini-batch after mini-batch [Strom 2015,
section 3].

receive() brings the peers' updates, the gradient is taken at the weights as they then are, send() adds minus
the learning rate times the gradient to the residual and sends what has grown beyond the step. When the rate
changes the residual changes with it: what waits is a sum of gradients, as in [Strom 2015], and none of it is
sent for the sole reason that the step is smaller now. Where it goes on after a crash or a restart follows
from the link's count of mini-batches, and from what it has kept: taus, rate, time, and the mean loss. This
file knows no signals, files or command lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from p2psgd.trainer.data import Dataset
from p2psgd.trainer.evaluation import loss_and_accuracy
from p2psgd.trainer.gradients import Gradients, check_loss
from p2psgd.trainer.kept_state import KeptState, read_kept
from p2psgd.trainer.net import Vector
from p2psgd.trainer.plan import Plan
from p2psgd.trainer.progress import Progress, Reports
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.schedule import learning_rate
from p2psgd.trainer.sparse_sending import SparseLink, SparseSending
from p2psgd.trainer.step_times import Part, StepTimes, Timed
from p2psgd.trainer.trace import Trace

QUIET_S = 30.0  # so long a trainer waits without hearing anything before it starts all the same
LOOK_EVERY_S = 0.25  # how soon a wait notices a signal


class KeepingLink(Reports, Timed, Protocol):
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


class TrainingLink(KeepingLink, SparseLink, Protocol):
    """And what asynchronous training needs besides."""

    @property
    def peer_mini_batches(self) -> dict[int, int]:
        """`mini_batches` of every peer, as far as known here."""


class Training:
    """A recipe at work on one share of the data."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: Plan,
        link: TrainingLink,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        elapsed_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
    ) -> None:
        """`elapsed_s` of a run by time have passed before; `interrupted` is asked between mini-batches."""
        self._recipe, self._dataset, self._plan, self._link = recipe, dataset, plan, link
        self._interrupted = interrupted
        self._clock = clock
        kept = read_kept(link.restored)
        self._begin: float = clock() - max(elapsed_s, kept.elapsed_s if kept else 0.0)
        self._times = StepTimes(link, trace)
        self._gradients = Gradients(recipe, dataset, self._times)
        self._sending = SparseSending(recipe, self._gradients.shape, link)
        self._gradient = np.empty(self._gradients.shape.weights, np.float32)
        if kept:
            plan.settle_gentle_start(kept.gentle_batches)
            self._sending.restore(kept.taus)
            if kept.mini_batches == link.mini_batches:
                self._sending.rate = kept.rate
        samples = plan.walk.samples_before(link.mini_batches)
        self._progress = Progress(
            link, samples, clock, loss=kept.loss if kept else None, more=self._times.figures
        )
        link.keep(self._keep)

    def run(self) -> None:
        """Train until this share is done, or the daemon or a signal asks for the end.

        Raises UsageError when the training diverges; the link's own errors pass through.
        """
        self._wait_for_gentle_start()
        while not self._ended():
            self._mini_batch()
        accuracy = None
        if not self._interrupted():
            self._link.receive()
            _, accuracy = loss_and_accuracy(self._gradients.shape, self._link.weights, self._dataset.test)
        self._progress.ends(accuracy)

    def _keep(self) -> dict[str, Any]:
        """What a later life goes on from, as of the last mini-batch."""
        return KeptState(
            mini_batches=self._link.mini_batches,
            elapsed_s=self._elapsed_s(),
            gentle_batches=self._plan.walk.gentle_batches,
            taus=tuple(self._sending.taus),
            rate=self._sending.rate,
            loss=self._progress.loss,
        ).as_dict()

    def _elapsed_s(self) -> float:
        return self._clock() - self._begin

    def _stopped(self) -> bool:
        return self._interrupted() or self._link.stopping

    def _ended(self) -> bool:
        return self._stopped() or self._plan.over(
            mini_batches=self._link.mini_batches, elapsed_s=self._elapsed_s()
        )

    def _wait_for_gentle_start(self) -> None:
        """Follow share 0 through the gentle start; a trainer that was at work before goes on at once."""
        plan, link = self._plan, self._link
        if plan.walk.share == 0:
            return
        begun = heard = self._clock()
        while not link.mini_batches and not self._stopped():
            if link.receive():
                heard = self._clock()
            if plan.gentle_start_over(self._gentle_batches_heard(), elapsed_s=self._elapsed_s()):
                break
            now = self._clock()
            if now - heard >= QUIET_S:
                print(
                    f"p2psgd train: {QUIET_S:g} s without an update: the gentle start is cut short",
                    file=sys.stderr,
                )
                break
            self._progress.waits(
                f"share 0 trains alone for the gentle start, {self._gentle_batches_heard()} mini-batches "
                f"so far; waiting for {now - begun:.0f} s"
            )
            link.wait(LOOK_EVERY_S)
        plan.settle_gentle_start(self._gentle_batches_heard())

    def _gentle_batches_heard(self) -> int:
        """Mini-batches that share 0 is known to have taken: during the gentle start no other node has any."""
        return max(self._link.peer_mini_batches.values(), default=0)

    def _mini_batch(self) -> None:
        link, plan, sending = self._link, self._plan, self._sending
        with self._times.step(f"mini-batch {link.mini_batches + 1}"):
            with self._times.part("apply updates received", Part.ADDING):
                link.receive()
            elapsed_s = self._elapsed_s()
            if plan.walk.share == 0 and plan.gentle_start_over(link.mini_batches, elapsed_s=elapsed_s):
                plan.settle_gentle_start(link.mini_batches)
            positions = plan.walk.at(link.mini_batches)
            loss = self._gradients.take(link.weights, positions, gradient=self._gradient)
            check_loss(loss, self._recipe, mini_batches=link.mini_batches, taus=sending.taus)
            if sending.rate is None and link.mini_batches:
                sending.rate = self._learning_rate(link.mini_batches - 1, elapsed_s)
            rate = self._learning_rate(link.mini_batches, elapsed_s)
            with self._times.part("send update", Part.SENDING):
                sending.send(self._gradient, rate)
        self._progress.trained(len(positions), loss, float(positions[0] / plan.walk.samples))

    def _learning_rate(self, mini_batch: int, elapsed_s: float) -> float:
        position = int(self._plan.walk.at(mini_batch)[0])
        return learning_rate(
            self._recipe.learning_rate,
            self._plan.epoch(position, elapsed_s=elapsed_s),
            hold_epochs=self._recipe.hold_epochs,
            halve_every_epochs=self._recipe.halve_every_epochs,
        )
