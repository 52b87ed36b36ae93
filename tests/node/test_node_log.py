"""The log of a real daemon: on a terminal, in a file, in the journal."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, trainer, until
from tests.ports import free_ports


def start(tmp_path: Path, *options: str, **environment: str) -> Daemon:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    places = ["--peers", str(hosts), "--listen", f"127.0.0.1:{port}"]
    return Daemon(tmp_path / "node-0", *places, *options, environment=environment)


def records(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.words().splitlines()]


def serves(daemon: Daemon) -> bool:
    return daemon.status() is not None


def test_a_file_gets_json_lines_from_the_first_to_the_last_if_they_are_asked_for(tmp_path: Path) -> None:
    command = trainer("digits", "--steps", "3")
    options = ("--log-format", "json", "--trainer", command)
    with all_stopped([start(tmp_path, *options)]) as (daemon,):
        until(daemon.finished, "the end of training")
        until(lambda: '"kind": "view"' in daemon.words(), "the view")  # which so few steps do not wait for
        assert daemon.stop() == 0
        said = records(daemon)
    assert (said[-1]["message"], said[-1]["kind"]) == ("stopped by SIGTERM", "stop")
    assert {"start", "trainer", "view", "ready", "stop"} <= {each.get("kind") for each in said}
    assert "p2psgd.trainer" in {each["logger"] for each in said}
    assert [each["time"] for each in said] == sorted(each["time"] for each in said)


def test_also_the_sentence_that_it_fails_with_is_a_line_of_json(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--trainer", "/nonexistent/trainer")
    with all_stopped([start(tmp_path, *options)]) as (daemon,):
        assert daemon.process.wait(DEADLINE_S) == 78
        last = records(daemon)[-1]
    assert last["level"] == "error"
    assert last["message"].startswith("cannot start the trainer '/nonexistent/trainer'")


def test_a_refusal_of_the_command_line_is_text_whatever_the_log_is(tmp_path: Path) -> None:
    with all_stopped([start(tmp_path, "--log-format", "json", "--rank", "x")]) as (daemon,):
        assert daemon.process.wait(DEADLINE_S) == 64
        said = daemon.words()
    assert said == "p2psgd: --rank 'x' is not i/n with 0 <= i < n, such as 0/4 for the first of four\n"


def test_a_refusal_of_the_command_line_is_an_error_in_the_journal(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    log.touch()
    there = log.stat()
    with all_stopped([start(tmp_path, "--rank", "x", JOURNAL_STREAM=f"{there.st_dev}:{there.st_ino}")]) as (
        daemon,
    ):
        assert daemon.process.wait(DEADLINE_S) == 64
        assert daemon.words().startswith("<3>p2psgd: --rank 'x' is not i/n")


def test_in_the_journal_lines_begin_with_their_priority_and_without_a_time(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    log.touch()
    there = log.stat()
    options = ("--trainer", "/nonexistent/trainer")
    with all_stopped([start(tmp_path, *options, JOURNAL_STREAM=f"{there.st_dev}:{there.st_ino}")]) as (
        daemon,
    ):
        assert daemon.process.wait(DEADLINE_S) == 78
        first, *_, last = daemon.words().splitlines()
    assert first.startswith("<4>WARNING ")
    assert last.startswith("<3>ERROR cannot start the trainer")


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    above, below = pty.openpty()
    command = [*P2PSGD, "node", "--peers", str(hosts), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, "--state", str(tmp_path / "node")], stdin=below, stdout=below, stderr=below
    ) as process:
        os.close(below)
        text = ""
        while "waiting for a trainer" not in text:
            text += os.read(above, 65536).decode()
        process.send_signal(signal.SIGTERM)
        while "stopped by SIGTERM" not in text:
            text += os.read(above, 65536).decode()
        assert process.wait(DEADLINE_S) == 0
    os.close(above)
    lines = text.splitlines()
    assert all(line[:2] == "20" and line[19] == "Z" for line in lines)
    assert any(" WARNING " in line and "names no host" in line for line in lines)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_flood_of_refused_hosts_is_told_in_few_lines(tmp_path: Path, loop: str) -> None:
    command = trainer("digits", "--steps", "3")
    with all_stopped([start(tmp_path, "--log-format", "json", "--trainer", command, P2PSGD_LOOP=loop)]) as (
        daemon,
    ):
        until(daemon.finished, "the end of training")
        status = daemon.status()
        assert status is not None
        host, _, port = status["listen"].rpartition(":")
        for number in range(1, 101):
            source = (f"127.0.1.{number}", 0)
            with socket.create_connection((host, int(port)), source_address=source) as stranger:
                stranger.sendall(b"\xff" * 64)
                stranger.settimeout(DEADLINE_S)
                while stranger.recv(4096):
                    pass
        assert daemon.stop() == 0
        dropped = [each for each in records(daemon) if each.get("kind") == "dropped"]
    assert len(dropped) == 31
    assert dropped[-1]["repeated"] == 70
    assert dropped[-1]["message"].startswith("70 more like this in the last minute")
    assert {each["level"] for each in dropped} == {"warning"}
