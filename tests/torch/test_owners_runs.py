"""Three real nodes whose owners follow a rule, beside one process alone with the same optimizer."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from tests.cli.local.run import Run
from tests.torch import needed

pytestmark = pytest.mark.long

assert needed
SCRIPT = Path(__file__).with_name("owners_trainer.py")
RULES = {"Adagrad": "adagrad", "AdamW": "adamw", "SGD": "nesterov"}
RATES = {
    "Adagrad": (0.02, 0.1),
    "AdamW": (0.002, 0.01),
    "SGD": (0.02, 0.02),
}  # of one process, and of three nodes


def command(
    name: str, rate: float, *, rule: str = "", rounds: bool = False, local_steps: int = 0
) -> list[str]:
    options = [rule, "rounds" if rounds else "", str(local_steps)]
    return [sys.executable, "-P", str(SCRIPT), name, str(rate), *options]


def accuracy(output: str) -> float:
    return float(re.findall(r"test accuracy (\d\.\d+)", output)[0])


@pytest.mark.parametrize(
    ("name", "rounds"),
    [("Adagrad", False), ("Adagrad", True), ("AdamW", False), ("AdamW", True), ("SGD", True)],
)
def test_three_nodes_learn_as_well_as_one_process_by_the_rule_of_its_optimizer(
    tmp_path: Path, name: str, rounds: bool
) -> None:
    one, three = RATES[name]
    trainer = command(name, three, rule=RULES[name], rounds=rounds)
    # Of 360 test samples; without rounds no two runs are the same, and some end a point below others.
    learns(tmp_path, command(name, one), trainer, less=0.015 if rounds else 0.03)


def test_three_nodes_learn_by_local_steps_and_an_outer_one(tmp_path: Path) -> None:
    rate, _ = RATES["AdamW"]
    trainer = command("AdamW", rate, rule="nesterov", rounds=True, local_steps=5)
    learns(tmp_path, command("AdamW", rate), trainer, less=0.03)


def learns(folder: Path, alone_command: list[str], trainer: list[str], *, less: float) -> None:
    """Three nodes end equal, and their accuracy is not this much below that of one process."""
    alone = subprocess.run(alone_command, check=True, capture_output=True, text=True, timeout=100)
    run = Run(folder, "-n", "3", "--trainer", shlex.join(trainer))
    try:
        assert run.ends(170) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert len({node["steps"] for node in report["per_node"]}) == 1
    assert accuracy(run.output) > accuracy(alone.stdout) - less, (run.output, alone.stdout)
