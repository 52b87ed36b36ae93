"""The executor: gives events to a replica and carries out what it orders, in the order given.

There is one executor. It has no loop, clock, socket or file of its own, and works on the small ports below:
the daemon gives it its mesh, disk and trainer (run.py), the simulator and the clusters of the core's tests
give the same class theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p2psgd.core.effects import (
    Alert,
    Deliver,
    Drop,
    Effect,
    LogEvent,
    OpenRound,
    Persist,
    ReadCheckpoint,
    RejectContribution,
    Reload,
    ReportDrained,
    SaveVotes,
    Send,
    SendFloats,
    Shutdown,
    WriteCheckpoint,
    Yield,
)
from p2psgd.core.events import Event, Resumed
from p2psgd.core.frontier import Origin

Handle = Callable[[Event], object]


class Decider(Protocol):
    """The replica, or something that watches it."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...


class Network(Protocol):
    """The links to peers. An order for a peer that is not linked (any more) is nothing."""

    def send(self, peer: Origin, frame: bytes) -> None: ...
    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None: ...
    def report_drained(self, peer: Origin) -> None: ...
    def drop(self, peer: Origin, reason: str, words: str) -> None: ...


class Disk(Protocol):
    """Keeps what outlives the process; it answers by VotesSaved, CheckpointWritten and CheckpointRead."""

    def save_votes(self, effect: SaveVotes) -> None: ...
    def write(self, effect: WriteCheckpoint) -> None: ...
    def read(self) -> None: ...
    def record(self, effect: Persist) -> None: ...


class Trainer(Protocol):
    """The node's trainer, if one is attached."""

    def deliver(self, body: bytes | bytearray) -> None: ...
    def replica_replaced(self) -> None: ...
    def open_round(self, effect: OpenRound) -> None: ...
    def reject_contribution(self, words: str) -> None: ...


class Log(Protocol):
    """Takes what people read of the node, and what ends it."""

    def alert(self, words: str) -> None: ...
    def event(self, note: LogEvent) -> None: ...
    def shutdown(self, effect: Shutdown) -> None: ...


class Executor:
    """Carries out what one replica orders, until it is `closed`."""

    def __init__(
        self,
        replica: Decider,
        *,
        network: Network,
        disk: Disk,
        trainer: Trainer,
        log: Log,
        now: Callable[[], float],
        call_soon: Callable[[Handle, Event], object],
    ) -> None:
        """`now`: the clock that the replica goes by; `call_soon` calls back in the loop's next turn."""
        self.closed = False
        self._replica = replica
        self._network = network
        self._disk = disk
        self._trainer = trainer
        self._log = log
        self._now = now
        self._call_soon = call_soon

    def handle(self, event: Event) -> list[Effect]:  # noqa: PLR0912 (one case an effect)
        """Tell the replica what has happened, do what it orders, and return that."""
        if self.closed:
            return []  # a turn that was ordered before
        effects = self._replica.handle(event, self._now())
        for effect in effects:
            match effect:
                case Send():
                    self._network.send(effect.peer, effect.frame)
                case SendFloats():
                    self._network.send_floats(effect.peer, effect.head, effect.numbers)
                case Persist():
                    self._disk.record(effect)
                case Deliver():
                    self._trainer.deliver(effect.body)
                case ReportDrained():
                    self._network.report_drained(effect.peer)
                case Drop():
                    self._network.drop(effect.peer, effect.reason, effect.words)
                case Yield():
                    self._call_soon(self.handle, Resumed())
                case OpenRound():
                    self._trainer.open_round(effect)
                case RejectContribution():
                    self._trainer.reject_contribution(effect.words)
                case Reload():
                    self._trainer.replica_replaced()
                case SaveVotes():
                    self._disk.save_votes(effect)
                case WriteCheckpoint():
                    self._disk.write(effect)
                case ReadCheckpoint():
                    self._disk.read()
                case LogEvent():
                    self._log.event(effect)
                case Alert():
                    self._log.alert(effect.words)
                case Shutdown():
                    self._log.shutdown(effect)
        return effects
