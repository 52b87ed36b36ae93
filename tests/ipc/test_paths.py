from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.ipc import listener
from p2psgd.ipc.listener import (
    control_path,
    default_state_directory,
    part_control,
    refuse_parts,
    socket_address,
)
from p2psgd.ipc.part import COUNT_NAME, Part


def test_the_state_directory_follows_the_most_particular_setting() -> None:
    settings = {
        "P2PSGD_STATE": "/own",
        "STATE_DIRECTORY": "/var/lib/a:/var/lib/b",
        "XDG_STATE_HOME": "/home/x",
    }
    assert default_state_directory(settings) == Path("/own")
    del settings["P2PSGD_STATE"]
    assert default_state_directory(settings) == Path("/var/lib/a")
    del settings["STATE_DIRECTORY"]
    assert default_state_directory(settings) == Path("/home/x/p2psgd")
    assert default_state_directory({}) == Path.home() / ".local/state/p2psgd"


def test_control_names_a_state_directory_or_its_socket(tmp_path: Path) -> None:
    assert control_path(tmp_path, {}) == tmp_path / "control.sock"
    assert control_path(tmp_path / "control.sock", {}) == tmp_path / "control.sock"
    assert control_path(None, {"P2PSGD_CONTROL": str(tmp_path)}) == tmp_path / "control.sock"
    assert control_path(None, {"P2PSGD_STATE": str(tmp_path)}) == tmp_path / "control.sock"
    directory = tmp_path / "odd.sock"
    directory.mkdir()
    assert control_path(directory, {}) == directory / "control.sock"


def test_a_part_finds_its_own_daemon(tmp_path: Path) -> None:
    assert part_control(tmp_path, Part(1, 2)) == tmp_path, "it names one daemon"
    (tmp_path / "part-0").mkdir()  # of a daemon that was started by itself, as the other one will be
    assert part_control(tmp_path, Part(1, 2)) == tmp_path / "part-1" / "control.sock"
    (tmp_path / COUNT_NAME).write_text("2\n")
    assert part_control(tmp_path, Part(1, 2)) == tmp_path / "part-1" / "control.sock"
    for part in (Part(0, 3), Part(2, 3), Part(0, 1)):
        with pytest.raises(TrainerError, match=rf"has 2 parts, and this group has {part.count} ranks: start"):
            part_control(tmp_path, part)


def test_no_whole_model_finds_a_node_in_parts(tmp_path: Path) -> None:
    refuse_parts(tmp_path / "control.sock")
    (tmp_path / "part-0").mkdir()
    refuse_parts(tmp_path / "control.sock")  # nothing runs there
    (tmp_path / "part-0" / "control.sock").touch()
    with pytest.raises(TrainerError, match=r"a model in parts, and this script attaches a whole one"):
        refuse_parts(tmp_path / "control.sock")
    (tmp_path / "control.sock").touch()  # a daemon of a whole model
    refuse_parts(tmp_path / "control.sock")


def test_the_service_of_the_machine_is_asked_where_nobody_names_a_node_or_runs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, home = tmp_path / "run", tmp_path / "home"
    monkeypatch.setattr(listener, "SERVICE_DIRECTORY", service)
    mine = home / "p2psgd" / "control.sock"
    settings = {"XDG_STATE_HOME": str(home)}
    assert control_path(None, settings) == mine
    service.mkdir()
    assert control_path(None, settings) == service / "control.sock"
    assert control_path(tmp_path, settings) == tmp_path / "control.sock"
    for name in ("P2PSGD_STATE", "P2PSGD_CONTROL", "STATE_DIRECTORY"):
        assert control_path(None, {**settings, name: str(tmp_path)}) == tmp_path / "control.sock"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert control_path(None, settings) == mine


def test_a_path_that_is_too_long_for_an_address_is_reached_through_its_directory(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    before = os.listdir("/proc/self/fd")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end,
        socket_address(deep / "control.sock") as name,
    ):
        assert len(name) <= 107
        end.bind(name)
    assert (deep / "control.sock").is_socket()
    assert os.listdir("/proc/self/fd") == before
