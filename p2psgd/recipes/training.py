"""Training by a recipe: without rounds, in rounds, on streamed shards, and what a restart goes on from."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from p2psgd.client.link import Link
from p2psgd.data.assignment import Use
from p2psgd.data.shards import shuffled
from p2psgd.recipes.datasets import Dataset, samples_of
from p2psgd.recipes.gradients import (
    HOST,
    Backend,
    Gradients,
    SparseSending,
    check_loss,
    loss_and_accuracy,
)
from p2psgd.recipes.model import layer_tensors
from p2psgd.recipes.recipe import Recipe
from p2psgd.recipes.schedule import NEARLY_DONE, UNENDING, Indices, Plan, RoundPlan, RunPart, learning_rate
from p2psgd.recipes.telemetry import Part, Progress, StepTimes, Trace

# ----------------------------------------------------------------------------
# What the built-in trainer has its daemon keep, so that a later trainer goes on as if nothing had happened.


KEPT_BY = "p2psgd train, 1"  # which script's state it is, and its version


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """The state that a script keeps, as of the last step; None: not known."""

    steps: int
    elapsed_s: float = 0.0  # of a run by time
    warm_steps: int = UNENDING  # steps of the warm start
    tau: float | None = None
    rate: float | None = None  # the learning rate
    loss: float | None = None  # the running mean
    kept_at: float | None = None  # Unix time

    def as_dict(self) -> dict[str, Any]:
        """Return the state as a dict, for Link.keep()."""
        known = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {"by": KEPT_BY, **known}


def read_kept(restored: Mapping[str, Any] | None) -> KeptState | None:
    """Return what an earlier trainer kept; None if none did, or if another script did."""
    if restored is None or restored.get("by") != KEPT_BY:
        return None
    return KeptState(**{name: value for name, value in restored.items() if name != "by"})


# ----------------------------------------------------------------------------
# A recipe at work on one part of the data: what training in rounds (RingTraining) and without them
# (Training) have in common.
#
# Where it goes on after a crash or a restart follows from the link's count of steps, and from what it
# has kept: tau, rate, time, and the mean loss. These files know no signals, files or command lines.


LOOK_EVERY_S = 0.25  # how soon a wait notices a signal


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingContext:
    """The things that a training runs with, besides recipe, data and link.

    `backend` computes gradients; the link's arrays are of its kind. `interrupted` is asked between
    mini-batches. `elapsed_s` of a run by time have passed before.
    """

    backend: Backend = HOST
    interrupted: Callable[[], bool] = lambda: False
    elapsed_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    trace: Trace | None = None


PlanType = TypeVar("PlanType", bound=Plan | RoundPlan)


class RecipeTraining(abc.ABC, Generic[PlanType]):
    """A training by one trainer, which goes on where an earlier trainer ended."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: PlanType,
        link: Link,
        context: TrainingContext,
    ) -> None:
        self._backend = context.backend
        self._recipe, self._dataset, self._plan, self._link = recipe, dataset, plan, link
        self._interrupted, self._clock = context.interrupted, context.clock
        kept = read_kept(link.restored)
        self._begin: float = context.clock() - self._passed_s(context, kept)
        self._times = StepTimes(link, context.trace)
        self._gradients = Gradients(recipe, dataset, self._times, context.backend)
        self._sending: SparseSending | None = None  # none in a dense ring
        if not recipe.run.trains.dense:
            self._sending = SparseSending(recipe, self._gradients.shape, link)
            self._gradient = context.backend.xp.empty(self._gradients.shape.weights, "float32")
        if kept:
            plan.settle_warm_start(kept.warm_steps)
        if kept and self._sending is not None:
            if kept.tau is not None:
                self._sending.restore(kept.tau)
            if kept.steps == link.steps:
                self._sending.rate = kept.rate
        samples = plan.walk.samples_before(link.steps)
        self._progress = Progress(
            link, samples, context.clock, loss=kept.loss if kept else None, more=self._times.figures
        )
        link.keep(self._keep)

    @abc.abstractmethod
    def run(self) -> None:
        """Train until the end of the plan, or until the daemon or a signal asks for the end.

        Raises UsageError when the training diverges; the link's own errors pass through.
        """

    @abc.abstractmethod
    def _epoch(self, number: int, elapsed_s: float) -> float:
        """Return how far the recipe's schedule is at a mini-batch or round, from 1: 0 to its epochs."""

    def _passed_s(self, context: TrainingContext, kept: KeptState | None) -> float:
        """Return how many seconds of a run by time were over before this trainer started."""
        return max(context.elapsed_s, kept.elapsed_s if kept else 0.0)

    def _keep(self) -> dict[str, Any]:
        """Return what a later trainer goes on from, as of the last step."""
        sending = self._sending
        return KeptState(
            steps=self._link.steps,
            elapsed_s=self._elapsed_s(),
            warm_steps=self._plan.walk.warm_steps,
            tau=sending.tau if sending else None,
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
        assert sending is not None, "contributions to a dense ring are given otherwise"
        loss = self._gradients.take(sending.point, positions, gradient=self._gradient)
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
        tau = self._sending.tau if self._sending else None
        check_loss(loss, self._recipe, steps=self._link.steps, tau=tau)

    def _test_accuracy(self) -> float:
        shape, test = self._gradients.shape, self._dataset.test
        return loss_and_accuracy(shape, self._link.weights, test, self._backend)[1]


# ----------------------------------------------------------------------------
# One trainer's work in a ring: a contribution to each round, from the first to the last.
#
# In a sparse ring the round's contribution is what send() makes of a gradient; in a dense one it is minus the
# learning rate times the gradient, layer by layer as back-propagation has it ready, so that the ring adds up
# the later layers while the earlier ones are computed. At the end of a round all nodes have the same
# weights. What is done in which round is schedule.py's.


EMPTY_ROUND_S = 0.02  # after a round that brought nothing: rank 0 may be starting again, and without this
# the warm start would be over when it is back


class RingTraining(RecipeTraining[RoundPlan]):
    """A training that goes round after round. Time counts from the first round: how long the nodes took to be
    all there does not count.
    """

    def run(self) -> None:
        """Train until the last round, or the daemon or a signal asks for the end."""
        with self._times.outside_steps("wait for the round"):
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

    def _passed_s(self, context: TrainingContext, kept: KeptState | None) -> float:
        """Return the seconds by the clock of the trainer before: the wait for the first round does not
        count.
        """
        if kept is None or kept.kept_at is None:
            return super()._passed_s(context, kept)
        return kept.elapsed_s + max(0.0, time.time() - kept.kept_at)

    def _ended(self) -> bool:
        elapsed_s = self._elapsed_s()
        self._plan.look_at_time(self._link.round, elapsed_s=elapsed_s)
        return self._stopped() or self._plan.over(self._link.round, elapsed_s=elapsed_s)

    def _wait(self) -> None:
        """Wait until the next round is open, or the end is asked for."""
        while not self._link.wait(LOOK_EVERY_S) and not self._stopped():
            pass

    def _receive(self) -> int:
        """Receive the round's updates and return how many; 0, at once, if the end was asked for before the
        round was complete.
        """
        return 0 if self._stopped() else self._link.receive()

    def _follow(self, number: int) -> None:
        """Give nothing to this round."""
        self._progress.waits(
            f"rank 0 trains alone for the warm start, round {number} of {self._plan.walk.warm_steps}"
            if self._plan.warm(number)
            else f"no samples are left for this rank in round {number}"
        )
        with self._times.outside_steps(f"round {number}, without this rank"):
            self._link.skip()
            self._wait()
            brought = self._receive()
        if not brought:
            time.sleep(EMPTY_ROUND_S)

    def _take_part(self, number: int, positions: Indices) -> None:
        """Train on one mini-batch, and take part in its round."""
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

        loss = self._gradients.take(link.weights, positions, gradient=proposed, ready=begin)
        self._check_loss(loss)
        return loss

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.epoch(number, elapsed_s=elapsed_s)


# ----------------------------------------------------------------------------
# One trainer's work on its link: wait for the warm start, then mini-batch after mini-batch [Strom 2015,
# section 3].
#
# receive() brings the peers' updates, the gradient is taken at the weights as they then are, send() adds
# minus the learning rate times the gradient to the residual and sends what has grown beyond the step. When
# the rate changes the residual changes with it: what waits is a sum of gradients, as in [Strom 2015], and
# none of it is sent for the sole reason that the step is smaller now.


QUIET_S = 30.0  # so long a trainer waits without a step of rank 0 before it starts all the same


class Training(RecipeTraining[Plan]):
    """Mini-batch after mini-batch, without rounds."""

    def run(self) -> None:
        """Train until this rank is done, or the daemon or a signal asks for the end."""
        self._wait_for_warm_start()
        while not self._ended():
            self._step()
        self._end()

    def _end(self) -> None:
        accuracy = None
        assert self._sending is not None
        self._sending.send_rest()
        if not self._interrupted():
            self._link.receive()
            accuracy = self._test_accuracy()
        self._progress.ends(accuracy)

    def _ended(self) -> bool:
        return self._stopped() or self._plan.over(steps=self._steps, elapsed_s=self._elapsed_s())

    @property
    def _steps(self) -> int:
        """The mini-batches of this node, those that are not sent among them."""
        return self._link.steps + (self._sending.unsent if self._sending else 0)

    def _wait_for_warm_start(self) -> None:
        """Follow rank 0 through the warm start; a trainer that was at work before goes on at once."""
        plan, link = self._plan, self._link
        if plan.walk.rank == 0:
            return
        begun = heard = self._clock()
        batches = 0
        late = sum(map(bool, link.peer_steps.values())) > 1  # others than rank 0 have made steps already
        if late and not link.steps:
            print("p2psgd train: other nodes train already: no warm start here", file=sys.stderr)
        while not (late or link.steps or self._stopped()):
            link.receive()
            if self._warm_steps_seen() > batches:
                batches, heard = self._warm_steps_seen(), self._clock()
            if plan.warm_start_over(self._warm_steps_seen(), elapsed_s=self._elapsed_s()):
                break
            now = self._clock()
            if now - heard >= QUIET_S:
                words = f"{QUIET_S:g} s without a step of rank 0: the warm start is cut short"
                print(f"p2psgd train: {words}", file=sys.stderr)
                break
            self._progress.waits(
                f"rank 0 trains alone for the warm start, {self._warm_steps_seen()} steps "
                f"so far; waiting for {now - begun:.0f} s"
            )
            link.wait(LOOK_EVERY_S)
        plan.settle_warm_start(self._warm_steps_seen())

    def _warm_steps_seen(self) -> int:
        """Return the steps that rank 0 is known to have taken: during the warm start no other node has
        any.
        """
        return max(self._link.peer_steps.values(), default=0)

    def _step(self) -> None:
        self._settle_warm_start()
        walk = self._plan.walk
        positions = walk.at(self._steps)
        self._train_on(positions, float(positions[0] / walk.samples))

    def _settle_warm_start(self) -> None:
        """Settle the warm start, on rank 0, before it takes the samples of a mini-batch: they may be dealt
        out from here on.
        """
        plan, done = self._plan, self._steps
        if plan.walk.rank or plan.walk.warm_steps != UNENDING:
            return
        if plan.warm_start_over(done, elapsed_s=self._elapsed_s()):
            plan.settle_warm_start(done)

    def _train_on(self, positions: Indices, through: float) -> None:
        """Train on one mini-batch of these samples, which lies `through` epochs into the data."""
        link = self._link
        number = self._steps + 1
        assert self._sending is not None
        # The others count the steps of the warm start, and take long silence for its end.
        self._sending.gathers = self._plan.warm_start_over(self._steps, elapsed_s=self._elapsed_s())
        with self._times.step(f"step {number}"):
            if (number - 1) % self._recipe.fetch_every == 0:
                with self._times.part("apply updates received", Part.ADDING):
                    link.receive()
            loss = self._send_sparsely(number, positions, self._elapsed_s())
        self._progress.trained(len(positions), loss, through)

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.epoch(int(self._plan.walk.at(number - 1)[0]), elapsed_s=elapsed_s)


# ----------------------------------------------------------------------------
# Mini-batch after mini-batch on shards that the nodes share out among them as they go (data/shards.py).
#
# There are no ranks: a node trains on whichever shard it takes next, and the run is over when every shard
# was used in every epoch. How far that is, which the learning rate follows, all nodes read from the same
# counts. Rank 0, which trains alone in the warm start, is the only rank with a meaning.


NO_RANK: Final = (1, 2)  # of a node that was told none: it is not the first one
UNLIMITED: Final = 2**20 - 1  # epochs of a run by steps or by time


class StreamedPlan(Plan):
    """The length of a run on shards, with `samples` in all of them."""

    def __init__(self, recipe: Recipe, samples: int, part: RunPart) -> None:
        super().__init__(recipe, samples, part)
        self.walk = dataclasses.replace(self.walk, positions=None)  # of which only the warm start is walked
        self._steps = part.steps

    @property
    def epochs(self) -> int:
        """Return the most epochs that the run may use."""
        return self._recipe.epochs if self._steps is None and self.seconds is None else UNLIMITED

    def over(self, *, steps: int, elapsed_s: float) -> bool:
        """Say whether this node has done its part, whatever is left of the data."""
        if self._steps is None and self.seconds is None:
            return False
        return super().over(steps=steps, elapsed_s=elapsed_s)

    def progress(self, through: float, *, steps: int, elapsed_s: float) -> float:
        """Return how far the recipe's schedule is, 0 to its epochs; the nodes are `through` epochs into the
        data.
        """
        if self.seconds is not None:
            done = elapsed_s / self.seconds
        elif self._steps is not None:
            done = steps / self._steps
        else:
            done = through / self._recipe.epochs
        return self._recipe.epochs * min(NEARLY_DONE, done)


class StreamedTraining(Training):
    """A training on shards by one trainer."""

    _plan: StreamedPlan

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        plan: StreamedPlan,
        link: Link,
        context: TrainingContext,
    ) -> None:
        """Prepare a training on `dataset`, which has shards."""
        super().__init__(recipe, dataset, plan, link, context)
        shards = dataset.shards
        assert shards is not None
        self._shards = shards
        self._samples = np.array([shard.samples for shard in shards.list.shards])
        self._through = 0.0  # the data, in epochs

    def run(self) -> None:
        """Train until all shards were used, or the daemon or a signal asks for the end."""
        self._wait_for_warm_start()
        uses = self._shards.each(self._link, epochs=self._plan.epochs, says=self._say, ended=self._ended)
        with contextlib.closing(uses):
            for use in uses:
                if not self._train_on_shard(use):
                    break
        self._end()

    def _train_on_shard(self, use: Use) -> bool:
        """Train on the whole shard; False if the end has come before."""
        samples = samples_of(use.shard, use.arrays, "train")
        self._gradients.turn_to(samples)
        order = shuffled(use, self._recipe.seed)
        used = np.minimum(self._link.shard_counts[1], self._plan.epochs)
        total = int(self._samples.sum())
        before = float(used @ self._samples)
        for begin in range(0, len(order), self._recipe.batch):
            if self._ended():
                return False
            rows = order[begin : begin + self._recipe.batch]
            self._through = (before + begin) / total
            if begin + len(rows) == len(order):
                use.count_as_used()
            self._settle_warm_start()
            self._train_on(rows, self._through)
        return True

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.progress(self._through, steps=number - 1, elapsed_s=elapsed_s)

    def _say(self, words: str) -> None:
        if words:
            self._progress.waits(words)
