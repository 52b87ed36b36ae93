"""Whole runs of scripts in mode closure: the point of the last evaluation is what the run ends with."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.cli.local.run import ENDING
from tests.cli.local.run import Run
from tests.daemons import P2PSGD, until

pytestmark = pytest.mark.long

SCRIPT = """
import sys, time
import numpy as np
import p2psgd

evaluations, pace, error = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
rows = np.random.default_rng(1).normal(size=(600, 41))

with p2psgd.attach(np.zeros(40, np.float32), mode="closure") as link:
    factor = 1 + error * (link.rank == 1)

    def loss_and_gradient(x, part):
        time.sleep(pace)
        residual = part[:, :-1] @ x - part[:, -1]
        return 0.5 * residual @ residual * factor, part[:, :-1].T @ residual

    x = np.zeros(40)
    for _ in range(evaluations):
        if "keeps" in sys.argv:
            link.keep(lambda: {"mine": 1, "trained:": np.full(40, 0.25)})
        if "shorter" in sys.argv and link.rank == 1 and link.steps == 2:
            break
        last = x.copy()
        value, gradient = link.evaluate(loss_and_gradient, x, rows, portions=12)
        x -= 5e-4 * gradient
    np.save(f"{sys.argv[0]}.{link.node}.npy", last)
if "lingers" in sys.argv:
    time.sleep(600)
"""


@contextmanager
def run_of(
    folder: Path, evaluations: int, pace_s: float = 0.002, error: float = 0.0, *more: str
) -> Iterator[Run]:
    script = folder / "descent.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(evaluations), str(pace_s), str(error), *more]
    weights = ["--weights", str(folder / "weights.npz")]
    run = Run(folder, "-n", "2", "--trainer", shlex.join(words), *weights)
    try:
        yield run
    finally:
        run.close()


def weights_in(folder: Path) -> np.ndarray:
    with np.load(folder / "weights.npz") as file:
        (name,) = [name for name in file.files if file[name].size == 40]
        return np.asarray(file[name])


def test_the_last_point_is_proved_equal_and_written(tmp_path: Path) -> None:
    with run_of(tmp_path, 20) as run:
        assert run.ends() == ExitCode.OK, run.output
        assert run.report()["replicas_identical"]
        assert int(run.report()["digest"], 16)
    points = [np.load(path) for path in sorted(tmp_path.glob("descent.py.*.npy"))]
    assert len(points) == 2
    np.testing.assert_array_equal(*points)
    np.testing.assert_array_equal(weights_in(tmp_path), points[0].astype(np.float32))


def test_trained_weights_that_the_script_keeps_are_written_instead(tmp_path: Path) -> None:
    with run_of(tmp_path, 3, 0.002, 0.0, "keeps") as run:
        assert run.ends() == ExitCode.OK, run.output
        assert run.report()["replicas_identical"]
    np.testing.assert_array_equal(weights_in(tmp_path), np.full(40, 0.25, np.float32))


def test_they_stay_where_the_script_is_interrupted(tmp_path: Path) -> None:
    with run_of(tmp_path, 300, 0.002, 0.0, "keeps") as run:
        run.wait_for_training(0, 5)
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
    np.testing.assert_array_equal(weights_in(tmp_path), np.full(40, 0.25, np.float32))


def test_a_script_that_ends_before_the_others_is_named_whatever_comes_after_the_comparison(
    tmp_path: Path,
) -> None:
    with run_of(tmp_path, 4, 0.002, 0.0, "shorter", "lingers") as run:
        until(lambda: ENDING in run.output, "they are compared")
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.FAILED, run.output
        assert not run.report()["replicas_identical"]
        assert (
            "node-1 to the point of evaluation 2, node-0 to the point of evaluation 4; digests" in run.output
        )


def test_a_running_script_gives_its_last_point_to_an_export(tmp_path: Path) -> None:
    with run_of(tmp_path, 1_000_000, 0.02) as run:
        run.wait_for_training(0, 10)
        target = tmp_path / "early.npz"
        command = [*P2PSGD, "export", str(target), "--state", str(run.state / "node-0")]
        until(
            lambda: (
                subprocess.run(command, check=True, capture_output=True) and np.load(target)["weights"].any()
            ),
            "the point is there",
        )
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output


def test_ctrl_c_ends_the_scripts_without_a_traceback(tmp_path: Path) -> None:
    with run_of(tmp_path, 1_000_000, 0.02) as run:
        run.wait_for_training(0, 5)
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
        assert "Traceback" not in run.output
        assert "SIGTERM" not in run.output
        assert run.report()["replicas_identical"]
    assert weights_in(tmp_path).any()


def test_functions_that_differ_show_an_alarm_at_the_end(tmp_path: Path) -> None:
    with run_of(tmp_path, 1_000_000, 0.02, 0.01) as run:
        until(
            lambda: any(run.status_at(Path(f"node-{number}")).get("alarms") for number in range(2)),
            "both have computed the same portion",
        )
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == ExitCode.OK, run.output
        alarms = [alarm for node in run.report()["per_node"] for alarm in node["alarms"]]
        assert alarms
        assert ": alarm: " in run.output
