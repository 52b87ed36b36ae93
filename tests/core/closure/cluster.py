"""Replicas in mode `closure` in one process, and their trainers, which compute when the test lets them."""

from __future__ import annotations

from collections import deque
from random import Random

from p2psgd.core.closure.closure import Closure
from p2psgd.core.closure.sums import ClosureMemory, make_memory
from p2psgd.core.events import TrainerChanged
from p2psgd.core.replica import Replica
from p2psgd.wire.evaluation import EvaluationAnswered, EvaluationAsked
from tests.core.closure.evaluator import Evaluator, Reference
from tests.core.cluster import WEIGHTS, Cluster


class ClosureCluster(Cluster):
    """Nodes by number, from 0. `speeds`: portions that a trainer computes in one turn, as a chance."""

    def __init__(self, size: int, *, portions: int = 12, two_nodes: str = "stall") -> None:
        self.reference = Reference((4000, 1000), portions)
        self.memories: dict[int, ClosureMemory] = {}
        self.trainers: dict[int, Evaluator] = {}
        self.answers: dict[int, EvaluationAnswered] = {}  # that trainers follow, and have not gone on from
        self.portions: dict[int, int | None] = {}  # to compute
        self.asked: deque[tuple[int, EvaluationAsked]] = deque()
        self.speeds = [1.0] * size
        super().__init__(size, two_nodes=two_nodes, mode="closure")

    def closure_memory(self, number: int) -> ClosureMemory | None:
        self.memories[number] = make_memory(WEIGHTS)
        return self.memories[number]

    def closure(self, number: int) -> Closure:
        closure = self.replica(number).closure
        assert closure is not None
        return closure

    def boot(self, number: int, *, from_disk: bool = False) -> Replica:
        self.trainers.pop(number, None)
        self.answers.pop(number, None)
        return super().boot(number, from_disk=from_disk)

    def kill(self, number: int) -> None:
        super().kill(number)
        self.trainers.pop(number, None)
        self.answers.pop(number, None)

    def evaluation_answered(self, number: int, answer: EvaluationAnswered) -> None:
        assert number not in self.answers, "answered twice"
        self.answers[number] = answer
        if number in self.trainers:  # it adds at once, and says so with its next request
            self.portions[number] = self.trainers[number].follow(answer)

    def attach(self, *nodes: int) -> None:
        for number in nodes or range(len(self.replicas)):
            self.give(number, TrainerChanged(active=True))
            self.trainers[number] = Evaluator(self.memories[number], self.reference)
            self.give(number, self.trainers[number].begin())

    def detach(self, number: int) -> None:
        self.trainers.pop(number)
        self.answers.pop(number, None)
        self.give(number, TrainerChanged(active=False))

    def turn(self, chance: Random) -> None:
        """Let each trainer do what it was told, as fast as it is, and deliver some frames."""
        for number in list(self.trainers):
            if number in self.answers and chance.random() < self.speeds[number]:
                self.step(number)
        for direction in list(self.queues):
            for _ in range(chance.randint(0, 4)):
                self.deliver(*direction)

    def step(self, number: int) -> None:
        trainer, answer = self.trainers[number], self.answers.pop(number)
        portion = self.portions.pop(number)
        asked = trainer.begin() if answer.done or answer.error else trainer.compute(answer, portion)
        self.give(number, asked)

    def evaluate(self, until: int, chance: Random, *nodes: int, turns: int = 4000) -> None:
        """Go on until these trainers, by default all, have completed so many evaluations."""
        for turn in range(turns):
            wanted = [self.trainers[number] for number in nodes or self.trainers]
            if all(trainer.evaluations >= until for trainer in wanted):
                return
            self.turn(chance)
            if turn % 20 == 0:
                self.tick(0.5)
        raise AssertionError(f"not done: {[trainer.evaluations for trainer in self.trainers.values()]}")
