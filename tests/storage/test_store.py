"""The folder of checkpoints: two whole ones are kept, and one is always there after whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import CheckpointError
from p2psgd.core.update_log import Entry, Tail, entry_of
from p2psgd.storage.checkpoint import TrainerCheckpoint
from p2psgd.storage.checkpoint_store import CheckpointStore
from tests.conftest import SMALL_DISK_BYTES
from tests.core.stores import MemoryStore
from tests.storage.states import assert_same, checkpoint, trainer_state

STATES = [checkpoint(updates=count) for count in range(1, 5)]
LARGE_BYTES = SMALL_DISK_BYTES * 2 // 3  # of which only one finds room
LARGE = dataclasses.replace(
    checkpoint(),
    trainer=TrainerCheckpoint(5, trainer_state(5).residual, {"a": np.ones(LARGE_BYTES, np.uint8)}),
)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run")


def test_an_empty_store_has_nothing(store: CheckpointStore) -> None:
    assert store.latest() == (None, [])
    assert store.entries() == []
    assert not store.folder.exists()


def test_the_newest_two_are_kept(store: CheckpointStore) -> None:
    for number, state in enumerate(STATES, 1):
        written = store.write(state)
        assert (written.number, written.bytes) == (number, store.path(number).stat().st_size)
        assert written.kept == [kept.describe() for kept in STATES[max(number - 2, 0) : number]]
    assert store.numbers() == [3, 4]
    assert_same(store.latest()[0], STATES[3])
    assert [(entry.number, entry.fault) for entry in store.entries()] == [(3, ""), (4, "")]


def test_a_tail_is_read_as_it_is_written_and_without_what_its_store_lost(store: CheckpointStore) -> None:
    frames = MemoryStore()
    *stored, last = list(STATES[3].tail)
    lane: list[Entry] = [entry_of(frames.write(frame), len(frame)) for frame in stored]
    state = dataclasses.replace(STATES[3], tail=Tail([[*lane, last]], frames))
    store.write(state)
    assert_same(store.latest()[0], STATES[3])
    frames.readable = False
    store.write(state)
    assert store.numbers() == [1, 2]
    assert_same(store.latest()[0], dataclasses.replace(STATES[3], tail=[last]))


def test_a_bit_that_changes_in_the_log_costs_its_part_of_the_tail_and_is_told(
    store: CheckpointStore,
) -> None:
    assert store.write(STATES[0]).warning == ""
    for state in STATES[1:]:
        peers, mine = state.tail
        flipped = bytearray(peers)
        flipped[len(flipped) // 2] ^= 4
        written = store.write(dataclasses.replace(state, tail=Tail([[bytes(flipped)], [mine]])))
        assert written.warning.endswith(
            "is whole, but lacks 1 of the log's 2 updates: an update in memory has changed"
        )
        assert written.kept[-1].tail_bytes == len(mine)
        assert_same(store.latest()[0], dataclasses.replace(state, tail=[mine]))
    assert [(entry.number, entry.fault) for entry in store.entries()] == [(3, ""), (4, "")]


def test_a_store_that_reads_only_now_and_then_costs_the_tail_and_no_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = itertools.count()

    class Fickle(MemoryStore):
        def read(self, handle: int, length: int) -> bytes:
            self.readable = next(reads) % 2 == 1
            return super().read(handle, length)

    frames = Fickle()
    lane: list[Entry] = [entry_of(frames.write(frame), len(frame)) for frame in list(STATES[3].tail)[:1]]
    written = store.write(dataclasses.replace(STATES[3], tail=Tail([lane], frames)))
    assert "lacks 1 of the log's 1 updates" in written.warning
    assert_same(store.latest()[0], dataclasses.replace(STATES[3], tail=[]))


def test_a_damaged_tail_on_disk_is_a_warning(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.storage.checkpoint.is_whole", lambda frame, weights: True)
    store.write(dataclasses.replace(STATES[0], tail=[b"\1"]))
    found, [warning] = store.latest()
    assert_same(found, dataclasses.replace(STATES[0], tail=[], warning=warning))
    assert warning.endswith(
        "is used, but its tail is damaged, 0 updates of it can be used: it ends inside a frame"
    )


def test_strays_of_killed_writers_are_removed(store: CheckpointStore) -> None:
    store.write(STATES[0])
    stray = store.folder / ".checkpoint-00000009.safetensors.new"
    other = store.folder / "notes.txt"
    stray.write_bytes(b"half")
    other.write_bytes(b"not ours")
    store.write(STATES[1])
    assert not stray.exists()
    assert other.exists()


def damage(path: Path, place: int, *, cut: bool) -> None:
    data = bytearray(path.read_bytes())
    if cut:
        del data[place:]
    else:
        data[place] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("cut", [True, False], ids=["torn", "flipped"])
def test_a_damaged_newest_is_passed_over(store: CheckpointStore, cut: bool) -> None:
    store.write(STATES[0])
    store.write(LARGE)
    newest = store.path(2)
    whole = newest.read_bytes()
    for place in range(0, len(whole), 4096):
        damage(newest, place, cut=cut)
        found, warnings = store.latest()
        assert_same(found, STATES[0])
        assert len(warnings) == 1
        assert warnings[0].startswith(f"checkpoint {newest} cannot be used: it ")
        newest.write_bytes(whole)
    assert_same(store.latest()[0], LARGE)


def test_a_damaged_one_does_not_take_the_place_of_a_whole_one(store: CheckpointStore) -> None:
    store.write(STATES[0])
    store.write(STATES[1])
    damage(store.path(2), 100, cut=False)
    store.latest()
    assert [entry.fault != "" for entry in store.entries()] == [False, True]
    assert store.write(STATES[2]).number == 3
    assert store.numbers() == [1, 3]


def test_with_both_damaged_there_is_none_and_two_warnings(store: CheckpointStore) -> None:
    for number in (1, 2):
        store.write(STATES[number])
        damage(store.path(number), 50, cut=True)
    found, warnings = store.latest()
    assert found is None
    assert len(warnings) == 2


def test_coordinates_without_their_digest_take_no_whole_ones_place(store: CheckpointStore) -> None:
    store.write(STATES[0])
    flipped = STATES[1].coordinates.copy()
    flipped[3] ^= 1 << 7
    with pytest.raises(CheckpointError, match="weights in memory differ from what was applied"):
        store.write(dataclasses.replace(STATES[1], coordinates=flipped))
    assert store.numbers() == [1]
    assert_same(store.latest()[0], STATES[0])


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot be written: file exists$"):
        CheckpointStore(tmp_path / "run").write(STATES[0])


def test_an_error_of_the_disk_at_its_sync_leaves_the_former_ones(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(STATES[0])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        CheckpointError, match="cannot be written: input/output error; the one before it stays"
    ):
        store.write(STATES[1])
    monkeypatch.undo()
    assert [path.name for path in store.folder.iterdir()] == [store.path(1).name]
    assert_same(store.latest()[0], STATES[0])


def test_a_full_disk_is_a_sentence_and_the_former_one_stays(small_disk: Path) -> None:
    store = CheckpointStore(small_disk)
    store.write(LARGE)
    words = "cannot be written: no space left on device; the one before it stays"
    for _ in range(3):
        with pytest.raises(CheckpointError, match=words):
            store.write(LARGE)
    assert [path.name for path in small_disk.iterdir()] == [store.path(1).name]
    assert_same(store.latest()[0], LARGE)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """No file can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_a_free_descriptor_there_is_a_sentence_and_nothing_counts_as_damaged(
    store: CheckpointStore,
) -> None:
    store.write(STATES[0])
    store.write(STATES[1])
    with no_descriptors():
        with pytest.raises(CheckpointError, match=r"cannot look for checkpoints in .*: too many open files"):
            store.write(STATES[2])
        with pytest.raises(CheckpointError, match=r"cannot look for checkpoints in .*: too many open files"):
            store.latest()
    assert_same(store.latest()[0], STATES[1])
    store.write(STATES[2])
    assert store.numbers() == [2, 3]


