"""Make the weights that a deep net of sigmoids starts from: supervised pre-training, layer by layer.

    python examples/strom2015/pretrain.py examples/strom2015/speech-paper.toml start.npz
    p2psgd local -n 4 --recipe examples/strom2015/speech-paper.toml --initial start.npz

[Strom 2015], section 4. The net's lowest hidden layer is trained below a softmax of its own; then that
softmax is taken away, the next hidden layer and a fresh softmax are put on top, and all of it is trained, and
so on up to the whole net (Seide et al. 2011 call it discriminative). A net of five layers of sigmoids learns
slowly without: errors that pass down through them shrink at each.

Sums of floating-point numbers come out otherwise on other processors and with other numbers of threads, so it
is done once, and all nodes start from copies of one file. It computes on the CPU: the part of the samples is
small.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from p2psgd.base.errors import ExitCode, TrainerError, UsageError
from p2psgd.cli.weights_file import check_weights_place, write_tensors
from p2psgd.ipc.run_proposal import propose
from p2psgd.recipes.datasets import Dataset, Samples, load_data_of
from p2psgd.recipes.gradients import HOST, loss_and_accuracy, net_shape
from p2psgd.recipes.model import Net, Shape, Vector, flat, initial_weights
from p2psgd.recipes.recipe import Recipe, load_recipe
from p2psgd.recipes.schedule import Order


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Plain SGD for each layer: at this rate, `epochs` passes over this part of the training samples."""

    part: float = 0.25
    epochs: int = 1
    learning_rate: float = 1.5

    def __post_init__(self) -> None:
        if not (0 < self.part <= 1 and self.epochs >= 1 and 0 < self.learning_rate < math.inf):
            raise UsageError(f"{self}: give a part of at most 1, whole epochs from 1, and a rate above 0")


Say = Callable[[str], None]


def pretrain(
    recipe: Recipe, dataset: Dataset, how: Pretraining, say: Say = lambda words: None
) -> dict[str, Vector]:
    """Return the pre-trained tensors of the recipe's net.

    `say` is called with the progress before each mini-batch. On the same machine with as many threads the
    same recipe gives the same bits. UsageError if the net has no hidden layer, the data are shards, it
    diverges, or a run could not begin with what it makes.
    """
    if dataset.shards is not None:
        raise UsageError(
            f"recipe {recipe.name}: pre-training draws from all samples, and {recipe.data} is shards: "
            "copy them with the store's own tool, and give that folder",
            ExitCode.CONFIGURATION,
        )
    if not recipe.hidden:
        raise UsageError(f"recipe {recipe.name} has no hidden layer to pre-train", ExitCode.CONFIGURATION)
    whole = net_shape(recipe, dataset)
    tensors = initial_weights(whole, recipe.seed)
    for count in range(1, len(whole.hidden) + 1):
        stage = replace(whole, hidden=whole.hidden[:count])
        lower = {name: tensors[name] for name, _ in stage.tensors[:-4]}  # what the stage before has trained
        tensors = initial_weights(stage, recipe.seed) | lower
        for percent in _train(recipe, how, stage, tensors, dataset.train):
            say(f"pre-training layer {count} of {len(whole.hidden)}, {percent} %")
    try:
        propose(tensors, quantum=recipe.quantum, label=recipe.label, mode=recipe.run.trains.word)
    except TrainerError as error:
        raise UsageError(
            f"pre-training has made weights that no run starts from: {error}", ExitCode.FAILED
        ) from None
    return tensors


def _train(
    recipe: Recipe, how: Pretraining, shape: Shape, tensors: dict[str, Vector], samples: Samples
) -> Iterator[int]:
    """Train by plain SGD; yields how many percent are done before each mini-batch. At the end the tensors are
    views into what was trained. UsageError if it diverges.
    """
    count = max(1, round(how.part * len(samples.labels)))
    part = Order(len(samples.labels), recipe.seed).rows(np.arange(count))
    net, feed = Net(shape, recipe.batch), HOST.feed(samples, recipe.batch)
    weights = np.concatenate([tensors[name].ravel() for name, _ in shape.tensors])
    gradient = np.empty_like(weights)
    order, positions = Order(len(part), recipe.seed), how.epochs * len(part)
    for start in range(0, positions, recipe.batch):
        yield 100 * start // positions
        rows = part[order.rows(np.arange(start, min(start + recipe.batch, positions)))]
        loss = net.gradient(weights, *feed.take(rows), gradient=gradient)
        if not math.isfinite(loss):
            raise _diverged(shape, how, f"the loss is {loss} after {start // recipe.batch} mini-batches")
        with np.errstate(over="ignore", invalid="ignore"):
            gradient *= np.float32(how.learning_rate)
            weights -= gradient
    if not np.isfinite(weights).all():
        raise _diverged(shape, how, "a weight is not finite after the last mini-batch")
    begin = 0
    for name, extent in shape.tensors:
        size = tensors[name].size
        tensors[name] = weights[begin : begin + size].reshape(extent)
        begin += size


def _diverged(shape: Shape, how: Pretraining, words: str) -> UsageError:
    return UsageError(
        f"pre-training layer {len(shape.hidden)} diverged: {words}: "
        f"try a learning rate below {how.learning_rate:g}",
        ExitCode.FAILED,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="the recipe whose net is pre-trained")
    parser.add_argument("file", type=Path, help="the .npz or .safetensors file to write")
    parser.add_argument("--part", type=float, default=Pretraining.part, help="of the training samples")
    parser.add_argument("--epochs", type=int, default=Pretraining.epochs, help="over them, for each layer")
    parser.add_argument("--learning-rate", type=float, default=Pretraining.learning_rate)
    given = parser.parse_args()
    try:
        check_weights_place(given.file)
        how = Pretraining(part=given.part, epochs=given.epochs, learning_rate=given.learning_rate)
        recipe = load_recipe(given.recipe)
        dataset = load_data_of(recipe)
        tensors = pretrain(recipe, dataset, how, lambda words: print(f"\r{words}  ", end="", file=sys.stderr))
        write_tensors(given.file, tensors)
    except UsageError as error:
        sys.exit(f"\n{error}")
    weights = flat(tensors)
    _, accuracy = loss_and_accuracy(net_shape(recipe, dataset), weights, dataset.test)
    print(
        f"\n{given.file} holds {weights.size:,} weights, {100 * accuracy:.1f} % of the test samples right: "
        f"copy it to all nodes and give --initial {given.file.name} to p2psgd train"
    )


if __name__ == "__main__":
    main()
