"""Whole runs on a device, with real daemons and trainers: here with the stand-in for CuPy, which only their
trainers find, through PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.recipes.recipe import RECIPES
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.gpu.backends import STAND_IN

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "gpu.md"
Start = Callable[..., Run]


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def start(
    tmp_path: Path, request: pytest.FixtureRequest, host_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Start runs; at the end none may have left a process behind."""
    places = [ROOT, STAND_IN] if request.param == "host" else [ROOT]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    runs: list[Run] = []

    def start(*options: str) -> Run:
        directory = tmp_path / f"run-{len(runs)}"
        directory.mkdir()
        runs.append(Run(directory, *options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def check_equal(run: Run, *steps: int) -> None:
    """The nodes have done so many steps each and have the same bits."""
    assert run.ends(170) == ExitCode.OK, run.output
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert {node["digest"] for node in report["per_node"]} == {report["digest"]}
    assert [node["steps"] for node in report["per_node"]] == list(steps)


def log_of(run: Run, index: int) -> str:
    return (run.state / f"node-{index}" / "log.txt").read_text()


def test_four_trainers_that_share_a_device_end_with_the_same_bits_and_have_learned(start: Start) -> None:
    run = start("--recipe", "digits", "-n", "4", "--steps", "150", "--device", "cuda:0")
    check_equal(run, 150, 150, 150, 150)
    assert run.report()["test_accuracy"] > 0.85
    assert all("p2psgd train: on cuda:0, " in log_of(run, index) for index in range(4))


def test_so_they_do_together_with_one_on_the_cpu(start: Start) -> None:
    words = [sys.executable, "-m", "tests.gpu.mixed_trainer", "3", "--recipe", "digits", "--steps", "120"]
    run = start("-n", "3", "--trainer", shlex.join(words))
    check_equal(run, 120, 120, 120)
    assert ["on cuda:0" in log_of(run, index) for index in range(3)] == [True, True, False]


@pytest.mark.parametrize(("payload", "steps"), [("sparse", [100, 90]), ("dense", [100, 100])])
def test_so_they_do_in_the_rounds_of_a_ring(start: Start, payload: str, steps: list[int]) -> None:
    ring = ["--mode", "ring", "--payload", payload]
    run = start("--recipe", "digits", "-n", "2", "--steps", "100", "--device", "cuda:0", *ring)
    check_equal(run, *steps)
    assert run.report()["test_accuracy"] > 0.8


def test_a_trainer_killed_in_mid_run_goes_on_from_the_copy_of_its_residual(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PSGD_RESIDUAL_COPY_S", "1000")  # none but the one it began with: surely an old one
    recipe = tmp_path / "all at once.toml"
    digits = (RECIPES / "digits.toml").read_text()
    recipe.write_text(digits.replace("warm_start = 0.1", 'warm_start = 0.0\ndevice = "cuda:0"'))
    run = start("--recipe", str(recipe), "-n", "2", "--steps", "400")
    wait_until(
        lambda: run.status(1).get("trainer", {}).get("steps", 0) >= 50 or run.process.poll() is not None,
        "50 mini-batches",
    )
    os.kill(run.status(1)["trainer"]["pid"], signal.SIGKILL)
    check_equal(run, 400, 400)
    assert run.report()["test_accuracy"] > 0.85
    assert "the residual is that of" in log_of(run, 1)


def test_the_script_of_the_page_trains_on_two_nodes(start: Start, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "train.py"
    path.write_text(f"{script}    assert abs(link.weights - truth).max() < 0.1\n")
    run = start("-n", "2", "--trainer", shlex.join([sys.executable, str(path)]))
    check_equal(run, 1000, 1000)
