"""Whole runs in rounds, with real processes: the same bits every time, and the others go on when one dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import Gradients, net_shape
from p2psgd.recipes.model import Vector, initial_weights
from p2psgd.recipes.recipe import Told, load_recipe
from p2psgd.recipes.schedule import RoundPlan, RunPart, learning_rate
from p2psgd.recipes.telemetry import StepTimes
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.recipes.fake_link import FakeNet, as_link
from tests.wide import widely

pytestmark = pytest.mark.long

Start = Callable[..., Run]
PAYLOADS = ["sparse", "dense"]
WAYS = {
    **{payload: ("--mode", "ring", "--payload", payload) for payload in PAYLOADS},
    "owners": ("--mode", "owners", "--rounds"),
}
TERNARY = (*WAYS["owners"], "--payload", "ternary")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start runs that train the digits in rounds; at the end none may have left a process behind."""
    runs: list[Run] = []

    def start(way: str, nodes: int, *options: str) -> Run:
        directory = tmp_path / f"run-{len(runs)}"
        directory.mkdir()
        words = TERNARY if way == "ternary" else WAYS[way]
        runs.append(Run(directory, "--recipe", "digits", *words, "-n", str(nodes), *options))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def round_of(run: Run, index: int) -> int:
    """The last round that a node has completed."""
    return int((run.status(index).get("ring") or {}).get("round", 0))


def wait_for_round(run: Run, index: int, number: int) -> dict[str, Any]:
    wait_until(
        lambda: round_of(run, index) >= number or run.process.poll() is not None, f"round {number} to end"
    )
    assert run.process.poll() is None, run.output
    return run.status(index)


def stop_for(status: dict[str, Any], stopped_s: float) -> None:
    """Hold up a daemon and its trainer, as a laptop does that is closed."""
    processes = [status["pid"], status["trainer"]["pid"]]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() >= begun + stopped_s, "the time to pass")
    for process in processes:
        os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("way", widely(["owners"], ["dense", "sparse"]))
def test_two_runs_end_with_the_same_bits_also_if_a_node_stops_for_half_of_failure_timeout(
    start: Start, way: str
) -> None:
    first = start(way, 3, "--steps", "150")
    assert first.ends() == ExitCode.OK, first.output
    second = start(way, 3, "--steps", "150", "--failure-timeout", "4")
    stop_for(wait_for_round(second, 1, 20), 2.0)
    assert second.ends() == ExitCode.OK, second.output
    reports = first.report(), second.report()
    assert reports[0]["digest"] == reports[1]["digest"] is not None
    assert [report["rounds"] for report in reports] == [150, 150]
    warm = 0 if way == "dense" else 15
    for report in reports:
        assert [node["steps"] for node in report["per_node"]] == [150, 150 - warm, 150 - warm]
        assert report["mode"] == ("owners-rounds" if way == "owners" else f"ring-{way}")
        assert report["rounds_per_s"] > 0
        assert report["per_node"][1]["bytes_sent_per_round"] > 0


def test_ternary_contributions_learn_and_have_the_same_bits_every_time(start: Start) -> None:
    runs = [start("ternary", 2, "--steps", "120") for _ in range(2)]
    for run in runs:
        assert run.ends() == ExitCode.OK, run.output
    first, second = (run.report() for run in runs)
    assert first["mode"] == "owners-rounds-ternary"
    assert first["digest"] == second["digest"] is not None
    assert first["test_accuracy"] > 0.85


def test_time_counts_from_the_first_round(start: Start) -> None:
    run = start("sparse", 2, "--seconds", "1")  # less than the nodes take to start
    assert run.ends() == ExitCode.OK, run.output
    assert run.report()["rounds"] > 0


def one_node(batch: int, rounds: int) -> Vector:
    """What plain numpy makes of the digits in so many steps of so many samples."""
    recipe = load_recipe("digits", Told("ring", "dense")).model_copy(update={"batch": batch})
    dataset = load_dataset(recipe.data)
    shape = net_shape(recipe, dataset)
    initial = initial_weights(shape, recipe.seed)
    weights = np.concatenate([tensor.ravel() for tensor in initial.values()])
    plan = RoundPlan(recipe, len(dataset.train.labels), RunPart(rank=0, world_size=1, steps=rounds))
    gradients = Gradients(recipe, dataset, StepTimes(as_link(FakeNet(initial, 1.0, 1).links[0])))
    gradient = np.empty(shape.weights, np.float32)
    for number in range(1, rounds + 1):
        gradients.take(weights, plan.positions(number), gradient=gradient)
        epoch = plan.epoch(number, elapsed_s=0.0)
        halving = {
            "hold_epochs": recipe.hold_epochs,
            "halve_every_epochs": recipe.halve_every_epochs,
        }
        weights -= np.float32(learning_rate(recipe.learning_rate, epoch, **halving)) * gradient
    return weights


def test_a_dense_ring_equals_one_node_with_the_batches_of_all(start: Start, tmp_path: Path) -> None:
    nodes, rounds = 3, 200
    weights = tmp_path / "weights.npz"
    run = start("dense", nodes, "--steps", str(rounds), "--weights", str(weights))
    assert run.ends() == ExitCode.OK, run.output
    with np.load(weights) as tensors:
        ours = np.concatenate([tensors[name].ravel() for name in tensors.files])
    theirs = one_node(nodes * load_recipe("digits").batch, rounds)
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    moved = float(np.abs(theirs - one_node(64, 1)).max() / np.abs(theirs).max())
    print(f"difference at most {difference:.1e} of the largest weight; training has moved one by {moved:.2f}")
    assert moved > 0.1
    assert difference < 1e-5


@pytest.mark.parametrize("way", widely(["sparse", "owners"], ["dense"]))
def test_the_others_go_on_without_a_node_that_is_killed_in_a_round(start: Start, way: str) -> None:
    run = start(way, 5, "--steps", "250", "--failure-timeout", "1")
    victim = wait_for_round(run, 3, 50)
    os.kill(victim["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    before = round_of(run, 0)
    wait_for_round(run, 0, before + 20)
    print(
        f"20 rounds without the killed node were complete {time.monotonic() - killed_at:.1f} s after its end"
    )
    assert run.ends() == ExitCode.FAILED, run.output
    assert "node-3 was lost (killed by signal 9); the other 4 replicas are identical" in run.output
    report = run.report()
    assert (report["rounds"], report["replicas_identical"]) == (250, True)


def test_rounds_of_owners_go_on_while_a_trainer_is_started_again(start: Start) -> None:
    run = start("owners", 3, "--steps", "300")
    status = wait_for_round(run, 1, 50)
    os.kill(status["trainer"]["pid"], signal.SIGKILL)
    wait_for_round(run, 0, round_of(run, 0) + 20)
    assert run.ends() == ExitCode.OK, run.output
    report = run.report()
    assert (report["rounds"], report["replicas_identical"]) == (300, True)
    assert report["per_node"][1]["restarts"] == 1
    assert report["per_node"][1]["steps"] <= 270


def test_the_table_shows_what_rounds_cost(start: Start) -> None:
    run = start("dense", 2, "--steps", "30")
    assert run.ends() == ExitCode.OK, run.output
    split = run.report()["per_node"][0]["step"]
    assert split["steps"] == 30
    assert split["computing"] + split["waiting"] + split["adding"] + split["sending"] == pytest.approx(
        1, abs=1e-3
    )
    assert "ring node-0 > node-1" in run.output
    assert "meanwhile in the daemon: adding" in run.output
