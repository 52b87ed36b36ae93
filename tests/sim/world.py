"""One run: build the world of a scenario, let anything fail, heal the core, and wait for convergence.

Everything random comes from the seed, by one stream for each purpose: a fault that is left out in shrinking
then changes as little as possible of what the others meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core import scrub, snapshot_feed, snapshot_install
from p2psgd.core.effects import LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.ring import chunks, reduce
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.view import NO_VIEW
from p2psgd.wire import codec, frames
from tests.core.closure.evaluator import Reference
from tests.sim.chaos import Chaos
from tests.sim.clock import Clock
from tests.sim.closure.work import small_sums
from tests.sim.convergence import Convergence
from tests.sim.daemon import Daemon
from tests.sim.disk import Disk
from tests.sim.faults import LateStart, Lie, SmallLog
from tests.sim.faults import Liar as Scheme
from tests.sim.invariants import Inspector
from tests.sim.liar.liar import Liar
from tests.sim.liar.turning import may_begin, note_of_liars, turn
from tests.sim.mesh import Mesh
from tests.sim.network import Line
from tests.sim.outcome import Outcome, QuorumLostError, Violation
from tests.sim.owners.work import small_limits
from tests.sim.places import node_at
from tests.sim.scenario import Scenario
from tests.sim.sightings import note_note
from tests.sim.survival import Survival
from tests.sim.tampering import Tamperer
from tests.sim.trace import describe
from tests.sim.whole import Grave, bury

LARGE_LOG_BYTES: Final = 1 << 26
SLICE: Final = 64  # coordinates in one turn, in place of a quarter of a million
CHUNK_BYTES: Final = 256  # of a snapshot, in place of as many KiB
SEGMENT_NUMBERS: Final = 32  # of a chunk of a dense ring, in place of 524,288
BUFFER_BYTES: Final = 8 * 1024  # of a link, in place of 256 KiB: zeroing them took longer than the greeting


class World:
    """The nodes of a scenario and all between them."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.tracing = tracing
        self.training = True
        self.lines_of_trace: list[str] = []
        self.sightings: Counter[str] = Counter()
        self.clock = Clock()
        self.daemons: dict[int, Daemon] = {}  # by place
        self.graves: dict[Origin, Grave] = {}
        self.liars: dict[int, Liar] = {}  # by place
        self.lying: set[Origin] = set()  # their lives
        self._evicted: set[int] = set()
        self._disturbed: dict[int, float] = {}
        places = range(1, scenario.nodes + 1)
        initial = _draw_initial(scenario)
        mode = (
            "closure"
            if scenario.closure is not None
            else ("owners" if scenario.owners.rounds is None else scenario.owners.rounds.word)
            if scenario.owners is not None
            else "async"
            if scenario.ring is None
            else scenario.ring.word
        )
        self.spec = RunSpec(
            (("net", (scenario.coordinates - codec.COUNTS_PER_SHARD * scenario.shards,)),),
            *(-20, mode, "simulated", hash_coordinates(initial), scenario.two_nodes, scenario.shards),
        )
        portions = 1 if scenario.closure is None else scenario.closure.portions
        self.reference = Reference((self.spec.weights,), portions, first_digest=scenario.seed)
        self.inspector = Inspector(self, initial)
        ends = sorted({*places, *(each.node for each in scenario.faults if isinstance(each, Scheme))})
        self.lines = {(a, b): self._line(a, b) for a in ends for b in ends if a != b}
        self.disks = {place: Disk(place, self.spec.key) for place in places}
        self.survival = Survival(self.inspector.agreement, scenario.faults)
        self.burnt: set[int] = set()  # nodes whose disk was lost
        self._disks_used: Counter[int] = Counter()
        self._streams = {
            (what, place): Random(f"{scenario.seed} {what} {place}")
            for what in ("trainer", "dialler", "keeper")
            for place in places
        }
        self._logs = {place: SmallLog(place, LARGE_LOG_BYTES, 0) for place in places}
        self._logs |= {each.node: each for each in scenario.faults if isinstance(each, SmallLog)}
        self.chaos = Chaos(self, scenario.faults)
        self.convergence = Convergence(self)
        late = {each.node: each.at for each in scenario.faults if isinstance(each, LateStart)}
        for place in places:
            self.clock.at(late.get(place, 0.0), self._start, place)

    def _line(self, source: int, target: int) -> Line:
        scenario = self.scenario
        line = Line(
            self.clock,
            Random(f"{scenario.seed} line {source} {target}"),
            latency_s=scenario.latency_s,
            jitter_s=scenario.jitter_s,
            bytes_per_s=scenario.bytes_per_s,
        )
        line.tamperer = Tamperer(scenario.coordinates, self.inspector.judge.tampered)
        return line

    # -- what others see

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.now

    def mesh(self, number: int) -> Mesh | None:
        """Who answers a dial there; None if no process listens."""
        if number in self.liars:
            return self.liars[number].mesh if self.liars[number].alive else None
        daemon = self.daemons.get(number)
        return None if daemon is None or daemon.stopping else daemon.mesh

    def living(self) -> list[Daemon]:
        """All processes."""
        return list(self.daemons.values())

    def within_reach(self) -> list[Daemon]:
        """All processes but those that nobody will hear of again, or listen to."""
        forbidden = self.inspector.agreement.latest.forbidden
        return [
            daemon
            for daemon in self.living()
            if not self.convergence.is_lost(daemon.place) and daemon.me.node not in forbidden
        ]

    def helpful(self) -> list[Daemon]:
        """Return the processes that can give others what they have. In the second phase these are the core: a
        node outside of it may be cut off from some.
        """
        return self.convergence.core() if self.convergence.begun else self.within_reach()

    def see(self, what: str, times: int = 1) -> None:
        """Count an event worth knowing."""
        self.sightings[what] += times

    def noted(self, daemon: Daemon, note: LogEvent) -> None:
        """A node has something to tell."""
        if self.liars:
            note_of_liars(self.inspector.naming, self.liars.values(), note)
        if self.inspector.unchecked:
            return
        note_note(self.see, daemon.replica, note, self._evicted)
        if self.inspector.rules is not None:
            self.inspector.rules.sightings.noted(note)
        self.inspector.judge.note(daemon, note)
        if note.kind == "snapshot given" and note.node is not None:
            self.inspector.judge.snapshot_given(daemon, note.node)
            self.chaos.snapshot_begun(daemon.place, note.node % 10)

    def published(self, owner: Daemon) -> None:
        """An owner is about to send an update."""
        self.chaos.published(owner)

    def generation_begun(self, head: Daemon) -> None:
        """A node has begun a generation of the ring."""
        self.chaos.generation_begun(head)

    def trace(self, who: str, what: object) -> None:
        """Write a line of the trace, if there is one."""
        if self.tracing:
            self.lines_of_trace.append(f"{self.clock.now:11.6f}  {who}  {describe(what)}")

    def disturb(self, place: int) -> None:
        """A node was paused, resumed or ended."""
        self._disturbed[place] = self.clock.now

    def disturbed_at(self, place: int) -> float:
        """When a node was last not running as it should."""
        daemon = self.daemons.get(place)
        if daemon is None or daemon.paused:
            return self.clock.now
        return self._disturbed.get(place, -1e9)

    # -- processes

    def _start(self, place: int) -> None:
        if place not in self.daemons and place not in self.chaos.returning:
            self.boot(place)

    def boot(self, place: int) -> None:
        """Start a node from its disk: a new incarnation."""
        disk = self.disks[place]
        if disk.incarnations:
            self.see("restart")
        if disk.checkpoints:
            self.see("restart from checkpoint")
        self.daemons[place] = Daemon(
            self,
            self.spec,
            disk,
            log=self._logs[place],
            trainer=self._streams["trainer", place],
            mesh=self._streams["dialler", place],
            keeper=self._streams["keeper", place],
        )

    def died(self, daemon: Daemon, back_after_s: float | None) -> None:
        """A process has ended; it has itself started again after `back_after_s`."""
        self.sightings["duplicate dropped"] += daemon.replica.tally.duplicates
        self.graves[daemon.me] = bury(daemon)
        if self.inspector.rules is not None:
            self.inspector.rules.died(daemon)
        if self.inspector.account is not None:
            self.inspector.account.died(daemon)
        if self.daemons.get(daemon.place) is daemon:
            del self.daemons[daemon.place]
        self.chaos.died(daemon.place, back_after_s)

    def replace_disk(self, place: int) -> None:
        """A new machine with a new node id; only if the run's votes survive that, else the disk is saved."""
        others = [disk for other, disk in self.disks.items() if other != place]
        ignorant = {disk.node for disk in others if disk.votes.view.number == 0} | {place}
        if self.inspector.agreement.is_quorum(NO_VIEW, ignorant):
            return  # they could found another run
        if self.survives_without(burnt=place):
            self.see("disk lost")
            self.burnt.add(self.disks[place].node)
            self._disks_used[place] += 1
            self.disks[place] = Disk(node_at(place, self._disks_used[place]), self.spec.key)

    def survives_without(self, *, burnt: int | None = None, removed: int | None = None) -> bool:
        """Views can still be decided without the disk at the place `burnt`, or with the node `removed` out of
        the run.
        """
        disks = [disk for place, disk in self.disks.items() if place != burnt]
        return self.survival.is_sure(disks, self.living(), removed=set() if removed is None else {removed})

    # -- liars

    def node_at(self, place: int) -> int:
        """Who lives there, or would."""
        if place in self.liars:
            return self.liars[place].me.node
        return self.disks[place].node if place in self.disks else place

    def begin_lying(self, scheme: Scheme) -> None:
        """As soon as there is a view, and whoever turns liar runs and can be spared as a voter."""
        if not may_begin(self, scheme):
            if not self.convergence.begun:
                self.clock.after(1.0, self.begin_lying, scheme)
            return
        me, votes = turn(self, scheme)
        self.liars[scheme.node] = Liar(
            self,
            self.spec,
            me,
            scheme,
            votes,
            chance=Random(f"{self.scenario.seed} liar {scheme.node}"),
            dialler=Random(f"{self.scenario.seed} liar's dialler {scheme.node}"),
        )

    def tell_lie(self, lie: Lie) -> None:
        """From now on, for a while."""
        liar = self.liars.get(lie.node)
        if liar is not None:
            liar.lies.append(lie)
            self.clock.after(lie.for_s, liar.lies.remove, lie)
        elif not self.convergence.begun:
            self.clock.after(1.0, self.tell_lie, lie)

    # -- the two phases

    def run(self) -> float:
        """Run it all; returns how long convergence took after the last disturbance."""
        self.clock.run_until(self.scenario.chaos_s)
        return self.convergence.run()


