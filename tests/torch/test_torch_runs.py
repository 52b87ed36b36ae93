"""The example under `p2psgd local`, with real daemons and trainers."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.data.index import make_list
from tests import DEADLINE_S
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.torch.accuracy import EXAMPLES, accuracy_of, accuracy_with
from tests.torch.needed import torch

pytestmark = pytest.mark.long

EPOCHS = 25
SHARDS = 6
PAGE = EXAMPLES.parents[1] / "docs" / "how-to" / "torch.md"


def steps(run: Run) -> int:
    """Of the third node."""
    count: int = run.status(2).get("trainer", {}).get("steps", 0)
    return count


def test_the_plain_script_becomes_one_of_p2psgd_by_changing_five_lines() -> None:
    plain, distributed = (
        (EXAMPLES / name).read_text().partition("\nimport sys")[2].splitlines()  # after the docstring
        for name in ("plain.py", "distributed.py")
    )
    changes = [line[2:] for line in difflib.ndiff(plain, distributed) if line[0] == "+"]
    assert len(changes) == 5, changes
    shown = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [line[1:] for line in shown[0].splitlines() if line[0] == "+"] == changes


def test_the_example_trains_on_four_nodes_though_a_trainer_and_a_daemon_are_killed(tmp_path: Path) -> None:
    script, weights, saved = tmp_path / "train.py", tmp_path / "weights.npz", tmp_path / "digits.pt"
    example = (EXAMPLES / "distributed.py").read_text()
    assert "EPOCHS = 60" in example
    # The others wait for the trainer that is started again, also where that takes longer than 30 s.
    patient = f"EPOCHS = {EPOCHS}\np2psgd.torch.last_steps.SILENCE_S = {DEADLINE_S}"
    script.write_text(example.replace("EPOCHS = 60", patient))
    command = shlex.join([sys.executable, str(script), "1", str(saved)])
    run = Run(tmp_path, "-n", "4", "--trainer", command, "--weights", str(weights))
    try:
        wait_until(lambda: steps(run) >= 20 or run.process.poll() is not None, "20 mini-batches")
        trainer = run.status(2)["trainer"]
        assert trainer["attached"], run.output
        os.kill(trainer["pid"], signal.SIGKILL)
        os.kill(run.status(3)["pid"], signal.SIGKILL)
        assert run.ends() == ExitCode.FAILED, run.output  # a node was lost
    finally:
        run.close()
    report = run.report()
    assert report["replicas_identical"]
    assert [each["node"] for each in report["lost"]] == ["node-3"]
    epoch = math.ceil(math.ceil(1437 / 4) / 32)
    assert [node["steps"] for node in report["per_node"]][:3] == [EPOCHS * epoch] * 3, "none twice, none left"
    right = accuracy_of(weights)
    assert right > 0.93
    state = torch.load(saved, weights_only=True)
    assert accuracy_with(state) == right
    exported = np.load(weights)
    assert sorted(exported) == sorted(state)
    for name, values in state.items():
        np.testing.assert_array_equal(exported[name], values.numpy())
    assert f"test accuracy {right:.4f}" in run.output, "as the first node's script prints it"


def test_the_gpt_ends_with_the_same_loss_on_all_nodes(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, str(EXAMPLES / "gpt.py"), "--batches", "120"])
    run = Run(tmp_path, "-n", "2", "--trainer", command)
    try:
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert [node["steps"] for node in report["per_node"]] == [60, 60]
    logs = [(run.state / f"node-{node}" / "log.txt").read_text() for node in range(2)]
    losses = [re.findall(r"test loss (\d\.\d+)", log) for log in logs]
    assert losses[0] == losses[1]
    assert float(losses[0][0]) < 4.5
    # A node that was alone for most of its steps, as on a machine with other work, has nothing to say.
    assert any(re.search(r"so betas \(0.9, 0.99\) act as \(0\.[78]", log) for log in logs)


def test_the_script_of_the_page_trains_on_shards(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    truth = chance.normal(size=(20, 3)).astype(np.float32)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(SHARDS):
        x = chance.normal(size=(160, 20)).astype(np.float32)
        np.savez(shards / f"{number}.npz", x=x, y=(x @ truth).argmax(1))
    make_list(str(shards))
    shown = re.findall(r"```python\n((?:(?!```).)*Shards.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script, weights = tmp_path / "train.py", tmp_path / "weights.npz"
    script.write_text(shown[0].replace('"shards"', repr(str(shards))))
    command = shlex.join([sys.executable, str(script)])
    run = Run(tmp_path, "-n", "2", "--trainer", command, "--weights", str(weights))
    try:
        assert run.ends() == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    assert sum(node["steps"] for node in report["per_node"]) >= 4 * SHARDS * 160 // 32
    with np.load(weights) as trained:
        assert sorted(trained) == ["bias", "weight"]
        right = (x @ trained["weight"].T + trained["bias"]).argmax(1) == (x @ truth).argmax(1)
    assert right.mean() > 0.8
