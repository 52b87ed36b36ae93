"""`p2psgd train`: the built-in trainer from the recipe to the last report."""

from __future__ import annotations

import time

from p2psgd.errors import ExitCode, UsageError
from p2psgd.trainer.data import load_dataset
from p2psgd.trainer.evaluation import net_shape
from p2psgd.trainer.interruption import Interruption
from p2psgd.trainer.link import attach
from p2psgd.trainer.net import initial_weights
from p2psgd.trainer.plan import Plan, check_length, check_share
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.training import Training
from p2psgd.wire.codec import WEIGHTS_MAX


def train(
    recipe: Recipe,
    share: tuple[int, int] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    *,
    started: float | None = None,
) -> None:
    """Train this node's share of a recipe on the daemon that P2PSGD_CONTROL or the default state directory
    leads to.

    share: (i, n); None takes the daemon's word for it. steps: mini-batches
    of this node; seconds: length of the run, counted from `started` (Unix time, so that a trainer that is
    started again does not begin anew) or from now. SIGTERM and SIGINT end it after the mini-batch in work.

    Raises UsageError (recipe, data or arguments at fault, or the training diverged), TrainerError (the daemon
    refuses or is gone). BLAS threads are left to the environment.
    """
    began = time.time() if started is None else started
    check_length(steps, seconds)
    if share is not None:
        check_share(*share)
    dataset = load_dataset(recipe.data)
    shape = net_shape(recipe, dataset)
    if shape.weights > WEIGHTS_MAX:
        raise UsageError(
            f"recipe {recipe.name} makes a net of {shape.weights} weights; at most {WEIGHTS_MAX} will do",
            ExitCode.CONFIGURATION,
        )
    link = attach(
        initial_weights(shape, recipe.seed),
        quantum=recipe.quantum,
        label=recipe.label,
        two_nodes=recipe.run.two_nodes,
    )
    with link, Interruption() as interruption:
        share = share or link.share
        if share is None:
            raise UsageError(
                "which share of the data is this node's? give --share i/n, or name this node in its hosts.txt"
            )
        plan = Plan(recipe, len(dataset.train.labels), share, steps, seconds)
        training = Training(
            recipe,
            dataset,
            plan,
            link,
            interrupted=lambda: interruption.wanted,
            elapsed_s=max(0.0, time.time() - began),
        )
        training.run()
        link.close(finished=not interruption.wanted)