def _draw_initial(scenario: Scenario) -> NDArray[np.int32]:
    """Coordinates int32 (P,): multiples of the quantum, or in a dense ring the bits of float32 numbers."""
    chance = Random(f"{scenario.seed} initial")
    if scenario.ring is not None and scenario.ring.mode.dense:
        numbers = [chance.gauss(0.0, 1.0) for _ in range(scenario.coordinates)]
        return np.array(numbers, np.float32).view(np.int32)
    return np.array([chance.randint(-1000, 1000) for _ in range(scenario.coordinates)], np.int32)


@contextmanager
def small_pieces() -> Iterator[None]:
    """Copies take several turns, snapshots several frames, and each update that is applied again a turn of
    its own, though they are small; the CRC-32C of each piece of a dense ring is remembered. The buffers of
    links are small too.
    """
    usual = scrub.SLICE, snapshot_feed.CHUNK_BYTES, frames.BUFFER_BYTES
    bytes_per_turn, segment = snapshot_install.BYTES_PER_TURN, chunks.SEGMENT_NUMBERS
    checked = reduce.CHECKED_NUMBERS_MIN
    small = SLICE, CHUNK_BYTES, BUFFER_BYTES
    try:
        scrub.SLICE, snapshot_feed.CHUNK_BYTES, frames.BUFFER_BYTES = small  # type: ignore[misc]
        snapshot_install.BYTES_PER_TURN = 1  # type: ignore[misc]
        chunks.SEGMENT_NUMBERS = SEGMENT_NUMBERS  # type: ignore[misc]
        reduce.CHECKED_NUMBERS_MIN = 1  # type: ignore[misc]
        yield
    finally:
        scrub.SLICE, snapshot_feed.CHUNK_BYTES, frames.BUFFER_BYTES = usual  # type: ignore[misc]
        snapshot_install.BYTES_PER_TURN = bytes_per_turn  # type: ignore[misc]
        chunks.SEGMENT_NUMBERS = segment  # type: ignore[misc]
        reduce.CHECKED_NUMBERS_MIN = checked  # type: ignore[misc]


def simulate(scenario: Scenario, *, tracing: bool = False) -> Outcome:
    """Run a scenario; a violation, or any exception out of the core, is part of the outcome."""
    outcome = Outcome(scenario.seed)
    world = None
    try:
        with small_pieces(), small_limits(scenario.owners), small_sums(scenario.closure):
            world = World(scenario, tracing=tracing)
            outcome.healing_s = world.run()
    except QuorumLostError:
        pass
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
        outcome.sightings["race of two views"] += world.inspector.agreement.races
        outcome.trace = world.lines_of_trace
    return outcome
