"""The examples of a model in parts, as they are: FSDP2, tensor parallelism and pipelining by torchrun."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from p2psgd.base.errors import ExitCode
from tests.cli.local.run import Run
from tests.operations.machines import CHECKOUT
from tests.torch.needed import torch

pytestmark = pytest.mark.long

STEPS: Final = 10
LIMIT_S: Final = 300


@pytest.mark.parametrize("name", ["fsdp", "tensor_parallel", "pipeline"])
def test_two_groups_of_two_ranks_train_by_the_example(
    tmp_path: Path, needs: Callable[..., None], name: str
) -> None:
    needs()
    assert torch.distributed.is_available()
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    script = CHECKOUT / "examples" / "torch" / f"{name}.py"
    command = shlex.join([*torchrun, str(script), "--steps", str(STEPS)])
    run = Run(tmp_path, "-n", "2", "--parts", "2", "--trainer", command)
    try:
        assert run.ends(LIMIT_S) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, []), run.output
    assert [node["steps"] for node in report["per_node"]] == [STEPS] * 4
