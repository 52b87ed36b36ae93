from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.test_recording import frames, start
from p2psgd.cli.local.verify import Recorded, look_at_recording


def recording(path: Path, *parts: bytes) -> dict[str, Any]:
    """A file of three updates and these parts, and what its daemon would say of it."""
    path.write_bytes(b"".join((start(), *frames(3), *parts)))
    return {"file": str(path), "updates": 3, "bytes": path.stat().st_size, "bytes_max": 10**6, "note": ""}


def test_a_file_as_its_daemon_said_needs_no_words(tmp_path: Path) -> None:
    said = recording(tmp_path / "run.rec")
    assert look_at_recording(tmp_path / "run.rec", said, lost=None) == Recorded(said)


def test_a_whole_file_is_not_called_otherwise_for_old_counts(tmp_path: Path) -> None:
    said = recording(tmp_path / "run.rec")
    assert look_at_recording(tmp_path / "run.rec", {**said, "updates": 2, "bytes": 7}, lost=None) == (
        said,
        "",
    )


def test_a_file_that_lacks_updates_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    said = recording(path)
    found = look_at_recording(path, {**said, "updates": 5, "bytes": 10**6}, lost=None)
    assert found.recording == said
    assert (
        found.words == f"the recording {path} is not whole: it holds 3 updates in {path.stat().st_size:.0f} B"
    )


def test_a_lost_daemon_is_named_and_a_cut_only_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    old = {"updates": 1, "bytes": 100}
    for parts, end in (((), ""), ((frames(4)[3][:-1],), "; the recording ends in the middle of update 4")):
        said = recording(path, *parts)
        found = look_at_recording(path, {**said, **old}, lost="node-0")
        assert found.recording == said
        assert found.words.startswith(f"node-0 was lost; the recording {path} holds 3 updates in ")
        assert found.words.endswith(f"B{end}")


def test_a_file_that_is_none_is_named_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    assert look_at_recording(path, None, lost="node-0").words == (
        f"node-0 was lost: the recording {path} cannot be read: no such file or directory"
    )
    path.touch()
    assert "not a recording" in look_at_recording(path, None, lost=None).words
