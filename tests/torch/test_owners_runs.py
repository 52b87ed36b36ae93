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
RATES = {"Adagrad": (0.02, 0.1), "AdamW": (0.002, 0.01)}  # of one process, and of three nodes


def command(name: str, rate: float, *, rule: str = "", rounds: bool = False) -> list[str]:
    return [sys.executable, "-P", str(SCRIPT), name, str(rate), rule, "rounds" if rounds else ""]


def accuracy(output: str) -> float:
    return float(re.findall(r"test accuracy (\d\.\d+)", output)[0])


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("name", ["Adagrad", "AdamW"])
def test_three_nodes_learn_as_well_as_one_process_by_the_rule_of_its_optimizer(
    tmp_path: Path, name: str, rounds: bool
) -> None:
    one, three = RATES[name]
    alone = subprocess.run(command(name, one), check=True, capture_output=True, text=True, timeout=100)
    trainer = shlex.join(command(name, three, rule=name.lower(), rounds=rounds))
    run = Run(tmp_path, "-n", "3", "--trainer", trainer)
    try:
        assert run.ends(170) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert len({node["steps"] for node in report["per_node"]}) == 1
    # Of 360 test samples; without rounds no two runs are the same, and some end a point below others.
    less = 0.015 if rounds else 0.03
    assert accuracy(run.output) > accuracy(alone.stdout) - less, (run.output, alone.stdout)
