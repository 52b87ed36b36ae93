"""One life of a node: the daemon's own `Run` on the simulated network, disk, trainer and clock.

A paused daemon does nothing; what its timers and its kernel have for it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.closure.sums import make_memory
from p2psgd.core.events import (
    LinkDrained,
    PeerMessage,
    PeerStatus,
    UpdateBody,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.reduce import make_dense_memory
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.timing import Timing
from p2psgd.core.view import NO_VOTES  # noqa: F401 (a mutant wants it)
from p2psgd.node.run import RoundCosts, Run, RunningClock
from p2psgd.wire.frames import COVER_BYTES_MAX, FrameType, link_limits
from p2psgd.wire.messages import SnapshotEnd
from p2psgd.wire.reject import PeerError
from tests.core.closure.evaluator import Reference
from tests.core.stores import MemoryStore
from tests.sim.closure.sightings import note_closure
from tests.sim.closure.trainer import EvaluatingTrainer
from tests.sim.disk import Disk
from tests.sim.exchange import Exchange
from tests.sim.faults import SmallLog
from tests.sim.keeper import Keeper
from tests.sim.leaving import leave
from tests.sim.mesh import Mesh, Surroundings
from tests.sim.network import Endpoint
from tests.sim.outcome import Violation
from tests.sim.places import place_of
from tests.sim.ports import Ports
from tests.sim.ports import World as PortsWorld
from tests.sim.ring.standing import Standing, standing_of
from tests.sim.ring.trainer import RingTrainer
from tests.sim.sightings import note_state
from tests.sim.trainer import Trainer
from tests.sim.trimming import Trimming
from tests.sim.whole import check_restored

if TYPE_CHECKING:
    from tests.sim.liar.liar import Liar

TICKS_PER_TIMEOUT: Final = 10  # node/daemon.py has 25; nothing in the core is due more often than 5 times
SCRUB_TICKS_MAX: Final = 2 * 60 + 12 * TICKS_PER_TIMEOUT + 10  # a flip behind the scrub is seen by the next

_UPDATE: Final = FrameType.UPDATE


class World(PortsWorld, Surroundings, Protocol):
    """What a daemon sees of the world."""

    training: bool
    liars: dict[int, Liar]
    lying: set[Origin]
    reference: Reference

    def died(self, daemon: Daemon, back_after_s: float | None) -> None: ...


class Daemon:
    """A node from its start to its end."""

    def __init__(
        self,
        world: World,
        spec: RunSpec,
        disk: Disk,
        *,
        log: SmallLog,
        trainer: Random,
        mesh: Random,
        keeper: Random,
    ) -> None:
        scenario, initial = world.scenario, world.inspector.ledger.initial
        disk.incarnations += 1
        disk.store = MemoryStore()
        disk.store.writable = not disk.full
        timing = Timing(scenario.failure_timeout_s)
        self.me = Origin(disk.node, disk.incarnations)
        self.place = place_of(disk.node)
        self.alive = True
        self.paused = False
        self.stopping = False
        self.resumed_at = -1e9
        restored = disk.restored(spec, initial)
        dense = scenario.ring is not None and scenario.ring.mode.dense
        self.memory = make_dense_memory(scenario.coordinates) if dense else None
        self.closure_memory = None if scenario.closure is None else make_memory(spec.weights)
        self.replica = Replica(
            spec,
            me=self.me,
            coordinates=initial.copy() if restored is None else restored.coordinates,
            now=world.clock.now,
            timing=timing,
            bootstrap_expect=scenario.nodes,
            votes=disk.votes,
            restored=restored,
            log_budget_bytes=log.budget_bytes,
            store=disk.store if log.store_bytes else None,
            store_budget_bytes=log.store_bytes,
            credit_bytes=scenario.credit_bytes,
            dense=self.memory,
            memory=self.closure_memory,
        )
        # The real minimum has room for covers of a thousand contributors, which is far too much here.
        frame_bytes_max = link_limits(spec.coordinates)[_UPDATE] - COVER_BYTES_MAX
        self.replica.log.budget_bytes = max(log.budget_bytes, 4 * frame_bytes_max)
        self.book = world.inspector.open_book(self.replica)
        self.trimming = Trimming(self.replica)
        self.exchange = Exchange(self.replica, world.inspector.life, world.lying)
        self.view = self.replica.membership.view
        self.ready_in: int | None = None  # the number of the view in which it became READY; None if it is not
        self.came_without: dict[Origin, dict[Origin, int]] = {}  # floors of its snapshot, by READY member
        self.restored = restored is not None
        self.round_updates = 0  # in a sparse ring: how many its last round had
        self.burst_updates = (
            0  # in mode `owners`: the most it has published from one look at its log to the next
        )
        check_restored(self.replica, restored)
        self.mesh = Mesh(
            world,
            self,
            spec,
            self.me,
            others=[number for number in range(1, scenario.nodes + 1) if number != self.place],
            failure_timeout_s=scenario.failure_timeout_s,
            chance=mesh,
        )
        self._world = world
        self._clock = world.clock
        running = RunningClock(lambda: world.clock.now, gap_s_max=timing.status_s)
        self._disk = disk
        self._inspector = world.inspector
        self.keeper = Keeper(
            self, disk, world.clock, keeper, timing, votes_saved=world.inspector.agreement.saved
        )
        ports = Ports(world, self, disk, keeper)
        self.run = Run(
            self.replica,
            decider=ports,
            network=ports,
            storage=self.keeper,
            session=ports,
            attached=lambda: self.trainer.attached,
            costs=RoundCosts(),
            node_log=ports,
            known_nodes=self.mesh.known,
            events=ports,
            shutdown=ports.shutdown,
            now=running.read,
            disk_now=lambda: self._clock.now,
            call_soon=ports.call_soon,
        )
        self.handle = self.run.handle
        self.run.checkpointer.due -= timing.gone_s * keeper.uniform(0.0, 0.5)  # not all nodes at once
        self._tick_s = scenario.failure_timeout_s / TICKS_PER_TIMEOUT
        self._flipped_ticks = 0
        self._pending: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.trainer: Trainer | RingTrainer | EvaluatingTrainer = Trainer(world, self, trainer)
        if scenario.in_rounds is not None:
            self.trainer = RingTrainer(world, self, trainer, scenario.in_rounds, self.memory)
        if scenario.closure is not None and self.closure_memory is not None:
            self.trainer = EvaluatingTrainer(
                world,
                self,
                trainer,
                scenario.closure,
                memory=self.closure_memory,
                reference=world.reference,
            )
        self.mesh.start()
        self._clock.after(self._tick_s, self._tick)
        self.trainer.plan()

    @property
    def ring_trainer(self) -> RingTrainer:
        """Its trainer, in rounds."""
        assert isinstance(self.trainer, RingTrainer)
        return self.trainer

    @property
    def evaluating_trainer(self) -> EvaluatingTrainer:
        """Its trainer, in mode `closure`."""
        assert isinstance(self.trainer, EvaluatingTrainer)
        return self.trainer

    def standing(self) -> Standing:
        """Where it is in its view's ring."""
        return standing_of(self.replica)

    # -- the process

    def when_running(self, action: Callable[..., object], *arguments: object) -> None:
        """Do it now, or when the pause is over."""
        if self.paused:
            self._pending.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: first what the timers have, then what the kernel has, as an event loop does it."""
        self.paused = False
        self.resumed_at = self._clock.now
        pending, self._pending = self._pending, []
        for action, arguments in pending:
            self.when_running(action, *arguments)
        for (_, target), line in self._world.lines.items():
            if target == self.place:
                line.flow()

    def die(self, back_after_s: float | None = None) -> None:
        """The process ends at once."""
        if self.alive:
            self.alive = self.paused = False
            self.run.executor.closed = True
            self.keeper.crash()
            self.mesh.die()
            self._world.died(self, back_after_s)

    def stop(self) -> None:
        """SIGTERM."""
        if not self.stopping:
            self.stopping = True
            if isinstance(self.trainer, RingTrainer | EvaluatingTrainer):
                self.trainer.rest()
            leave(self._world, self, self.keeper)

    def flip(self, place: float, bit: int) -> None:
        """One bit of a weight changes."""
        if self.book.flipped is None:
            index = int(place * len(self.replica.lattice.coordinates))
            value = int(self.replica.lattice.coordinates[index])
            self.book.flip(self.replica, index, (value ^ 1 << bit) - value)
            self._flipped_ticks = 0

    def _tick(self) -> None:
        if self.paused:
            self._pending.append((self._tick, ()))
        elif self.alive:
            self._clock.after(self._tick_s, self._tick)
            self.run.tick()
            if self.alive:
                note_state(self._world.see, self.replica)
                if self.replica.closure is not None:
                    note_closure(self._world.see, self.replica.closure)
                self._watch_scrub()

    def _watch_scrub(self) -> None:
        if self.book.flipped is not None and not self.replica.node.quarantined:
            self._flipped_ticks += 1
            if self._flipped_ticks > SCRUB_TICKS_MAX:
                raise Violation("I9", f"node {self.me.node} has not found its damaged weight")

    # -- the mesh's host

    def bytes_received(self, endpoint: Endpoint) -> None:
        """Take out all whole frames."""
        next_frame, receive = endpoint.reader.next_frame, self.mesh.frame_received
        try:
            while not endpoint.closing and (frame := next_frame()) is not None:
                frame_type, body = frame
                receive(endpoint, frame_type, bytes(body) if isinstance(body, memoryview) else body)
        except PeerError as error:
            self.mesh.failed(endpoint, error)

    def frame_received(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> None:
        """A linked peer's frame."""
        liar = self._world.liars.get(place_of(peer.node))
        if liar is not None:
            self._inspector.naming.heard(self.me, self.view.number, liar.lies_in(frame_type, body))
        if frame_type is _UPDATE:
            self._told(peer, UpdateBody(body))
            return
        message = self._inspector.parsed(peer, frame_type, body)
        if isinstance(message, PeerStatus):
            own = self.replica.peers[peer].cursors.get(self.me) if peer in self.replica.peers else None
            parked = own is not None and own.parked
            self._told(peer, message)
            if own is not None and parked and not own.parked:
                self._world.see("parked cursor freed")
        elif message is not None:
            self._told(peer, message)
            if isinstance(message, SnapshotEnd):
                self._inspector.judge.snapshot_over(self, peer)

    def _told(self, peer: Origin, message: PeerMessage) -> None:
        self.run.message_received(peer, message)

    def link_opened(self, peer: Origin, name: str) -> None:
        """MeshHost."""
        self._inspector.judge.snapshot_over(self, peer)
        self.run.link_opened(peer, name)

    def link_closed(self, peer: Origin, words: str) -> None:
        """MeshHost."""
        if self._world.tracing:
            self._world.trace(f"node {self.me.node}", f"lost its link to node {peer.node}: {words}")
        if place_of(peer.node) in self._world.liars:
            self._inspector.naming.unlinked(self.me)
        self.run.link_closed(peer, words)

    def connection_lost(self, endpoint: Endpoint, words: str) -> None:
        """EndpointOwner."""
        self.mesh.forget(endpoint, words)

    def connection_drained(self, endpoint: Endpoint) -> None:
        """EndpointOwner."""
        peer = self.mesh.peer(endpoint)
        if peer is not None and not endpoint.closing:
            self.handle(LinkDrained(peer))

    def refused(self, number: int, error: PeerError) -> None:
        """MeshHost."""
        if number in self._world.liars:
            self._inspector.naming.dropped(error.code)
        elif not self._inspector.unchecked:
            self._inspector.judge.refusal(self, number, error.code, str(error))
