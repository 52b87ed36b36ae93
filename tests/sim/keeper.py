"""Writing to a node's disk: it takes time, fails while the disk is full, and may be cut off by a crash.

The storage of the daemon's own checkpointer (node/checkpointer.py), which decides what is written and when.
What was ordered and not yet told as written when the node dies is there or not, by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Protocol

from p2psgd.base.errors import P2psgdError
from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.events import Restored
from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.core.view import Votes
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.storage.checkpoint import CheckpointMeta
from p2psgd.storage.checkpoint_store import Written
from p2psgd.wire.frames import PREFIX
from tests.sim.clock import Clock
from tests.sim.disk import Disk

LANDS_SHARE: Final = 0.5  # of what a crash cuts off is on disk all the same

VotesDone = Callable[[P2psgdError | None], None]
CheckpointDone = Callable[[Written | P2psgdError], None]
ReadDone = Callable[[Restored | None, list[str]], None]


def sequence_of(frame: bytes) -> int:
    """The sequence number in an UPDATE frame."""
    return int.from_bytes(frame[PREFIX.size + 16 : PREFIX.size + 24], "little")


class Host(Protocol):
    """The daemon."""

    me: Origin

    def when_running(self, action: Callable[..., object], *arguments: object) -> None: ...


class Keeper:
    """One life's. It implements `Storage`."""

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
        self._host = host
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._timing = timing
        self._votes_saved = votes_saved
        self._votes: list[Votes] = []  # being written
        self._checkpoint: WriteCheckpoint | None = None  # being written
        self._own: list[tuple[Origin, int, bytes]] = []
        self._written = 0  # checkpoints

    def write_votes(self, votes: Votes, names: Mapping[int, str], done: VotesDone) -> None:
        """Storage."""
        self._votes.append(votes)
        delay_s = self._chance.choice((0.001, 0.01, 0.1, 1.0)) * self._chance.random()
        self._clock.after(delay_s, self._host.when_running, self._write_votes, done)

    def _write_votes(self, done: VotesDone) -> None:
        votes = self._votes.pop(0)
        if self._disk.full:
            done(P2psgdError("the disk is full"))
        else:
            self._land_votes(votes)
            done(None)

    def _land_votes(self, votes: Votes) -> None:
        self._disk.votes = votes
        self._votes_saved(self._disk.node, votes)

    def add_own(self, frame: bytes) -> None:
        """Storage: written together with those of a status interval."""
        if not self._own:
            self._clock.after(self._timing.status_s, self._host.when_running, self._write_own)
        self._own.append((self._host.me, sequence_of(frame), frame))

    def _write_own(self) -> None:
        if self._disk.full:
            self._clock.after(self._timing.status_s, self._host.when_running, self._write_own)
            return
        self._disk.own += self._own
        self._own.clear()

    def release_own(self, kept: Sequence[CheckpointMeta]) -> None:
        """Storage; the disk knows which checkpoints it has."""
        self._disk.release_own()

    def write_checkpoint(
        self, effect: WriteCheckpoint, trainer: TrainerState | None, sequence: int, done: CheckpointDone
    ) -> None:
        """Storage."""
        assert self._checkpoint is None, "two checkpoints are written at once"
        self._checkpoint = effect
        delay_s = 10.0 ** self._chance.uniform(-2.0, 0.7)
        self._clock.after(delay_s, self._host.when_running, self._write_checkpoint, effect, done)

    def _write_checkpoint(self, effect: WriteCheckpoint, done: CheckpointDone) -> None:
        self._checkpoint = None
        if not self._disk.full and self._disk.keep(effect):
            self._written += 1
            done(Written(self._written, 0, []))
        else:
            done(P2psgdError("the checkpoint cannot be written"))

    def read_checkpoint(self, done: ReadDone) -> None:
        """Storage."""
        self._clock.after(10.0 ** self._chance.uniform(-2.0, 0.7), self._host.when_running, self._read, done)

    def _read(self, done: ReadDone) -> None:
        done(self._disk.newest(), [])

    def overdue(self, now: float) -> str:
        """Storage."""
        return ""

    def close(self) -> None:
        """A clean end: what is left is written."""
        if self._own and not self._disk.full:
            self._write_own()

    def crash(self) -> None:
        """What was under way is on disk, or not."""
        for votes in self._votes:
            if self._disk.full or self._chance.random() > LANDS_SHARE:
                break
            self._land_votes(votes)
        if self._checkpoint is not None and not self._disk.full and self._chance.random() < LANDS_SHARE:
            self._disk.keep(self._checkpoint)
        kept = self._chance.randint(0, len(self._own))
        if not self._disk.full:
            self._disk.own += self._own[:kept]
