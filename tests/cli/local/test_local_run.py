"""Whole runs with real processes: what `p2psgd local` promises, also when something is killed in mid-run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from p2psgd.base.errors import ExitCode
from p2psgd.cli.local import Request, make_plan, run_local
from p2psgd.recipes.recipe import RECIPES
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.daemons import PACED, trainer
from tests.wide import widely

pytestmark = pytest.mark.long

Start = Callable[..., Run]
LONG = 1_000_000  # mini-batches: more than any test waits for


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start runs of the digits recipe; at the end none may have left a process behind."""
    runs: list[Run] = []

    def start(*options: str) -> Run:
        directory = tmp_path / f"run-{len(runs)}"
        directory.mkdir()
        recipe = [] if "--trainer" in options else ["--recipe", "digits"]
        runs.append(Run(directory, *recipe, *options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def all_at_once(tmp_path: Path) -> str:
    """The digits recipe without a warm start: in a long run, all nodes train from its first moment on."""
    recipe = tmp_path / "all at once.toml"
    digits = (RECIPES / "digits.toml").read_text()
    recipe.write_text(digits.replace("warm_start = 0.1", "warm_start = 0.0"))
    return str(recipe)


@pytest.mark.parametrize("nodes", widely([1, 4], [2]))
def test_replicas_end_identical_and_the_net_has_learned(start: Start, nodes: int) -> None:
    run = start("-n", str(nodes), "--steps", "400")
    assert run.ends() == ExitCode.OK, run.output
    report = run.report()
    assert (report["nodes"], report["replicas_identical"], report["lost"]) == (nodes, True, [])
    assert {node["digest"] for node in report["per_node"]} == {report["digest"]}
    assert [node["steps"] for node in report["per_node"]] == [400] * nodes
    assert report["test_accuracy"] > 0.85
    assert report["bits_per_index"] < 20
    assert report["compression_ratio"] > 10
    sent = [node["updates_sent"] for node in report["per_node"]]
    applied = [node["updates_applied"] for node in report["per_node"]]
    assert applied == [sum(sent) - own for own in sent]
    assert f"digest {report['digest']}" in run.output


def test_a_temporary_state_directory_is_gone_after_a_good_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan = make_plan(Request(nodes=1, recipe_name="digits", steps=20))
    assert run_local(plan, Console()) is ExitCode.OK
    assert list(tmp_path.iterdir()) == []
    assert "logs and state" not in capsys.readouterr().out


def test_a_run_prints_at_once_how_to_ask_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    run = Run(tmp_path / "a run", "-n", "1", "--recipe", "digits", "--steps", str(LONG))
    try:
        run.wait_for_training(0)
        (command,) = re.findall(rf"state is in {run.state}; ask a node: p2psgd (.*)", run.output)
        status = [sys.executable, "-m", "p2psgd", *shlex.split(command)]
        answer = subprocess.run(status, capture_output=True, text=True, check=True).stdout
        assert "node-0" in answer.splitlines()[0]
    finally:
        run.close()


def test_a_killed_daemon_is_lost_and_the_others_end_identical(start: Start) -> None:
    run = start("-n", "4", "--steps", "1500")
    victim = run.wait_for_training(2, 200)
    os.kill(victim["pid"], signal.SIGKILL)
    assert run.ends() == ExitCode.FAILED, run.output
    report = run.report()
    assert report["lost"] == [{"node": "node-2", "why": "killed by signal 9"}]
    assert report["replicas_identical"]
    digests = [node["digest"] for node in report["per_node"]]
    assert digests == [report["digest"], report["digest"], None, report["digest"]]
    assert [node["steps"] for i, node in enumerate(report["per_node"]) if i != 2] == [1500] * 3
    assert "failed: node-2 was lost (killed by signal 9); the other 3 replicas are identical" in run.output


def test_a_killed_trainer_comes_back_and_all_end_identical(start: Start) -> None:
    run = start("-n", "4", "--steps", "1500")
    victim = run.wait_for_training(1, 200)
    os.kill(victim["trainer"]["pid"], signal.SIGKILL)
    assert run.ends() == ExitCode.OK, run.output
    report = run.report()
    assert report["replicas_identical"]
    assert [node["restarts"] for node in report["per_node"]] == [0, 1, 0, 0]
    assert [node["steps"] for node in report["per_node"]] == [1500] * 4
    assert "1 trainer restart" in run.output


def test_ctrl_c_ends_the_training_early_and_the_proof_still_happens(start: Start, all_at_once: str) -> None:
    run = start("-n", "2", "--steps", str(LONG), "--recipe", all_at_once)
    run.wait_for_training(1)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == ExitCode.OK, run.output
    report = run.report()
    assert report["replicas_identical"]
    assert all(0 < node["steps"] < LONG for node in report["per_node"])


def test_a_second_ctrl_c_ends_everything_at_once(start: Start, all_at_once: str) -> None:
    run = start("-n", "2", "--steps", str(LONG), "--recipe", all_at_once)
    stopped = run.wait_for_training(1)["trainer"]["pid"]
    os.kill(stopped, signal.SIGSTOP)  # so that the first Ctrl+C cannot come to its end
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in run.output, "the first Ctrl+C to be seen")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == ExitCode.FAILED, run.output
    assert "killed: all daemons and trainers were ended at once" in run.output
    assert not run.report_path.exists()


def test_the_daemons_do_not_outlive_a_harness_that_is_killed(start: Start, all_at_once: str) -> None:
    run = start("-n", "2", "--steps", str(LONG), "--recipe", all_at_once)
    run.wait_for_training(1)
    run.process.kill()
    wait_until(lambda: not run.processes(), "daemons and trainers to end")


def test_what_is_written_is_what_was_compared_though_owners_publish_after_the_training(
    start: Start, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.npz"
    options = ("--mode", "owners", "--rule", "adagrad", "--weights", str(weights))
    run = start("-n", "2", "--steps", "400", "--recipe", "digits", *options)  # at a rate that moves much
    assert run.ends() == ExitCode.OK, run.output
    digest = run.report()["digest"]
    assert f"with digest {digest} written" in run.output


def test_a_silent_daemon_does_not_hold_up_the_others(start: Start) -> None:
    run = start("-n", "2", "--steps", "1500")
    silent = run.wait_for_training(1, 100)["pid"]
    os.kill(silent, signal.SIGSTOP)
    wait_until(lambda: run.steps(0) == 1500, "the other node to finish")
    wait_until(lambda: "its daemon has not answered for" in run.output, "the silence to be said")
    os.kill(silent, signal.SIGCONT)
    assert run.ends() == ExitCode.OK, run.output
    assert run.report()["replicas_identical"]


def test_a_trainer_of_ones_own_needs_no_recipe(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "own trainer.py"
    script.write_text(
        "import numpy, p2psgd\n"
        "with p2psgd.attach(numpy.zeros(1000, numpy.float32), label='own') as link:\n"
        "    random = numpy.random.default_rng(link.rank)\n"
        "    for _ in range(50):\n"
        "        link.receive()\n"
        "        link.send(random.normal(0, 1e-3, 1000).astype(numpy.float32), threshold=1000)\n"
    )
    run = start("-n", "3", "--trainer", f"{sys.executable} '{script}'")
    assert run.ends() == ExitCode.OK, run.output
    report = run.report()
    assert (report["replicas_identical"], report["weights"]) == (True, 1000)
    assert (report["recipe"], report["test_accuracy"]) == (None, None)
    assert [node["steps"] for node in report["per_node"]] == [50] * 3


def test_a_script_may_evaluate_and_save_after_its_training(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "evaluates.py"
    script.write_text(
        "import pathlib, time, numpy, p2psgd\n"
        "with p2psgd.attach(numpy.zeros(10, numpy.float32)) as link:\n"
        "    link.receive()\n"
        "    link.send(numpy.full(10, 1e-3, numpy.float32), threshold=1000)\n"
        "time.sleep(6.0)\n"
        f"pathlib.Path({str(tmp_path)!r}, f'{{link.node}}.txt').touch()\n"
    )
    run = start("-n", "2", "--trainer", f"{sys.executable} '{script}'")
    assert run.ends() == ExitCode.OK, run.output
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["node-0.txt", "node-1.txt"]


def test_ctrl_c_ends_a_script_that_does_not_look_at_stopping(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import time, numpy, p2psgd\n"
        "with p2psgd.attach(numpy.zeros(1000, numpy.float32)) as link:\n"
        "    while True:\n"
        "        link.receive()\n"
        "        link.send(numpy.full(1000, 1e-3, numpy.float32), threshold=1000)\n"
        "        time.sleep(0.1)\n"
    )
    run = start("-n", "2", "--trainer", f"{sys.executable} '{script}'")
    run.wait_for_training(1)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == ExitCode.OK, run.output
    assert "attached yet, or not look at link.stopping; ended by SIGTERM" in run.output
    assert run.report()["replicas_identical"]


def test_a_trainer_that_cannot_start_stops_the_run_with_its_sentence(start: Start) -> None:
    run = start("-n", "2", "--trainer", "/nonexistent/trainer")
    assert run.ends() == ExitCode.CONFIGURATION, run.output
    last = run.output.splitlines()[-1]
    assert last.startswith("p2psgd: node-")
    assert "cannot start the trainer '/nonexistent/trainer': no such file or directory" in last
    assert not run.report_path.exists()


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--steps", "5", "--seconds", "5"], ExitCode.USAGE, "give one of them"),
        (["-n", "65"], ExitCode.USAGE, "64"),
        (["--recipe", "absent"], ExitCode.CONFIGURATION, "there is no recipe 'absent'"),
        (["--report", "absent/report.json"], ExitCode.PERMISSION, "make the directory first"),
        (["--recipe", "digits", "--trainer", "true"], ExitCode.USAGE, "--recipe is for the built-in trainer"),
        (["--no-such-option"], ExitCode.USAGE, "--no-such-option"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_starts(
    start: Start, options: list[str], code: ExitCode, sentence: str
) -> None:
    run = start(*options)
    assert run.ends() == code, run.output
    assert sentence in run.output
    assert run.output.count("\n") == 1
    assert not run.state.exists()


def test_a_run_whose_time_is_over_before_its_first_mini_batch_fails_with_a_sentence(start: Start) -> None:
    run = start(
        "-n", "1", "--recipe", "digits", "--seconds", "1"
    )  # a lone node waits for a failure timeout, 5 s
    assert run.ends() == ExitCode.USAGE, run.output
    assert "the 1 s of --seconds were over before the first step: give more" in run.output


def test_a_state_directory_in_use_is_refused(start: Start) -> None:
    first = start("-n", "1", "--trainer", trainer("digits", "--seconds", "100000", program=PACED))
    first.wait_for_training(0)
    second = start("-n", "1", "--steps", "5", "--state", str(first.state))
    assert second.ends() == ExitCode.CONFIGURATION, second.output
    assert "another `p2psgd local` runs in it" in second.output
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGINT)
    assert first.ends() == ExitCode.OK, first.output


def test_a_trainer_that_has_not_attached_when_the_user_stops_the_run_is_not_blamed(
    start: Start, tmp_path: Path
) -> None:
    script = tmp_path / "late.py"
    begins = f"import pathlib, time; pathlib.Path({str(tmp_path / 'runs')!r}).touch()"
    script.write_text(f"{begins}; time.sleep(5); 1 / 0\n")
    run = start("-n", "1", "--trainer", f"{sys.executable} '{script}'")
    wait_until((tmp_path / "runs").exists, "the trainer runs")
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == ExitCode.FAILED, run.output
    assert "at the start" not in run.output
    assert "failed" not in run.output
    assert "NOT identical" not in run.output
    assert "stopped before any node had made a step: there is nothing to compare" in run.output


def test_a_node_whose_trainer_has_not_attached_when_the_user_stops_the_run_is_named(
    start: Start, tmp_path: Path
) -> None:
    script = tmp_path / "one_late.py"
    script.write_text(
        "import os, time, numpy, p2psgd\n"
        "if os.environ['P2PSGD_CONTROL'].endswith('node-2'):\n"
        "    time.sleep(1000)\n"
        "with p2psgd.attach(numpy.zeros(10, numpy.float32)) as link:\n"
        "    while not link.stopping:\n"
        "        link.receive()\n"
        "        link.send(numpy.full(10, 1e-3, numpy.float32), threshold=1000)\n"
        "        time.sleep(0.01)\n"
    )
    run = start("-n", "3", "--failure-timeout", "1", "--trainer", f"{sys.executable} '{script}'")
    for index in range(2):
        run.wait_for_training(index)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == ExitCode.FAILED, run.output
    sentence = "node-2 was lost (no script had attached to it); the other 2 replicas are identical"
    assert f"failed: {sentence}\n" in run.output
