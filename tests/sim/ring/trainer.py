"""A trainer in ring mode: attaches, gives a share when a round is opened, leaves and comes back.

Shares are random; what they add up to is for the ledger to know.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.wire import codec
from p2psgd.wire.ring_messages import ARRAY, CHANGES, BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.faults import Mismatched, OfTrainer, TrainerAway, TrainerSlow
from tests.sim.outcome import Violation
from tests.sim.ring.work import RingWork
from tests.sim.trainer import MAGNITUDE_MAX, World

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

LOOK_S: Final = 0.5  # from one look at whether it is to train to the next
ENDED_S: Final = 3.0  # until a trainer that was refused is started again
PARTS_MAX: Final = 3  # updates of one share
RATES: Final = {"adagrad": 2.0**-12, "adamw": 2.0**-12, "nesterov": 0.5}  # by rule of owners; else changes
FAILED_S: Final = 0.7  # how much longer than usual a step takes at most, as a share of it


class RingTrainer:
    """Of one life of a node. `given`: shares so far."""

    def __init__(
        self, world: World, daemon: Daemon, chance: Random, work: RingWork, memory: DenseMemory | None
    ) -> None:
        self.updates = 0
        self.paused = False  # asynchronous trainers alone are
        self.attached = False
        self.open = False  # a round is: it may give a share
        self.forced = False  # to train though it would not
        self._world = world
        self._daemon = daemon
        self._chance = chance
        self._work = work
        self._memory = memory
        self._serial = 0  # of attachments
        self._away_until = float("inf") if daemon.place in work.followers else 0.0
        self._slow: tuple[float, float] = 0.0, 0.0  # until when, and how long a share takes then
        self._mismatched = False

    def plan(self) -> None:
        """Attach some time from now, if it is to."""
        self._world.clock.after(2 * LOOK_S * self._chance.random(), self._daemon.when_running, self._look)

    def suffer(self, fault: OfTrainer) -> None:
        """What happens to it."""
        now = self._world.clock.now
        match fault:
            case TrainerAway():
                self._away_until = max(self._away_until, now + fault.for_s)
                self._daemon.when_running(self._follow_plan)
            case TrainerSlow():
                self._slow = now + fault.for_s, fault.step_s
            case Mismatched():
                self._mismatched = True

    def rest(self) -> None:
        """The node ends."""
        self._attach(wanted=False)

    def recover(self) -> None:
        """All is healed: from now on it trains as usual, if it is one of those that do."""
        self._slow, self._mismatched = (0.0, 0.0), False

    @property
    def wanted(self) -> bool:
        """It is there, or about to be."""
        return self.forced or self._away_until < float("inf")

    def _look(self) -> None:
        if not self._daemon.stopping:
            self._world.clock.after(LOOK_S, self._daemon.when_running, self._look)
            self._follow_plan()

    def _follow_plan(self) -> None:
        present = self._world.clock.now >= self._away_until or self.forced
        self._attach(wanted=self._world.training and present and not self._daemon.stopping)

    def _attach(self, *, wanted: bool) -> None:
        if wanted != self.attached:
            self.attached, self.open = wanted, False
            self._serial += 1
            self._daemon.run.trainer_changed(active=wanted)

    def reject_contribution(self) -> None:
        """Its share did not fit: it ends with what it was told, and is started again."""
        self._away_until = max(self._away_until, self._world.clock.now + ENDED_S)
        self._daemon.when_running(self._follow_plan)

    def open_round(self) -> None:
        """It may give its next share."""
        if not self.attached or self.open:
            words = "while it has a round open" if self.open else "that is not there"
            raise Violation("trainer", f"node {self._daemon.me.node} opens a round to a trainer {words}")
        self.open = True
        until, step_s = self._slow
        if self._world.clock.now > until:
            step_s = self._work.step_s[self._daemon.place - 1]
        step_s *= self._chance.uniform(1 - FAILED_S, 1 + FAILED_S)
        self._world.clock.after(step_s, self._daemon.when_running, self._share, self._serial)

    def _share(self, serial: int) -> None:
        if serial != self._serial or not self._daemon.alive:
            return
        if self._memory is None:
            self.open = False
            self.updates += 1
            self._daemon.handle(ContributionMade(self.updates, self._make_updates()))
        else:
            self._give_buckets(self._buckets(), serial)

    def _make_updates(self) -> tuple[OwnUpdateMade, ...]:
        chance, scenario = self._chance, self._world.scenario
        updates: list[OwnUpdateMade] = []
        free = set(range(scenario.coordinates))  # each step size is that of some tensors
        for _ in range(chance.randint(0, PARTS_MAX)):
            count = chance.randint(1, scenario.indices_max)
            indices = {int(chance.random() * scenario.coordinates) for _ in range(count)} & free
            if not indices:
                continue
            free -= indices
            words = np.array([index << 1 | chance.getrandbits(1) for index in sorted(indices)], np.uint32)
            payload = codec.encode(words, scenario.coordinates)
            magnitude = chance.randint(1, MAGNITUDE_MAX)
            rate = RATES.get(self._work.mode.rule.name, 0.0)
            updates.append(OwnUpdateMade(self.updates, magnitude, payload, words, rate))
        return tuple(updates)

    def _buckets(self) -> list[BucketContributed]:
        numbers = self._work.array_numbers(self._daemon.standing().done + 1)
        if numbers is not None:
            return [BucketContributed(ARRAY, 0, numbers, "array", f"({numbers},)")]
        return [
            BucketContributed(CHANGES, offset, count, f"tensor.{offset}", f"({count},)")
            for offset, count in self._work.buckets
        ]

    def _give_buckets(self, buckets: list[BucketContributed], serial: int) -> None:
        """The next one, and the others later: back-propagation goes on."""
        if serial != self._serial or not self._daemon.alive:
            return
        memory, chance = self._memory, self._chance
        assert memory is not None
        bucket, *others = buckets
        shares = memory.given(bucket.kind)[bucket.offset : bucket.offset + bucket.count]
        shares[:] = [chance.gauss(0.0, 1.0) for _ in range(bucket.count)]
        if self._mismatched:
            self._mismatched = False
            self._world.see("mismatch made")
            bucket = BucketContributed(bucket.kind, bucket.offset, bucket.count, bucket.name, "(1, 1)")
        if not others:
            self.open = False
            self.updates += 1
        else:
            delay_s = 0.1 * chance.random()
            self._world.clock.after(delay_s, self._daemon.when_running, self._give_buckets, others, serial)
        self._daemon.handle(bucket)
