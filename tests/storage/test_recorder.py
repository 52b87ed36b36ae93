"""The recorder: a whole file when all goes well, and a node that does not notice when nothing does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from p2psgd.core.run_spec import RunSpec
from p2psgd.storage import recorder as recorder_module
from p2psgd.storage.recorder import Recorder
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.recording import read_start, read_updates
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.daemons import until

SPEC = RunSpec((("a", (50, 20)),), -20, "async", "label", b"i" * 32, "stall")


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
        until(partial(is_closed, recorder.path), "its descriptor is closed")


def is_closed(path: Path) -> bool:
    """Whether this process has no descriptor of the file, were it deleted or not."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the directory itself
            links.append(os.readlink(link))
    return not any(link.startswith(str(path)) for link in links)


def let_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """From now on the disk takes so many bytes and no more."""

    def writev(file: int, buffers: Sequence[bytes]) -> int:
        nonlocal room
        taken = b"".join(buffers)[:room]
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= len(taken)
        return os.write(file, taken)

    monkeypatch.setattr(os, "writev", writev)


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
    for sequence in range(1, 3001):  # more than one writev takes
        recorder.add(frame(sequence))
    asyncio.run(recorder.close())
    assert sequences(recorder.path) == list(range(1, 3001))
    status = recorder.status()
    assert (status["updates"], status["note"]) == (3000, "")
    assert status["bytes"] == recorder.path.stat().st_size


def test_the_file_grows_while_the_run_goes_on(record: Callable[..., Recorder]) -> None:
    recorder = record()
    recorder.add(frame(1))
    until(lambda: recorder.path.stat().st_size == recorder.status()["bytes"], "the first update is written")
    assert sequences(recorder.path) == [1]


def test_each_life_records_into_a_file_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record: Callable[..., Recorder]
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "run.rec"
    path.write_text("precious")
    (tmp_path / "run.rec.1").symlink_to("nowhere")
    recorder = record()
    recorder.add(frame(1))
    asyncio.run(recorder.close())
    assert sequences(tmp_path / "run.rec.2") == [1]
    assert recorder.status()["file"] == str(tmp_path / "run.rec.2")
    assert [entry.message for entry in caplog.records] == [f"recording into {tmp_path / 'run.rec.2'}"]
    assert path.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_the_status_has_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Recorder(Path("run.rec")).status()["file"] == str(tmp_path / "run.rec")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("absent/run.rec", "no such file or directory"),
        ("directory", "is a directory"),
        ("taken", "it exists already, and so do .1 to .2 of it"),
    ],
)
def test_without_a_place_for_it_the_node_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, words: str
) -> None:
    monkeypatch.setattr(recorder_module, "PLACES_MAX", 3)
    (tmp_path / "directory").mkdir()
    for name in ("taken", "taken.1", "taken.2"):
        (tmp_path / name).touch()
    before = sorted(tmp_path.iterdir())
    recorder = Recorder(tmp_path / place)
    recorder.begin(SPEC)
    recorder.add(frame(1))
    asyncio.run(recorder.close())
    status = recorder.status()
    assert status["note"] == f"the recording cannot be made: {words}; there is none, the node goes on"
    assert (status["updates"], status["bytes"]) == (0, 0)
    assert sorted(tmp_path.iterdir()) == before


def test_there_is_no_file_before_the_run_is_known(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.rec")
    assert list(tmp_path.iterdir()) == []
    asyncio.run(recorder.close())
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("each", [3, 100])
def test_a_full_disk_keeps_every_update_that_fits_and_says_so_in_one_line(
    record: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    each: int,
) -> None:
    recorder = record()
    start_bytes = recorder.status()["bytes"]
    let_room(monkeypatch, start_bytes + 7 * FRAME_BYTES + FRAME_BYTES // 2)
    made = 0
    while not recorder.status()["note"]:
        before = recorder.path.stat().st_size
        for _ in range(each):
            made += 1
            recorder.add(frame(made))
        until(partial(grown_or_ended, recorder, before), "they are written")
    recorder.add(frame(made + 1))
    asyncio.run(recorder.close())
    assert sequences(recorder.path) == [1, 2, 3, 4, 5, 6, 7]
    status = recorder.status()
    assert (status["updates"], status["bytes"]) == (7, start_bytes + 7 * FRAME_BYTES)
    assert status["note"].startswith(
        "the recording cannot be written: no space left on device; it ends there"
    )
    assert len(caplog.records) == 1


def test_a_disk_without_room_for_the_start_keeps_no_file(
    record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_room(monkeypatch, 20)
    recorder = record()
    recorder.add(frame(1))
    asyncio.run(recorder.close())
    status = recorder.status()
    assert (status["updates"], status["bytes"], recorder.path.exists()) == (0, 0, False)
    assert status["note"].endswith("no space left on device; there is none, the node goes on")


def test_what_is_written_makes_room_in_the_queue(
    record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record()
    monkeypatch.setattr(recorder_module, "QUEUE_BYTES_MAX", recorder.status()["bytes"] + 10 * FRAME_BYTES)
    for begin in range(1, 41, 8):
        for sequence in range(begin, begin + 8):
            recorder.add(frame(sequence))
        assert recorder.status()["note"] == ""
        until(lambda: not recorder._queue_bytes or recorder.status()["note"], "they are written")
    asyncio.run(recorder.close())
    assert sequences(recorder.path) == list(range(1, 41))


def test_a_disk_slower_than_the_run_ends_the_recording_and_nobody_waits(
    record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "QUEUE_BYTES_MAX", 20 * FRAME_BYTES)
    monkeypatch.setattr(recorder_module, "CLOSE_LIMIT_S", 0.2)
    going_on = threading.Event()

    def writev(file: int, buffers: Sequence[bytes]) -> int:
        going_on.wait(30)
        return real(file, buffers)

    real = os.writev
    monkeypatch.setattr(os, "writev", writev)
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
