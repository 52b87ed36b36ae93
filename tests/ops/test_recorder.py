"""The recorder: a whole file when all goes well, and a node that does not notice when nothing does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import UsageError
from p2psgd.ops import recorder as recorder_module
from p2psgd.ops.recorder import Recorder
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.recording import read_start, read_updates
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.daemons import until

SPEC = RunSpec((("a", (50, 20)),), -20, "async", "label", b"i" * 32)


def frame(sequence: int) -> bytes:
    words = np.arange(0, 200, 2, dtype=np.uint32)
    header = UpdateHeader(1, 2, sequence, 99, sequence, 7, len(words))
    return pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, SPEC.weights)))


FRAME_BYTES = len(frame(1))


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Make a recorder of a run that has begun; its thread ends with the test."""
    made: list[Recorder] = []

    def make(bytes_max: int = 10**9) -> Recorder:
        made.append(Recorder(tmp_path / "run.rec", bytes_max=bytes_max))
        made[-1].begin(SPEC)
        return made[-1]

    yield make
    for recorder in made:
        asyncio.run(recorder.close())


def sequences(path: Path) -> list[int]:
    """What a reader finds in the file, which must be whole."""
    with path.open("rb") as file:
        header = read_start(file)
        assert header.fingerprint == SPEC.fingerprint
        return [update.header.sequence for update in read_updates(file, header.weights)]


def grown_or_ended(recorder: Recorder, size_before: int) -> bool:
    return recorder.path.stat().st_size > size_before or bool(recorder.status()["note"])


def test_every_update_is_in_the_file_when_it_is_closed(record: Callable[..., Recorder]) -> None:
    recorder = record()
    for sequence in range(1, 1001):
        recorder.add(frame(sequence))
    asyncio.run(recorder.close())
    assert sequences(recorder.path) == list(range(1, 1001))
    status = recorder.status()
    assert (status["updates"], status["note"]) == (1000, "")
    assert status["bytes"] == recorder.path.stat().st_size


def test_the_file_grows_while_the_run_goes_on(record: Callable[..., Recorder]) -> None:
    recorder = record()
    recorder.add(frame(1))
    until(lambda: recorder.path.stat().st_size == recorder.status()["bytes"], "the first update is written")
    assert sequences(recorder.path) == [1]


def test_a_file_that_exists_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    path.write_text("precious")
    with pytest.raises(UsageError, match=r"run\.rec exists already: a recording never replaces a file"):
        Recorder(path, bytes_max=1000)
    assert path.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written to .*: no such file or directory"):
        Recorder(tmp_path / "absent" / "run.rec", bytes_max=1000)


def test_a_recording_without_a_run_leaves_no_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.rec", bytes_max=1000)
    assert recorder.path.exists()
    asyncio.run(recorder.close())
    assert not recorder.path.exists()


def test_at_its_limit_it_ends_with_one_line(
    record: Callable[..., Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    recorder = record(bytes_max=10 * FRAME_BYTES)
    for sequence in range(1, 50):
        recorder.add(frame(sequence))
    asyncio.run(recorder.close())
    kept = sequences(recorder.path)
    assert kept == list(range(1, len(kept) + 1))
    assert 5 < len(kept) < 10
    status = recorder.status()
    assert (status["updates"], status["bytes"]) == (len(kept), recorder.path.stat().st_size)
    assert status["bytes"] <= 10 * FRAME_BYTES
    assert status["note"].startswith("the recording reached its limit of ")
    assert [entry.message for entry in caplog.records] == [f"{recorder.path}: {status['note']}"]


@pytest.mark.parametrize("failing", [2, 3])
def test_a_full_disk_ends_the_recording_whole_and_with_one_line(
    record: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: int,
) -> None:
    calls = 0

    def write(file: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls < failing:
            return real(file, data)
        if calls == failing:
            return real(file, data[:FRAME_BYTES])  # the last room that there was
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.write
    monkeypatch.setattr(os, "write", write)
    recorder = record()
    made = 0
    while not recorder.status()["note"]:
        before = recorder.path.stat().st_size
        for _ in range(3):
            made += 1
            recorder.add(frame(made))
        until(partial(grown_or_ended, recorder, before), "they are written")
    recorder.add(frame(made + 1))
    asyncio.run(recorder.close())
    kept = sequences(recorder.path)
    status = recorder.status()
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) < made
    assert (status["updates"], status["bytes"]) == (len(kept), recorder.path.stat().st_size)
    assert status["note"].startswith("the recording cannot be written: no space left on device")
    assert len(caplog.records) == 1


def test_a_disk_slower_than_the_run_ends_the_recording_and_nobody_waits(
    record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "QUEUE_BYTES_MAX", 20 * FRAME_BYTES)
    monkeypatch.setattr(recorder_module, "CLOSE_LIMIT_S", 0.2)
    going_on = threading.Event()

    def write(file: int, data: memoryview) -> int:
        going_on.wait(30)
        return real(file, data)

    real = os.write
    monkeypatch.setattr(os, "write", write)
    recorder = record()
    for sequence in range(1, 100):
        recorder.add(frame(sequence))
    assert "behind: the disk is slower than the run" in recorder.status()["note"]
    assert len(caplog.records) == 1
    asyncio.run(recorder.close())
    assert "was not written to its end" in recorder.status()["note"]
    going_on.set()
    size = recorder.status()["bytes"]
    until(lambda: recorder.path.stat().st_size == size, "what was taken is written after all")
    kept = sequences(recorder.path)
    assert kept == list(range(1, len(kept) + 1))
    assert 10 < len(kept) <= 20
