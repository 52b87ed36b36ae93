"""One trainer's work on its link: wait for the gentle start, then mini-batch after mini-batch [Strom 2015,
section 3].

receive() brings the peers' updates, the gradient is taken at the weights as they then are, send() adds minus
the learning rate times the gradient to the residual and sends what has grown beyond the step. When the rate
changes the residual changes with it: what waits is a sum of gradients, as in [Strom 2015], and none of it is
sent for the sole reason that the step is smaller now.
"""

from __future__ import annotations

import sys
from typing import Protocol

from p2psgd.trainer.plan import UNENDING, Plan
from p2psgd.trainer.recipe_training import LOOK_EVERY_S, RecipeTraining, TrainingLink
from p2psgd.trainer.schedule import Indices
from p2psgd.trainer.step_times import Part

QUIET_S = 30.0  # so long a trainer waits without a mini-batch of share 0 before it starts all the same


class AsyncLink(TrainingLink, Protocol):
    """And what training without rounds needs besides."""

    @property
    def peer_mini_batches(self) -> dict[int, int]:
        """`mini_batches` of every peer, as far as known here."""


class Training(RecipeTraining[Plan, AsyncLink]):
    """Mini-batch after mini-batch, without rounds."""

    def run(self) -> None:
        """Train until this share is done, or the daemon or a signal asks for the end."""
        self._wait_for_gentle_start()
        while not self._ended():
            self._mini_batch()
        self._end()

    def _end(self) -> None:
        accuracy = None
        if not self._interrupted():
            self._link.receive()
            accuracy = self._test_accuracy()
        self._progress.ends(accuracy)

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
        batches = 0
        while not link.mini_batches and not self._stopped():
            link.receive()
            if self._gentle_batches_heard() > batches:
                batches, heard = self._gentle_batches_heard(), self._clock()
            if plan.gentle_start_over(self._gentle_batches_heard(), elapsed_s=self._elapsed_s()):
                break
            now = self._clock()
            if now - heard >= QUIET_S:
                words = f"{QUIET_S:g} s without a mini-batch of share 0: the gentle start is cut short"
                print(f"p2psgd train: {words}", file=sys.stderr)
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
        self._settle_gentle_start()
        walk = self._plan.walk
        positions = walk.at(self._link.mini_batches)
        self._train_on(positions, float(positions[0] / walk.samples))

    def _settle_gentle_start(self) -> None:
        """Of share 0, before it takes the samples of a mini-batch: they may be dealt out from here on."""
        plan, done = self._plan, self._link.mini_batches
        if plan.walk.share or plan.walk.gentle_batches != UNENDING:
            return
        if plan.gentle_start_over(done, elapsed_s=self._elapsed_s()):
            plan.settle_gentle_start(done)

    def _train_on(self, positions: Indices, through: float) -> None:
        """One mini-batch of these samples, which lies so far in the data."""
        link = self._link
        number = link.mini_batches + 1
        with self._times.step(f"mini-batch {number}"):
            with self._times.part("apply updates received", Part.ADDING):
                link.receive()
            loss = self._send_sparsely(number, positions, self._elapsed_s())
        self._progress.trained(len(positions), loss, through)

    def _epoch(self, number: int, elapsed_s: float) -> float:
        return self._plan.epoch(int(self._plan.walk.at(number - 1)[0]), elapsed_s=elapsed_s)
