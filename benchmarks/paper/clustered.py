"""A case as a real `p2psgd local`, with the replica of its first node taken at every whole epoch.

The copies are looked at after the run, so that nobody's training waits for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.plain import Curve
from p2psgd.base.errors import P2psgdError
from p2psgd.cli.weights_file import export_weights
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.recipes.datasets import Dataset
from p2psgd.recipes.gradients import loss_and_accuracy, net_shape
from p2psgd.recipes.initial import load_initial
from p2psgd.recipes.model import flat
from p2psgd.recipes.recipe import Recipe

LOOK_S: Final = 0.25
ANSWER_S: Final = 5.0
TRAINING_MAX_S: Final = 1800.0
ENDING_S: Final = 3.0
FAILURE_TIMEOUT_S: Final = 20.0  # eight nodes on two cores: none is dead for being slow


class Cluster:
    """`p2psgd local` as a process, and what its nodes say of themselves."""

    def __init__(self, nodes: int, recipe: Path, initial: Path, directory: Path) -> None:
        self._directory, self._samples = directory, [0] * nodes
        command = [sys.executable, "-m", "p2psgd", "local", "-n", f"{nodes}", "--recipe", str(recipe)]
        command += ["--initial", str(initial), "--failure-timeout", f"{FAILURE_TIMEOUT_S:g}"]
        command += ["--state", str(directory / "state"), "--report", str(directory / "report.json")]
        with (directory / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def samples(self) -> int:
        """Return the samples that all nodes have used, by the last answer of each: an ended node answers no
        more.
        """
        for index, before in enumerate(self._samples):
            self._samples[index] = max(before, self._samples_of(index))
        return sum(self._samples)

    def copy_replica(self, path: Path) -> bool:
        """Copy the replica of the first node; False if that node does not answer."""
        try:
            with ControlClient(self._control(0), timeout_s=ANSWER_S) as client:
                export_weights(client, path)
        except P2psgdError:
            return False
        return True

    def report(self) -> dict[str, Any]:
        """Once it has ended; AssertionError with its last words if it did not end well."""
        output = (self._directory / "output.txt").read_text(encoding="utf-8", errors="replace")
        code = self.process.returncode
        assert code == 0, f"p2psgd local ended with {code}:\n{output[-2000:]}"
        report: dict[str, Any] = json.loads((self._directory / "report.json").read_text(encoding="utf-8"))
        return report

    def close(self) -> None:
        """End it if it still runs, with all its daemons and trainers, which would go on writing."""
        for end in (self.process.terminate, self.process.terminate, self.process.kill):  # twice: at once
            if self.process.poll() is None:
                end()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(ENDING_S)

    def _samples_of(self, index: int) -> int:
        try:
            with ControlClient(self._control(index), timeout_s=ANSWER_S) as client:
                return int(client.request("status")["status"]["trainer"]["samples"])
        except (P2psgdError, KeyError, TypeError):
            return 0

    def _control(self, index: int) -> Path:
        return control_path(self._directory / "state" / f"node-{index}")


def run_nodes(
    nodes: int,
    recipe: Recipe,
    dataset: Dataset,
    paths: tuple[Path, Path],
    directory: Path,
) -> tuple[dict[str, Any], Curve]:
    """Run to the end; `paths`: recipe and weights to start from. Returns the report and the accuracy by
    epoch, the last point being the report's, of all replicas.
    """
    each_epoch, taken = len(dataset.train.labels), list[tuple[float, Path]]()
    cluster = Cluster(nodes, *paths, directory)
    deadline = time.monotonic() + TRAINING_MAX_S
    try:
        while cluster.process.poll() is None:
            assert time.monotonic() < deadline, f"no end within {TRAINING_MAX_S:.0f} s"
            epoch = cluster.samples() / each_epoch
            if len(taken) + 1 < recipe.epochs and epoch >= len(taken) + 1:
                path = directory / f"epoch-{len(taken) + 1}.npz"
                if cluster.copy_replica(path):
                    taken.append((epoch, path))
            time.sleep(LOOK_S)
        report = cluster.report()
    finally:
        cluster.close()
    shape = net_shape(recipe, dataset)
    curve = Curve()
    for epoch, path in taken:
        weights = flat(load_initial(path, shape))
        curve.append((epoch, loss_and_accuracy(shape, weights, dataset.test)[1]))
        path.unlink()
    assert report["test_accuracy"] is not None, "the replicas are not identical"
    used, wanted = sum(node["samples"] for node in report["per_node"]), recipe.epochs * each_epoch
    assert used == wanted, f"the nodes used {used} samples instead of {wanted}"
    return report, [*curve, (float(recipe.epochs), report["test_accuracy"])]
