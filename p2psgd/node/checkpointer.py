"""The checkpointer decides what a node writes so that it can go on after a crash, and when: votes,
checkpoints, own updates.

Its storage (disk.py) writes and reads, and calls back when that is done. It has no clock, thread or file of
its own: the simulator runs the same class on a simulated disk. What cannot be written is reported once, and
training goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from p2psgd.base import formatting
from p2psgd.base.errors import P2psgdError
from p2psgd.core.effects import SaveVotes, WriteCheckpoint
from p2psgd.core.events import CheckpointDue, CheckpointRead, CheckpointWritten, Event, Restored, VotesSaved
from p2psgd.core.replica import Replica
from p2psgd.core.view import Votes
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.observe.status import CheckpointStatus
from p2psgd.storage.checkpoint import CheckpointMeta
from p2psgd.storage.checkpoint_store import Written

LOG_SHARE: Final = 0.25  # of the log's budget has come since the last checkpoint: another is due
POLL_S: Final = 0.02  # from one look at whether the last checkpoint is on disk to the next


class Storage(Protocol):
    """A node's disk. Each piece of work calls `done` once, in a later turn of the loop."""

    def write_votes(
        self, votes: Votes, names: Mapping[int, str], done: Callable[[P2psgdError | None], None]
    ) -> None: ...

    def add_own(self, frame: bytes) -> None: ...

    def release_own(self, kept: Sequence[CheckpointMeta]) -> None:
        """Drop own updates that all these checkpoints contain, which are all there are."""
        ...

    def write_checkpoint(
        self,
        effect: WriteCheckpoint,
        trainer: TrainerState | None,
        sequence: int,
        done: Callable[[Written | P2psgdError], None],
    ) -> None:
        """Write a checkpoint with what the trainer handed over after `sequence` own updates; None: as it was
        last.
        """
        ...

    def read_checkpoint(self, done: Callable[[Restored | None, list[str]], None]) -> None:
        """Give `done` the newest checkpoint that is whole, and warnings."""
        ...

    def overdue(self, now: float) -> str:
        """Return a sentence on what the disk has been at for too long; empty if there is nothing."""
        ...


class Host(Protocol):
    """The node's part in its run, as its checkpointer sees it."""

    def handle(self, event: Event) -> object: ...
    def request_trainer_state(self) -> None: ...


class EventSink(Protocol):
    """The port to people: takes what they read of the node; `node` is the one that it is about."""

    def alarm(self, words: str, node: int | None = None) -> None: ...
    def note(self, kind: str, words: str, node: int | None = None) -> None: ...


