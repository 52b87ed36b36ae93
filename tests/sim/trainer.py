"""What makes updates: random ones, at random times, as long as the node may train."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from p2psgd.wire import codec
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.clock import Clock
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

MAGNITUDE_MAX: Final = 400  # small enough that no coordinate comes near 2^23


class World(Protocol):
    """What a trainer sees of it."""

    scenario: Scenario
    clock: Clock
    training: bool

    def see(self, what: str, times: int = 1) -> None: ...


class Trainer:
    """Of one life of a node."""

    attached: Final = True

    def __init__(self, world: World, daemon: Daemon, chance: Random) -> None:
        self.updates = 0
        self.paused = True  # its node takes nothing of it
        self._world = world
        self._daemon = daemon
        self._chance = chance

    def plan(self) -> None:
        """Make the next update some time from now."""
        rate = self._world.scenario.rates[self._daemon.place - 1]
        delay_s = self._chance.expovariate(rate)
        self._world.clock.after(delay_s, self._daemon.when_running, self._train)

    def _train(self) -> None:
        if self._daemon.stopping:
            return
        self.plan()
        replica, scenario = self._daemon.replica, self._world.scenario
        if not self._world.training:
            return
        if self.paused:
            if replica.ready and replica.owners is not None and replica.owners.full:
                self._world.see("owners: trainer held up because too much waits")
            elif replica.ready:
                self._world.see("stall" if replica.retention.stalled else "congested")
            return
        chance = self._chance
        count = chance.randint(1, scenario.indices_max)
        indices = {int(chance.random() * scenario.coordinates) for _ in range(count)}
        words = np.array([index << 1 | chance.getrandbits(1) for index in sorted(indices)], np.uint32)
        magnitude = chance.randint(1, MAGNITUDE_MAX)
        self.updates += 1
        payload = codec.encode(words, scenario.coordinates)
        self._daemon.handle(OwnUpdateMade(replica.sequence + 1, magnitude, payload, words))
        self._daemon.run.outbox_taken()
