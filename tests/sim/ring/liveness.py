"""In the second phase the rings of the healed core must go on: all of it completes further rounds in time,
with what it had given before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tests.sim.clock import Clock
from tests.sim.daemon import Daemon
from tests.sim.faults import Outcast, Unlinked
from tests.sim.invariants import Inspector
from tests.sim.ledger import label
from tests.sim.ring.trainer import FAILED_S
from tests.sim.ring.work import RingWork
from tests.sim.scenario import Scenario

ROUNDS: Final = 10
FRAME_BYTES: Final = 200  # around what a hop carries, STATUS that come between included
SEGMENT_BYTES: Final = 128  # of numbers: world.py makes them so small


class World(Protocol):
    """What is seen of it."""

    scenario: Scenario
    clock: Clock
    inspector: Inspector


class Liveness:
    """From now on."""

    def __init__(self, world: World, core: Callable[[], list[Daemon]], work: RingWork) -> None:
        self._world = world
        self._core = core
        self._work = work
        for daemon in core():
            daemon.ring_trainer.recover()
        self._from = max((daemon.standing().done for daemon in core()), default=0)
        self._given = {daemon.me: self._shares_of(daemon) for daemon in core()}
        self._halves = any(
            isinstance(fault, Unlinked) or (isinstance(fault, Outcast) and fault.fate == "apart")
            for fault in world.scenario.faults
        )  # nodes that reach only some others: with them in the ring some of those are out of it

    def _shares_of(self, daemon: Daemon) -> int:
        return len(self._world.inspector.ledger.entries.get(daemon.me, []))

    @property
    def limit_s(self) -> float:
        """How long the rounds may take, beyond what it takes to become equal and READY."""
        scenario, work = self._world.scenario, self._work
        hop_s = 2 * (scenario.latency_s + scenario.jitter_s)
        hop_bytes = scenario.coordinates * 4 + FRAME_BYTES * (1 + scenario.coordinates * 4 // SEGMENT_BYTES)
        speed = min(scenario.bytes_per_s, scenario.credit_bytes / hop_s)
        exchange_s = 2 * scenario.nodes * (len(work.buckets) + 1) * (hop_s + hop_bytes / speed)
        slow = sum(step_s > scenario.failure_timeout_s / 2 for step_s in work.step_s)
        round_s = (1 + FAILED_S) * max(work.step_s) + exchange_s
        return ROUNDS * round_s + slow * 30 * scenario.failure_timeout_s

    def behind(self) -> str | None:
        """Who has not yet completed as many rounds as it must, or with what it had given before. Its number
        of rounds does not tell that: who joins a generation takes over those completed without it.
        """
        core = self._core()
        if len(core) < 2:
            return None
        self._keep_training(core)
        behind = [daemon for daemon in core if daemon.standing().done < self._from + ROUNDS]
        if self._halves and len(behind) < len(core):
            return None
        if not behind:
            return self._left_out(core)
        who, done = behind[0], behind[0].standing().done
        words = f"{label(who.me)} has completed round {done} of {self._from} + {ROUNDS}"
        return f"{words}: {who.replica.waiting_for() or 'it waits for nothing'}"

    def _left_out(self, core: list[Daemon]) -> str | None:
        for daemon in core if not self._halves else ():
            given = self._given.get(daemon.me, 0)
            has = daemon.replica.frontier.sequence(daemon.me)
            if has < given:
                return f"{label(daemon.me)} has {has} of the {given} updates that it had given to rounds"
        return None

    def _keep_training(self, core: list[Daemon]) -> None:
        """At least one trainer there is."""
        if not any(daemon.ring_trainer.wanted for daemon in core):
            core[0].ring_trainer.forced = True
