"""The node that a command finds by itself: real daemons, in a home and in a service's places."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.storage.event_log import EventLog
from tests import DEADLINE_S
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports

# The command with the service's places below another root, since only root may write to /run and /var/lib.
PROGRAM = """
import sys
from pathlib import Path
from p2psgd.ipc import listener
listener.SERVICE_DIRECTORY, listener.SERVICE_STATE = map(Path, sys.argv[1:3])
del sys.argv[1:3]
from p2psgd.cli.app import main
main()
"""


@dataclass(frozen=True)
class Machine:
    """A home, in which `own` is the default state directory, and the places of a service."""

    root: Path

    @property
    def own(self) -> Path:
        return self.root / "home" / "p2psgd"

    @property
    def running(self) -> Path:
        return self.root / "run"

    @property
    def service(self) -> Path:
        return self.root / "var"

    def start(self, state: Path, name: str, *options: str) -> Daemon:
        (port,) = free_ports(1)
        hosts = self.root / "hosts.txt"
        hosts.write_text("")
        places = ("--peers", str(hosts), "--listen", f"127.0.0.1:{port}")
        return Daemon(state, *places, "--name", name, *options, log=self.root / f"{name}.log")

    def start_service(self) -> Daemon:
        self.running.mkdir()
        return self.start(self.service, "service", "--control", str(self.running / "control.sock"))

    def p2psgd(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the user of this home."""
        named = ("P2PSGD_CONTROL", "P2PSGD_STATE", "STATE_DIRECTORY")
        kept = {name: value for name, value in os.environ.items() if name not in named}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(self.running), str(self.service), *words],
            env={**kept, "XDG_STATE_HOME": str(self.root / "home")},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_service_is_found_where_this_user_has_no_node_and_also_after_it_has_stopped(
    machine: Machine,
) -> None:
    with all_stopped([machine.start_service()]) as (daemon,):
        until(daemon.status, "it answers")
        asked = machine.p2psgd("status")
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout.startswith("service: ")
        read = machine.p2psgd("events")
        assert (read.returncode, read.stderr) == (0, "")
        assert "starts as service" in read.stdout
        assert daemon.stop() == 0
    machine.running.joinpath("control.sock").unlink(missing_ok=True)
    machine.running.rmdir()  # as systemd does
    ended = machine.p2psgd("status")
    assert ended.returncode == ExitCode.TEMPORARY
    assert f"no daemon answers at {machine.service}/control.sock: the last one ended at " in ended.stderr
    assert ended.stderr.endswith("stopped by SIGTERM (exit code 0); --state DIR names another node\n")
    assert machine.p2psgd("events").stdout.startswith(read.stdout)
    listed = machine.p2psgd("checkpoint", "list")
    assert f"there is no checkpoint in {machine.service}/" in listed.stderr


def test_of_both_this_users_own_is_asked_and_a_sentence_says_so(machine: Machine) -> None:
    with all_stopped([machine.start_service(), machine.start(machine.own, "mine")]) as daemons:
        for daemon in daemons:
            until(daemon.status, "it answers")
        asked = machine.p2psgd("status")
        assert asked.stdout.startswith("mine: ")
        words = f"the node is that of {machine.own}; --state {machine.running} is this machine's service"
        assert asked.stderr == f"p2psgd: {words}\n"
        read = machine.p2psgd("events")
        assert "starts as mine" in read.stdout
        words = f"the node is that of {machine.own}; --state {machine.service} is this machine's service"
        assert read.stderr == f"p2psgd: {words}\n"
        named = machine.p2psgd("status", "--state", str(machine.running))
        assert (named.stdout.split()[0], named.stderr) == ("service:", "")
        assert daemons[1].stop() == 0
        left = machine.p2psgd("status")
        assert left.stdout.startswith("service: ")
        words = f"asks this machine's service, as no node runs in {machine.own}"
        assert left.stderr == f"p2psgd: {words}\n"


def test_without_any_node_status_names_the_option_that_names_one(machine: Machine) -> None:
    asked = machine.p2psgd("status")
    assert asked.returncode == ExitCode.TEMPORARY
    words = "start one with `p2psgd node`, or name the state directory of one that runs with --state DIR"
    assert asked.stderr == f"p2psgd: no daemon answers at {machine.own}/control.sock: {words}\n"


def test_of_a_node_with_parts_and_one_without_the_last_is_meant(tmp_path: Path) -> None:
    parts = [tmp_path / f"part-{index}" for index in range(2)]
    for place, at in zip([tmp_path, *parts], (20, 10, 30), strict=True):
        place.mkdir(exist_ok=True)
        log = EventLog(place)
        log.write("start", f"in {place.name}")
        log.close()
        os.utime(log.path, (at, at))

    def told() -> list[str]:
        asked = [sys.executable, "-m", "p2psgd", "events", "--state", str(tmp_path)]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert (answer.returncode, answer.stderr) == (0, "")
        return [line.split("start")[1].strip() for line in answer.stdout.splitlines()]

    assert told() == ["part 0: in part-0", "part 1: in part-1"]
    os.utime(tmp_path / "events.jsonl", (40, 40))
    assert told() == [f"in {tmp_path.name}"]


def test_status_shows_the_parts_whose_daemons_answer(machine: Machine) -> None:
    with all_stopped([machine.start(machine.own / "part-0", "mine")]) as (daemon,):
        until(daemon.status, "it answers")
        machine.own.joinpath("part-1").mkdir()
        asked = machine.p2psgd("status", "--state", str(machine.own), "--json")
        assert asked.returncode == ExitCode.TEMPORARY
        assert asked.stderr == "p2psgd: no answer about part 1\n"
        told = json.loads(asked.stdout)
        assert told["node"] is None
        assert [part and part["node"] for part in told["parts"]] == ["mine", None]
