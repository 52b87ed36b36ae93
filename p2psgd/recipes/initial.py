"""The weights that training starts from: drawn, read from a file, or pre-trained layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy

from p2psgd.errors import ExitCode, TrainerError, UsageError
from p2psgd.ipc.run_proposal import propose
from p2psgd.recipes.datasets import Dataset, Samples, load_arrays, reading
from p2psgd.recipes.gradients import HOST, net_shape
from p2psgd.recipes.model import Net, Shape, Vector, initial_weights
from p2psgd.recipes.recipe import PretrainTable, Recipe
from p2psgd.recipes.schedule import Order

# ----------------------------------------------------------------------------
# Layer-by-layer pre-training, supervised, in one process, on a part of the samples [Strom 2015, section 4].
#
# The net's lowest hidden layer is trained below a softmax of its own; then that softmax is taken away, the
# next hidden layer and a fresh softmax are put on top, and all of it is trained, and so on up to the whole
# net (Seide et al. 2011 call it discriminative). A net of five layers of sigmoids learns slowly without:
# errors that pass down through them shrink at each.
#
# It comes before the run and is no part of it. Sums of floating-point numbers come out otherwise on other
# processors and with other numbers of threads, so it is done once, and all nodes start from the same file.
# It computes on the CPU: the part is small.


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


# ----------------------------------------------------------------------------
# The weights that training starts from: drawn from the seed, or read from a file that all nodes have a copy
# of, as where a net was trained before, or pre-trained (see pretrain).
#
# Which they were is part of what the nodes of a run agree on, so that nodes with different files refuse each
# other.


WHAT: Final = "weights file"


def starting_weights(recipe: Recipe, shape: Shape, initial: Path | None) -> dict[str, Vector]:
    """The tensors of this net by name, from the file `initial` (.npz or .safetensors) or, if None, drawn.

    Raises UsageError if the file does not hold this net, or if it takes a file and none is given.
    """
    if initial is not None:
        return load_initial(initial, shape)
    if recipe.pretrain is not None:
        raise UsageError(
            f"recipe {recipe.name} starts from pre-trained weights: make them once, "
            "p2psgd pretrain weights.npz with the same --recipe, copy the file to all nodes, and give "
            "--initial weights.npz to each",
            ExitCode.CONFIGURATION,
        )
    return initial_weights(shape, recipe.seed)


def load_initial(path: Path, shape: Shape) -> dict[str, Vector]:
    """Read the tensors of a net, in its order; UsageError that names the file and the tensor at fault."""
    if path.suffix == ".safetensors":
        with reading(path, WHAT):
            try:
                arrays = safetensors.numpy.load(path.read_bytes())
            except safetensors.SafetensorError as error:
                raise ValueError(error) from None
    else:
        arrays = load_arrays(path, None, WHAT)
    tensors: dict[str, Vector] = {}
    for name, wanted in shape.tensors:
        values = arrays.get(name)
        if values is None:
            raise _unfit(path, f"it lacks {name}; it has {', '.join(sorted(arrays)):.300}")
        if values.dtype != np.float32 or values.shape != wanted:
            has = f"{values.dtype} {values.shape}"
            raise _unfit(path, f"its {name} is {has}, and the recipe's net has float32 {wanted}")
        if not np.isfinite(values).all():
            raise _unfit(path, f"its {name} holds a value that is not finite")
        tensors[name] = values
    others = sorted(arrays.keys() - tensors.keys())
    if others:
        raise _unfit(path, f"it is of another net, which has {', '.join(others):.300} as well")
    return tensors


def _unfit(path: Path, words: str) -> UsageError:
    return UsageError(f"{path} does not hold the weights to start from: {words}", ExitCode.CONFIGURATION)
