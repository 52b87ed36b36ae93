"""Groups of ranks over which PyTorch cuts the model, with real daemons, torchrun and its processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2psgd.base.errors import ExitCode
from p2psgd.ipc.part import combine_digests
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.torch.needed import torch
from tests.wide import widely

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("group_trainer.py")
SHAPES = {
    "wide.weight": (10, 7),
    "wide.bias": (10,),
    "norm.weight": (7,),
    "norm.bias": (7,),
    "narrow.weight": (3, 10),
    "narrow.bias": (3,),
    "last.weight": (1, 3),
    "last.bias": (1,),
}
assert torch is not None


TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node"]


def group(directory: Path, kind: str, *options: str, ranks: int = 2) -> str:
    """Return the command that starts a group of ranks: torchrun for a pipeline, and for the others what does
    the same with less work.
    """
    light = [sys.executable, str(SCRIPT.with_name("ranks.py"))]
    launcher = TORCHRUN if kind == "pipeline" else light
    return shlex.join([*launcher, str(ranks), str(SCRIPT), kind, str(directory), *options])


def begin(
    directory: Path, kind: str, *options: str, nodes: int = 2, ranks: int = 2, of_nodes: Sequence[str] = ()
) -> Run:
    """Begin a run of nodes, with options `of_nodes`, whose models are cut over some ranks each."""
    weights = ("--weights", str(directory / "weights.safetensors"))
    command = group(directory, kind, *options, ranks=ranks)
    return Run(directory, "-n", str(nodes), "--parts", str(ranks), "--trainer", command, *weights, *of_nodes)


def finish(run: Run, *, limit_s: float = 240) -> dict[str, Any]:
    """Return the report of a run whose replicas are identical, part by part."""
    try:
        assert run.ends(limit_s) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, []), run.output
    assert report["digest"] == combine_digests(report["part_digests"])
    return report


def check_weights(directory: Path, nodes: int, *, rounded: bool = False) -> None:
    """Fail unless all groups end with the weights that were exported, whole and by their names."""
    exported = load_file(directory / "weights.safetensors")
    assert {name: values.shape for name, values in exported.items()} == SHAPES
    for node in range(nodes):
        with np.load(directory / f"node-{node}.npz") as ended:
            for name, exact in exported.items():
                values = torch.from_numpy(exact).bfloat16().float().numpy() if rounded else exact
                np.testing.assert_array_equal(ended[name], values, f"{name} of node {node}")


@pytest.mark.parametrize(
    ("kind", "attach"),
    widely(
        [
            ("pipeline", {"mode": "ring", "payload": "dense"}),
            ("bfloat16", {"mode": "owners", "rule": "adamw"}),
        ],
        [("fsdp", {}), ("tensor", {"local_steps": 5})],
    ),
    ids=["pipeline-ring", "bfloat16-owners", "fsdp-async", "tensor-local-steps"],
)
def test_all_groups_end_with_the_same_parts_that_together_are_the_model(
    tmp_path: Path, kind: str, attach: dict[str, Any]
) -> None:
    # Paced: a group that had ended before the other one came would not wait for it, and save what it has.
    report = finish(begin(tmp_path, kind, "--attach", json.dumps(attach), "--pace", "0.5"))
    assert report["parts"] == len(report["part_digests"]) == 2
    assert [node["steps"] for node in report["per_node"]] == [20] * 4
    assert report["weights"] == sum(int(np.prod(shape)) for shape in SHAPES.values())
    check_weights(tmp_path, 2, rounded=kind == "bfloat16")


@pytest.mark.wide
def test_a_mesh_of_two_dimensions_is_cut_into_as_many_parts_as_it_has_ranks(tmp_path: Path) -> None:
    report = finish(begin(tmp_path, "both", "--steps", "12", nodes=1, ranks=4))
    assert report["parts"] == 4
    check_weights(tmp_path, 1)


def test_odd_cuts_are_trained_rightly_or_refused() -> None:
    command = [*TORCHRUN, "2", str(SCRIPT.with_name("odd_cuts.py"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# ----------------------------------------------------------------------------
# A group is in or out as a whole.


def parts_of(run: Run, node: int) -> dict[str, Any]:
    """Return what the node says about the daemons of its parts."""
    try:
        told: dict[str, Any] = json.loads((run.state / f"node-{node}" / "parts.json").read_text())
    except (OSError, ValueError):
        return {}
    return told


def status_of(run: Run, node: int, part: int) -> dict[str, Any]:
    return run.status_at(Path(f"node-{node}") / f"part-{part}")


def steps_of(run: Run, node: int, part: int) -> int:
    return int(status_of(run, node, part).get("trainer", {}).get("steps", 0))


def wait_for_steps(run: Run, node: int, steps: int) -> None:
    wait_until(lambda: steps_of(run, node, 1) >= steps or run.process.poll() is not None, f"{steps} steps")
    assert run.process.poll() is None, run.output


def kill(run: Run, node: int, part: int, victim: str) -> None:
    """Kill a rank or the daemon of a part, and wait until all ranks of its group have come back."""
    ranks = [status_of(run, node, each)["trainer"]["pid"] for each in range(2)]
    daemon = parts_of(run, node)["daemons"][part]["pid"]
    os.kill(ranks[part] if victim == "rank" else daemon, signal.SIGKILL)
    again = "the group's trainers to be started again"
    wait_until(lambda: parts_of(run, node).get("trainer", {}).get("restarts", 0) == 1, again)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "all ranks to end")

    def came() -> bool:
        now = [status_of(run, node, each).get("trainer", {}).get("pid") for each in range(2)]
        return None not in now and not set(now) & set(ranks)

    wait_until(came, "all ranks of the group to attach again")


@pytest.mark.parametrize(
    "attach",
    widely(
        [{}],
        [
            {"mode": "owners"},
            {"mode": "owners", "rounds": True},
            {"mode": "ring"},
            {"mode": "ring", "payload": "dense"},
        ],
    ),
    ids=lambda attach: "-".join(map(str, attach.values())) or "async",
)
def test_a_group_leaves_as_a_whole_and_comes_back_by_itself(tmp_path: Path, attach: dict[str, Any]) -> None:
    # Nobody ends before both groups are back, however long they take: it would save what it has by then.
    file = tmp_path / "steps"
    options = ("--steps-file", str(file), "--pace", "0.4", "--attach", json.dumps(attach))
    run = begin(tmp_path, "tensor", *options, nodes=3, of_nodes=("--failure-timeout", "3") if attach else ())
    try:
        for node, victim in ((1, "rank"), (2, "daemon")):
            wait_for_steps(run, node, steps_of(run, 0, 0) + 5)
            kill(run, node, 1, victim)
        last = max(steps_of(run, node, part) for node in range(3) for part in range(2)) + 20
        written = file.with_suffix(".new")
        written.write_text(str(last))
        written.rename(file)
    except BaseException:
        run.close()
        raise
    report = finish(run)
    steps = [node["steps"] for node in report["per_node"]]
    if attach.get("rounds") or attach.get("mode") == "ring":
        # A group that has missed rounds makes its steps when the others have ended.
        assert steps[:2] == [last] * 2
        assert max(steps) == last
    else:
        assert steps == [last] * 6, "none twice, none left out, equally many in all parts"
        check_weights(tmp_path, 3)
    pause = float(np.load(tmp_path / "node-0.npz")["longest_pause"])
    print(f"longest pause of the other group: {pause:.2f} s")


def test_groups_that_cut_their_model_in_other_ways_are_refused_in_one_sentence(tmp_path: Path) -> None:
    choose = "case $P2PSGD_CONTROL in *node-0) exec {};; *) exec {};; esac"
    ways = (group(tmp_path, kind) for kind in ("tensor", "columns"))
    run = Run(
        tmp_path,
        *("-n", "2", "--parts", "2", "--failure-timeout", "2"),
        *("--trainer", shlex.join(["sh", "-c", choose.format(*ways)])),
    )
    try:
        assert run.ends(300) == ExitCode.CONFIGURATION, run.output
    finally:
        run.close()
    logs = "\n".join(path.read_text() for path in run.state.glob("node-*/log.txt"))
    cuts = r"part \d/2, cut over 2 ranks: [^()]*\(\w+\)"
    assert re.search(rf"train different runs: .*label {cuts} and {cuts}", logs), logs


def test_a_group_of_fewer_ranks_than_its_node_has_parts_is_refused(tmp_path: Path) -> None:
    command = group(tmp_path, "fsdp")
    run = Run(tmp_path, "-n", "1", "--parts", "3", "--trainer", command)
    try:
        assert run.ends(300) == ExitCode.TRAINER, run.output
    finally:
        run.close()
    log = (run.state / "node-0" / "log.txt").read_text()
    assert "has 3 parts, and this group has 2 ranks: start as many ranks" in log, log
