"""Real daemons whose trainers leave a residual with NaN and infinity: the next trainer goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place

WEIGHTS = 3000
# Says what it finds, then sends a quarter of a quantum for every weight, three times. The first life writes
# NaN and infinity into the residual that it leaves, and kills itself; others finish.
SCRIPT = f"""
import json, os, signal, sys
import numpy as np
import p2psgd

link = p2psgd.attach(np.zeros({WEIGHTS}, np.float32))
found = [float(link.residual[weight] / link.quantum) for weight in (3, 4, 5, 6, 7)]
with open(sys.argv[1], "a") as told:
    told.write(json.dumps({{"steps": link.steps, "residual": found}}) + "\\n")
poisons = link.steps == 0
for _ in range(3):
    link.send(np.full({WEIGHTS}, link.quantum / 4, np.float32), threshold=8)
if poisons:
    link._memory.residual[4:7] = np.nan, np.inf, -np.inf
    os.kill(os.getpid(), signal.SIGKILL)
link.close(finished=True)
"""
POISONED = [
    {"steps": 0, "residual": [0, 0, 0, 0, 0]},
    {"steps": 3, "residual": [0.75, 0, 0, 0, 0.75]},
]


def told(path: Path) -> list[dict[str, Any]]:
    """What the lives of the script have found."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def status(daemon: Daemon) -> dict[str, Any]:
    answer: dict[str, Any] = until(daemon.status, "it answers")
    return answer


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_residual_that_is_not_finite_costs_its_weights_alone_and_the_next_trainer_goes_on(
    tmp_path: Path, script: Path
) -> None:
    command = f"{sys.executable} {script} {tmp_path / 'told'}"
    with all_stopped([Place(tmp_path, 1).start(0, "--trainer", command)]) as daemons:
        until(lambda: daemons[0].finished() or status(daemons[0])["trainer"]["restarts"] > 2, "it ends")
        found = status(daemons[0])
        assert "the trainer crashed (killed by signal 9)" in daemons[0].words()
        assert (found["trainer"]["restarts"], found["trainer"]["steps"]) == (1, 6)
        words = "the trainer's residual was NaN or infinite at 3 of 3,000 weights, and the"
        alarms = [alarm for alarm in found["alarms"] if alarm.startswith(words)]
        # A checkpoint that is due between the two lives has an alarm of its own.
        (_,) = (alarm for alarm in alarms if alarm.startswith(f"{words} next trainer has zero there"))
    assert told(tmp_path / "told") == POISONED


def test_a_node_that_stops_with_such_a_residual_keeps_what_is_finite_of_it(
    tmp_path: Path, script: Path
) -> None:
    place = Place(tmp_path, 1)

    def train(daemon: Daemon) -> int:
        environment = {**os.environ, "P2PSGD_CONTROL": str(daemon.state)}
        return subprocess.run(
            [sys.executable, script, tmp_path / "told"], env=environment, check=False
        ).returncode

    with all_stopped([place.start(0)]) as daemons:
        status(daemons[0])
        assert train(daemons[0]) == -9
        assert daemons[0].stop() == 0
        assert "at 3 of 3,000 weights, and the checkpoint has zero there" in daemons[0].words()
        daemons.append(place.start(0))
        until(daemons[1].run, "it knows its run again")
        assert train(daemons[1]) == 0
        assert not any("NaN" in words for words in status(daemons[1])["alarms"])
    assert told(tmp_path / "told") == POISONED
