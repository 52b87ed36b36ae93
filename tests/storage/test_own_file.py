"""Own updates on disk: none is in no file while a checkpoint that may be used lacks it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import UsageError
from p2psgd.core.run_spec import RunSpec
from p2psgd.storage import update_wal
from p2psgd.storage.checkpoint import CheckpointMeta
from p2psgd.storage.update_wal import UpdateWal, WalError, own_paths, read_own, start_of
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.update import UpdateHeader, pack_update
from tests import DEADLINE_S
from tests.conftest import SMALL_DISK_BYTES
from tests.daemons import until
from tests.storage.states import ME, SPEC, Life, checkpoint, trainer_state
from tests.storage.syncs import Syncs

Make = Callable[[], UpdateWal]


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, errors: list[str]) -> Iterator[Make]:
    """Make the file of one life; its thread has ended when the test has."""
    made: list[UpdateWal] = []

    def one() -> UpdateWal:
        made.append(UpdateWal(tmp_path, SPEC, on_error=errors.append, sync_s=0.02))
        return made[-1]

    yield one
    for own in made:
        own.close()
        own._thread.join(DEADLINE_S)
        assert not own._thread.is_alive()


def found(folder: Path) -> list[list[int]]:
    """The sequences in each file, of a damaged one those before the damage."""
    return [list(readable(path)) for path in own_paths(folder)]


def readable(path: Path) -> Iterator[int]:
    with contextlib.suppress(WalError):
        for header, _ in read_own(path, SPEC):
            yield header.sequence


def is_damaged(path: Path) -> bool:
    try:
        list(read_own(path, SPEC))
    except WalError:
        return True
    return False


def finds(folder: Path, expected: list[list[int]]) -> None:
    def holds() -> bool:
        with contextlib.suppress(UsageError):  # a file was removed between listing and reading
            return found(folder) == expected
        return False

    until(holds, f"the files hold {expected}")


def covering(sequence: int) -> CheckpointMeta:
    """A checkpoint with this node's updates up to there."""
    rows = [row._replace(sequence=max(sequence, 1)) for row in checkpoint().rows]
    return dataclasses.replace(checkpoint(), rows=rows, trainer=trainer_state(sequence)).describe()


def test_updates_come_back_as_they_were(tmp_path: Path, make: Make) -> None:
    own, life = make(), Life(ME)
    frames = [life.update() for _ in range(1500)]  # more than one writev takes
    for frame in frames:
        own.add(frame)
    own.close()
    (path,) = own_paths(tmp_path)
    assert [frame for _, frame in read_own(path, SPEC)] == frames


