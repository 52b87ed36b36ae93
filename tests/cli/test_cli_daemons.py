"""The commands for when machines fail, as a person gives them, with real daemons."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, until
from tests.node.test_node import Place, calm, endless, steps

pytestmark = pytest.mark.long


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*P2PSGD, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def events(daemon: Daemon) -> list[dict[str, Any]]:
    done = command("events", "--state", str(daemon.state), "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def view(daemon: Daemon) -> dict[str, Any]:
    told: dict[str, Any] = (daemon.status() or {}).get("view") or {}
    return told


def test_a_machine_that_died_is_seen_removed_and_remembered(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    trained = endless(calm(tmp_path))
    with all_stopped([place.start(number, *trained) for number in range(3)]) as daemons:
        until(lambda: all(steps(daemon) > 30 for daemon in daemons), "training")
        until(lambda: view(daemons[0]).get("members_total") == 3, "the run is founded")
        equal = command("digest", "--state", str(daemons[0].state))
        assert equal.returncode == 0, equal.stdout + equal.stderr
        assert equal.stdout.count("equal where both") + equal.stdout.count("identical") == 2

        daemons[2].kill()

        def away() -> bool:
            members = view(daemons[0]).get("members") or ()
            return any(not member["linked"] and member["lag"] for member in members)

        until(away, "the status shows who is away, and what it lacks")
        number = view(daemons[0])["number"]
        done = command("remove", "node-2", "--state", str(daemons[0].state))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"view {number + 1} with 2 members is decided: node-2 is removed")
        until(lambda: view(daemons[1]).get("number") == number + 1, "the other one knows it")
        again = command("remove", "node-2", "--state", str(daemons[1].state))
        assert again.returncode == 0, again.stderr
        assert again.stdout.endswith("node-2 is no member now, and there is nothing to remove\n")
        running = command("remove", "node-1", "--state", str(daemons[0].state))
        assert running.returncode == 64
        assert running.stderr.startswith("p2psgd: node-1 runs and is linked with this node")
        assert view(daemons[0])["number"] == number + 1
        count = steps(daemons[0])
        until(lambda: steps(daemons[0]) > count + 20, "training went on")
        dead = events(daemons[2])  # read from the files of a node that runs no more
        assert {"view", "ready"} <= {event["kind"] for event in dead}
        kinds = [event["kind"] for event in events(daemons[0])]
        assert kinds.count("view") == number + 1
        assert "removed" in kinds


def test_the_lower_of_two_nodes_goes_on_alone_where_the_recipe_says_so(tmp_path: Path) -> None:
    place, recipe = Place(tmp_path, 2), calm(tmp_path)
    with Path(recipe).open("a") as file:
        file.write('[run]\ntwo_nodes = "lower-id"\n')
    with all_stopped([place.start(number, *endless(recipe)) for number in range(2)]) as daemons:
        until(lambda: all(steps(daemon) > 5 for daemon in daemons), "both train")
        lower, higher = sorted(daemons, key=lambda daemon: str((daemon.status() or {})["id"]))
        view = (lower.status() or {})["view"]
        assert view["members_total"] == 2
        higher.kill()
        done = command("remove", view["members"][1]["id"], "--state", str(lower.state))
        assert done.returncode == 0, done.stderr
        assert "with 1 member is decided" in done.stdout


def test_of_two_nodes_that_both_must_agree_the_one_that_died_is_not_removed(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    with all_stopped([place.start(number, *endless(calm(tmp_path))) for number in range(2)]) as daemons:
        until(lambda: view(daemons[0]).get("members_total") == 2, "the run is founded")
        daemons[1].kill()
        until(lambda: not daemons[0].linked(), "the other is away")
        refused = command("remove", "node-1", "--state", str(daemons[0].state))
        daemons[0].kill()  # it would wait for the other to take its updates
    assert refused.returncode == 64
    assert "node-1 is away, and of two members both must agree to a change" in refused.stderr


def test_every_life_has_its_start_and_its_end_in_the_events(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    with all_stopped([place.start(0)]) as daemons:
        until(daemons[0].status, "it answers")
        assert daemons[0].stop() == 0
        place.hosts.write_text("not a host\n")
        daemons.append(place.start(0))
        assert daemons[1].process.wait(DEADLINE_S) == 78
        started, stopped, refused = events(daemons[0])
    assert [event["kind"] for event in (started, stopped, refused)] == ["start", "stop", "stop"]
    assert started["words"].startswith(f"p2psgd {version('p2psgd')} starts as node-0, listens on 127.0.0.1:")
    assert started["words"].endswith(f", peers: 127.0.0.1:{place.ports[1]}")
    assert stopped["words"] == "stopped by SIGTERM (exit code 0)"
    assert "hosts.txt line 1: 'not a host'" in refused["words"]
    assert refused["words"].endswith("(exit code 78)")


def test_events_go_on_counting_in_a_nodes_next_life(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)))]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        daemons[0].kill()
        before = events(daemons[0])
        daemons.append(place.start(0, *endless(calm(tmp_path))))
        until(lambda: steps(daemons[1]) > 5, "training again")
        assert daemons[1].stop() == 0
        after = events(daemons[1])
    assert after[: len(before)] == before
    assert [event["kind"] for event in after[len(before) :][:2]] == ["cut short", "start"]
    assert "cut short" not in {event["kind"] for event in before}
    assert [event["count"] for event in after] == list(range(1, len(after) + 1))
