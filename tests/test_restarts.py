"""Real daemons that come back from their disks, with and without trainers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests import DEADLINE_S
from tests.cli.test_cli_daemons import command, events, view
from tests.daemons import P2PSGD, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.node.test_node import Place, calm, ended, endless, steps

pytestmark = pytest.mark.long


def train(daemon: Daemon, recipe: str, share: str, steps: int) -> subprocess.CompletedProcess[str]:
    """A trainer that a person starts, to its end."""
    return subprocess.run(
        [*P2PSGD, "train", "--recipe", recipe, "--steps", str(steps), "--rank", share],
        env={**os.environ, "P2PSGD_CONTROL": str(daemon.state), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def status(daemon: Daemon) -> dict[str, Any]:
    told: dict[str, Any] = until(daemon.status, "it answers")
    return told


def checkpointed(daemon: Daemon) -> bool:
    return bool((status(daemon).get("checkpoint") or {}).get("number"))


def stop_in_training(daemons: list[Daemon]) -> None:
    """A power cut of all, each with a checkpoint and updates after it."""
    until(lambda: all(checkpointed(daemon) for daemon in daemons), "checkpoints")
    counts = [steps(daemon) for daemon in daemons]
    until(
        lambda: all(steps(daemon) > count + 20 for daemon, count in zip(daemons, counts, strict=True)),
        "they train on",
    )
    for daemon in daemons:
        daemon.kill()


def test_who_was_not_scheduled_for_long_drops_nobody(tmp_path: Path) -> None:
    """As on a host that is overcommitted: what its peers have sent meanwhile lies in its sockets."""
    place, recipe = Place(tmp_path, 3), calm(tmp_path)
    with all_stopped([place.start(number, *endless(recipe)) for number in range(3)]) as daemons:
        until(lambda: all(view(daemon).get("members_total") == 3 for daemon in daemons), "the run is founded")
        until(lambda: all(steps(daemon) > 20 for daemon in daemons), "they train")
        seen = [len(events(daemon)) for daemon in daemons]
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGSTOP)
        over = time.monotonic() + 7  # seven failure timeouts; a link is closed after four of silence
        until(lambda: time.monotonic() > over, "the pause is over")
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGCONT)
        counts = [steps(daemon) for daemon in daemons]
        until(
            lambda: all(steps(daemon) > count + 20 for daemon, count in zip(daemons, counts, strict=True)),
            "they train on",
        )
        for daemon, before in zip(daemons, seen, strict=True):
            assert not [
                each for each in events(daemon)[before:] if each["kind"] in ("lost", "evicted", "view")
            ]
            assert status(daemon)["ready"]


def test_after_a_power_cut_nodes_go_on_before_any_trainer_is_there(tmp_path: Path) -> None:
    place, recipe = Place(tmp_path, 3), calm(tmp_path)
    with all_stopped([place.start(number, *endless(recipe)) for number in range(3)]) as daemons:
        stop_in_training(daemons)
        first, second = again = [place.start(number) for number in range(2)]
        daemons.extend(again)
        until(lambda: view(first).get("members_total") == 3, "it knows the run and its view")
        waits = "waiting for node-2 to learn that this node is back, or to be removed"
        until(lambda: status(first)["not_ready"] == waits, "it waits for node-2, and knows its name")
        done = command("remove", "node-2", "--state", str(first.state))
        assert done.returncode == 0, done.stderr
        until(lambda: all(status(daemon)["ready"] for daemon in again), "both are ready")
        assert_replicas_identical(again)
        assert {status(daemon)["state"] for daemon in again} == {"waiting for a trainer"}
        assert all(steps(daemon) > 20 for daemon in again)  # as many as in the life before
        assert [event["kind"] for event in events(first)].count("restored") == 1

        other = Path(recipe).with_name("other.toml")
        other.write_text(Path(recipe).read_text() + "seed = 7\n")
        refused = train(first, str(other), "0/2", 10)
        assert refused.returncode == 78
        assert "this node takes part in run" in refused.stderr
        assert "another --state" in refused.stderr

        before = steps(second)
        trained = train(second, recipe, "1/2", before + 100)
        assert trained.returncode == 0, trained.stderr
        assert steps(second) == before + 100  # it went on where it was
        assert len(assert_replicas_identical(again)) >= 4
        assert [event["kind"] for event in events(second)].count("restored") == 1

        counts = [steps(daemon) for daemon in again]
        assert [daemon.stop() for daemon in again] == [0, 0]
        third = [place.start(number) for number in range(2)]
        daemons.extend(third)
        until(lambda: all(daemon.run() for daemon in third), "they go on once more")
        assert [steps(daemon) for daemon in third] == counts  # also of a life without a trainer


def test_a_node_with_a_run_still_names_a_trainer_that_never_attaches(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)))]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        assert daemons[0].stop() == 0
        daemons.append(place.start(0, "--trainer", "true"))
        code, words = ended(daemons[1])
    assert code == 78
    assert "the trainer ended without attaching to this node: true" in words


def test_a_damaged_checkpoint_is_named_and_the_node_waits_for_its_trainer(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)))]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        assert daemons[0].stop() == 0
        for path in (daemons[0].state / "run").glob("checkpoint-*"):
            path.write_bytes(path.read_bytes()[:-1])
        daemons.append(place.start(0))
        told = status(daemons[1])
    assert told["run"] is None
    assert told["state"] == "waiting for a trainer"
    assert "without a checkpoint this node waits for its trainer" in told["alarms"][0]


def test_votes_that_are_damaged_end_a_node_before_it_can_vote(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, *endless(calm(tmp_path)))]) as daemons:
        until(lambda: steps(daemons[0]) > 5, "training")
        assert daemons[0].stop() == 0
        (daemons[0].state / "votes.json").write_text("{}")
        daemons.append(place.start(0))
        code, words = ended(daemons[1])
    assert code == 78
    assert "votes.json is damaged, and a node that has forgotten its votes must not vote: `rm -rf " in words


def test_a_trainer_that_waits_until_its_node_is_ready_is_not_called_missing(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    with all_stopped([place.start(0, *endless(calm(tmp_path)), "--failure-timeout", "600")]) as daemons:
        until(lambda: status(daemons[0])["state"] == "joining", "its trainer has come")
        told = status(daemons[0])
    assert not told["trainer"]["attached"]
    assert told["waits"] == "looking for the other nodes of the run"


def test_a_node_that_began_in_a_wrong_mode_is_freed_by_the_command_that_the_refusal_prints(
    tmp_path: Path,
) -> None:
    place, recipe = Place(tmp_path, 2), calm(tmp_path)
    with all_stopped([place.start(0)]) as daemons:
        assert train(daemons[0], recipe, "0/2", 3).returncode == 0
        other = Path(recipe).with_name("other.toml")
        other.write_text(Path(recipe).read_text() + '[run]\nmode = "ring"\npayload = "dense"\n')
        refused = train(daemons[0], str(other), "0/2", 3)
        assert refused.returncode == 78
        assert "async mode), this trainer is for run" in refused.stderr
        assert "ring-dense mode): start it with the recipe of that run and --mode async, or" in refused.stderr
        daemons[0].stop()
        subprocess.run(refused.stderr.partition("delete its state: ")[2], shell=True, check=True)

        ring = [place.start(number, "--trainer", trainer(str(other), "--steps", "3")) for number in range(2)]
        daemons.extend(ring)
        until(lambda: all(daemon.finished() for daemon in ring), "both train in the other mode")
