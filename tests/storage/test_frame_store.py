from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import UpdateLog
from p2psgd.storage import spill_file
from p2psgd.storage.spill_file import FrameFile

MIB = 1024**2


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "SEGMENT_BYTES", 1000)


def opened(directory: Path, *, budget_bytes: int = 64 * MIB) -> Iterator[FrameFile]:
    store = FrameFile(directory, budget_bytes=budget_bytes)
    yield store
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FrameFile]:
    yield from opened(tmp_path)


@pytest.fixture
def small(tmp_path: Path, small_segments: None) -> Iterator[FrameFile]:
    """Ten segments of 1,000 bytes."""
    yield from opened(tmp_path, budget_bytes=10_500)


def size_of(store: FrameFile) -> int:
    return os.fstat(store._file.fileno()).st_size


def fill(store: FrameFile, length: int) -> list[int]:
    """Handles of all frames of this length that found room."""
    handles: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            handles.append(store.write(bytes([len(handles) % 251]) * length))
    return handles


def test_frames_are_read_as_they_were_written(store: FrameFile) -> None:
    frames = [os.urandom(length) for length in (1, 600, 4096, 864_213, 2)]
    handles = [store.write(frame) for frame in frames]
    assert [store.read(handle, len(frame)) for handle, frame in zip(handles, frames, strict=True)] == frames


def test_the_file_has_no_name(store: FrameFile, tmp_path: Path) -> None:
    store.write(bytes(1000))
    assert list(tmp_path.iterdir()) == []


def test_no_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FrameFile(tmp_path / "missing", budget_bytes=MIB)


def test_the_budget_is_kept_to_the_byte_and_freed_segments_are_used_anew(small: FrameFile) -> None:
    handles = fill(small, 246)  # four to a segment, checksums included
    assert len(handles) == 40
    assert size_of(small) == 10_000
    with pytest.raises(OSError, match="has reached its 10500 bytes"):
        small.write(bytes(246))
    for handle in handles[:7]:
        small.free(handle, 246)
    again = [small.write(bytes(246)) for _ in range(4)]  # the first segment, all of whose frames were freed
    with pytest.raises(OSError, match="has reached"):
        small.write(bytes(246))
    assert set(again) == set(handles[:4])
    assert size_of(small) == 10_000
    assert [small.read(handle, 246)[0] for handle in handles[7:]] == list(range(7, 40))


def test_a_frame_larger_than_a_segment_is_refused_and_harms_nothing(small: FrameFile) -> None:
    handle = small.write(b"before")
    with pytest.raises(OSError, match="1001 bytes do not fit into a segment of 1000"):
        small.write(bytes(997))
    assert small.read(handle, 6) == b"before"
    small.write(bytes(990))


@pytest.mark.parametrize("budget_bytes", [0, 1, 3])
def test_a_budget_too_small_for_anything_is_always_full(tmp_path: Path, budget_bytes: int) -> None:
    for store in opened(tmp_path, budget_bytes=budget_bytes):
        with pytest.raises(OSError, match="do not fit"):
            store.write(b"frame")


def test_a_store_of_one_segment_starts_again_when_it_is_empty(tmp_path: Path) -> None:
    for store in opened(tmp_path, budget_bytes=100):
        for _ in range(5):
            handles = fill(store, 46)
            assert len(handles) == 2
            for handle in handles:
                store.free(handle, 46)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_survives_any_order_of_writing_and_freeing(small: FrameFile, seed: int) -> None:
    chance = random.Random(seed)
    held: dict[int, bytes] = {}
    refused = 0
    for _ in range(2000):
        if chance.random() < 0.55:
            frame = chance.randbytes(chance.choice((1, 30, 100, 300, 900)))
            try:
                handle = small.write(frame)
            except OSError:
                refused += 1
            else:
                assert handle not in held
                held[handle] = frame
        elif held:
            handle = next(iter(held)) if chance.random() < 0.9 else chance.choice(list(held))
            small.free(handle, len(held.pop(handle)))
        for handle in chance.sample(list(held), min(3, len(held))):
            assert small.read(handle, len(held[handle])) == held[handle]
    assert refused
    assert size_of(small) <= 10_000
    for handle, frame in held.items():
        small.free(handle, len(frame))
    assert len(fill(small, 996)) == 10  # all of it can be had again


def test_a_disk_that_gives_back_something_else_is_found_out(store: FrameFile) -> None:
    handle = store.write(b"what was written")
    other = store.write(b"another")
    os.pwrite(store._file.fileno(), b"W", handle + 4)
    with pytest.raises(OSError, match="not read as it was written"):
        store.read(handle, 16)
    assert store.read(other, 7) == b"another"
    os.ftruncate(store._file.fileno(), other + 5)
    with pytest.raises(OSError, match="not read as it was written"):
        store.read(other, 7)
    os.ftruncate(store._file.fileno(), other + 2)
    with pytest.raises(OSError, match="not read as it was written"):
        store.read(other, 7)


