"""Kill all daemons and trainers of four nodes at once in the middle of training, and started again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.pictures import picture
from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines
from p2psgd.core.frontier import Origin
from p2psgd.recipes.gradients import evaluate
from p2psgd.recipes.recipe import load_recipe
from p2psgd.recipes.telemetry import LOSS_MEMORY
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.files import FOLDER
from p2psgd.storage.restore import restore
from tests.daemons import assert_replicas_identical, trainer

NODES: Final = 4
RECIPE: Final = "speech"
STEPS: Final = 1400  # mini-batches of each node
FAILURE_TIMEOUT_S: Final = 1.0
SINCE_CHECKPOINT_S: Final = 5.0  # the cut comes so long after one, so that there is something to lose
LOOK_EVERY_S: Final = 0.25
LIMIT_S: Final = 900.0
PLOT: Final = Path("docs/explanation/power_cut.png")

Segment = list[tuple[float, float]]  # of one life: mini-batches, running mean of the loss


def run(directory: Path) -> Report:
    report = Report()
    recipe = load_recipe(RECIPE)
    without = train(directory / "whole", cut=False)
    with_cut = train(directory / "cut", cut=True)
    lacking = {
        origin: (sequence, with_cut["frontier"].get(origin, 0))
        for origin, sequence in with_cut["on_disk"].items()
        if with_cut["frontier"].get(origin, 0) < sequence
    }
    made, kept = (sum(with_cut[key].values()) for key in ("applied", "on_disk"))
    old = sum(with_cut["frontier"].get(origin, 0) for origin in with_cut["applied"])
    report.add(
        "power cut of four nodes: what was on any disk is in every replica afterwards",
        f"all of {kept} updates" if not lacking else f"{len(lacking)} lives lack some",
        "all",
        not lacking,
    )
    report.add("updates that somebody had applied and nobody had on disk", f"{max(0, made - old)} of {made}")
    report.add("replicas at the end", "identical, byte by byte", "identical", True)  # or it had raised
    for name, found in (("without a cut", without), ("with one", with_cut)):
        loss, accuracy = evaluate(recipe, found["weights"])
        report.add(f"test accuracy {name}", f"{100 * accuracy:.1f} %, loss {loss:.3f}")
        report.details[name] = {"loss": loss, "accuracy": accuracy, "curves": found["curves"]}
    again = [before[-1][0] - after[0][0] for before, after in with_cut["curves"]]
    report.add(
        "mini-batches since the last checkpoint, made again", ", ".join(f"{each:.0f}" for each in again)
    )
    draw(without["curves"], with_cut["curves"])
    return report


def train(directory: Path, *, cut: bool) -> dict[str, Any]:
    """Train one whole run, with or without a cut in the middle."""
    command = trainer(RECIPE, "--steps", str(STEPS))
    options = ("--failure-timeout", f"{FAILURE_TIMEOUT_S:g}")
    found: dict[str, Any] = {"curves": [[[]] for _ in range(NODES)]}
    with machines(NODES, directory=directory, options=options, trainer=lambda _: command) as (_, nodes):
        for node in nodes:
            node.start()
        waiting = cut
        deadline = time.monotonic() + LIMIT_S
        while not all(look_at_all(nodes, found["curves"])):
            assert time.monotonic() < deadline, "training took too long"
            time.sleep(LOOK_EVERY_S)
            if waiting and in_the_middle(nodes, found["curves"]):
                waiting = False
                found |= cut_power(nodes)
                for curve in found["curves"]:
                    curve.append([])
                for node in nodes:
                    node.start()
        daemons = [node.daemon for node in nodes]
        assert_replicas_identical(daemons)
        found["frontier"] = applied(nodes[0])
        status = nodes[0].status()
        coordinates = np.frombuffer(daemons[0].replica()[1], np.int32)
        found["weights"] = np.ldexp(coordinates.astype(np.float32), status["run"]["quantum_log2"])
    return found


def in_the_middle(nodes: list[Machine], curves: list[list[Segment]]) -> bool:
    """A third of the training is done, and the last checkpoint of every node is some time ago."""
    some = all(curve[0] and curve[0][-1][0] > STEPS / 3 for curve in curves)
    ages = [(node.status().get("checkpoint") or {}).get("age_s") or 0.0 for node in nodes]
    return some and min(ages) > SINCE_CHECKPOINT_S


def look_at_all(nodes: list[Machine], curves: list[list[Segment]]) -> list[bool]:
    """Note where each is; True for those whose training is done."""
    return [look(node, curve[-1]) for node, curve in zip(nodes, curves, strict=True)]


def look(node: Machine, segment: Segment) -> bool:
    figures = node.status().get("trainer") or {}
    batch = load_recipe(RECIPE).batch
    if figures.get("samples") and figures.get("loss") is not None:
        point = (figures["samples"] / batch, round(figures["loss"], 5))
        if not segment or segment[-1] != point:
            segment.append(point)
    return bool(figures.get("finished"))


def applied(node: Machine) -> dict[str, int]:
    return {f"{row['id']}/{row['incarnation']}": row["sequence"] for row in node.status()["frontier"]}


def cut_power(nodes: list[Machine]) -> dict[str, Any]:
    """kill -9 of everything; what had been applied just before, and what is on the disks, by life."""
    before: dict[str, int] = {}
    for node in nodes:
        keep_most(before, applied(node))
    for node in nodes:  # all of them before anybody's end is waited for
        node.daemon.process.kill()
    for node in nodes:
        node.kill()
    on_disk: dict[str, int] = {}
    for node in nodes:
        keep_most(on_disk, read_disk(node.state / FOLDER))
    return {"applied": before, "on_disk": on_disk}


def read_disk(folder: Path) -> dict[str, int]:
    """Read one node's disk: its checkpoint and its own updates since."""
    checkpoint, _ = CheckpointStore(folder).latest()
    assert checkpoint is not None, f"no checkpoint yet in {folder}"
    found = {name(Origin(row.node, row.incarnation)): row.sequence for row in checkpoint.rows}
    restored = restore(folder, checkpoint.spec)
    assert restored is not None
    if restored.previous is not None:
        own = name(restored.previous)
        found[own] = found.get(own, 0) + len(restored.own)
    return found


