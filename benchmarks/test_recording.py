from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recording import SLICES_MAX, SlicedCompression, describe_recording, main, render_recording
from p2psgd.base.errors import ExitCode, RecordingError, UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.recording import RecordingHeader, pack_start
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.observe.compressions import TENSORS, WEIGHTS

SPEC = RunSpec(TENSORS, -20, "async", "speech", b"i" * 32, "stall")


def start(fingerprint: bytes = SPEC.fingerprint) -> bytes:
    return pack_start(
        RecordingHeader(
            tensors=SPEC.tensors,
            quantum_log2=SPEC.quantum_log2,
            mode=SPEC.mode,
            label=SPEC.label,
            initial=SPEC.initial,
            two_nodes="stall",
            fingerprint=fingerprint,
            weights=SPEC.weights,
        )
    )


def frames(count: int) -> list[bytes]:
    """Updates of two nodes in turn."""
    random = np.random.default_rng(1)
    made = []
    for number in range(count):
        words = (np.sort(random.choice(WEIGHTS, 50, replace=False)) << 1).astype(np.uint32)
        header = UpdateHeader(number % 2, 1, number // 2 + 1, 99, number // 2 + 1, 4_000, 50)
        made.append(pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, WEIGHTS))))
    return made


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def test_a_recording_as_data(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rec", start(), *frames(100))
    found = describe_recording(path)
    assert json.loads(json.dumps(found)) == found
    assert (found["fault"], found["origins"], found["bytes"]) == ("", 2, path.stat().st_size)
    assert found["run"]["fingerprint"] == SPEC.fingerprint.hex()
    total = found["total"]
    assert (total["updates"], total["mini_batches"], total["indices"]) == (100, 100, 5_000)
    assert sum(total["bits"].values()) == 8 * (path.stat().st_size - len(start()))
    assert [part["updates"] for part in found["slices"]] == [8] * 12 + [4]
    assert found["recent"]["updates"] == 12
    assert [row["name"] for row in found["tensors"]] == [name for name, _ in TENSORS]


def test_a_recording_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rec", start(), *frames(100))
    lines = render_recording(describe_recording(path)).splitlines()
    assert lines[0] == f"{path}: {path.stat().st_size / 1000:.1f} kB, 100 updates of 2 nodes"
    assert lines[1].startswith("run speech: 10,000 weights in 3 tensors, quantum 2^-20, fingerprint ")
    assert lines[2].startswith("all updates   100 in 100 mini-batches, ")
    assert len(lines) == 4 + 2 + 1 + 13 + 1 + 4 + 1 + 3


def test_an_empty_recording_has_little_to_say(tmp_path: Path) -> None:
    text = render_recording(describe_recording(write(tmp_path / "run.rec", start())))
    assert len(text.splitlines()) == 2
    assert "0 updates of 0 nodes" in text


def test_what_is_whole_is_described_and_the_fault_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rec", start(), *frames(3), frames(1)[0][:-1])
    found = describe_recording(path)
    assert (found["total"]["updates"], found["fault"]) == (
        3,
        "the recording ends in the middle of update 4",
    )


def test_the_size_is_that_of_the_file_also_where_reading_ends_before(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rec", start(), *frames(3), b"\xff" * 10**7)
    found = describe_recording(path)
    assert (found["total"]["updates"], found["bytes"]) == (3, path.stat().st_size)
    assert found["fault"].startswith("update 4 of the recording cannot be read")


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    data = b"".join((start(), *frames(3)))
    source, target = os.pipe()
    os.write(target, data)
    os.close(target)
    try:
        found = describe_recording(Path(f"/dev/fd/{source}"))
    finally:
        os.close(source)
    assert (found["total"]["updates"], found["bytes"], found["fault"]) == (3, len(data), "")


def test_another_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="this is not a recording") as caught:
        describe_recording(write(tmp_path / "run.rec", b"something else"))
    assert caught.value.exit_code is ExitCode.DATA
    with pytest.raises(RecordingError, match="does not fit the fingerprint"):
        describe_recording(write(tmp_path / "run.rec", start(fingerprint=b"f" * 32)))
    with pytest.raises(UsageError, match="cannot be read: no such file or directory"):
        describe_recording(tmp_path / "absent")
    with pytest.raises(UsageError, match="cannot be read: is a directory"):
        describe_recording(tmp_path)


def test_slices_are_equal_few_and_whole() -> None:
    words = np.array([3 << 1], np.uint32)
    payload = memoryview(codec.encode(words, WEIGHTS))
    sliced = SlicedCompression(TENSORS)
    for made in range(1, 500):
        origin = Origin(made % 2, 1)
        sliced.count(origin=origin, mini_batch=(made + 1) // 2, step=made, words=words, payload=payload)
        sizes = [part.updates for part in sliced.slices]
        assert sum(sizes) == made
        assert len(sizes) <= SLICES_MAX
        assert len(set(sizes[:-1])) <= 1
        assert made < SLICES_MAX or len(sizes) > SLICES_MAX // 2
        total = sliced.sum_last(SLICES_MAX)
        assert total.updates == made
        assert total.tensor_steps.tolist() == [made, 0, 0]
    assert abs(total.mini_batches - 499) <= 1  # of both origins together


def test_the_command_prints_it_and_ends_with_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.rec", start(), *frames(2), frames(1)[0][:-1])
    monkeypatch.setattr("sys.argv", ["recording", str(path)])
    assert main() is ExitCode.DATA
    told = capsys.readouterr()
    assert "2 updates of 2 nodes" in told.out
    assert told.err == "the recording ends in the middle of update 3\n"
    monkeypatch.setattr("sys.argv", ["recording", str(tmp_path / "absent"), "--json"])
    assert main() is ExitCode.USAGE
    assert capsys.readouterr().err.endswith("absent cannot be read: no such file or directory\n")
