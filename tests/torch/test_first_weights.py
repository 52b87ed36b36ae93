"""Scripts with different seeds: the node with rank 0 gives the first weights. Real daemons and trainers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests.cli.local.run import Run
from tests.daemons import until
from tests.torch.needed import torch

pytestmark = pytest.mark.long

LIMIT_S = 120
SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
import p2psgd.torch
from p2psgd.client.link import Link

cut = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(os.getpid())
model = torch.nn.Linear(300, 10)
mine = {name: each.detach().clone() for name, each in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
whole, given = Link._begin_at, []


def begin_at(link, magnitude, words):
    given.append(magnitude)
    if len(given) > 5 and not cut.exists():
        cut.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    whole(link, magnitude, words)


if len(sys.argv) > 2:
    Link._begin_at = begin_at
with p2psgd.torch.attach(model, optimizer, initial="first") as link:
    if link.rank == 0:
        torch.save(mine, cut.with_name("mine.pt"))
    while link.steps < 20 and not link.stopping:
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_all_nodes_begin_with_the_weights_of_the_first_though_its_trainer_is_killed_as_it_gives_them(
    tmp_path: Path, killed: bool
) -> None:
    script, weights, cut = tmp_path / "train.py", tmp_path / "weights.npz", tmp_path / "cut"
    script.write_text(SCRIPT)
    command = shlex.join([sys.executable, str(script), str(cut), *["kill"] * killed])
    run = Run(tmp_path, "-n", "3", "--output", "all", "--trainer", command, "--weights", str(weights))
    try:
        assert run.ends(LIMIT_S) == ExitCode.OK, run.output
    finally:
        run.close()
    assert cut.exists() is killed
    assert "waiting for the first weights: those of the node with rank 0" in run.output
    report = run.report()
    assert report["replicas_identical"]
    assert [node["steps"] for node in report["per_node"]] == [20, 20, 20]
    found, first = np.load(weights), torch.load(tmp_path / "mine.pt")
    for name, values in first.items():  # other seeds differ by up to 0.1
        np.testing.assert_allclose(found[name], values.numpy(), atol=5e-3)


def test_a_ring_refuses_first_weights_and_names_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace('initial="first"', 'initial="first", mode="ring"'))
    run = Run(
        tmp_path, "-n", "2", "--trainer", shlex.join([sys.executable, str(script), str(tmp_path / "cut")])
    )
    try:
        assert run.ends(LIMIT_S) != ExitCode.OK
    finally:
        run.close()
    log = (run.state / "node-0" / "log.txt").read_text()
    assert 'initial="first" is for asynchronous mode' in log
    assert "torch.manual_seed" in log


def test_a_script_that_is_asked_to_end_while_it_waits_makes_no_step_from_zeros(tmp_path: Path) -> None:
    script, cut = tmp_path / "train.py", tmp_path / "cut"
    late = 'rank = int(os.environ["P2PSGD_CONTROL"][-1])\nif rank == 0:\n    __import__("time").sleep(3600)\n'
    waiting = SCRIPT.replace("model = torch", late + "model = torch").replace(" and not link.stopping", "")
    script.write_text(waiting)
    run = Run(
        tmp_path,
        "-n",
        "2",
        "--output",
        "all",
        "--trainer",
        shlex.join([sys.executable, str(script), str(cut)]),
    )
    try:
        until(lambda: "waiting for the first weights" in run.output, "node-1 waits")
        with ControlClient(control_path(run.state / "node-1")) as client:
            client.request("finish")
        until(lambda: "asked to end while waiting for the first weights" in run.output, "it ends")
        assert run.status(1)["trainer"]["steps"] == 0
    finally:
        run.close()
