"""Makes faults happen: turns a scenario's data into what is done to nodes and lines, and undone."""

from __future__ import annotations

from typing import Protocol

from tests.sim.clock import Clock
from tests.sim.daemon import Daemon
from tests.sim.faults import (
    CleanStop,
    Crash,
    Cut,
    Fault,
    Partition,
    Pause,
    SlowLink,
    SmallLog,
    Timed,
    Unlinked,
)
from tests.sim.network import Line


class World(Protocol):
    """What chaos sees of the world."""

    clock: Clock
    lines: dict[tuple[int, int], Line]
    daemons: dict[int, Daemon]

    def boot(self, number: int) -> None: ...
    def disturb(self, number: int) -> None: ...
    def trace(self, who: str, what: object) -> None: ...


class Chaos:
    """Plans all faults of a scenario."""

    def __init__(self, world: World, faults: tuple[Fault, ...]) -> None:
        self.returning = 0  # nodes that are down or stopping and will come back
        self._world = world
        self._come_back: dict[int, float] = {}  # for how long a node that is stopping will be down
        for fault in faults:
            match fault:
                case SmallLog():
                    pass  # whoever boots the node looks for it
                case Unlinked():
                    world.lines[fault.node, fault.other].cut()
                    world.lines[fault.other, fault.node].cut()
                case _:
                    world.clock.at(fault.at, self._begin, fault)

    def _begin(self, fault: Timed) -> None:
        self._world.trace("FAULT", fault)
        match fault:
            case Crash():
                if fault.node in self._world.daemons:
                    self._return_later(fault.node, fault.back_after_s)
                    self._world.daemons[fault.node].die()
            case CleanStop():
                if fault.node in self._world.daemons and not self._world.daemons[fault.node].stopping:
                    self._return_later(fault.node, fault.back_after_s)
                    self._world.daemons[fault.node].when_running(self._world.daemons[fault.node].stop)
            case Pause():
                daemon = self._world.daemons.get(fault.node)
                if daemon is not None and not daemon.paused:
                    self._world.disturb(fault.node)
                    daemon.pause()
                    self._world.clock.after(fault.for_s, self._resume, daemon)
            case Cut() | Partition() | SlowLink():
                lines = self._lines(fault)
                for line in lines:
                    if isinstance(fault, SlowLink):
                        line.slow_down(fault.bytes_per_s)
                    else:
                        line.cut()
                self._world.clock.after(fault.for_s, self._heal, fault, lines)
            case _:
                tamperer = self._world.lines[fault.source, fault.target].tamperer
                assert tamperer is not None
                tamperer.add(fault)

    def _return_later(self, number: int, back_after_s: float | None) -> None:
        if back_after_s is not None:
            self.returning += number not in self._come_back
            self._come_back[number] = back_after_s
        elif self._come_back.pop(number, None) is not None:
            self.returning -= 1

    def died(self, number: int) -> None:
        """A node's process has ended, for whatever reason."""
        self._world.disturb(number)
        if number in self._come_back:
            self._world.clock.after(self._come_back.pop(number), self._boot, number)

    def _boot(self, number: int) -> None:
        self.returning -= 1
        self._world.trace("FAULT", f"node {number} starts again")
        self._world.boot(number)

    def _resume(self, daemon: Daemon) -> None:
        if daemon.alive:
            self._world.trace("FAULT", f"node {daemon.me.node} goes on")
            self._world.disturb(daemon.me.node)
            daemon.resume()

    def _lines(self, fault: Cut | Partition | SlowLink) -> list[Line]:
        every = self._world.lines
        if isinstance(fault, Partition):
            return [line for (a, b), line in every.items() if (a in fault.side) != (b in fault.side)]
        lines = [every[fault.source, fault.target]]
        if isinstance(fault, Cut) and fault.both:
            lines.append(every[fault.target, fault.source])
        return lines

    def _heal(self, fault: Cut | Partition | SlowLink, lines: list[Line]) -> None:
        self._world.trace("FAULT", f"over: {fault!r}")
        for line in lines:
            if isinstance(fault, SlowLink):
                line.speed_up(fault.bytes_per_s)
            else:
                line.mend()
