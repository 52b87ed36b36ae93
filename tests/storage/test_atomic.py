"""Files and directories of a node's state: whole or not there, on disk, and nobody else's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.storage.files import make_directory, replacing
from tests.storage.syncs import Syncs


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_on_disk_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    with replacing(tmp_path / "votes.json") as file:
        file.write(b"{}")
        assert syncs.held(tmp_path) == set()
    assert syncs.held(tmp_path) == {"votes.json"}


def test_a_file_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    (tmp_path / "votes.json").write_text("before")
    with pytest.raises(OSError, match="Invalid argument"), replacing(tmp_path / "votes.json") as file:
        file.truncate(-1)
    assert [path.name for path in tmp_path.iterdir()] == ["votes.json"]
    assert (tmp_path / "votes.json").read_text() == "before"


def test_what_others_may_do_with_a_file_is_said_by_its_mode(tmp_path: Path) -> None:
    stray = tmp_path / ".one.new"
    stray.write_text("of a process that was killed, which anybody could read")
    for name in ("one", "two"):
        with replacing(tmp_path / name) as file:
            file.write(b"x")
        assert mode_of(tmp_path / name) == 0o640
    with replacing(tmp_path / "export", mode=0o666):
        pass
    assert mode_of(tmp_path / "export") == 0o644


def test_directories_are_on_disk_in_those_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    place = tmp_path / "srv" / "node" / "run"
    make_directory(place)
    assert [syncs.held(folder) for folder in (tmp_path, place.parents[1], place.parent)] == [
        {"srv"},
        {"node"},
        {"run"},
    ]
    assert mode_of(place) == 0o750
    assert mode_of(place.parent) == 0o755
    again = Syncs(monkeypatch)
    make_directory(place)
    assert again.held(place.parent) == set()


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for place in (tmp_path / "run", tmp_path / "run" / "run"):
        with pytest.raises(FileExistsError):
            make_directory(place)
