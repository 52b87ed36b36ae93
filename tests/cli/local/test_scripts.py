"""Scripts of users in `p2psgd local`: what they print is shown, and one that fails for good ends the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.cli.local import Request, make_plan, run_local
from tests.cli.local.run import Run

Start = Callable[..., Run]

ATTACHED = """
import sys, time, numpy as np, p2psgd
with p2psgd.attach(np.zeros(100, np.float32)) as link:
"""
STEP = """
    link.receive()
    link.send(np.full(100, 1e-3, np.float32), threshold=1000)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script on two nodes; at the end no process may be left."""
    runs: list[Run] = []

    def start(script: str, *options: str) -> Run:
        path = tmp_path / "train.py"
        path.write_text(script)
        runs.append(Run(tmp_path, "-n", "2", "--trainer", f"{sys.executable} {path}", *options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def test_a_bug_ends_the_run_with_its_traceback_and_the_logs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text(f"{ATTACHED}{STEP}    raise ValueError(link.steps)\n")
    plan = make_plan(Request(nodes=1, recipe_name="", trainer=f"{sys.executable} {script}"))
    with pytest.raises(UsageError, match="ValueError: 2; twice alike, with less than 30 s") as caught:
        run_local(plan, Console())
    assert caught.value.exit_code is ExitCode.TRAINER
    shown = capsys.readouterr().out
    assert shown.count("    raise ValueError(link.steps)\nValueError: ") == 2
    assert f"logs and state are in {plan.state}" in shown
    assert "ValueError: 2" in (plan.directory(0) / "log.txt").read_text()


def test_a_bug_on_another_node_than_the_first_ends_the_run_with_its_traceback(start: Start) -> None:
    bug = "        if link.rank == 1: raise KeyError('of the second')\n        time.sleep(0.1)\n"
    run = start(f"{ATTACHED}    print('begins')\n    while True:{STEP.replace('    ', '        ')}{bug}")
    assert run.ends() == ExitCode.TRAINER, run.output
    printed, _, report = run.output.partition("node-1 printed last:\n")
    assert "Traceback" not in printed
    assert report.startswith("Traceback (most recent call last):\n")
    assert "\nKeyError: 'of the second'\n" in report
    assert report.splitlines()[-1].startswith("p2psgd: node-1 ended with exit code 69: the trainer crashed")


def test_a_bug_after_the_training_ends_the_run_too(start: Start) -> None:
    run = start(f"{ATTACHED}{STEP}print('evaluates')\n1 / 0\n", "--output", "none")
    assert run.ends() == ExitCode.TRAINER, run.output
    assert "\nZeroDivisionError: division by zero\n" in run.output


NOISY = """
    sys.stderr.write("".join(f"\\r{part}/9 |bar|" for part in range(10)) + "\\n")
    print(f"\\x1b[31mnode {link.node}\\x1b[0m")
    sys.stdout.buffer.write(b"\\xff bytes\\n")
    print("x" * 100_000)
    for number in range(20_000):
        print("spam", number)
print("test accuracy 0.98")
"""


@pytest.mark.parametrize("option", ["first", "all", "none"])
def test_what_scripts_print_is_shown_clean_and_limited(start: Start, option: str) -> None:
    run = start(f"{ATTACHED}{STEP}{NOISY}", "--output", option)
    assert run.ends() == ExitCode.OK, run.output
    lines = run.output.splitlines()
    for index in range(2):
        mark = f"node-{index}: " if option == "all" else ""
        shown = option == "all" or (option == "first" and index == 0)
        assert (f"{mark}node node-{index}" in lines) == shown
        if shown:
            assert f"{mark}9/9 |bar|" in lines
            assert f"{mark}\ufffd bytes" in lines
            assert f"{mark}{'x' * 4096} ... (95,904 more bytes)" in lines
            assert f"{mark}test accuracy 0.98" in lines
            assert any(line.startswith(f"{mark}p2psgd: 1") and "left out here" in line for line in lines)
    assert sum("spam" in line for line in lines) < 10_000
    assert "spam 19999" in run.output or option == "none"
    assert max(map(len, lines)) < 4_200
