"""What a run has in the simulator in place of sockets, trainer and people, with checks in between."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.effects import Effect, LogEvent, Send, Shutdown
from p2psgd.core.events import Event, NodeStopping
from p2psgd.core.frontier import Origin
from p2psgd.node.run import Handle
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.frames import FrameType
from p2psgd.wire.reject import PeerError, RejectCode
from tests.sim.agreement import VOTES
from tests.sim.clock import Clock
from tests.sim.disk import Disk
from tests.sim.exchange import EXCHANGED, is_update
from tests.sim.invariants import DRAINED_SHARE, Inspector
from tests.sim.scenario import Scenario
from tests.sim.sightings import note_frame

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

TURN_S: Final = 0.2  # at most, from one turn of a busy loop to the next: updates come in between
START_AGAIN_S: Final = 1.0  # as a service manager does it

_RARE: Final = VOTES | EXCHANGED | {FrameType.TRIMMED}


class World(Protocol):
    """What the ports see of the world."""

    scenario: Scenario
    inspector: Inspector
    tracing: bool
    clock: Clock

    def see(self, what: str, times: int = 1) -> None: ...
    def trace(self, who: str, what: object) -> None: ...
    def noted(self, daemon: Daemon, note: LogEvent) -> None: ...


class Ports:
    """One daemon's replica, as its executor sees it, and its network, trainer and people, as its run does."""

    def __init__(self, world: World, daemon: Daemon, disk: Disk, chance: Random) -> None:
        self._world = world
        self._daemon = daemon
        self._disk = disk
        self._chance = chance
        self._inspector = world.inspector
        self._drained_below = world.scenario.credit_bytes // DRAINED_SHARE

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the replica decide, and check what it orders before that is carried out."""
        world, daemon = self._world, self._daemon
        if world.tracing:
            world.trace(f"node {daemon.me.node}", event)
        effects = daemon.replica.handle(event, now)
        if world.tracing:
            for effect in effects:
                world.trace("  orders", effect)
        if isinstance(event, NodeStopping):
            world.see("goodbye" if daemon.replica.peers else "stopped alone")
        self._inspector.after_event(daemon, event, effects)
        if not self._inspector.unchecked:
            for effect in effects:
                if isinstance(effect, Send) and effect.frame[4] in _RARE:
                    self._note_rare(effect, event)
        return effects

    def call_soon(self, _: Handle, event: Event) -> None:
        """Sliced work goes on in some later turn of the loop."""
        daemon = self._daemon
        delay_s = TURN_S * self._chance.random()
        self._world.clock.after(delay_s, daemon.when_running, daemon.handle, event)

    # -- the network

    def send(self, peer: Origin, frame: bytes) -> None:
        """Check that no more than a credit is on its way."""
        under_way = self._daemon.mesh.send(peer, frame)
        self._inspector.check_sent(self._daemon, peer, frame, under_way)

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        """Check that no more than a credit is on its way."""
        under_way = self._daemon.mesh.send_floats(peer, head, numbers)
        self._inspector.check_sent(self._daemon, peer, head, under_way)

    def report_drained(self, peer: Origin) -> None:
        """A link has drained long before all has arrived."""
        self._world.see("credit exhausted")
        self._daemon.mesh.report_drained(peer, self._drained_below)

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        """Close the link, and tell the peer why."""
        self._daemon.mesh.drop(peer, PeerError(code, details))

    def _note_rare(self, effect: Send, event: Event) -> None:
        daemon, frame = self._daemon, effect.frame
        if frame[4] in VOTES:
            self._inspector.agreement.check_vote(daemon.me, frame, self._disk.votes)
        elif frame[4] in EXCHANGED:
            daemon.exchange.sent(effect.peer, frame, event)
        note_frame(self._world.see, frame, after_update=is_update(event))

    # -- the trainer's session: what its memory is given is for the inspector to compare

    def deliver(self, body: bytes | bytearray) -> None:
        """Checked by the inspector."""

    def replica_replaced(self) -> None:
        """Checked by the inspector."""

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """It may give its next share."""
        self._daemon.ring_trainer.open_round()

    def reject_contribution(self, words: str) -> None:
        """What it gave does not fit."""
        self._daemon.ring_trainer.reject_contribution()

    def answer_evaluation(self, answer: EvaluationAnswered) -> None:
        """It goes on with its evaluation."""
        self._daemon.evaluating_trainer.answered(answer)

    def pause_outbox(self, *, paused: bool) -> None:
        """Its updates are taken, or not."""
        self._daemon.trainer.paused = paused

    def readiness_changed(self) -> None:
        """Who waits to attach looks by itself."""

    def request_state(self) -> None:
        """A trainer that is attached answers when its step is done, perhaps after the node has given up."""
        daemon = self._daemon
        if daemon.trainer.attached:
            delay_s = 10.0 ** self._chance.uniform(-2.0, 1.0)
            self._world.clock.after(delay_s, daemon.when_running, self._give_state)
        else:
            self._give_state()

    def _give_state(self) -> None:
        self._daemon.run.checkpointer.trainer_state(None)

    # -- people

    def alarm(self, words: str, node: int | None = None) -> None:
        """Those of the core are judged by the inspector."""

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        """Count and judge it."""
        self._world.noted(self._daemon, LogEvent(kind, words, node))

    def write(self, kind: str, words: str, node: int | None = None, **figures: float) -> None:
        """An event of the shell's."""
        if kind == "stall":
            self._world.see("trainer held up" if "held up" in words else "trainer goes on")

    def shutdown(self, effect: Shutdown) -> None:
        """The process ends, and a service manager starts it again."""
        if effect.abandon:
            self._disk.abandon()
        self._daemon.die(START_AGAIN_S)
