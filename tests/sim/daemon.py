"""One life of a node: what node.py is to the real one, without loop, sockets and trainer.

Frames become events and effects become frames exactly as there. A paused daemon does nothing; what its
timers and its kernel have for it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import numpy as np

from p2psgd.core.effects import Deliver, Drop, Halt, ReportDrained, Send
from p2psgd.core.events import (
    Event,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    NodeStopping,
    OwnUpdateMade,
    StatusReceived,
    TimePassed,
    UpdateReceived,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import PeerError
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType
from tests.core.cluster import event_of
from tests.sim.invariants import DRAINED_SHARE, Inspector
from tests.sim.mesh import Mesh, Surroundings
from tests.sim.network import Endpoint
from tests.sim.scenario import Scenario

TICKS_PER_PATIENCE: Final = 25  # as in node.py
DRAIN_TIMEOUT_S: Final = 30.0
DRAIN_POLL_S: Final = 0.1
STEP_MAX: Final = 400  # small enough that no coordinate comes near 2^23

_UPDATE: Final = FrameType.UPDATE
_NEED: Final = int(FrameType.NEED)
_GAP: Final = int(FrameType.GAP)


class World(Surroundings, Protocol):
    """What a daemon sees of the world."""

    scenario: Scenario
    inspector: Inspector
    tracing: bool

    def trace(self, who: str, what: object) -> None: ...
    def died(self, daemon: Daemon) -> None: ...


class Daemon:
    """A node from its start to its end."""

    def __init__(
        self, world: World, spec: RunSpec, me: Origin, *, log_budget_bytes: int, trainer: Random, mesh: Random
    ) -> None:
        scenario = world.scenario
        self.me = me
        self.alive = True
        self.paused = False
        self.stopping = False
        self.resumed_at = -1e9
        self.replica = Replica(
            spec,
            me=me,
            coordinates=world.inspector.ledger.initial.copy(),
            patience_s=scenario.patience_s,
            log_budget_bytes=log_budget_bytes,
            credit_bytes=scenario.credit_bytes,
        )
        self.mesh = Mesh(
            world,
            self,
            spec,
            me,
            others=[number for number in range(1, scenario.nodes + 1) if number != me.node],
            patience_s=scenario.patience_s,
            chance=mesh,
        )
        self._world = world
        self._clock = world.clock
        self._inspector = world.inspector
        self._book = world.inspector.open_book()
        self._scenario = scenario
        self._trainer = trainer
        self._tick_s = scenario.patience_s / TICKS_PER_PATIENCE
        self._pending: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.mesh.start()
        self._clock.after(self._tick_s, self._tick)
        self._plan_update()

    # -- the process

    def when_running(self, action: Callable[..., None], *arguments: object) -> None:
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
        for number in range(1, self._scenario.nodes + 1):
            if number != self.me.node:
                self._world.lines[number, self.me.node].flow()

    def die(self) -> None:
        """The process ends at once."""
        if self.alive:
            self.alive = self.paused = False
            self.mesh.die()
            self._world.died(self)

    def stop(self) -> None:
        """SIGTERM: wait until everything is acknowledged, 30 s at most, then say goodbye."""
        if not self.stopping:
            self.stopping = True
            self._drain(self._clock.now + DRAIN_TIMEOUT_S)

    def _drain(self, deadline: float) -> None:
        if not self.alive:
            return
        replica = self.replica
        undelivered = any(map(replica.lag, replica.peers.values()))
        if (undelivered or replica.acknowledged_max < replica.sequence) and self._clock.now < deadline:
            self._clock.after(DRAIN_POLL_S, self.when_running, self._drain, deadline)
            return
        self._world.see("goodbye" if replica.peers else "stopped alone")
        self.handle(NodeStopping())
        self.mesh.finish()
        self._clock.after(self._scenario.patience_s, self.die)

    def _tick(self) -> None:
        if self.paused:
            self._pending.append((self._tick, ()))
        elif self.alive:
            self._clock.after(self._tick_s, self._tick)
            self.handle(TimePassed())

    # -- the trainer

    def _plan_update(self) -> None:
        self._clock.after(self._trainer.expovariate(self._scenario.rates[self.me.node - 1]), self._train)

    def _train(self) -> None:
        if not self.alive or self.stopping or self._clock.now >= self._scenario.chaos_s:
            return
        if self.paused:
            self._pending.append((self._train, ()))
            return
        self._plan_update()
        if self.replica.congested(self._clock.now):
            self._world.see("congested")
            return
        chance, weights = self._trainer, self._scenario.weights
        count = chance.randint(1, self._scenario.indices_max)
        indices = {chance.randrange(weights) for _ in range(count)}
        words = np.array([index << 1 | chance.getrandbits(1) for index in sorted(indices)], np.uint32)
        step = chance.randint(1, STEP_MAX)
        self.handle(OwnUpdateMade(self.replica.sequence + 1, step, codec.encode(words, weights), words))

    # -- the replica

    def handle(self, event: Event) -> None:
        """Give the replica an event, check it, and carry out what it orders."""
        world = self._world
        if world.tracing:
            world.trace(f"node {self.me.node}", event)
        effects = self.replica.handle(event, self._clock.now)
        self._inspector.after_event(self, self._book, event, effects)
        for effect in effects:
            kind = type(effect)
            if world.tracing:
                world.trace("  orders", effect)
            if kind is Send:
                assert isinstance(effect, Send)
                self._note_frame(effect.frame, event)
                self._inspector.check_sent(self, effect.peer, self.mesh.send(effect.peer, effect.frame))
            elif kind is Deliver:
                pass
            elif isinstance(effect, ReportDrained):
                world.see("credit exhausted")
                endpoint = self.mesh.link(effect.peer)
                if endpoint is not None:
                    endpoint.report_drained(self._scenario.credit_bytes // DRAINED_SHARE)
            elif isinstance(effect, Drop):
                endpoint = self.mesh.link(effect.peer)
                if endpoint is not None:
                    self.mesh.failed(endpoint, PeerError(effect.reason, effect.words))
            elif isinstance(effect, Halt):
                world.see("stopped: cannot catch up")
                self.die()
                return

    def _note_frame(self, frame: bytes, event: Event) -> None:
        if frame[4] == _NEED:
            self._world.see("NEED after a gap" if isinstance(event, UpdateReceived) else "NEED after STATUS")
        elif frame[4] == _GAP:
            self._world.see("GAP")

    # -- the mesh's host

    def bytes_received(self, endpoint: Endpoint) -> None:
        """Take out all whole frames."""
        next_frame = endpoint.reader.next_frame
        try:
            while not endpoint.closing and (frame := next_frame()) is not None:
                self.mesh.frame_received(endpoint, *frame)
        except PeerError as error:
            self.mesh.failed(endpoint, error)

    def frame_received(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> None:
        """A linked peer's frame."""
        if frame_type is _UPDATE:
            self.handle(UpdateReceived(peer, body))
            return
        event = self._inspector.parsed(peer, frame_type, body, event_of)
        if isinstance(event, StatusReceived):
            own = self.replica.peers[peer].cursors.get(self.me) if peer in self.replica.peers else None
            parked = own is not None and own.parked
            self.handle(event)
            if own is not None and parked and not own.parked:
                self._world.see("parked cursor freed")
        elif event is not None:
            self.handle(event)

    def link_opened(self, peer: Origin, name: str) -> None:
        """MeshHost."""
        self.handle(LinkOpened(peer, name))

    def link_closed(self, peer: Origin, words: str) -> None:
        """MeshHost."""
        if self._world.tracing:
            self._world.trace(f"node {self.me.node}", f"lost its link to node {peer.node}: {words}")
        self.handle(LinkClosed(peer))

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
        self._inspector.judge_refusal(self, number, error.reason, str(error))
