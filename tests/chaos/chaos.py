"""Makes the faults of one round happen to real processes, cables and disks, and undoes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests.chaos.faults import (
    CleanStop,
    Cut,
    Fault,
    FlippedBit,
    FullDisk,
    KilledDaemon,
    KilledTrainer,
    Lasting,
    PowerCut,
    SlowCable,
    Stopped,
)
from tests.chaos.nodes import Node
from tests.lan import Lan

RATE: Final = "100mbit"
SLOW_RATE: Final = "1mbit"

Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Deed:
    """A fault that has happened, at this time; `hit`: it found somebody to happen to."""

    fault: Fault
    began: float
    hit: bool


@dataclass(frozen=True, slots=True)
class _Condition:
    """What is not as it should be, at one moment."""

    closed: frozenset[tuple[int, int]] = frozenset()
    slow: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()


@dataclass
class Chaos:
    """One round that began at `began`; `turn` must be called often, `heal` at its end."""

    lan: Lan
    nodes: Sequence[Node]
    faults: Sequence[Fault]  # by time
    began: float
    deeds: list[Deed] = field(default_factory=list)
    _lasting: list[Lasting] = field(default_factory=list)
    _condition: _Condition = _Condition()

    def turn(self, now: float) -> list[Deed]:
        """Begin and end what is due; returns what has begun."""
        at = now - self.began
        begun: list[Deed] = []
        while (number := len(self.deeds)) < len(self.faults) and self.faults[number].at <= at:
            fault = self.faults[number]
            self.deeds.append(Deed(fault, now, self._begin(fault)))
            begun.append(self.deeds[-1])
        over = [fault for fault in self._lasting if fault.at + fault.for_s <= at]
        if over:
            self._lasting = [fault for fault in self._lasting if fault not in over]
            self._apply()
        return begun

    def heal(self, now: float) -> None:
        """End all that lasts, and start at once whoever is down."""
        self._lasting = []
        self._apply()
        for node in self.nodes:
            if node.life is None:
                node.start(now)
            elif node.life.asked:
                node.down_until = 0.0

    def _begin(self, fault: Fault) -> bool:
        match fault:
            case KilledDaemon():
                return self.nodes[fault.node].kill(fault.back_after_s)
            case KilledTrainer():
                return self.nodes[fault.node].kill_trainer()
            case CleanStop():
                return self.nodes[fault.node].stop(fault.back_after_s)
            case FlippedBit():
                return self.nodes[fault.node].flip(fault.share)
            case PowerCut():
                return self._cut_power(fault.back_after_s)
            case Stopped() if self.nodes[fault.node].life is None:
                return False
            case _:
                self._lasting.append(fault)
                self._apply()
                return True

    def _cut_power(self, back_after_s: Sequence[float]) -> bool:
        for node in self.nodes:
            node.look(0.2)
        for node in self.nodes:  # all of them before anybody's end is waited for
            if node.life is not None:
                node.life.daemon.process.kill()
        hits = [node.kill(back) for node, back in zip(self.nodes, back_after_s, strict=True)]
        return any(hits)

    def _apply(self) -> None:
        """Make the world what the faults that last now want it to be."""
        cuts = [fault for fault in self._lasting if isinstance(fault, Cut)]
        now = _Condition(
            closed=frozenset(
                [(cut.source, cut.target) for cut in cuts]
                + [(cut.target, cut.source) for cut in cuts if cut.both]
            ),
            slow=frozenset(fault.node for fault in self._lasting if isinstance(fault, SlowCable)),
            full=frozenset(fault.node for fault in self._lasting if isinstance(fault, FullDisk)),
            stopped=frozenset(fault.node for fault in self._lasting if isinstance(fault, Stopped)),
        )
        before, self._condition = self._condition, now
        _change(before.closed, now.closed, lambda way, wrong: self.lan.set_way(*way, open=not wrong))
        _change(
            before.slow,
            now.slow,
            lambda number, wrong: self.lan.set_rate(number, SLOW_RATE if wrong else RATE),
        )
        _change(before.full, now.full, self._fill)
        _change(before.stopped, now.stopped, lambda number, wrong: self.nodes[number].suspend(stopped=wrong))

    def _fill(self, number: int, full: bool) -> None:
        disk = self.nodes[number].disk
        disk.fill() if full else disk.empty()


def _change(before: Iterable[Place], now: Iterable[Place], act: Callable[[Place, bool], object]) -> None:
    for place in set(before) ^ set(now):
        act(place, place in set(now))