def test_what_cannot_be_read_for_a_moment_is_passed_over_and_not_taken_for_damaged(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(STATES[0])
    store.write(STATES[1])
    newest, real = store.path(2), Path.open

    def fail(path: Path, *args: Any) -> Any:
        if path == newest:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args)

    monkeypatch.setattr(Path, "open", fail)
    found, [warning] = store.latest()
    assert_same(found, STATES[0])
    assert warning == f"checkpoint {newest} cannot be used: it cannot be read: input/output error"
    monkeypatch.undo()
    assert store.write(STATES[2]).kept == [state.describe() for state in STATES[1:3]]
    assert store.numbers() == [2, 3]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Makes a writer of checkpoints in `tmp_path` for each line it is sent."""
    command = [sys.executable, "-m", "tests.storage.endless_writer", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_killed_at_any_instant_it_leaves_a_whole_one(tmp_path: Path, nursery: subprocess.Popen[str]) -> None:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    seed = random.randrange(2**32)
    moments, newest, strays = random.Random(seed), 0, 0
    for _ in range(30):
        print("another", file=nursery.stdin, flush=True)
        writer = int(nursery.stdout.readline())
        lines = [nursery.stdout.readline()]  # its first checkpoint is written
        time.sleep(moments.uniform(0, 0.03))
        os.kill(writer, signal.SIGKILL)
        lines += iter(nursery.stdout.readline, "dead\n")
        said = int(lines[-1])
        strays += len(list(tmp_path.glob(".*")))
        store = CheckpointStore(tmp_path)
        found, warnings = store.latest()
        assert found is not None, seed
        assert not warnings, seed
        assert store.numbers()[-1] >= said > newest, seed  # what was said to be written is there
        newest = store.numbers()[-1]
    assert strays, f"no writer was killed while it wrote (seed {seed})"