class Checkpointer:
    """The checkpointer of one node, which decides what it writes. Implements the executor's port to the disk.

    Attributes:
        abandoning: What is on disk must not be used again: nothing more is written.
        due: When the next checkpoint is to begin, by the clock `now`, in seconds.
    """

    def __init__(
        self,
        host: Host,
        replica: Replica,
        storage: Storage,
        node_log: EventSink,
        *,
        now: Callable[[], float],
    ) -> None:
        self.abandoning = False
        self.failures = 0
        self.last: Written | None = None
        self.last_at = 0.0
        self.due = now() + replica.timing.gone_s
        self._host = host
        self._replica = replica
        self._node_log = node_log
        self._storage = storage
        self.add_own = storage.add_own
        self._timing = replica.timing
        self._now = now
        self._trouble = ""
        self._disk_overdue = False
        self._handed_over: TrainerState | None = None  # by the trainer, not copied yet
        self._sequence = 0
        self._requested: float | None = None  # when a checkpoint was begun that is not written yet
        self._copying = False
        self._bytes_kept = 0  # of updates applied when the last checkpoint was begun
        self._votes_trouble = False
        self._votes: SaveVotes | None = None  # the latest that is being written, or is to be

    # -- votes

    def save_votes(self, effect: SaveVotes) -> None:
        """Write the votes, then report VotesSaved; tried again by the core if they cannot be written."""
        idle = self._votes is None
        self._votes = effect
        if idle:
            self._write_votes(effect)

    def _write_votes(self, effect: SaveVotes) -> None:
        names = dict(self._replica.names)
        self._storage.write_votes(effect.votes, names, partial(self._votes_written, effect))

    def _votes_written(self, effect: SaveVotes, error: P2psgdError | None) -> None:
        """Report a write of votes, and write the latest if later ones have come meanwhile."""
        if error is None:
            self._votes_trouble = False
            self._host.handle(VotesSaved(effect.revision))
        else:
            if not self._votes_trouble:
                self._node_log.alarm(f"{error}: this node cannot vote on who is a member")
            self._votes_trouble = True
        assert self._votes is not None
        if effect is self._votes:
            self._votes = None
        else:
            self._write_votes(self._votes)

    # -- checkpoints

    def tick(self, *, bytes_applied: int, log_capacity: int) -> None:
        """Begin a checkpoint when it is due, or early when much has come since the last one: the log can then
        let go of it without a power cut of all nodes being able to take it.
        """
        now = self._now()
        self._look_at_disk(now)
        if self.abandoning:
            return
        if self._requested is not None:
            if not self._copying and now - self._requested > self._timing.failure_timeout_s:
                self._begin_copy()
            return
        early = bytes_applied - self._bytes_kept > LOG_SHARE * log_capacity
        if now >= self.due or early:
            self._bytes_kept = bytes_applied
            self.begin()

    def _look_at_disk(self, now: float) -> None:
        words = self._storage.overdue(now)
        if words and not self._disk_overdue:
            self._node_log.alarm(f"{words}: this node goes on, but its updates are in memory only")
        self._disk_overdue = bool(words)

    def begin(self) -> None:
        """Begin a checkpoint: with the trainer's state, as soon as it has handed that over."""
        now = self._now()
        self._requested, self.due = now, now + self._timing.gone_s
        self._host.request_trainer_state()

    def trainer_state(self, state: TrainerState | None) -> None:
        """Begin the copy with the state that the trainer handed over, after all its updates until then."""
        if self._requested is not None and not self._copying:
            self._handed_over, self._sequence = state, self._replica.sequence
            self._begin_copy()

    def _begin_copy(self) -> None:
        """Begin the copy, with the trainer's last known state if it does not answer: what it has sent since
        is known.
        """
        self._copying = True
        self._host.handle(CheckpointDue())

    def write(self, effect: WriteCheckpoint) -> None:
        """Write the copy that the core has made."""
        if self.abandoning:
            return
        handed_over, self._handed_over = self._handed_over, None
        done = partial(self._written, self._now())
        self._storage.write_checkpoint(effect, handed_over, self._sequence, done)

    def _written(self, began: float, result: Written | P2psgdError) -> None:
        """Let own updates go once a checkpoint on disk contains them."""
        if isinstance(result, P2psgdError):
            self.failures += 1
            self._trouble = str(result)
            self._node_log.alarm(str(result))
        else:
            if result.warning:
                self._node_log.alarm(result.warning)
            self._storage.release_own(result.kept)
            self.last, self.last_at, self._trouble = result, self._now(), ""
            size, seconds = formatting.size(result.bytes), self.last_at - began
            words = f"checkpoint {result.number} written: {size} in {seconds:.1f} s"
            self._node_log.note("checkpoint", words)
        self._requested, self._copying = None, False
        self._host.handle(CheckpointWritten(isinstance(result, Written)))

    def read(self) -> None:
        """Read the newest checkpoint that is whole, for the core."""
        self._storage.read_checkpoint(self._read)

    def _read(self, found: Restored | None, warnings: list[str]) -> None:
        for warning in warnings:
            self._node_log.alarm(warning)
        self._host.handle(CheckpointRead(found))

    def figures(self) -> CheckpointStatus:
        """Return the checkpoints' part of the status."""
        now = self._now()
        number, size = (0, 0) if self.last is None else (self.last.number, self.last.bytes)
        age_s = None if self.last is None else now - self.last_at
        trouble = self._storage.overdue(now) or self._trouble
        return CheckpointStatus(
            number=number, age_s=age_s, bytes=size, failures=self.failures, trouble=trouble
        )

    # -- the end

    @property
    def _stuck(self) -> bool:
        """Return whether no checkpoint that is begun now, or was, will be written."""
        return self.abandoning or self._replica.damaged

    def finish(self, timeout_s: float) -> Generator[float, None, str]:
        """Write a last checkpoint, the trainer having left: yield while it must be waited for, and
        return why it is not on disk, empty if it is or what is there is given up.
        """
        deadline = self._now() + timeout_s
        why, stays = "", "; the one before it stays" if self.last is not None else ""
        yield from self._settle(deadline)  # one that was begun before lacks the trainer's last state
        if self._requested is None and not self._stuck:
            self.begin()
            yield from self._settle(deadline)
            why = self._trouble
        if self._requested is not None:
            why = f"it was not written within {timeout_s:.0f} s{stays}"
        if self._replica.damaged:
            why = f"the weights in memory differ from what was applied{stays}"
        return "" if self.abandoning else why

    def _settle(self, deadline: float) -> Generator[float]:
        """Wait until no checkpoint is on its way to the disk, or none will get there."""
        while self._requested is not None and not self._stuck and self._now() < deadline:
            yield POLL_S
