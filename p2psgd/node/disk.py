"""Threads that write and read a node's disk, and call back in the loop when they are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

from p2psgd.base.aio import raise_failure
from p2psgd.base.errors import P2psgdError
from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.events import Restored
from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.core.view import Votes
from p2psgd.ipc.residual_segment import describe_unfinite, make_finite
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.node.recovery import RecoveredRun, pack_trainer, restored_from
from p2psgd.storage.checkpoint import Checkpoint
from p2psgd.storage.checkpoint_store import Written
from p2psgd.storage.files import DiskWork
from p2psgd.storage.restore import abandon
from p2psgd.storage.update_wal import UpdateWal
from p2psgd.storage.votes import write_votes


class NodeDisk:
    """The durable state of one node in the directory `state`, of the run that was `opened` there: the storage
    of its checkpointer.
    """

    def __init__(
        self,
        state: Path,
        origin: Origin,
        timing: Timing,
        opened: RecoveredRun,
        *,
        alarm: Callable[[str], None],
    ) -> None:
        self._state = state
        self._origin = origin
        self._spec = opened.spec
        self._store = opened.store
        self._alarm = alarm
        self._loop = asyncio.get_running_loop()  # for the thread that the own file starts now
        self._own = UpdateWal(
            self._store.folder, opened.spec, on_error=self._own_failed, sync_s=timing.status_s
        )
        self._disk = DiskWork(timing.gone_s, lambda: self._own.busy_since)
        self.add_own, self.release_own, self.overdue = self._own.add, self._own.rotate, self._disk.overdue
        self._trainer = opened.kept  # its state as it is in the last checkpoint
        self._unfinite = 0  # weights of the residual in that
        self._tasks: set[asyncio.Task[None]] = set()
        self._store_free = asyncio.Lock()  # one thread at a time

    # -- Storage

    def write_votes(
        self, votes: Votes, names: Mapping[int, str], done: Callable[[P2psgdError | None], None]
    ) -> None:
        async def write() -> None:
            error: P2psgdError | None = None
            try:
                await self._disk.do("votes", write_votes, self._state, self._spec.fingerprint, votes, names)
            except P2psgdError as failure:
                error = failure
            done(error)

        self._spawn(write())

    def write_checkpoint(
        self,
        effect: WriteCheckpoint,
        trainer: TrainerState | None,
        sequence: int,
        done: Callable[[Written | P2psgdError], None],
    ) -> None:
        async def write() -> None:
            written: Written | P2psgdError
            try:
                if trainer is not None:  # its residual is the trainer's memory, lent until the next one
                    await self._take_trainer(trainer, sequence)
                async with self._store_free:
                    written = await self._disk.do("a checkpoint", self._store.write, self._of(effect))
            except P2psgdError as error:
                written = error
            done(written)

        self._spawn(write())

    def read_checkpoint(self, done: Callable[[Restored | None, list[str]], None]) -> None:
        async def read() -> None:
            checkpoint: Checkpoint | None = None
            try:
                async with self._store_free:
                    checkpoint, warnings = await self._disk.do("a checkpoint", self._store.latest)
            except P2psgdError as error:
                warnings = [str(error)]
            done(None if checkpoint is None else restored_from(checkpoint, own=[]), warnings)

        self._spawn(read())

    # -- the trainer's state in a checkpoint

    async def _take_trainer(self, trainer: TrainerState, sequence: int) -> None:
        packed = await asyncio.to_thread(pack_trainer, trainer, self._spec.weights, sequence)
        unfinite = await asyncio.to_thread(make_finite, packed.residual)
        if unfinite and unfinite != self._unfinite:  # once while that stays so
            self._alarm(describe_unfinite(unfinite, self._spec.weights, "the checkpoint"))
        self._unfinite = unfinite
        self._trainer = packed

    def _of(self, effect: WriteCheckpoint) -> Checkpoint:
        return Checkpoint(
            spec=self._spec,
            origin=self._origin,
            coordinates=effect.coordinates,
            rows=effect.rows,
            digest=effect.digest,
            tail=effect.tail,
            trainer=self._trainer,
            written_at=time.time(),
            rounds=effect.rounds,
            covers=effect.covers,
            rule_states=effect.rule_states,
        )

    def _own_failed(self, words: str) -> None:
        self._loop.call_soon_threadsafe(self._alarm, words)

    # -- the end

    async def close(self, timeout_s: float, *, abandoning: bool) -> None:
        """Wait at most `timeout_s` for what is being written; then put it aside if it must not be used again,
        in at most as long again.
        """
        late = set[asyncio.Task[None]]()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        if late:
            words = self._disk.under_way(time.monotonic())
            self._alarm(f"{words}: this node ends without waiting for that any longer")
        for task in late:
            task.cancel()
        await asyncio.to_thread(self._own.close)
        if abandoning:
            await self._put_aside(timeout_s)

    async def _put_aside(self, timeout_s: float) -> None:
        folder = self._store.folder
        try:
            async with asyncio.timeout(timeout_s):
                await self._disk.do("what must not be used again", abandon, folder)
        except P2psgdError as error:
            self._alarm(str(error))
        except TimeoutError:
            words = (
                f"{folder} was not moved out of the way within {timeout_s:.0f} s and must not be used again"
            )
            self._alarm(f"{words}: move it before this node is started again")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(raise_failure)