def test_a_file_that_may_grow_no_more_takes_what_fits_and_goes_on_later(store: FrameFile) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_500, limits[1]))
    try:
        handles = fill(store, 996)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(handles) == 100
    handles.append(store.write(bytes([100]) * 996))  # over the half that was written before
    assert [store.read(handle, 996)[0] for handle in handles] == list(range(101))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system that runs full")
def test_a_full_disk_refuses_frames_and_keeps_those_it_has(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        for store in opened(tmp_path):
            check_a_log_on(store)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def check_a_log_on(store: FrameFile) -> None:
    """Fill a log until the disk, of 1 MiB, is full; then trim it."""
    log = UpdateLog(budget_bytes=200_000, store=store, store_budget_bytes=64 * MIB)
    origin, sequence = Origin(1, 1), 0
    while log.room(1000):
        sequence += 1
        log.append(origin, sequence, b"%1000d" % sequence)
    assert 900_000 < log.bytes_stored < MIB
    assert log.bytes_held <= 202_000
    assert log.pressure >= 0.99
    frames = [log.frame(origin, number) for number in range(1, sequence + 1)]
    assert frames == [b"%1000d" % number for number in range(1, sequence + 1)]
    log.trim(log.last, log.last, share=0.5)
    assert log.room(1000)


def test_a_log_that_slides_through_its_store_never_fills_it(store: FrameFile) -> None:
    """Trimmed at 75 % down to 70 % of the budgets, with an origin that always lags behind."""
    lengths = random.Random(7)
    store.budget_bytes = 40 * MIB
    log = UpdateLog(budget_bytes=4 * MIB, store=store, store_budget_bytes=32 * MIB)
    origins = [Origin(node, 1) for node in range(4)]
    recent: deque[tuple[Origin, int, bytes]] = deque(maxlen=20)
    for number in range(40_000):
        origin, sequence = origins[number % 4], number // 4 + 1
        frame = lengths.randbytes(lengths.randint(500, 6000))
        assert log.room(len(frame))
        log.append(origin, sequence, frame)
        recent.append((origin, sequence, frame))
        if log.pressure > 0.75:
            log.trim(lambda origin: log.last(origin) - 100 * origin.node, lambda _: 0, share=0.7)
    assert log.bytes_held <= 4 * MIB
    assert log.bytes_stored > 16 * MIB
    assert size_of(store) <= 40 * MIB
    assert all(log.frame(origin, sequence) == frame for origin, sequence, frame in recent)
    assert log.unreadable == 0


def test_what_is_freed_while_somebody_holds_the_file_can_be_read_and_is_used_anew_after(
    small: FrameFile,
) -> None:
    handles = fill(small, 246)
    for handle in handles:
        small.free(handle, 246, held=True)
    assert [small.read(handle, 246)[0] for handle in handles] == list(range(40))
    with pytest.raises(OSError, match="has reached"):
        small.write(bytes(246))
    small.release()
    assert len(fill(small, 246)) == 40
    assert size_of(small) == 10_000


def test_a_segment_with_one_frame_that_is_held_waits_and_one_without_does_not(small: FrameFile) -> None:
    handles = fill(small, 246)
    for number, handle in enumerate(handles[:8]):
        small.free(handle, 246, held=number == 2)
    assert len(fill(small, 246)) == 4
    assert small.read(handles[2], 246)[0] == 2
    small.release()
    assert len(fill(small, 246)) == 4


def test_a_log_is_not_full_while_a_slow_disk_reads_the_tail_of_a_checkpoint(store: FrameFile) -> None:
    """Trimmed at 75 % down to 70 % of the budgets, with a member that lacks a third of what they hold."""
    store.budget_bytes = 40 * MIB
    log = UpdateLog(budget_bytes=4 * MIB, store=store, store_budget_bytes=40 * MIB)
    origin = Origin(1, 1)

    def slide(count: int) -> None:
        for _ in range(count):
            assert log.room(3000)
            log.append(origin, log.last(origin) + 1, b"%3000d" % log.last(origin))
            assert log.pressure < 0.76
            if log.pressure > 0.75:
                log.trim(lambda _: log.last(origin) - 5000, lambda _: 0, share=0.7)

    slide(20_000)
    tail = log.tail(lambda _: log.last(origin) - 3000)
    slide(7_500)  # 22.5 MB, half of the budgets
    assert list(tail) == [b"%3000d" % number for number in range(17_000, 20_000)]
    log.release()
    slide(20_000)
    assert size_of(store) <= 40 * MIB


def test_a_segment_that_was_emptied_while_held_and_left_for_the_next_is_not_lost(small: FrameFile) -> None:
    first = [small.write(bytes(246)) for _ in range(3)]
    for handle in first:
        small.free(handle, 246, held=True)
    rest = fill(small, 496)  # does not fit behind them
    assert len(rest) == 18
    small.release()
    assert len(fill(small, 246)) == 4