def test_they_are_written_and_synchronised_meanwhile(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, life, synchronised = make(), Life(ME), threading.Semaphore(0)
    finds(tmp_path, [[]])
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        real(file)
        synchronised.release()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    own.add(life.update())
    while found(tmp_path) != [[1]]:  # its file is synchronised at its beginning, too
        assert synchronised.acquire(timeout=DEADLINE_S)


def test_its_folder_is_on_disk_with_it(
    tmp_path: Path, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    UpdateWal(tmp_path / "run", SPEC, on_error=errors.append).close()
    assert (syncs.held(tmp_path), syncs.held(tmp_path / "run")) == ({"run"}, {"own-00000001.rec"})


def test_a_rotation_keeps_what_any_kept_checkpoint_lacks(tmp_path: Path, make: Make) -> None:
    own, life = make(), Life(ME)
    for _ in range(3):
        own.add(life.update())
    own.rotate([covering(2)])
    own.add(life.update())
    finds(tmp_path, [[1, 2, 3], [4]])
    own.rotate([covering(2), covering(4)])
    own.add(life.update())
    finds(tmp_path, [[1, 2, 3], [4], [5]])
    own.rotate([covering(4), covering(5)])
    finds(tmp_path, [[5], []])
    own.rotate([covering(5), covering(5)])
    finds(tmp_path, [[]])


def test_without_any_checkpoint_nothing_is_removed(tmp_path: Path, make: Make) -> None:
    own, life = make(), Life(ME)
    own.add(life.update())
    own.rotate([])
    finds(tmp_path, [[1], []])


def test_files_of_former_lives_stay_until_they_are_covered(tmp_path: Path, make: Make) -> None:
    first, life = make(), Life(ME)
    first.add(life.update())
    first.add(life.update())
    first.close()
    second, later = make(), Life(ME._replace(incarnation=ME.incarnation + 1))
    second.add(later.update())
    second.rotate([covering(1)])
    finds(tmp_path, [[1, 2], [1], []])
    second.rotate([covering(2)])  # knows nothing of the second life
    finds(tmp_path, [[1], []])


def test_an_update_in_the_coordinates_but_not_in_the_residual_stays(tmp_path: Path, make: Make) -> None:
    own, life = make(), Life(ME)
    for _ in range(5):
        own.add(life.update())
    lagging = dataclasses.replace(checkpoint(updates=5), trainer=trainer_state(4)).describe()
    own.rotate([lagging])
    finds(tmp_path, [[1, 2, 3, 4, 5], []])


def test_a_torn_end_is_cut_after_the_last_whole_update(tmp_path: Path, make: Make) -> None:
    own, life = make(), Life(ME)
    frames = [life.update() for _ in range(4)]
    for frame in frames:
        own.add(frame)
    own.close()
    (path,) = own_paths(tmp_path)
    whole = path.read_bytes()
    ends = [len(start_of(SPEC)) + sum(map(len, frames[:count])) for count in range(5)]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert found(tmp_path) == [[n for n in range(1, 5) if ends[n] <= length]]
        assert is_damaged(path) == (length < ends[0])  # its start was on disk before it had its name
    for place in range(ends[0], len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        path.write_bytes(flipped)
        assert found(tmp_path) == [[n for n in range(1, 5) if ends[n] <= place]]
        assert is_damaged(path) == (place < ends[3])  # else nothing whole follows
    path.write_bytes(whole + bytes(5000))  # what some file systems leave after a power cut
    assert found(tmp_path) == [[1, 2, 3, 4]]
    assert not is_damaged(path)
    path.write_bytes(b"x" + whole[1:])
    assert is_damaged(path)


def test_a_file_that_the_file_system_has_emptied_is_told(tmp_path: Path, make: Make) -> None:
    own = make()
    own.add(Life(ME).update())
    own.close()
    (path,) = own_paths(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(WalError) as caught:
        list(read_own(path, SPEC))
    assert str(caught.value) == (
        f"{path} is empty, and was not when it was written: the file system has lost this node's own updates "
        "in it, and those that no checkpoint and no peer has are gone; check the disk"
    )


def test_a_file_has_its_name_only_with_its_start(
    tmp_path: Path, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash could leave an empty one, which would look as if updates were lost."""
    sizes: list[int] = []
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        sizes.append(os.stat(source).st_size)
        assert own_paths(tmp_path) == []
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    UpdateWal(tmp_path, SPEC, on_error=errors.append).close()
    assert sizes == [len(start_of(SPEC))]
    assert not errors


def test_a_damaged_file_is_put_aside_and_only_the_latest_are_kept(
    tmp_path: Path, make: Make, errors: list[str]
) -> None:
    for count in range(1, 6):
        own, life = make(), Life(ME)
        for _ in range(3):
            own.add(life.update())
        own.close()
        path = own_paths(tmp_path)[-1]
        whole = bytearray(path.read_bytes())
        whole[len(start_of(SPEC)) + 30] ^= 4
        path.write_bytes(whole)
        second = make()
        second.rotate([covering(3)])
        until(lambda: len(errors) == count, "it is told")  # noqa: B023
        second.close()
        assert errors[-1].startswith(f"{path}, which is damaged, is kept as {path.with_suffix('.damaged')}")
        assert path.with_suffix(".damaged").read_bytes() == whole
    assert len(list(tmp_path.glob("*.damaged"))) == update_wal.ASIDE_MAX


def test_another_runs_file_is_refused(tmp_path: Path, make: Make) -> None:
    make().close()
    (path,) = own_paths(tmp_path)
    other = dataclasses.replace(SPEC, label="")
    words = f"is of run {SPEC.fingerprint.hex()[:16]} .digits, async mode., this node is to train run "
    with pytest.raises(
        UsageError, match=f"{words}{other.fingerprint.hex()[:16]} .no label, async mode.: .*--state"
    ):
        list(read_own(path, other))


def test_a_full_disk_is_told_and_leaves_no_hole(small_disk: Path, errors: list[str]) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(SMALL_DISK_BYTES // 2))
    own, life = UpdateWal(small_disk, SPEC, on_error=errors.append, sync_s=0.02), Life(ME)
    try:
        while not errors and life.sequence < 10_000:
            own.add(life.update())
        until(lambda: len(errors) == 1, "the error is told")
        assert errors == [
            f"this node's own updates are not written to {small_disk} for now, and this is tried again: "
            "no space left on device"
        ]
        (path,) = own_paths(small_disk)
        (written,) = found(small_disk)
        assert written == list(range(1, len(written) + 1))
        whole = sum(len(frame) for _, frame in read_own(path, SPEC))
        assert path.stat().st_size == len(start_of(SPEC)) + whole > SMALL_DISK_BYTES // 3
        for _ in range(20):
            own.add(life.update())
        time.sleep(0.2)  # it is tried again meanwhile, and says no more
        assert own_paths(small_disk) == [path]
        ballast.unlink()
        last = life.sequence
        until(lambda: found(small_disk)[-1][-1:] == [last], "what could not be written is")
        assert set(range(1, last + 1)) == {each for file in found(small_disk) for each in file}
        own.rotate([covering(last)])
        own.add(life.update())
        finds(small_disk, [[life.sequence]])
        assert len(errors) == 1
    finally:
        own.close()


def test_a_disk_slower_than_the_run_is_told_once(
    tmp_path: Path, make: Make, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, life = make(), Life(ME)
    finds(tmp_path, [[]])
    frames = [life.update() for _ in range(4)]
    monkeypatch.setattr(update_wal, "QUEUE_BYTES_MAX", max(map(len, frames)))
    gate, real = threading.Event(), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (gate.wait(DEADLINE_S), real(file))[1])
    for frame in frames[:3]:
        own.add(frame)
    assert len(errors) == 1
    assert errors[0].endswith("the disk is 0 MB behind the run")
    gate.set()
    finds(tmp_path, [[1]])
    own.rotate([covering(3)])
    finds(tmp_path, [[]])
    own.add(frames[3])
    finds(tmp_path, [[4]])


def test_the_limit_of_a_file_is_told(
    tmp_path: Path, make: Make, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, life = make(), Life(ME)
    frame = life.update()
    monkeypatch.setattr(update_wal, "FILE_BYTES_MAX", len(start_of(SPEC)) + len(frame))
    own.add(frame)
    finds(tmp_path, [[1]])
    own.add(life.update())
    until(lambda: bool(errors), "the error is told")
    assert errors[0].endswith("the file would become too large")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, errors: list[str]) -> None:
    (tmp_path / "run").write_text("a file")
    own = UpdateWal(tmp_path / "run", SPEC, on_error=errors.append)
    own.add(Life(ME).update())
    own.close()
    assert len(errors) == 1
    assert errors[0].endswith("file exists")


def test_an_update_of_more_shard_counts_than_the_model_has_weights_is_written(tmp_path: Path) -> None:
    spec = RunSpec((("w", (8,)),), -10, "async", "", bytes(32), "stall", shards=100)
    own = UpdateWal(tmp_path, spec, on_error=pytest.fail, sync_s=0.02)

    def written() -> int:
        return sum(1 for path in own_paths(tmp_path) for _ in read_own(path, spec))

    for sequence, count in ((1, 30), (2, 1)):
        entries = np.array([index << 1 for index in range(8, 8 + count)], np.uint32)
        header = UpdateHeader(1, 1, sequence, 0, sequence, 1, count)
        body = pack_update(header, codec.encode(entries, spec.coordinates))
        own.add(pack_frame(FrameType.UPDATE, body))
        until(lambda made=sequence: written() == made, "it is on disk")  # type: ignore[misc]
    own.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_that_ends_the_thread_is_told_once_and_nothing_piles_up(
    tmp_path: Path, errors: list[str]
) -> None:
    own = UpdateWal(tmp_path, SPEC, on_error=errors.append, sync_s=0.02)
    own.add(b"no update")
    until(lambda: bool(errors), "the fault is told")
    own._thread.join(DEADLINE_S)
    assert own.busy_since is None
    own.add(Life(ME).update())
    own.rotate([])
    assert own._queue == []
    own.close()
    assert len(errors) == 1
    assert "until this node is started again: the thread that writes them failed, " in errors[0]
