"""Makes faults happen: turns a scenario's data into what is done to nodes and lines, and undone."""

from __future__ import annotations

from typing import Final, Protocol

from p2psgd.core.events import RemovalRequested
from tests.sim.clock import Clock
from tests.sim.daemon import Daemon
from tests.sim.disk import Disk
from tests.sim.faults import (
    BeginAmbush,
    CleanStop,
    Crash,
    CrashInSnapshot,
    Cut,
    Deaf,
    DiskFull,
    Fault,
    FlippedCoordinate,
    FreshDisk,
    LateStart,
    Liar,
    Lie,
    Mismatched,
    Outcast,
    Partition,
    Pause,
    PowerCut,
    PublishAmbush,
    Removal,
    Reset,
    SlowLink,
    SmallLog,
    Timed,
    TrainerAway,
    TrainerSlow,
    Unlinked,
)
from tests.sim.network import Line
from tests.sim.places import place_of

TRICKLE_BYTES_PER_S: Final = 1.0  # reaches the deaf
STAGGER_S: Final = 0.3  # between two nodes that come back after a power cut
PUBLISHED_S: Final = 0.3  # from an owner's last publication to its death: it arrives where it can


class World(Protocol):
    """What chaos sees of the world."""

    clock: Clock
    lines: dict[tuple[int, int], Line]
    daemons: dict[int, Daemon]
    disks: dict[int, Disk]

    def boot(self, place: int) -> None: ...
    def replace_disk(self, place: int) -> None: ...
    def disturb(self, place: int) -> None: ...
    def survives_without(self, *, burnt: int | None = None, removed: int | None = None) -> bool: ...
    def node_at(self, place: int) -> int: ...
    def begin_lying(self, fault: Liar) -> None: ...
    def tell_lie(self, fault: Lie) -> None: ...
    def see(self, what: str) -> None: ...
    def trace(self, who: str, what: object) -> None: ...


