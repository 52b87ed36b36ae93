"""Layer-by-layer pre-training, supervised, in one process, on a part of the samples [Strom 2015, section 4].

The net's lowest hidden layer is trained below a softmax of its own; then that softmax is taken away, the
next hidden layer and a fresh softmax are put on top, and all of it is trained, and so on up to the whole net
(Seide et al. 2011 call it discriminative). A net of five layers of sigmoids learns slowly without: errors
that pass down through them shrink at each.

It comes before the run and is no part of it. Sums of floating-point numbers come out otherwise on other
processors and with other numbers of threads, so it is done once, and all nodes start from the same file. It
computes on the CPU: the part is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from p2psgd.errors import ExitCode, TrainerError, UsageError
from p2psgd.ipc.proposal import propose
from p2psgd.trainer.backend import HOST
from p2psgd.trainer.data import Dataset
from p2psgd.trainer.evaluation import net_shape
from p2psgd.trainer.net import Net, Shape, Vector, initial_weights
from p2psgd.trainer.recipe import PretrainTable, Recipe
from p2psgd.trainer.samples import Samples
from p2psgd.trainer.schedule import Order

Say = Callable[[str], None]


def pretrain(recipe: Recipe, dataset: Dataset, say: Say = lambda words: None) -> dict[str, Vector]:
    """Return the tensors of the recipe's net, pre-trained as its table `pretrain` says.

    `say` hears of the progress before each mini-batch, and may raise to end it. On the same machine with as
    many threads the same recipe gives the same bits. UsageError if the recipe has no such table or no hidden
    layer, its data are shards, memory is short, it diverges, or a run could not begin with what it makes.
    """
    table = recipe.pretrain
    if table is None:
        raise UsageError(
            f"recipe {recipe.name} has no table [pretrain]: give it one, with learning_rate in it, "
            "or train it as it is",
            ExitCode.CONFIGURATION,
        )
    if dataset.shards is not None:
        raise UsageError(
            f"recipe {recipe.name}: pre-training draws from all samples, and {recipe.data} is shards: "
            "have them copied, p2psgd data fetch, and give that folder",
            ExitCode.CONFIGURATION,
        )
    if not recipe.hidden:
        raise UsageError(
            f"recipe {recipe.name} has a table [pretrain] and no hidden layer to pre-train: "
            "leave the table out, or give hidden some widths",
            ExitCode.CONFIGURATION,
        )
    try:
        tensors = _stages(recipe, table, dataset, say)
        propose(tensors, quantum=recipe.quantum, label=recipe.label, mode=recipe.run.trains.word)
    except TrainerError as error:
        raise UsageError(
            f"pre-training has made weights that no run starts from: {error}", ExitCode.FAILED
        ) from None
    except MemoryError as error:
        raise UsageError(
            f"this machine has not enough memory to pre-train recipe {recipe.name}: {error}; "
            "give a smaller batch, or a smaller net"
        ) from None
    return tensors


def _stages(recipe: Recipe, table: PretrainTable, dataset: Dataset, say: Say) -> dict[str, Vector]:
    whole = net_shape(recipe, dataset)
    tensors = initial_weights(whole, recipe.seed)
    for count in range(1, len(whole.hidden) + 1):
        stage = replace(whole, hidden=whole.hidden[:count])
        lower = {name: tensors[name] for name, _ in stage.tensors[:-4]}  # what the stage before has trained
        what = f"pre-training layer {count} of {len(whole.hidden)}"
        tensors = initial_weights(stage, recipe.seed) | lower
        for percent in _train(recipe, table, stage, tensors, dataset.train):
            say(f"{what}, {percent} %")
    return tensors


def _train(
    recipe: Recipe, table: PretrainTable, shape: Shape, tensors: dict[str, Vector], samples: Samples
) -> Iterator[int]:
    """Plain SGD at a constant rate; yields how many percent of it are done before each mini-batch. At the end
    the tensors are views into what was trained. UsageError if it diverges.
    """
    count = max(1, round(table.part * len(samples.labels)))
    part = Order(len(samples.labels), recipe.seed).rows(np.arange(count))
    net, feed = Net(shape, recipe.batch), HOST.feed(samples, recipe.batch)
    weights = np.concatenate([tensors[name].ravel() for name, _ in shape.tensors])
    gradient = np.empty_like(weights)
    order, positions = Order(len(part), recipe.seed), table.epochs * len(part)
    for start in range(0, positions, recipe.batch):
        yield 100 * start // positions
        rows = part[order.rows(np.arange(start, min(start + recipe.batch, positions)))]
        loss = net.gradient(weights, *feed.take(rows), gradient=gradient)
        if not math.isfinite(loss):
            raise _diverged(shape, table, f"the loss is {loss} after {start // recipe.batch} mini-batches")
        with np.errstate(over="ignore", invalid="ignore"):
            gradient *= np.float32(table.learning_rate)
            weights -= gradient
    if not np.isfinite(weights).all():
        raise _diverged(shape, table, "a weight is not finite after the last mini-batch")
    begin = 0
    for name, extent in shape.tensors:
        size = tensors[name].size
        tensors[name] = weights[begin : begin + size].reshape(extent)
        begin += size


def _diverged(shape: Shape, table: PretrainTable, words: str) -> UsageError:
    return UsageError(
        f"pre-training layer {len(shape.hidden)} diverged: {words}: "
        f"try a learning_rate below the {table.learning_rate:g} of [pretrain]",
        ExitCode.FAILED,
    )
