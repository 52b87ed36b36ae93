"""What a node keeps on disk so that it can go on after a crash: votes, checkpoints, its own updates.

Files are written by threads; the loop only hands over and is told. What cannot be written is said once, and
training goes on without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Final, Protocol

from p2psgd import formatting
from p2psgd.aio import raise_failure
from p2psgd.core.effects import Record, SaveVotes, WriteCheckpoint
from p2psgd.core.events import CheckpointDue, CheckpointRead, CheckpointWritten, Event, Restored, VotesSaved
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.timing import Timing
from p2psgd.errors import P2psgdError
from p2psgd.ipc.residual_segment import describe_unfinite, make_finite
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.node.recovery import Opened, pack_trainer
from p2psgd.observe.compression import Accounts
from p2psgd.observe.status import CheckpointStatus
from p2psgd.storage.checkpoint import Checkpoint
from p2psgd.storage.checkpoint_store import Written
from p2psgd.storage.files import DiskWork
from p2psgd.storage.restore import abandon
from p2psgd.storage.update_wal import OwnFile
from p2psgd.storage.votes import write_votes

LOG_SHARE: Final = 0.25  # of the log's budget has come since the last checkpoint: another is due


class KeeperHost(Protocol):
    """The node, as its keeper sees it."""

    def handle(self, event: Event) -> None: ...
    def request_trainer_state(self) -> None: ...
    def sequence(self) -> int: ...
    def damaged(self) -> bool: ...
    def names(self) -> Mapping[int, str]: ...
    def note(self, kind: str, words: str) -> None: ...
    def alarm(self, words: str) -> None: ...


class Keeper:
    """One node's durable state in the directory `state`, of the run that was `opened` there."""

    def __init__(
        self,
        host: KeeperHost,
        state: Path,
        origin: Origin,
        timing: Timing,
        opened: Opened,
        *,
        accounts: Accounts,
    ) -> None:
        self.abandoning = False  # what is on disk must not be used again
        self.failures = 0
        self.last: Written | None = None
        self.last_at = 0.0
        self._trouble = ""
        self._host = host
        self._accounts = accounts
        self._state = state
        self._origin = origin
        self._timing = timing
        self._loop = asyncio.get_running_loop()  # for the thread that the own file starts now
        self._store = opened.store
        self._spec = opened.spec
        self._own = OwnFile(
            self._store.folder, opened.spec, on_error=self._own_failed, sync_s=timing.status_s
        )
        self._disk = DiskWork(timing.gone_s, lambda: self._own.busy_since)
        self._disk_overdue = False
        self._handed_over: TrainerState | None = None  # by the trainer, not copied yet
        self._trainer = opened.kept  # the last that is known, after `_sequence` own updates
        self._sequence = 0
        self._unfinite = 0  # weights of the residual in the last checkpoint
        self._requested: float | None = None  # when a checkpoint was begun that is not written yet
        self._copying = False
        self._bytes_kept = 0  # of updates applied when the last checkpoint was begun
        self._due = time.monotonic() + timing.gone_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._votes_trouble = False
        self._votes: SaveVotes | None = None  # the latest that is being written, or is to be
        self._idle = asyncio.Event()
        self._store_free = asyncio.Lock()  # one thread at a time

    # -- votes

    def save_votes(self, effect: SaveVotes) -> None:
        """Write the votes, then say VotesSaved; tried again by the core if they cannot be written."""
        if self._votes is None:
            self._spawn(self._write_votes(self._spec.fingerprint))
        self._votes = effect

    async def _write_votes(self, fingerprint: bytes) -> None:
        """Write the latest, until no later one has come meanwhile."""
        effect: SaveVotes | None = None
        while effect is not self._votes:
            effect = self._votes
            assert effect is not None
            names = dict(self._host.names())
            try:
                await self._disk.do("votes", write_votes, self._state, fingerprint, effect.votes, names)
            except P2psgdError as error:
                if not self._votes_trouble:
                    self._host.alarm(f"{error}: this node cannot vote on who is a member")
                self._votes_trouble = True
            else:
                self._votes_trouble = False
                self._host.handle(VotesSaved(effect.revision))
        self._votes = None

    # -- own updates

    def record(self, effect: Record) -> None:
        """Keep an update that was just applied: if it is an own one, and in the recording if there is one."""
        if effect.own:
            self._own.add(effect.frame)
        if self._accounts.recording:
            self._accounts.record(effect.frame)

    def _own_failed(self, words: str) -> None:
        self._loop.call_soon_threadsafe(self._host.alarm, words)

    # -- checkpoints

    def pass_time(self, now: float, *, bytes_applied: int, log_capacity: int) -> None:
        """Begin a checkpoint when it is due, or early when much has come since the last one: the log can then
        let go of it without a power cut of all nodes being able to take it.
        """
        self._look_at_disk(now)
        if self._stuck:
            self._idle.set()
        if self.abandoning:
            return
        if self._requested is not None:
            if not self._copying and now - self._requested > self._timing.patience_s:
                self._begin_copy()
            return
        early = bytes_applied - self._bytes_kept > LOG_SHARE * log_capacity
        if now >= self._due or early:
            self._bytes_kept = bytes_applied
            self.begin(now)

    def _look_at_disk(self, now: float) -> None:
        words = self._disk.overdue(now)
        if words and not self._disk_overdue:
            self._host.alarm(f"{words}: this node goes on, but what it has is in memory alone")
        self._disk_overdue = bool(words)

    def begin(self, now: float) -> None:
        """Begin a checkpoint: with the trainer's state, as soon as it has handed that over."""
        self._requested, self._due = now, now + self._timing.gone_s
        self._host.request_trainer_state()

    def trainer_state(self, state: TrainerState | None) -> None:
        """The trainer handed over its state: all its updates until then were taken, and none after."""
        if self._requested is not None and not self._copying:
            self._handed_over, self._sequence = state, self._host.sequence()
            self._begin_copy()

    def _begin_copy(self) -> None:
        """With the trainer's last known state, if it does not answer: what it has sent since is known."""
        self._copying = True
        self._host.handle(CheckpointDue())

    def write(self, effect: WriteCheckpoint) -> None:
        """Write the copy that the core has made."""
        if self.abandoning:
            return
        self._spawn(self._write(effect, self._spec))

    async def _write(self, effect: WriteCheckpoint, spec: RunSpec) -> None:
        began = time.monotonic()
        try:
            if self._handed_over is not None:  # its residual is the trainer's memory, lent until the next one
                handed_over, self._handed_over = self._handed_over, None
                packed = await asyncio.to_thread(pack_trainer, handed_over, spec.weights, self._sequence)
                self._complain(await asyncio.to_thread(make_finite, packed.residual))
                self._trainer = packed
            checkpoint = Checkpoint(
                spec=spec,
                origin=self._origin,
                coordinates=effect.coordinates,
                rows=effect.rows,
                digest=effect.digest,
                tail=effect.tail,
                trainer=self._trainer,
                written_at=time.time(),
                rounds=effect.rounds,
            )
            async with self._store_free:
                written = await self._disk.do("a checkpoint", self._store.write, checkpoint)
        except P2psgdError as error:
            self.failures += 1
            self._trouble = str(error)
            self._host.alarm(str(error))
            self._end(written=False)
            return
        if written.warning:
            self._host.alarm(written.warning)
        self._own.rotate(written.kept)
        self.last, self.last_at, self._trouble = written, time.monotonic(), ""
        size, seconds = formatting.size(written.bytes), self.last_at - began
        words = f"checkpoint {written.number} written: {size} in {seconds:.1f} s"
        self._host.note("checkpoint", words)
        self._end(written=True)

    def _complain(self, unfinite: int) -> None:
        """Of a residual that was not finite at so many weights; once while that stays so."""
        if unfinite and unfinite != self._unfinite:
            self._host.alarm(describe_unfinite(unfinite, self._spec.weights, "the checkpoint"))
        self._unfinite = unfinite

    def read(self) -> None:
        """Read the newest checkpoint that is whole, for the core."""
        self._spawn(self._read())

    async def _read(self) -> None:
        checkpoint: Checkpoint | None = None
        try:
            async with self._store_free:
                checkpoint, warnings = await self._disk.do("a checkpoint", self._store.latest)
        except P2psgdError as error:
            warnings = [str(error)]
        for warning in warnings:
            self._host.alarm(warning)
        found = None
        if checkpoint is not None:
            found = Restored(
                checkpoint.coordinates, checkpoint.rows, checkpoint.digest, list(checkpoint.tail), []
            )
        self._host.handle(CheckpointRead(found))

    def _end(self, *, written: bool) -> None:
        self._requested, self._copying = None, False
        self._host.handle(CheckpointWritten(written))
        self._idle.set()

    def figures(self, now: float) -> CheckpointStatus:
        """For the status."""
        number, size = (0, 0) if self.last is None else (self.last.number, self.last.bytes)
        age_s = None if self.last is None else now - self.last_at
        trouble = self._disk.overdue(now) or self._trouble
        return CheckpointStatus(
            number=number, age_s=age_s, bytes=size, failures=self.failures, trouble=trouble
        )

    # -- the end

    @property
    def _stuck(self) -> bool:
        """No checkpoint that is begun now, or was, will be written."""
        return self.abandoning or self._host.damaged()

    async def finish(self, timeout_s: float) -> str:
        """Write a last checkpoint; the trainer has left. Returns why it is not on disk, empty if it is or
        what is there is given up.
        """
        why, stays = "", "; the one before it stays" if self.last is not None else ""
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle()  # one that was begun before lacks the trainer's last state
                if not self._stuck:
                    self.begin(time.monotonic())
                    await self._settle()
                    why = self._trouble
        except TimeoutError:
            why = f"it was not written within {timeout_s:.0f} s{stays}"
        if self._host.damaged():
            why = f"the weights in memory differ from what was applied{stays}"
        return "" if self.abandoning else why

    async def _settle(self) -> None:
        """Until no checkpoint is on its way to the disk, or none will get there."""
        while self._requested is not None and not self._stuck:
            self._idle.clear()
            await self._idle.wait()

    async def close(self, timeout_s: float) -> None:
        """Wait for what is being written, so long at most; then put it aside if it must not be used again, in
        as long again.
        """
        late = set[asyncio.Task[None]]()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        if late:
            words = self._disk.under_way(time.monotonic())
            self._host.alarm(f"{words}: this node ends without waiting for that any longer")
        for task in late:
            task.cancel()
        await asyncio.to_thread(self._own.close)
        if self.abandoning:
            await self._put_aside(timeout_s)

    async def _put_aside(self, timeout_s: float) -> None:
        folder = self._store.folder
        try:
            async with asyncio.timeout(timeout_s):
                await self._disk.do("what must not be used again", abandon, folder)
        except P2psgdError as error:
            self._host.alarm(str(error))
        except TimeoutError:
            words = (
                f"{folder} was not moved out of the way within {timeout_s:.0f} s and must not be used again"
            )
            self._host.alarm(f"{words}: move it before this node is started again")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(raise_failure)
