"""What may only happen when a fault explains it: links dropped, alarms, nodes that stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.effects import Alert, Drop, Effect, LogEvent, Shutdown
from p2psgd.core.events import CheckpointRead, Event, FrameReceived, RingUpdate, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.wire.reject import RejectCode
from tests.sim.faults import FlippedBit, Forged, Mismatched, Tampering
from tests.sim.ledger import label
from tests.sim.mesh import HANDSHAKE_TIMEOUT_S
from tests.sim.network import Line
from tests.sim.outcome import Violation
from tests.sim.places import place_of
from tests.sim.scenario import Scenario
from tests.sim.whole import Grave, bury

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon
    from tests.sim.invariants import Inspector

HARMED_FRAME_CODES: Final = {  # how a frame with a wrong bit may show: in its body, or in its prefix
    *(
        RejectCode.CHECKSUM,
        RejectCode.UPDATE_LENGTH,
        RejectCode.FRAME_TYPE,
        RejectCode.FRAME_LENGTH,
        RejectCode.FRAME_ORDER,
        RejectCode.MESSAGE,
        RejectCode.SNAPSHOT,
        RejectCode.RING,
    ),
}

MISMATCH_WORDS: Final = "all nodes must give the same tensors"


class World(Protocol):
    """What the judge sees of the world."""

    scenario: Scenario
    lines: dict[tuple[int, int], Line]
    graves: dict[Origin, Grave]
    lying: set[Origin]
    inspector: Inspector

    @property
    def now(self) -> float: ...
    def living(self) -> list[Daemon]: ...
    def within_reach(self) -> list[Daemon]: ...
    def helpful(self) -> list[Daemon]: ...
    def disturbed_at(self, place: int) -> float: ...
    def see(self, what: str, times: int = 1) -> None: ...


class Judge:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self.abandoned: dict[Origin, int] = {}  # by origin, from which sequence on updates may be lost
        self._world = world
        self._harmed: Counter[tuple[int, int]] = Counter()  # frames by direction, less links dropped for them
        self._forged: Counter[tuple[int, int]] = Counter()
        self._damaged: set[tuple[int, int]] = set()  # directions of snapshots under way from damaged memory
        self._saved: dict[Origin, dict[Origin, int]] = {}  # by life: what is to be mended with

    def tampered(self, tampering: Tampering) -> None:
        """A frame was harmed: one link may be dropped for it."""
        direction = tampering.source, tampering.target
        self._world.see(f"fault done: {type(tampering).__name__}")
        if isinstance(tampering, FlippedBit):
            self._harmed[direction] += 1
        elif isinstance(tampering, Forged):
            self._forged[direction] += 1

    def snapshot_given(self, donor: Daemon, joiner: int) -> None:
        """A node begins to give a snapshot of its memory as it is."""
        if donor.book.flipped is not None:
            self._damaged.add((donor.place, place_of(joiner)))

    def snapshot_over(self, joiner: Daemon, donor: Origin) -> None:
        """What a node was given has ended, or its link is a new one: it explains nothing any more."""
        self._damaged.discard((place_of(donor.node), joiner.place))

    def checkpoint_read(self, daemon: Daemon, event: CheckpointRead) -> None:
        """A node whose memory is damaged has got its last checkpoint, or none."""
        if event.found is not None:
            rows = {Origin(row.node, row.incarnation): row.sequence for row in event.found.rows}
            self._saved[daemon.me] = rows

    def note(self, daemon: Daemon, note: LogEvent) -> None:
        """Who has a whole checkpoint and all updates since needs no donor."""
        if note.kind != "quarantine":
            return
        saved, log = (
            self._saved.pop(daemon.me, None),
            daemon.replica.log,
        )  # none yet where a quarantine begins
        if saved is None or "cannot be rebuilt" not in note.words:
            return
        if all(log.trimmed_to(origin) <= saved.get(origin, 0) for origin in daemon.replica.frontier):
            raise Violation("mending", f"{label(daemon.me)} gives up without need: {note.words}")

    def alarm(self, daemon: Daemon, event: Event, alarm: Alert, effects: Iterable[Effect]) -> None:
        """A node tells people of trouble."""
        if alarm.words.startswith("the log is "):
            self._world.see("log nearly full")
            return
        if "bad memory" in alarm.words and daemon.book.damaged:
            return
        if MISMATCH_WORDS in alarm.words and self._mismatched():
            return
        if getattr(event, "peer", None) in self._world.lying:
            self._world.inspector.naming.said("an alarm")
            return
        codes = [effect.code for effect in effects if isinstance(effect, Drop)]
        forged = (
            isinstance(event, FrameReceived)
            and isinstance(event.message, UpdateBody | RingUpdate)
            and self._forged[place_of(event.peer.node), daemon.place] > 0
        )
        if not forged or codes != [RejectCode.DIGEST]:
            raise Violation(
                "alarm", f"{label(daemon.me)} raised an alarm that no fault explains: {alarm.words}"
            )

    def _mismatched(self) -> bool:
        """A trainer has given something else than others, or may have: a node that was out of the ring for a
        while gives an array when the others give changes.
        """
        faults, work = self._world.scenario.faults, self._world.scenario.ring
        return work is not None and (
            work.arrays_every > 0 or any(isinstance(fault, Mismatched) for fault in faults)
        )

    def refusal(self, daemon: Daemon, place: int, code: RejectCode, words: str) -> None:
        """A node closes the connection to `place` because that broke the protocol, or is silent."""
        direction = place, daemon.place
        if code is RejectCode.SILENT:
            self._world.see("silent link closed")
            explained = self._was_silent(daemon, place)
        elif code is RejectCode.SLOW:
            self._world.see("slow joiner dropped")
            explained = self._was_silent(daemon, place) or self._is_slow(daemon, place)
        elif code in (RejectCode.SUPERSEDED, RejectCode.BEHIND):
            self._world.see("superseded")
            explained = True
        elif code is RejectCode.DIGEST:
            self._world.see("link dropped by digest")
            self._forged[direction] -= 1
            explained = self._forged[direction] >= 0
        elif code is RejectCode.SNAPSHOT and direction in self._damaged:
            self._world.see("damaged snapshot refused")
            self._damaged.remove(direction)
            explained = True
        elif code is RejectCode.CHECKSUM and self._is_left_behind(daemon, place):
            self._world.see("ring: numbers of a former generation came changed")
            explained = True
        elif code is RejectCode.FORBIDDEN:
            self._world.see("link to a forbidden node dropped")
            explained = place in map(place_of, daemon.view.forbidden)
        else:
            self._world.see(
                "link dropped by checksum" if code is RejectCode.CHECKSUM else "link dropped by framing"
            )
            self._harmed[direction] -= 1
            explained = code in HARMED_FRAME_CODES and self._harmed[direction] >= 0
        if not explained:
            raise Violation("drop", f"{label(daemon.me)} dropped node {place}: {code.label}: {words}")

    def _was_silent(self, daemon: Daemon, place: int) -> bool:
        """A pause, a death, a cut or slow line, or a harmed length explains that nothing came lately."""
        world = self._world
        silence_s = daemon.replica.timing.silence_s
        lines = [world.lines[place, daemon.place]]
        if silence_s < HANDSHAKE_TIMEOUT_S:  # it may wait for the answer to its greeting meanwhile
            lines.append(world.lines[daemon.place, place])
        lately = world.now - silence_s - world.scenario.failure_timeout_s
        return (
            any(line.impaired or line.impaired_at > lately for line in lines)
            or world.disturbed_at(place) > lately
            or daemon.resumed_at > lately
            or self._harmed[place, daemon.place] > 0
        )

    def _is_left_behind(self, daemon: Daemon, place: int) -> bool:
        """In a dense ring it runs a generation that `place` has given up, and with it the memory that its
        numbers were sent from.
        """
        work = self._world.scenario.ring
        if work is None or not work.mode.dense or daemon.standing().id is None:
            return False
        others = [each for each in self._world.living() if each.place == place]
        return not others or others[0].standing().id != daemon.standing().id

    def _is_slow(self, daemon: Daemon, place: int) -> bool:
        line = self._world.lines[daemon.place, place]
        return line.impaired or line.impaired_at > self._world.now - daemon.replica.timing.silence_s

    def halt(self, daemon: Daemon, halt: Shutdown) -> None:
        """A node stops by itself."""
        if halt.abandon:
            self._abandonment(daemon)
        elif halt.again and daemon.book.damaged:
            self._lose_memory(daemon)
        elif daemon.me.node in daemon.replica.membership.view.forbidden:
            self._world.see("stopped because it was removed for good")
        else:
            raise Violation("halt", f"{label(daemon.me)} stopped without need: {halt.words}")

    def _lose_memory(self, daemon: Daemon) -> None:
        """Its memory is damaged and found no donor: what only that held dies with it, as in a crash."""
        others = [each.replica for each in self._world.within_reach() if each is not daemon]
        for origin in daemon.replica.frontier:
            first = max((each.frontier.sequence(origin) for each in others), default=0) + 1
            if daemon.replica.frontier.sequence(origin) >= first:
                self.abandoned[origin] = min(first, self.abandoned.get(origin, first))

    def _abandonment(self, daemon: Daemon) -> None:
        """Allowed only for what all others that had it have lost with their memory, or took with them."""
        world, replica = self._world, daemon.replica
        others = [each.replica for each in world.within_reach() if each is not daemon]
        away = [bury(each) for each in world.living() if each is not daemon and each.replica not in others]
        helpful = [each.replica for each in world.helpful() if each is not daemon]
        lost = 0
        for origin in replica.frontier:
            best = max((each.frontier.sequence(origin) for each in others), default=0)
            trimmed_to = replica.log.trimmed_to(origin)
            if trimmed_to > best:
                if all(grave.rows.get(origin, 0) < trimmed_to for grave in (*world.graves.values(), *away)):
                    words = (
                        f"{label(daemon.me)} loses {label(origin)} from {best + 1} on, that nobody else had"
                    )
                    raise Violation("loss", words)
                lost += replica.frontier.sequence(origin) - best
            best = max((each.frontier.sequence(origin) for each in helpful), default=0)
            if replica.frontier.sequence(origin) > best:
                first = best + 1
                self.abandoned[origin] = min(first, self.abandoned.get(origin, first))
        if self._world.lying and not lost:
            raise Violation("loss", f"{label(daemon.me)} gives up what it has, though others have the rest")
        world.see("lost, and said so")
        world.see("updates lost", lost)
