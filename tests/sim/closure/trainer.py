"""What a node's trainer does in mode `closure`: it evaluates, is slow, and ends now and then."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from p2psgd.core.closure.sums import ClosureMemory
from p2psgd.wire.evaluation import EvaluationAnswered
from tests.core.closure.evaluator import Evaluator, Reference
from tests.sim.closure.work import ClosureWork
from tests.sim.outcome import Violation
from tests.sim.trainer import World

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

LOOK_S: Final = 0.5  # from one look at whether it is to train to the next
AGAIN_S: Final = 3.0  # until a trainer that has ended is started again


class EvaluatingTrainer:
    """Of one life of a node. `updates`: evaluations of this life; `evaluated`: of the present trainer."""

    def __init__(
        self,
        world: World,
        daemon: Daemon,
        chance: Random,
        work: ClosureWork,
        *,
        memory: ClosureMemory,
        reference: Reference,
    ) -> None:
        self.updates = 0
        self.paused = False
        self.attached = False
        self._world = world
        self._daemon = daemon
        self._chance = chance
        self._work = work
        self._crash = work.crash
        self._memory = memory
        self._reference = reference
        self._evaluator: Evaluator | None = None
        self._serial = 0  # of attachments
        self._away_until = 0.0

    @property
    def evaluated(self) -> int:
        """How many evaluations the trainer has behind it."""
        return 0 if self._evaluator is None else self._evaluator.evaluations

    def plan(self) -> None:
        """Attach some time from now, if it is to."""
        self._world.clock.after(2 * LOOK_S * self._chance.random(), self._daemon.when_running, self._look)

    def recover(self) -> None:
        """All is healed: from now on it does not end."""
        self._crash = 0.0

    def rest(self) -> None:
        """The node ends."""
        self._attach(wanted=False)

    def _look(self) -> None:
        if self._daemon.stopping:
            return
        self._world.clock.after(LOOK_S, self._daemon.when_running, self._look)
        present = self._world.training and self._world.clock.now >= self._away_until
        self._attach(wanted=present and (self.attached or self._daemon.replica.ready))

    def _attach(self, *, wanted: bool) -> None:
        if wanted == self.attached:
            return
        self.attached = wanted
        self._serial += 1
        self._evaluator = None
        self._daemon.run.trainer_changed(active=wanted)
        if wanted:
            self._evaluator = Evaluator(self._memory, self._reference)
            self._daemon.handle(self._evaluator.begin())

    def answered(self, answer: EvaluationAnswered) -> None:
        """It goes on, once it has computed."""
        evaluator = self._evaluator
        assert evaluator is not None
        self._see(answer)
        try:
            portion = evaluator.follow(answer)  # at once, and it says so only when it has computed the next
        except AssertionError as error:
            words = f"node {self._daemon.me.node}, evaluation {answer.evaluation}: {error}"
            raise Violation("C1", words) from None
        step_s = self._work.step_s[self._daemon.place - 1] * self._chance.uniform(0.5, 1.5)
        delay_s = step_s if answer.compute is not None else 0.001
        self._world.clock.after(
            delay_s, self._daemon.when_running, self._go_on, answer, portion, self._serial
        )

    def _go_on(self, answer: EvaluationAnswered, portion: int | None, serial: int) -> None:
        evaluator = self._evaluator
        if serial != self._serial or evaluator is None or not self._daemon.alive:
            return
        if answer.error:
            raise Violation("C2", answer.error)
        if self._chance.random() < self._crash:
            self._world.see("closure: trainer started again")
            self._away_until = self._world.clock.now + AGAIN_S * self._chance.random()
            self._attach(wanted=False)
            return
        if answer.done:
            self.updates += 1
            self._daemon.handle(evaluator.begin())
        else:
            self._daemon.handle(evaluator.compute(answer, portion))

    def _see(self, answer: EvaluationAnswered) -> None:
        if answer.drop:
            self._world.see("closure: answer that came second dropped")
        if answer.done:
            self._world.see("closure: evaluation")
