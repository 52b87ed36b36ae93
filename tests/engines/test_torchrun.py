"""torchrun within a node, by the example as it is: two nodes of two processes, one of which is killed."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from p2psgd.base.errors import ExitCode
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.operations.machines import CHECKOUT
from tests.torch.needed import torch

pytestmark = pytest.mark.long

EXAMPLE: Final = CHECKOUT / "examples" / "torch" / "torchrun.py"
PROCESSES: Final = 2
LIMIT_S: Final = 400


def other_processes(first: int) -> list[int]:
    """Return the processes of the script beside the one that is attached, of the same torchrun."""
    parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if int(child) != first]


def pid_of(run: Run) -> int | None:
    """Return the process that is attached to the second node."""
    pid: int | None = run.status(1).get("trainer", {}).get("pid")
    return pid


def test_nodes_of_two_processes_train_though_one_process_is_killed(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs()
    assert torch.distributed.is_available()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = shlex.join([*torchrun, "--nproc-per-node", str(PROCESSES), str(EXAMPLE)])
    run = Run(tmp_path, "-n", "2", "--trainer", command)
    try:
        wait_until(lambda: run.steps(1) >= 20 or run.process.poll() is not None, "20 steps", LIMIT_S)
        first = pid_of(run)
        assert first is not None, run.output
        (other,) = other_processes(first)
        os.kill(other, signal.SIGKILL)
        wait_until(lambda: pid_of(run) not in (None, first), "a new one", LIMIT_S)
        assert run.ends(LIMIT_S) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    steps = [node["steps"] for node in report["per_node"]]
    assert min(steps) >= 30 * (1437 // (2 * PROCESSES * 16)), steps
    accuracy = float(run.output.rpartition("test accuracy ")[2].split()[0])
    print(f"steps {steps}, test accuracy {accuracy}")
    assert accuracy > 0.9
