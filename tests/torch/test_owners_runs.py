"""Three real nodes whose owners follow a rule, beside one process alone with the same optimizer."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from tests.cli.local.run import Run
from tests.torch import needed
from tests.wide import widely

pytestmark = pytest.mark.long

assert needed
SCRIPT = Path(__file__).with_name("owners_trainer.py")
RULES = {"Adagrad": "adagrad", "AdamW": "adamw", "SGD": "nesterov"}
RATES = {
    "Adagrad": (0.02, 0.1),
    "AdamW": (0.002, 0.01),
    "SGD": (0.02, 0.02),
}  # of one process, and of three nodes
# One process ends at 0.05; chance is 2.3. Without rounds, where no two runs are the same, twelve runs ended
# 0.007 above one process, give or take 0.010, and one 0.06 on a machine where a node was 61 steps behind the
# others; two with the rate of one process ended 0.08 and 0.32 above it.
# The accuracy on the 360 samples says less: up to 1.7 points were lost in the twelve, only 1.1 in one of
# the two.
LOSS_ABOVE_MAX = {True: 0.05, False: 0.15}  # in rounds, or not


def command(
    name: str, rate: float, *, rule: str = "", rounds: bool = False, local_steps: int = 0
) -> list[str]:
    options = [rule, "rounds" if rounds else "", str(local_steps)]
    return [sys.executable, "-P", str(SCRIPT), name, str(rate), *options]


def loss(output: str) -> float:
    return float(re.findall(r"test loss (\d+\.\d+)", output)[0])


@functools.cache
def loss_of_one_process(name: str) -> float:
    one, _ = RATES[name]
    return loss(subprocess.run(command(name, one), check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    ("name", "rounds"),
    widely([("Adagrad", False)], [("AdamW", True), ("SGD", True), ("AdamW", False)]),
)
def test_three_nodes_learn_as_well_as_one_process_by_the_rule_of_its_optimizer(
    tmp_path: Path, name: str, rounds: bool
) -> None:
    _, three = RATES[name]
    trainer = command(name, three, rule=RULES[name], rounds=rounds)
    learns(tmp_path, name, trainer, rounds=rounds)


def test_three_nodes_learn_by_local_steps_and_an_outer_one(tmp_path: Path) -> None:
    rate, _ = RATES["AdamW"]
    trainer = command("AdamW", rate, rule="nesterov", rounds=True, local_steps=5)
    learns(tmp_path, "AdamW", trainer, rounds=True)


def learns(folder: Path, name: str, trainer: list[str], *, rounds: bool) -> None:
    """Three nodes end equal, and their loss is at most a little above that of one process."""
    run = Run(folder, "-n", "3", "--trainer", shlex.join(trainer))
    try:
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert len({node["steps"] for node in report["per_node"]}) == 1
    assert loss(run.output) < loss_of_one_process(name) + LOSS_ABOVE_MAX[rounds], run.output
