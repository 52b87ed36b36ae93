"""Writing to a node's disk: it takes time, fails while the disk is full, and may be cut off by a crash.

What was ordered and not yet told as written when the node dies is there or not, by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from p2psgd.core.effects import Record, SaveVotes, WriteCheckpoint
from p2psgd.core.events import CheckpointDue, CheckpointRead, CheckpointWritten, Event, VotesSaved
from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.core.view import Votes
from p2psgd.wire.frames import PREFIX
from tests.sim.clock import Clock
from tests.sim.disk import Disk

LOG_SHARE: Final = 0.25  # as in node/checkpointer.py: of the log's budget has come since the last checkpoint
LANDS_SHARE: Final = 0.5  # of what a crash cuts off is on disk all the same


def sequence_of(frame: bytes) -> int:
    """The sequence number in an UPDATE frame."""
    return int.from_bytes(frame[PREFIX.size + 16 : PREFIX.size + 24], "little")


class Host(Protocol):
    """The daemon."""

    me: Origin

    def handle(self, event: Event) -> None: ...
    def when_running(self, action: Callable[..., None], *arguments: object) -> None: ...


class Keeper:
    """One life's."""

    def __init__(
        self,
        host: Host,
        disk: Disk,
        clock: Clock,
        chance: Random,
        timing: Timing,
        *,
        votes_saved: Callable[[int, Votes], None],
    ) -> None:
        self.writing = False  # a checkpoint is ordered and not written
        self._host = host
        self._origin = host.me
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._timing = timing
        self._votes_saved = votes_saved
        self._due = clock.now + timing.gone_s * chance.uniform(0.5, 1.0)
        self._began = clock.now
        self._bytes_kept = 0
        self._votes: list[SaveVotes] = []  # ordered, in order
        self._checkpoint: WriteCheckpoint | None = None
        self._own: list[tuple[Origin, int, bytes]] = []

    def save_votes(self, effect: SaveVotes) -> None:
        """One after the other."""
        self._votes.append(effect)
        if len(self._votes) == 1:
            self._write_votes_later()

    def _write_votes_later(self) -> None:
        delay_s = self._chance.choice((0.001, 0.01, 0.1, 1.0)) * self._chance.random()
        self._clock.after(delay_s, self._host.when_running, self._write_votes)

    def _write_votes(self) -> None:
        effect = self._votes.pop(0)
        if self._votes:
            self._write_votes_later()
        if not self._disk.full:
            self._land_votes(effect)
            self._host.handle(VotesSaved(effect.revision))

    def _land_votes(self, effect: SaveVotes) -> None:
        self._disk.votes = effect.votes
        self._votes_saved(self._disk.node, effect.votes)

    def record(self, effect: Record) -> None:
        """An update was applied; own ones are written together with those of a status interval."""
        if not effect.own:
            return
        if not self._own:
            self._clock.after(self._timing.status_s, self._host.when_running, self._write_own)
        self._own.append((self._origin, sequence_of(effect.frame), effect.frame))

    def _write_own(self) -> None:
        if self._disk.full:
            self._clock.after(self._timing.status_s, self._host.when_running, self._write_own)
            return
        self._disk.own += self._own
        self._own.clear()

    def pass_time(self, bytes_applied: int, log_capacity: int) -> None:
        """Begin a checkpoint when it is due, or early when much has come since the last one."""
        now, patience_s = self._clock.now, self._timing.patience_s
        if self.writing:
            if self._checkpoint is None and now - self._began > patience_s:
                self.begin()  # the replica was busy with another copy
        elif now >= self._due or bytes_applied - self._bytes_kept > LOG_SHARE * log_capacity:
            self._bytes_kept = bytes_applied
            self.begin()

    def begin(self) -> None:
        """Order a checkpoint."""
        self.writing, self._began = True, self._clock.now
        self._due = self._clock.now + self._timing.gone_s
        self._host.handle(CheckpointDue())

    def write(self, effect: WriteCheckpoint) -> None:
        """The copy is made: write it."""
        self._checkpoint = effect
        delay_s = 10.0 ** self._chance.uniform(-2.0, 0.7)
        self._clock.after(delay_s, self._host.when_running, self._written, effect)

    def _written(self, effect: WriteCheckpoint) -> None:
        if effect is not self._checkpoint:
            return
        written = not self._disk.full and self._disk.keep(effect)
        self._checkpoint, self.writing = None, False
        self._host.handle(CheckpointWritten(written))

    def read(self) -> None:
        """What is on disk is wanted back."""
        self._clock.after(10.0 ** self._chance.uniform(-2.0, 0.7), self._host.when_running, self._read)

    def _read(self) -> None:
        self._host.handle(CheckpointRead(self._disk.newest()))

    def close(self) -> None:
        """A clean end: what is left is written."""
        if self._own and not self._disk.full:
            self._write_own()

    def crash(self) -> None:
        """What was under way is on disk, or not."""
        for effect in self._votes:
            if self._disk.full or self._chance.random() > LANDS_SHARE:
                break
            self._land_votes(effect)
        if self._checkpoint is not None and not self._disk.full and self._chance.random() < LANDS_SHARE:
            self._disk.keep(self._checkpoint)
        kept = self._chance.randint(0, len(self._own))
        if not self._disk.full:
            self._disk.own += self._own[:kept]
