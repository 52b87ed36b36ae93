"""`p2psgd train`: the built-in trainer from the recipe to the last report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2psgd.errors import TrainerError, UsageError
from p2psgd.trainer.attaching import attach
from p2psgd.trainer.backend import HOST, Backend
from p2psgd.trainer.data import Dataset, load_data_of
from p2psgd.trainer.evaluation import net_shape
from p2psgd.trainer.initial import starting_weights
from p2psgd.trainer.interruption import Interruption
from p2psgd.trainer.link import Link
from p2psgd.trainer.plan import Plan, check_length, check_share
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.recipe_training import Circumstances
from p2psgd.trainer.ring_training import RingTraining
from p2psgd.trainer.round_plan import RoundPlan
from p2psgd.trainer.streamed_training import NO_SHARE, StreamedPlan, StreamedTraining
from p2psgd.trainer.trace import Trace, check_place, choose_place
from p2psgd.trainer.training import Training


def train(
    recipe: Recipe,
    share: tuple[int, int] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    *,
    initial: Path | None = None,
    backend: Backend = HOST,
    started: float | None = None,
    trace: Path | None = None,
    overlap: bool = True,
) -> None:
    """Train this node's share of a recipe on the daemon that P2PSGD_CONTROL or the default state directory
    leads to, with numpy unless there is another `backend`.

    share: (i, n); None takes the daemon's word for it. steps: mini-batches of this node, or rounds of a ring;
    seconds: length of the run, counted from `started` (Unix time, so that a trainer that is started again
    does not begin anew) or from now. `initial`: a file of the weights to start from. `trace`: a file for what
    this process did when, replaced at the end, or by one beside it if an earlier life of this trainer wrote
    it (trace.py). `overlap`: as in Circumstances. SIGTERM and SIGINT end it after the mini-batch in work.

    Raises UsageError (recipe, data or arguments at fault, the seconds over before a mini-batch, or the
    training diverged), TrainerError (the daemon refuses or is gone). BLAS threads are left to the
    environment.
    """
    began = time.time() if started is None else started
    check_length(steps, seconds)
    if share is not None:
        check_share(*share)
    if trace is not None:
        check_place(trace)
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
        order=mode.order,
        shards=None if dataset.shards is None else dataset.shards.list,
        make_compute=backend.make_compute,
    )
    with link, Interruption() as interruption, _tracing(trace, link) as events:
        try:
            share = share or link.share
        except TrainerError as error:
            if dataset.shards is None:
                raise UsageError(str(error)) from None
            share = NO_SHARE
        met = Circumstances(
            backend=backend,
            interrupted=lambda: interruption.wanted,
            elapsed_s=max(0.0, time.time() - began),
            trace=events,
            overlap=overlap,
        )
        try:
            training = _make_training(recipe, dataset, link, (share, steps, seconds), met)
            training.run()
        except MemoryError as error:
            place = backend.name or "this machine"
            raise TrainerError(
                f"{place} has not enough memory to train recipe {recipe.name}: {error};"
                " give a smaller batch, or a smaller net"
            ) from None
        if seconds is not None and not (link.mini_batches or interruption.wanted or link.stopping):
            words = f"the {seconds:g} s of --seconds were over before the first mini-batch"
            raise UsageError(f"{words}: give more")
        link.close(finished=not interruption.wanted)


def _make_training(
    recipe: Recipe,
    dataset: Dataset,
    link: Link,
    length: tuple[tuple[int, int], int | None, float | None],
    met: Circumstances,
) -> Training | RingTraining:
    """In rounds, or as each node likes; `length`: the share, and steps or seconds or neither."""
    if dataset.shards is not None:
        plan = StreamedPlan(recipe, dataset.shards.list.samples, *length)
        return StreamedTraining(recipe, dataset, plan, link, met)
    samples = len(dataset.train.labels)
    if recipe.run.trains.ring:
        return RingTraining(recipe, dataset, RoundPlan(recipe, samples, *length), link, met)
    return Training(recipe, dataset, Plan(recipe, samples, *length), link, met)


@contextmanager
def _tracing(path: Path | None, link: Link) -> Iterator[Trace | None]:
    """A trace that is written at the end, however that comes about; None if there is to be none."""
    if path is None:
        yield None
        return
    place = choose_place(path, later_life=link.mini_batches > 0)
    if place != path:
        print(
            f"p2psgd train: {path} is of an earlier life of this trainer: its trace goes to {place}",
            file=sys.stderr,
        )
    trace = Trace()
    try:
        yield trace
    finally:
        trace.write(place, node=link.node)
        if trace.left_out:
            print(
                f"p2psgd train: {place} holds the first {trace.events_max:,} events, "
                f"{trace.left_out:,} came later",
                file=sys.stderr,
            )
