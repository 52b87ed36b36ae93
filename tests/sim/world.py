"""One run: build the world of a scenario, let anything fail, heal it, and wait for convergence.

Everything random comes from the seed, by one stream for each purpose: a fault that is left out in shrinking
then changes as little as possible of what the others meet.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from tests.sim.chaos import Chaos
from tests.sim.clock import Clock
from tests.sim.daemon import Daemon
from tests.sim.faults import SmallLog, Unlinked
from tests.sim.invariants import Inspector, check_converged
from tests.sim.ledger import label
from tests.sim.mesh import Mesh
from tests.sim.network import Line
from tests.sim.outcome import Outcome, Violation
from tests.sim.scenario import Scenario
from tests.sim.tampering import Tamperer
from tests.sim.trace import describe

HEALING_S_MAX: Final = 40.0  # 8 patiences: a silent link is closed after 4, dialled again after up to 3
POLL_S: Final = 0.5
LARGE_LOG_BYTES: Final = 1 << 26


class World:
    """The nodes of a scenario and all between them."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.tracing = tracing
        self.lines_of_trace: list[str] = []
        self.sightings: Counter[str] = Counter()
        self.clock = Clock()
        self.daemons: dict[int, Daemon] = {}
        self._lives: Counter[int] = Counter()
        self._disturbed: dict[int, float] = {}
        numbers = range(1, scenario.nodes + 1)
        chance = Random(f"{scenario.seed} initial")
        initial = np.array([chance.randint(-1000, 1000) for _ in range(scenario.weights)], np.int32)
        self.spec = RunSpec(
            (("net", (scenario.weights,)),), -20, "async", "simulated", hash_coordinates(initial)
        )
        self.inspector = Inspector(self, initial)
        self.lines = {(a, b): self._line(a, b) for a in numbers for b in numbers if a != b}
        self._trainers = {number: Random(f"{scenario.seed} trainer {number}") for number in numbers}
        self._diallers = {number: Random(f"{scenario.seed} dialler {number}") for number in numbers}
        self._budgets = dict.fromkeys(numbers, LARGE_LOG_BYTES)
        self._budgets |= {
            each.node: each.budget_bytes for each in scenario.faults if isinstance(each, SmallLog)
        }
        self._unlinked = {(each.node, each.other) for each in scenario.faults if isinstance(each, Unlinked)}
        self._chaos = Chaos(self, scenario.faults)
        for number in numbers:
            self.boot(number)

    def _line(self, source: int, target: int) -> Line:
        scenario = self.scenario
        line = Line(
            self.clock,
            Random(f"{scenario.seed} line {source} {target}"),
            latency_s=scenario.latency_s,
            jitter_s=scenario.jitter_s,
            bytes_per_s=scenario.bytes_per_s,
        )
        line.tamperer = Tamperer(scenario.weights, self.inspector.tampered)
        return line

    # -- what others see

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    def mesh(self, number: int) -> Mesh | None:
        """Who answers a dial there; None if no process listens."""
        daemon = self.daemons.get(number)
        return None if daemon is None or daemon.stopping else daemon.mesh

    def living(self) -> list[Daemon]:
        """All processes."""
        return list(self.daemons.values())

    def see(self, what: str) -> None:
        """Count an event worth knowing."""
        self.sightings[what] += 1

    def trace(self, who: str, what: object) -> None:
        """Write a line of the trace, if there is one."""
        if self.tracing:
            self.lines_of_trace.append(f"{self.clock.now:11.6f}  {who}  {describe(what)}")

    def disturb(self, number: int) -> None:
        """A node was paused, resumed or ended."""
        self._disturbed[number] = self.clock.now

    def disturbed_at(self, number: int) -> float:
        """When a node was last not running as it should."""
        daemon = self.daemons.get(number)
        if daemon is None or daemon.paused:
            return self.clock.now
        return self._disturbed.get(number, -1e9)

    def boot(self, number: int) -> None:
        """Start a node: a new incarnation with an empty replica."""
        self._lives[number] += 1
        if self._lives[number] > 1:
            self.see("restart")
        self.daemons[number] = Daemon(
            self,
            self.spec,
            Origin(number, self._lives[number]),
            log_budget_bytes=self._budgets[number],
            trainer=self._trainers[number],
            mesh=self._diallers[number],
        )

    def died(self, daemon: Daemon) -> None:
        """A process has ended."""
        self.sightings["duplicate dropped"] += daemon.replica.duplicates
        if self.daemons.get(daemon.me.node) is daemon:
            del self.daemons[daemon.me.node]
        self._chaos.died(daemon.me.node)

    # -- the two phases

    def run(self) -> float:
        """Run it all; returns how long convergence took after the last disturbance."""
        self.clock.run_until(self.scenario.chaos_s)
        calm_since = self.clock.now
        for line in self.lines.values():
            assert line.tamperer is not None
            line.tamperer.clear()
        while True:
            if self._chaos.returning or any(daemon.stopping for daemon in self.daemons.values()):
                calm_since = self.clock.now
            apart = self._apart()
            if apart is None and calm_since < self.clock.now:
                break
            if apart is not None and self.clock.now > calm_since + HEALING_S_MAX:
                raise Violation("I4", f"{HEALING_S_MAX:.0f} s after all was healed {apart}")
            self.clock.run_until(self.clock.now + POLL_S)
        self._check_end()
        return self.clock.now - calm_since

    def _apart(self) -> str | None:
        """Which two nodes, that could reach each other by way of living ones, have not applied the same."""
        for group in self._groups():
            for daemon in group[1:]:
                if daemon.replica.frontier.packed() != group[0].replica.frontier.packed():
                    rows = [each.replica.frontier.rows() for each in (group[0], daemon)]
                    only = [sorted(set(mine) - set(theirs)) for mine, theirs in (rows, rows[::-1])]
                    (ours, theirs) = ([row[:3] for row in side] for side in only)
                    return f"{label(group[0].me)} has applied {ours} where {label(daemon.me)} has {theirs}"
        return None

    def _groups(self) -> list[list[Daemon]]:
        groups: list[list[Daemon]] = []
        for number in sorted(self.daemons):
            daemon = self.daemons[number]
            joined = [group for group in groups if any(self._linkable(daemon, each) for each in group)]
            groups = [group for group in groups if group not in joined]
            groups.append([*(each for group in joined for each in group), daemon])
        return groups

    def _linkable(self, one: Daemon, other: Daemon) -> bool:
        return tuple(sorted((one.me.node, other.me.node))) not in self._unlinked

    def _check_end(self) -> None:
        for group in self._groups():
            check_converged(group)
        for daemon in self.living():
            self.inspector.check_whole(daemon)
            self.sightings["duplicate dropped"] += daemon.replica.duplicates


def simulate(scenario: Scenario, *, tracing: bool = False) -> Outcome:
    """Run a scenario; a violation, or any exception out of the core, is part of the outcome."""
    outcome = Outcome(scenario.seed)
    world = None
    try:
        world = World(scenario, tracing=tracing)
        outcome.healing_s = world.run()
    except Violation as violation:
        outcome.violation, outcome.name = str(violation), violation.name
    except Exception as error:
        outcome.violation, outcome.name = f"the core raised {error!r}", "exception"
        if world is not None:
            world.trace("ERROR", repr(error))
    if world is not None:
        outcome.virtual_s = world.clock.now
        outcome.events = world.inspector.events
        outcome.updates = world.inspector.ledger.updates
        outcome.sightings = world.sightings
        outcome.trace = world.lines_of_trace
    return outcome