def name(origin: Origin) -> str:
    return f"{origin.node:016x}/{origin.incarnation}"


def keep_most(known: dict[str, int], more: dict[str, int]) -> None:
    for origin, sequence in more.items():
        known[origin] = max(sequence, known.get(origin, 0))


def recent(segment: Segment, *, every: int = 8) -> Segment:
    """The plain mean of the mini-batches between two points, got back out of the running means."""
    found: Segment = []
    before, mean = segment[0]
    for at, later in segment[1:]:
        if at - before >= every:
            stays = (1 - 1 / LOSS_MEMORY) ** (at - before)
            found.append((at, (later - stays * mean) / (1 - stays)))
            before, mean = at, later
    return found


def in_order(curve: list[Segment]) -> list[Segment]:
    """Its points by how many mini-batches were made before: those since the checkpoint are made again."""
    made, shift = [curve[0]], 0.0
    for segment in curve[1:]:
        shift += made[-1][-1][0] - shift - segment[0][0]
        made.append([(at + shift, loss) for at, loss in segment])
    return [recent(segment) for segment in made]


def draw(without: list[list[Segment]], with_cut: list[list[Segment]]) -> None:
    """The picture: loss against mini-batches, each node, both runs."""
    with picture(PLOT, (9.2, 5.2)) as axes:
        for curve in without:
            axes.plot(*zip(*in_order(curve)[0], strict=True), color="#9aa0a6", linewidth=1)
        for number, curve in enumerate(with_cut):
            before, after = in_order(curve)
            axes.plot(*zip(*before, strict=True), color=f"C{number}", linewidth=1.2, label=f"node {number}")
            axes.plot(*zip(*after, strict=True), color=f"C{number}", linewidth=1.2)
            axes.axvline(curve[0][-1][0], color=f"C{number}", linewidth=1, linestyle=":")
        axes.plot([], [], color="#9aa0a6", label="four nodes without a cut")
        axes.plot([], [], color="#4a4a4a", linestyle=":", label="where the power cut met each node")
        axes.set_xlabel("mini-batches that the node has made")
        axes.set_ylabel("mean loss of some ten mini-batches, nats")
        axes.set_title(
            f"Recipe {RECIPE}, four nodes: kill -9 of everything at once, and started again", fontsize=10
        )
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize=8)
