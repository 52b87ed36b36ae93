"""What must hold after every event, and what may only happen when a fault explains it.

Names I1 to I9 are RELIABILITY.md's; README.md says how each is read for what the core promises today.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alarm, Deliver, Drop, Effect, Halt
from p2psgd.core.events import Event, OwnUpdateMade, UpdateReceived
from p2psgd.core.frontier import Origin
from p2psgd.core.log import ENTRY_BYTES
from p2psgd.core.replica import SILENCE_PER_PATIENCE, Replica
from p2psgd.wire.frames import FrameType, link_limits
from tests.sim.faults import Duplicated, FlippedBit, Forged, SmallLog, Tampering
from tests.sim.ledger import Book, Entry, Ledger, label
from tests.sim.network import Line
from tests.sim.outcome import Violation
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

COSTLY_EVERY: Final = 50  # events of the whole world
PARSED_MAX: Final = 512
DRAINED_SHARE: Final = 4  # a link has drained when a quarter of its credit, or less, is on its way
OVERSHOOT_BYTES: Final = 6 * 1024  # the frame that ends the credit, greeting and farewell
HARMED_FRAME_REASONS: Final = {  # how a frame with a wrong bit may show: in its body, or in its prefix
    *("checksum", "update length", "frame type", "frame length", "frame order", "message"),
}

Parse = Callable[[Origin, FrameType, "bytes | bytearray"], "Event | None"]


class World(Protocol):
    """What the inspector sees of the world."""

    scenario: Scenario
    lines: dict[tuple[int, int], Line]

    @property
    def now(self) -> float: ...
    def living(self) -> list[Daemon]: ...
    def disturbed_at(self, number: int) -> float: ...
    def see(self, what: str) -> None: ...


class Inspector:
    """Checks one run."""

    def __init__(self, world: World, initial: NDArray[np.int32]) -> None:
        self.ledger = Ledger(initial)
        self.events = 0
        self._world = world
        self._harmed: Counter[tuple[int, int]] = Counter()  # frames by direction, less links dropped for them
        self._forged: Counter[tuple[int, int]] = Counter()
        self._frame_bytes_max = link_limits(len(initial))[FrameType.UPDATE]
        self._duplicating = any(isinstance(fault, Duplicated) for fault in world.scenario.faults)
        self._parsed: dict[tuple[Origin, bytes], Event | None] = {}

    def open_book(self) -> Book:
        """For a new life."""
        return Book(self.ledger)

    def parsed(
        self, peer: Origin, frame_type: FrameType, body: bytes | bytearray, parse: Parse
    ) -> Event | None:
        """The event of a control frame; a node tells all its peers the same, so it is parsed once."""
        key = (peer, bytes(body))
        if key not in self._parsed:
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            self._parsed[key] = parse(peer, frame_type, body)
        return self._parsed[key]

    # -- after every event

    def after_event(self, daemon: Daemon, book: Book, event: Event, effects: list[Effect]) -> None:
        """Violation unless the node and what it orders are as they must be."""
        self.events += 1
        own = isinstance(event, OwnUpdateMade)
        replica = daemon.replica
        if own:
            assert isinstance(event, OwnUpdateMade)
            self.ledger.record(replica, self._change(event))
        applied = book.follow(replica, event)
        if effects or applied:
            self._check_deliveries(daemon, applied, effects, own=own)
            for effect in effects:
                if isinstance(effect, Alarm):
                    self._judge_alarm(daemon, event, effect, effects)
                elif isinstance(effect, Halt):
                    self._judge_halt(daemon, effect)
        if applied and isinstance(event, UpdateReceived):
            self._note_repair(replica.me, event.peer, applied[0][0])
        if self.events % COSTLY_EVERY == 0:
            self.check_whole(daemon)
            self.check_pairs()

    def _change(self, event: OwnUpdateMade) -> NDArray[np.int32]:
        change = np.zeros(len(self.ledger.initial), np.int32)
        signs = 1 - 2 * (event.words & 1).astype(np.int32)
        change[event.words >> 1] = signs * event.step
        return change

    def _check_deliveries(
        self, daemon: Daemon, applied: list[tuple[Origin, Entry]], effects: list[Effect], *, own: bool
    ) -> None:
        """The trainer is given each peer's update exactly once, when the replica applies it."""
        delivered = [bytes(effect.body) for effect in effects if isinstance(effect, Deliver)]
        expected = [] if own else [entry.frame[5:] for _, entry in applied]
        if delivered != expected:
            raise Violation(
                "trainer",
                f"{label(daemon.me)} applied {len(expected)} updates of peers in one event and gave its "
                f"trainer {len(delivered)}",
            )

    def _note_repair(self, me: Origin, source: Origin, origin: Origin) -> None:
        if source != origin:
            self._world.see("repair by a non-origin")
            if origin.node == me.node:
                self._world.see("old incarnation told to the restarted node")

    # -- every so often, and at the end

    def check_whole(self, daemon: Daemon) -> None:
        """One node's digest, log, cursors and acknowledgements."""
        replica = daemon.replica
        if replica.lattice.digest != replica.lattice.recompute_digest():
            raise Violation("I9", f"the running digest of {label(daemon.me)} is not that of its weights")
        self._check_log(replica)
        for peer in replica.peers.values():
            for origin, cursor in peer.cursors.items():
                end = replica.frontier.sequence(origin) if cursor.last is None else cursor.last
                if peer.credit > 0 and not cursor.parked and cursor.next <= end:
                    raise Violation(
                        "push",
                        f"{label(daemon.me)} has credit for {label(peer.origin)} and does not send it update "
                        f"{cursor.next} of {label(origin)}",
                    )
        if replica.acknowledged_max > self.ledger.spread.get(daemon.me, 0):
            raise Violation(
                "acknowledgement",
                f"{label(daemon.me)} takes its update {replica.acknowledged_max} for acknowledged, but no "
                f"other node ever had more than {self.ledger.spread.get(daemon.me, 0)}",
            )

    def _check_log(self, replica: Replica) -> None:
        log, me = replica.log, label(replica.me)
        if log.bytes_held > log.budget_bytes and len(log) > 1:
            raise Violation("I7", f"the log of {me} holds {log.bytes_held} bytes of {log.budget_bytes}")
        held, trimmed = 0, False
        for row in replica.frontier.rows():
            origin = Origin(row.node, row.incarnation)
            floor = log.floor(origin)
            held += row.sequence - floor
            trimmed = trimmed or floor > 0
            for sequence in {min(floor + 1, row.sequence), row.sequence} if floor < row.sequence else ():
                if log.frame(origin, sequence) is None:
                    raise Violation("I5", f"the log of {me} has a hole: {label(origin)}, update {sequence}")
        if held != len(log):
            raise Violation("I5", f"the log of {me} holds {len(log)} updates, by its floors {held}")
        if trimmed and log.bytes_held + self._frame_bytes_max + ENTRY_BYTES <= log.budget_bytes:
            raise Violation("I5", f"the log of {me} gave up updates before its budget was needed")

    def check_pairs(self) -> None:
        """I9: whoever has applied the same has the same digest."""
        seen: dict[bytes, Daemon] = {}
        for daemon in self._world.living():
            other = seen.setdefault(daemon.replica.frontier.packed(), daemon)
            if other.replica.lattice.digest != daemon.replica.lattice.digest:
                raise Violation(
                    "I9", f"{label(daemon.me)} and {label(other.me)} have applied the same and differ"
                )

    def check_sent(self, daemon: Daemon, peer: Origin, undelivered: int) -> None:
        """I7: on its way through a link is no more than a credit, and what of the one before was left."""
        credit = self._world.scenario.credit_bytes
        if undelivered > credit + credit // DRAINED_SHARE + OVERSHOOT_BYTES and not self._duplicating:
            words = f"{label(daemon.me)} has {undelivered} bytes on their way to {label(peer)}"
            raise Violation("I7", f"{words}, with a credit of {credit}")

    # -- judgement

    def tampered(self, tampering: Tampering) -> None:
        """A frame was harmed: one link may be dropped for it."""
        direction = tampering.source, tampering.target
        self._world.see(f"fault done: {type(tampering).__name__}")
        if isinstance(tampering, FlippedBit):
            self._harmed[direction] += 1
        elif isinstance(tampering, Forged):
            self._forged[direction] += 1

    def _judge_alarm(self, daemon: Daemon, event: Event, alarm: Alarm, effects: list[Effect]) -> None:
        reasons = [effect.reason for effect in effects if isinstance(effect, Drop)]
        forged = isinstance(event, UpdateReceived) and self._forged[event.peer.node, daemon.me.node] > 0
        if not forged or reasons != ["digest"]:
            raise Violation(
                "alarm", f"{label(daemon.me)} raised an alarm that no fault explains: {alarm.words}"
            )

    def judge_refusal(self, daemon: Daemon, number: int, reason: str, words: str) -> None:
        """A node closes the connection to node `number` because that broke the protocol."""
        direction = number, daemon.me.node
        if reason == "silent":
            self._world.see("silent link closed")
            explained = self._was_silent(daemon, number)
        elif reason == "superseded":
            self._world.see("superseded")
            explained = True
        elif reason == "digest":
            self._world.see("link dropped by digest")
            self._forged[direction] -= 1
            explained = self._forged[direction] >= 0
        else:
            self._world.see("link dropped by checksum" if reason == "checksum" else "link dropped by framing")
            self._harmed[direction] -= 1
            explained = reason in HARMED_FRAME_REASONS and self._harmed[direction] >= 0
        if not explained:
            raise Violation("drop", f"{label(daemon.me)} dropped node {number}: {reason}: {words}")

    def _was_silent(self, daemon: Daemon, number: int) -> bool:
        """A pause, a death, a cut or slow line, or a harmed length explains that nothing came lately."""
        world, scenario = self._world, self._world.scenario
        line = world.lines[number, daemon.me.node]
        lately = world.now - (SILENCE_PER_PATIENCE + 1) * scenario.patience_s
        return (
            line.impaired
            or line.impaired_at > lately
            or world.disturbed_at(number) > lately
            or daemon.resumed_at > lately
            or self._harmed[number, daemon.me.node] > 0
        )

    def _judge_halt(self, daemon: Daemon, halt: Halt) -> None:
        """Only where a log was too small, and nobody linked holds the next update that somebody has."""
        replica = daemon.replica
        frugal = any(isinstance(fault, SmallLog) for fault in self._world.scenario.faults)
        linked = [other.replica for other in self._world.living() if other.me in replica.peers]
        for origin in self.ledger.entries:
            following = replica.frontier.sequence(origin) + 1
            made = self.ledger.entry(origin, following) is not None
            if frugal and made and not any(other.log.frame(origin, following) for other in linked):
                return
        raise Violation("halt", f"{label(daemon.me)} stopped without need: {halt.words}")


def check_converged(daemons: Iterable[Daemon]) -> None:
    """I4: equal frontiers, digests and bytes."""
    for one, other in combinations(daemons, 2):
        a, b = one.replica, other.replica
        same = (
            a.frontier.rows() == b.frontier.rows()
            and a.lattice.digest == b.lattice.digest
            and a.lattice.coordinates.tobytes() == b.lattice.coordinates.tobytes()
        )
        if not same:
            raise Violation("I4", f"{label(one.me)} and {label(other.me)} differ after convergence")