class Chaos:
    """Plans all faults of a scenario, but those that last for ever: `cast_out` does that."""

    def __init__(self, world: World, faults: tuple[Fault, ...]) -> None:
        self.returning: set[int] = set()  # places where a node is down and will come back
        self.forbidden: set[int] = set()  # nodes that a person has asked to be removed for good
        self._world = world
        self._stops: dict[int, float] = {}  # for how long a node that is stopping will be down
        self._ambushes: list[CrashInSnapshot] = []
        self._begin_ambushes: list[BeginAmbush] = []
        self._publish_ambushes: list[PublishAmbush] = []
        # Of ambushes that have sprung and have yet to strike: the lines that are cut until then.
        self._sprung: dict[CrashInSnapshot | BeginAmbush | PublishAmbush, list[Line]] = {}
        self._hidden: dict[PublishAmbush, list[Line]] = {}  # between a witness and all others
        for fault in faults:
            match fault:
                case Unlinked():
                    world.lines[fault.node, fault.other].cut()
                    world.lines[fault.other, fault.node].cut()
                case SmallLog() | LateStart() | Outcast():
                    pass  # the world looks for it
                case _:
                    world.clock.at(fault.at, self._begin, fault)

    def _begin(self, fault: Timed) -> None:  # noqa: PLR0912 (one case a fault)
        world = self._world
        world.trace("FAULT", fault)
        match fault:
            case Crash():
                if self._kill(fault.node, fault.back_after_s) and fault.damaged:
                    world.disks[fault.node].damage()
            case FreshDisk():
                if self._kill(fault.node, fault.back_after_s):
                    world.replace_disk(fault.node)
            case PowerCut():
                world.see("all lost at once")
                for place in sorted(world.daemons):
                    self._kill(place, fault.back_after_s + STAGGER_S * place)
            case CrashInSnapshot():
                self._ambushes.append(fault)
            case BeginAmbush():
                self._begin_ambushes.append(fault)
            case PublishAmbush():
                self._publish_ambushes.append(fault)
            case TrainerAway() | TrainerSlow() | Mismatched():
                if fault.node in world.daemons:
                    world.daemons[fault.node].ring_trainer.suffer(fault)
            case CleanStop():
                daemon = world.daemons.get(fault.node)
                if daemon is not None and not daemon.stopping:
                    self._stops[fault.node] = fault.back_after_s
                    daemon.when_running(daemon.stop)
            case Pause():
                self._pause(world.daemons.get(fault.node), fault.for_s)
            case DiskFull():
                disk = world.disks.get(fault.node)
                if disk is not None:  # else a liar lives there, and has none
                    disk.fill()
                    world.clock.after(fault.for_s, disk.empty)
            case FlippedCoordinate():
                if fault.node in world.daemons:
                    world.daemons[fault.node].flip(fault.place, fault.bit)
            case Removal():
                self._remove(fault)
            case Liar():
                world.begin_lying(fault)
            case Lie():
                world.tell_lie(fault)
            case Cut() | Partition() | SlowLink() | Deaf():
                lines = self._lines(fault)
                self._impair(fault, lines)
                world.clock.after(fault.for_s, self._heal, fault, lines)
            case _:
                tamperer = world.lines[fault.source, fault.target].tamperer
                assert tamperer is not None
                tamperer.add(fault)

    def _kill(self, place: int, back_after_s: float) -> bool:
        daemon = self._world.daemons.get(place)
        if daemon is None:
            return False
        self._stops.pop(place, None)
        daemon.die()
        self._return_later(place, back_after_s)
        return True

    def _pause(self, daemon: Daemon | None, for_s: float) -> None:
        if daemon is not None and not daemon.paused:
            self._world.disturb(daemon.place)
            daemon.pause()
            self._world.clock.after(for_s, self._resume, daemon)

    def _remove(self, fault: Removal) -> None:
        asked, node = self._world.daemons.get(fault.asked), self._world.node_at(fault.node)
        if asked is None or not self._world.survives_without(removed=node):
            return  # nobody is there to be asked, or a person knows better
        if fault.forbid:
            self.forbidden.add(node)
        asked.when_running(asked.handle, RemovalRequested(node, fault.forbid))

    def _return_later(self, place: int, back_after_s: float) -> None:
        self.returning.add(place)
        self._world.clock.after(back_after_s, self._boot, place)

    def died(self, place: int, back_after_s: float | None) -> None:
        """A node has ended by itself; None: as it was told to."""
        self._world.disturb(place)
        if back_after_s is None:
            back_after_s = self._stops.pop(place, None)
        if back_after_s is not None:
            self._return_later(place, back_after_s)

    def snapshot_begun(self, donor: int, joiner: int) -> None:
        """Here a fault may lie in wait."""
        for fault in [each for each in self._ambushes if each.node in (donor, joiner)]:
            self._ambushes.remove(fault)
            self._world.see("crash of the donor" if fault.node == donor else "crash of the joiner")
            self._sprung[fault] = []
            self._world.clock.after(fault.delay_s, self._strike, fault)

    def _strike(self, fault: CrashInSnapshot) -> None:
        if self._sprung.pop(fault, None) is None:
            return  # all is healed meanwhile, as below
        self._world.trace("FAULT", fault)
        self._kill(fault.node, fault.back_after_s)

    def generation_begun(self, head: Daemon) -> None:
        """Here too."""
        for fault in self._begin_ambushes[:1]:
            self._begin_ambushes.remove(fault)
            self._sprung[fault] = []
            self._world.clock.after(fault.delay_s, self._strike_begin, fault, head)

    def _strike_begin(self, fault: BeginAmbush, head: Daemon) -> None:
        if self._sprung.pop(fault, None) is None:
            return
        self._world.trace("FAULT", fault)
        if self._world.daemons.get(head.place) is not head:
            return
        match fault.what:
            case "crash":
                self._kill(head.place, fault.for_s)
            case "pause":
                self._pause(head, fault.for_s)
            case _:
                generation = head.standing().generation
                if generation is not None:
                    target = place_of(generation.right.node)
                    tamperer = self._world.lines[head.place, target].tamperer
                    assert tamperer is not None
                    tamperer.add(Reset(fault.at, head.place, target))

    def published(self, owner: Daemon) -> None:
        """And here: what is about to be sent reaches the witness alone."""
        for fault in [each for each in self._publish_ambushes if each.node == owner.place]:
            self._publish_ambushes.remove(fault)
            self._world.trace("FAULT", f"springs: {fault!r}")
            lines = self._world.lines
            others = [
                place for place in {place for place, _ in lines} if place not in (owner.place, fault.witness)
            ]
            silent = [lines[owner.place, place] for place in sorted(others)]
            hidden = [lines[place, fault.witness] for place in sorted(others)]
            hidden += [lines[fault.witness, place] for place in sorted(others)]
            for line in (*silent, *hidden):
                line.cut()
            self._sprung[fault], self._hidden[fault] = silent, hidden
            self._world.clock.after(PUBLISHED_S, self._strike_publish, fault, owner)
            self._world.clock.after(PUBLISHED_S + fault.hidden_s, self._reveal, fault)

    def _strike_publish(self, fault: PublishAmbush, owner: Daemon) -> None:
        silent = self._sprung.pop(fault, None)
        if silent is None:
            return
        self._world.trace("FAULT", fault)
        if self._world.daemons.get(owner.place) is owner:
            sequence = owner.replica.sequence
            having = [
                place
                for place, each in self._world.daemons.items()
                if each is not owner and each.replica.frontier.sequence(owner.me) == sequence
            ]
            if having == [fault.witness]:
                self._world.see("owners: owner died when its update had reached one node")
            self._kill(owner.place, fault.back_after_s)
        for line in silent:
            line.mend()

    def _reveal(self, fault: PublishAmbush) -> None:
        if fault in self._hidden:  # else all is healed meanwhile
            self._world.trace("FAULT", f"over: {fault!r}")
            for line in self._hidden.pop(fault):
                line.mend()

    def calm(self) -> None:
        """No more of what waits for its moment, nor of what was about to strike: who is alive stays so."""
        for lines in self._sprung.values():
            for line in lines:
                line.mend()
        self._sprung.clear()
        self._publish_ambushes.clear()
        for fault in [*self._hidden]:
            self._reveal(fault)
        self._ambushes.clear()
        self._begin_ambushes.clear()
        for line in self._world.lines.values():
            assert line.tamperer is not None
            line.tamperer.clear()

    def cast_out(self, fault: Outcast) -> None:
        """From now on for ever."""
        self._world.trace("FAULT", fault)
        daemon = self._world.daemons.get(fault.node)
        match fault.fate:
            case "dead":
                self.returning.discard(fault.node)
                self._stops.pop(fault.node, None)
                if daemon is not None:
                    daemon.die()
            case "paused":
                if daemon is not None and not daemon.paused:
                    self._world.disturb(fault.node)
                    daemon.pause()
            case "deaf":
                deaf = Deaf(self._world.clock.now, fault.node, float("inf"))
                self._impair(deaf, self._lines(deaf))
            case _:
                for (a, b), line in self._world.lines.items():
                    if fault.node in (a, b) and fault.friend not in (a, b):
                        line.cut()

    def take_in(self, fault: Outcast) -> None:
        """The core cannot do without it."""
        self._world.trace("FAULT", f"over: {fault!r}")
        daemon = self._world.daemons.get(fault.node)
        match fault.fate:
            case "dead":
                if daemon is None:
                    self._return_later(fault.node, 0.0)
            case "paused":
                if daemon is not None:
                    self._resume(daemon)
            case "deaf":
                deaf = Deaf(self._world.clock.now, fault.node, float("inf"))
                self._heal(deaf, self._lines(deaf))
            case _:
                for (a, b), line in self._world.lines.items():
                    if fault.node in (a, b) and fault.friend not in (a, b):
                        line.mend()

    def _boot(self, place: int) -> None:
        if place in self.returning:
            self.returning.discard(place)
            self._world.trace("FAULT", f"node {place} starts again")
            self._world.boot(place)

    def _resume(self, daemon: Daemon) -> None:
        if daemon.alive and daemon.paused:
            self._world.trace("FAULT", f"node {daemon.me.node} goes on")
            self._world.disturb(daemon.place)
            daemon.resume()

    def _lines(self, fault: Cut | Partition | SlowLink | Deaf) -> list[Line]:
        every = self._world.lines
        match fault:
            case Partition():
                return [line for (a, b), line in every.items() if (a in fault.side) != (b in fault.side)]
            case Deaf():
                return [line for (_, b), line in every.items() if b == fault.node]
            case Cut() if fault.both:
                return [every[fault.source, fault.target], every[fault.target, fault.source]]
        return [every[fault.source, fault.target]]

    def _impair(self, fault: Cut | Partition | SlowLink | Deaf, lines: list[Line]) -> None:
        for line in lines:
            match fault:
                case SlowLink():
                    line.slow_down(fault.bytes_per_s)
                case Deaf():
                    line.slow_down(TRICKLE_BYTES_PER_S)
                case _:
                    line.cut()

    def _heal(self, fault: Cut | Partition | SlowLink | Deaf, lines: list[Line]) -> None:
        self._world.trace("FAULT", f"over: {fault!r}")
        for line in lines:
            match fault:
                case SlowLink():
                    line.speed_up(fault.bytes_per_s)
                case Deaf():
                    line.speed_up(TRICKLE_BYTES_PER_S)
                case _:
                    line.mend()
