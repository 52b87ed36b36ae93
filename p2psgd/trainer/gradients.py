"""The gradients of one share's mini-batches: samples in, gradient out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from p2psgd.errors import ExitCode, UsageError
from p2psgd.trainer.backend import HOST, Backend, Feed
from p2psgd.trainer.data import Dataset
from p2psgd.trainer.evaluation import net_shape
from p2psgd.trainer.net import Net, Vector
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.samples import Samples
from p2psgd.trainer.schedule import Indices, Order
from p2psgd.trainer.step_times import StepTimes


class Gradients:
    """Of a recipe's net on a recipe's samples; all arrays of weights are the backend's."""

    def __init__(self, recipe: Recipe, dataset: Dataset, times: StepTimes, backend: Backend = HOST) -> None:
        self.shape = net_shape(recipe, dataset)
        self._backend, self._batch = backend, recipe.batch
        self._net = Net(self.shape, recipe.batch, backend.xp)
        self._times = times
        self._feed: Feed
        self._order: Order | None = None
        if dataset.shards is None:
            self._feed = backend.feed(dataset.train, recipe.batch)
            self._order = Order(len(dataset.train.labels), recipe.seed)

    def turn_to(self, samples: Samples) -> None:
        """From now on positions are rows of these, a shard's."""
        self._feed = self._backend.feed(samples, self._batch)

    def take(
        self,
        weights: Vector,
        positions: Indices,
        *,
        gradient: Vector | Mapping[str, Vector],
        ready: Callable[[int], None] = lambda layer: None,
    ) -> float:
        """Write the gradient at `weights` (P,) of the samples at these positions of the walk, and return the
        mean loss; `gradient` and `ready` as in Net.gradient(), without a gradient if the loss is not finite.
        """
        with self._times.part("load samples"):
            rows = positions if self._order is None else self._order.rows(positions)
            inputs, labels = self._feed.take(rows)
        with self._times.part("gradient"):
            laps, layers = self._times.laps(), len(self.shape.layers)

            def layer_ready(layer: int) -> None:
                forward = "forward, then " if layer == layers else ""
                laps.end(f"{forward}gradient of layer {layer}")
                ready(layer)
                laps.begin()

            return self._net.gradient(weights, inputs, labels, gradient=gradient, ready=layer_ready)


def check_loss(loss: float, recipe: Recipe, *, mini_batches: int, taus: Sequence[float]) -> None:
    """Refuse to go on without a loss: UsageError with what may help. `taus`: none in a dense ring."""
    if math.isfinite(loss):
        return
    thresholds = f" and tau = {', '.join(f'{tau:g}' for tau in taus)}" if taus else ""
    raise UsageError(
        f"training diverged: the loss is {loss} after {mini_batches} mini-batches "
        f"with learning_rate = {recipe.learning_rate:g}{thresholds}: "
        + ("try a lower learning_rate or tau, or a longer gentle_start" if taus else "try a lower one"),
        ExitCode.FAILED,
    )
