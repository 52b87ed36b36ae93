"""What a node keeps on disk, when memory, the disk or the trainer fail it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from p2psgd.base.aio import follow
from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.events import CheckpointDue, CheckpointRead, CheckpointWritten, Event
from p2psgd.core.timing import Timing
from p2psgd.core.update_log import Tail
from p2psgd.core.view import NO_VOTES
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.node import disk as disk_module
from p2psgd.node.checkpointer import Checkpointer
from p2psgd.node.disk import NodeDisk
from p2psgd.node.recovery import RecoveredRun
from p2psgd.storage.checkpoint import Checkpoint
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.update_wal import own_paths
from tests.daemons import until
from tests.storage.states import ME, SPEC, checkpoint
from tests.storage.test_store import no_descriptors


class Host:
    """A node whose replica is at `state`, and whose trainer hands over `residual` at once."""

    def __init__(self, folder: Path, state: Checkpoint) -> None:
        self.state = state
        self.residual = np.zeros(SPEC.weights, np.float32)
        self.tail = Tail.of(state.tail)
        self.events: list[Event] = []
        self.alarms: list[str] = []
        self.copies = True  # the replica makes the copy that is asked for
        opened = RecoveredRun(SPEC, CheckpointStore(folder / "run"), state.coordinates, NO_VOTES, {})
        timing = Timing(0.2)
        self.replica: Any = SimpleNamespace(timing=timing, sequence=1, damaged=False, names={})
        self.disk = NodeDisk(folder, ME, timing, opened, alarm=self.alarm)
        self.checkpointer = Checkpointer(self, cast(Any, self.replica), self.disk, self, now=time.monotonic)

    async def finish(self, timeout_s: float) -> str:
        return await follow(self.checkpointer.finish(timeout_s))

    def handle(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, CheckpointDue) and self.copies:
            state = self.state
            order = WriteCheckpoint(state.coordinates, state.rows, state.digest, self.tail)
            self.checkpointer.write(order)

    def request_trainer_state(self) -> None:
        self.checkpointer.trainer_state(TrainerState(self.residual, None, 1))

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        pass

    def alarm(self, words: str, node: int | None = None) -> None:
        self.alarms.append(words)


def keeping(folder: Path, work: Callable[[Host], Coroutine[Any, Any, None]]) -> Host:
    """Do `work` with the keeper of a host, then close it."""

    async def run() -> Host:
        host = Host(folder, checkpoint())
        begun = "the thread of the own updates has begun its file, and is not at it any more"
        until(lambda: own_paths(folder / "run") and host.disk._own.busy_since is None, begun)
        await work(host)
        await host.disk.close(30, abandoning=host.checkpointer.abandoning)
        return host

    return asyncio.run(run())


def test_an_update_that_has_changed_in_memory_is_an_alarm_and_the_checkpoint_is_whole(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        frames = list(host.tail)
        host.tail = Tail([[frames[0][:-1] + b"\x77"], [*frames[1:]]])
        assert await host.finish(10) == ""

    host = keeping(tmp_path, work)
    [alarm] = host.alarms
    assert alarm.endswith("lacks 1 of the log's 2 updates: an update in memory has changed")
    assert host.events == [CheckpointDue(), CheckpointWritten(written=True)]
    found, _ = CheckpointStore(tmp_path / "run").latest()
    assert found is not None
    assert len(list(found.tail)) == 1


def test_a_folder_that_cannot_be_looked_into_is_an_alarm_and_no_checkpoint(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        with no_descriptors():
            host.checkpointer.read()
            await asyncio.gather(*host.disk._tasks)

    host = keeping(tmp_path, work)
    assert host.events == [CheckpointRead(None)]
    assert [alarm.rsplit(": ")[-1] for alarm in host.alarms] == ["too many open files"]


def test_a_last_checkpoint_that_cannot_be_written_is_told_at_the_end(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        in_the_way = tmp_path / "run" / ".checkpoint-00000001.safetensors.new"
        in_the_way.mkdir()
        assert (await host.finish(10)).endswith("cannot be written: is a directory")
        in_the_way.rmdir()
        assert await host.finish(10) == ""
        (tmp_path / "run" / ".checkpoint-00000002.safetensors.new").mkdir()
        words = await host.finish(10)
        assert words.endswith("cannot be written: is a directory; the one before it stays")

    keeping(tmp_path, work)


def test_a_last_checkpoint_that_takes_too_long_is_told_at_the_end(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        host.copies = False
        assert await host.finish(0.01) == "it was not written within 0 s"

    keeping(tmp_path, work)


def test_of_weights_that_are_wrong_no_last_checkpoint_is_waited_for(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        host.replica.damaged = True
        words = "the weights in memory differ from what was applied"
        assert await host.finish(600) == words
        host.replica.damaged, host.copies = False, False
        finishing = asyncio.ensure_future(host.finish(600))
        await asyncio.sleep(0)  # it has begun one
        host.replica.damaged = True
        host.checkpointer.tick(bytes_applied=0, log_capacity=1)
        assert await finishing == words

    keeping(tmp_path, work)


def hanging(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> tuple[threading.Event, threading.Event]:
    """A disk that hangs in this call, which sets the first event, until the second one is set."""
    reached, healed = threading.Event(), threading.Event()
    work = getattr(owner, name)

    def hang(*arguments: Any) -> Any:
        reached.set()
        healed.wait()
        return work(*arguments)

    monkeypatch.setattr(owner, name, hang)
    return reached, healed


def test_a_disk_that_hangs_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, healed = hanging(monkeypatch, CheckpointStore, "write")

    async def work(host: Host) -> None:
        assert await host.finish(0.01) == "it was not written within 0 s"
        while not reached.is_set():
            await asyncio.sleep(0.01)
        await host.disk.close(0.01, abandoning=host.checkpointer.abandoning)
        assert not host.disk._tasks

    try:
        host = keeping(tmp_path, work)
    finally:
        healed.set()
    [alarm] = host.alarms
    assert re.fullmatch(
        r"the disk has been at a checkpoint for \d+ s: this node ends without .* longer", alarm
    )
    assert host.events == [CheckpointDue()]


def test_what_must_not_be_used_again_and_cannot_be_moved_in_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, healed = hanging(monkeypatch, disk_module, "abandon")

    async def work(host: Host) -> None:
        host.checkpointer.abandoning = True
        await host.disk.close(0.01, abandoning=host.checkpointer.abandoning)
        healed.set()

    try:
        host = keeping(tmp_path, work)
    finally:
        healed.set()
    [alarm] = host.alarms
    assert alarm.startswith(
        f"{tmp_path / 'run'} was not moved out of the way within 0 s and must not be used"
    )


def test_what_is_given_up_is_not_waited_for(tmp_path: Path) -> None:
    async def work(host: Host) -> None:
        host.copies = False
        finishing = asyncio.ensure_future(host.finish(600))
        await asyncio.sleep(0)
        host.checkpointer.abandoning = True
        host.checkpointer.tick(bytes_applied=0, log_capacity=1)
        assert await finishing == ""
        assert await host.finish(600) == ""

    keeping(tmp_path, work)


def test_of_a_residual_that_is_not_finite_the_checkpoint_has_the_rest_and_it_is_said_once(
    tmp_path: Path,
) -> None:
    async def work(host: Host) -> None:
        host.residual[:] = 0.5
        host.residual[3:6] = np.nan, np.inf, -np.inf
        for _ in range(2):
            await host.finish(10)
        host.residual[3] = 0.25
        await host.finish(10)
        host.residual[4:6] = 0.25
        await host.finish(10)
        host.residual[7] = np.nan
        await host.finish(10)

    host = keeping(tmp_path, work)
    weights = SPEC.weights
    assert [words.partition(":")[0] for words in host.alarms] == [
        f"the trainer's residual was NaN or infinite at {count} of {weights:,} weights, and the checkpoint"
        " has zero there"
        for count in (3, 2, 1)
    ]
    store = CheckpointStore(tmp_path / "run")
    found, warnings = store.latest()
    assert (warnings, store.numbers()) == ([], [4, 5])
    assert found is not None
    assert found.trainer is not None
    expected = np.full(weights, 0.5)
    expected[3:6] = 0.25
    expected[7] = 0
    np.testing.assert_array_equal(found.trainer.residual, expected)
    assert np.isnan(host.residual[7])  # it is the trainer's
