"""`p2psgd train`: the built-in trainer from the recipe to the last report, and its interruption."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.base.interruption import OF_A_TRAINER, Interruption
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.recipes.datasets import Dataset, load_data_of
from p2psgd.recipes.gradients import HOST, Backend, net_shape
from p2psgd.recipes.initial import starting_weights
from p2psgd.recipes.recipe import Recipe
from p2psgd.recipes.schedule import Plan, RoundPlan, RunPart, check_length, check_rank
from p2psgd.recipes.telemetry import Trace
from p2psgd.recipes.training import (
    NO_RANK,
    RingTraining,
    StreamedPlan,
    StreamedTraining,
    Training,
    TrainingContext,
)

# ----------------------------------------------------------------------------
# `p2psgd train`: the built-in trainer from the recipe to the last report.


def train(
    recipe: Recipe,
    rank: tuple[int, int] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    *,
    initial: Path | None = None,
    backend: Backend = HOST,
    started: float | None = None,
    trace: Trace | None = None,
) -> None:
    """Train this node's part of a recipe on the daemon that P2PSGD_CONTROL or the default state directory
    leads to, with numpy unless there is another `backend`.

    rank: (i, n); None takes the daemon's word for it. steps: steps of this node, or rounds of a ring;
    seconds: length of the run, counted from `started` (Unix time, so that a trainer that is started again
    does not begin anew) or from now. `initial`: a file of the weights to start from. `trace` gets
    what this process does when. SIGTERM and SIGINT end it after the
    mini-batch in work (base/interruption.py).

    Raises UsageError (recipe, data or arguments at fault, the seconds over before a mini-batch, or the
    training diverged), TrainerError (the daemon refuses or is gone). BLAS threads are left to the
    environment.
    """
    began = time.time() if started is None else started
    check_length(steps, seconds)
    if rank is not None:
        check_rank(*rank)
    if recipe.unused:
        print(f"p2psgd train: {recipe.unused}", file=sys.stderr)
    if backend.name:
        print(f"p2psgd train: on {backend.name}", file=sys.stderr)
    dataset = load_data_of(recipe)
    shape = net_shape(recipe, dataset)
    mode = recipe.run.trains
    link = attach(
        starting_weights(recipe, shape, initial),
        quantum=recipe.quantum,
        label=recipe.label,
        two_nodes=recipe.run.two_nodes,
        mode=recipe.run.mode,
        payload=mode.payload or None,
        rule=mode.rule.word if mode.owners else None,
        rounds=recipe.run.rounds,
        shards=None if dataset.shards is None else dataset.shards.list,
        make_compute=backend.make_compute,
    )
    with link, Interruption(OF_A_TRAINER) as interruption:
        try:
            rank = rank or (link.rank, link.world_size)
        except TrainerError as error:
            if dataset.shards is None:
                raise UsageError(str(error)) from None
            rank = NO_RANK
        context = TrainingContext(
            backend=backend,
            interrupted=lambda: interruption.requested,
            elapsed_s=max(0.0, time.time() - began),
            trace=trace,
        )
        try:
            part = RunPart(rank=rank[0], world_size=rank[1], steps=steps, seconds=seconds)
            training = _make_training(recipe, dataset, link, part, context)
            training.run()
        except MemoryError as error:
            place = backend.name or "this machine"
            raise TrainerError(
                f"{place} has not enough memory to train recipe {recipe.name}: {error};"
                " give a smaller batch, or a smaller net"
            ) from None
        if seconds is not None and not (link.steps or interruption.requested or link.stopping):
            words = f"the {seconds:g} s of --seconds were over before the first step"
            raise UsageError(f"{words}: give more")
        link.close(finished=not interruption.requested)


def _make_training(
    recipe: Recipe, dataset: Dataset, link: Link, part: RunPart, context: TrainingContext
) -> Training | RingTraining:
    """Return a training in rounds, on shards, or as each node likes."""
    if dataset.shards is not None:
        streamed = StreamedPlan(recipe, dataset.shards.list.samples, part)
        return StreamedTraining(recipe, dataset, streamed, link, context)
    samples = len(dataset.train.labels)
    if recipe.run.trains.rounds:
        return RingTraining(recipe, dataset, RoundPlan(recipe, samples, part), link, context)
    return Training(recipe, dataset, Plan(recipe, samples, part), link, context)
