"""Gradients of mini-batches: on numpy or another backend, evaluated, and sent as sparse updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.client.compute import HostCompute, MakeCompute
from p2psgd.client.link import Link
from p2psgd.client.step_size import StepSize
from p2psgd.recipes.datasets import Dataset, Samples, load_data_of
from p2psgd.recipes.model import Labels, Net, Shape, Vector
from p2psgd.recipes.recipe import Recipe
from p2psgd.recipes.schedule import Indices, Order
from p2psgd.recipes.telemetry import StepTimes
from p2psgd.wire.codec import WEIGHTS_MAX

# ----------------------------------------------------------------------------
# What the built-in trainer computes with: numpy, or what p2psgd.gpu has in its place.


class Feed(Protocol):
    """Brings mini-batches of one set of samples to where they are computed with."""

    def take(self, rows: Indices) -> tuple[Any, Any]:
        """Return the samples with these indices: inputs (rows, inputs) float32, labels (rows,) int32.

        Valid until the next call.
        """


class Backend(Protocol):
    """Arrays, and a way there."""

    @property
    def name(self) -> str:
        """For people: what it computes on; empty for the CPU."""

    @property
    def xp(self) -> ModuleType:
        """numpy, or a module with the same functions."""

    @property
    def make_compute(self) -> MakeCompute:
        """Return what a link needs for such arrays."""

    def feed(self, samples: Samples, batch_max: int) -> Feed:
        """Return a feed of these samples, up to `batch_max` of them at a time."""


class HostFeed:
    """Into one array of the host's."""

    def __init__(self, samples: Samples, batch_max: int) -> None:
        self._samples = samples
        self._inputs = np.empty((batch_max, samples.inputs), np.float32)

    def take(self, rows: Indices) -> tuple[NDArray[np.float32], Labels]:
        """Return inputs and labels of these samples."""
        inputs = self._inputs[: len(rows)]
        self._samples.fill(rows, inputs)
        return inputs, self._samples.labels[rows]


class HostBackend:
    """A backend that computes with numpy on the CPU."""

    name = ""
    xp: ModuleType = np
    make_compute: MakeCompute = HostCompute

    def feed(self, samples: Samples, batch_max: int) -> HostFeed:
        """Return a feed of these samples, up to `batch_max` of them at a time."""
        return HostFeed(samples, batch_max)


HOST = HostBackend()


# ----------------------------------------------------------------------------
# How good a net is: loss and accuracy on samples it was not trained on.


ROWS = 1024  # at a time: large enough for the matrix product, small enough for the cache


def net_shape(recipe: Recipe, dataset: Dataset) -> Shape:
    """Return the net that this recipe trains on these data; UsageError if an index cannot count its
    weights.
    """
    shape = Shape(dataset.train.inputs, recipe.hidden, dataset.classes, recipe.activation)
    if shape.weights > WEIGHTS_MAX:
        raise UsageError(
            f"recipe {recipe.name} makes a net of {shape.weights} weights; at most {WEIGHTS_MAX} will do",
            ExitCode.CONFIGURATION,
        )
    return shape


def evaluate(recipe: Recipe, weights: Vector, dataset: Dataset | None = None) -> tuple[float, float]:
    """Return the mean cross-entropy in nats and the accuracy, 0 to 1, of weights (P,) on the test samples.

    The recipe's data are loaded unless they are given. Raises UsageError if they cannot be.
    """
    if dataset is None:
        dataset = load_data_of(recipe)
    shape = net_shape(recipe, dataset)
    return loss_and_accuracy(shape, weights, dataset.test)


def loss_and_accuracy(
    shape: Shape, weights: Vector, samples: Samples, backend: Backend = HOST
) -> tuple[float, float]:
    """Return mean cross-entropy in nats and accuracy, 0 to 1, over all samples; weights (P,) of the
    backend's.
    """
    net, feed = Net(shape, ROWS, backend.xp), backend.feed(samples, ROWS)
    total_loss, total_correct = 0.0, 0
    count = len(samples.labels)
    for start in range(0, count, ROWS):
        rows = np.arange(start, min(start + ROWS, count))
        loss, correct = net.loss(weights, *feed.take(rows))
        total_loss += loss * len(rows)
        total_correct += correct
    return total_loss / count, total_correct / count


# ----------------------------------------------------------------------------
# The gradients of one node's mini-batches: samples in, gradient out.


class Gradients:
    """Computes gradients of a recipe's net on a recipe's samples; all arrays of weights are the backend's."""

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
        """Use these samples, a shard's, from now on: positions are their rows."""
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
            since, layers = self._times.clock_ns(), len(self.shape.layers)

            def layer_ready(layer: int) -> None:
                nonlocal since
                forward = "forward, then " if layer == layers else ""
                self._times.show(f"{forward}gradient of layer {layer}", since)
                ready(layer)
                since = self._times.clock_ns()

            return self._net.gradient(weights, inputs, labels, gradient=gradient, ready=layer_ready)


def check_loss(loss: float, recipe: Recipe, *, steps: int, tau: float | None) -> None:
    """Refuse to go on without a loss: UsageError with what may help. `tau`: None in a dense ring."""
    if math.isfinite(loss):
        return
    threshold = "" if tau is None else f" and tau = {tau:g}"
    raise UsageError(
        f"training diverged: the loss is {loss} after {steps} steps "
        f"with learning_rate = {recipe.learning_rate:g}{threshold}: "
        + ("try a lower one" if tau is None else "try a lower learning_rate or tau, or a longer warm_start"),
        ExitCode.FAILED,
    )


# ----------------------------------------------------------------------------
# From a gradient to an update: minus the learning rate times the gradient, steps that fit, and a
# residual that stays a sum of gradients [Strom 2015, section 3].
#
# When the rate changes the residual changes with it, so that none of it is sent for the sole reason that the
# step is smaller now. Owners with a rule are given the gradient itself, and the rate beside it.


class SparseSending:
    """Sends the updates of one trainer."""

    def __init__(self, recipe: Recipe, shape: Shape, link: Link) -> None:
        self._link = link
        mode = recipe.run.trains
        self._gradients = mode.rule.gradients
        self._step_size: StepSize | None = None  # none where contributions are ternary
        if not mode.ternary:
            self._step_size = StepSize(shape.weights, recipe.quantum, tau=recipe.tau, density=recipe.density)
        own_residual = mode.owners if recipe.own_residual is None else recipe.own_residual
        self._own_residual = own_residual and not (mode.rounds or self._gradients)
        self._every = 1 if mode.rounds else recipe.push_every
        self.gathers = True  # False: each mini-batch is sent by itself, whatever `push_every` is
        self._accrued: Any = None  # of mini-batches that were not sent, (P,)
        self.unsent = 0  # how many these are
        self.rate: float | None = None  # of the last mini-batch, also of an earlier life's; None: not known

    @property
    def tau(self) -> float | None:
        """The threshold in units of the mean gradient; None if there is none."""
        return None if self._step_size is None else self._step_size.tau

    def restore(self, tau: float) -> None:
        """Go on from the `tau` of an earlier trainer."""
        if self._step_size is not None:
            self._step_size.restore(tau)

    @property
    def point(self) -> Vector:
        """The numbers (P,) at which the gradient is taken: the weights, and of this node what it has not sent
        of the last mini-batches, or all of its residual.
        """
        link = self._link
        point: Vector = link.weights + link.residual if self._own_residual else link.weights
        return point + self._accrued if self.unsent and not self._gradients else point

    def send(self, gradient: Vector, rate: float) -> None:
        """Send what has grown beyond the step with this gradient (P,), which is changed; `rate`: the learning
        rate. With `push_every` several mini-batches are sent as one.
        """
        before = rate if self.rate is None else self.rate
        if not self._gradients:
            gradient *= np.float32(-rate)
            keeps = self._step_size is not None and not self._own_residual  # a residual beside the model
            if rate != before and keeps:
                gradient += np.float32(rate / before - 1) * self._link.residual
        self.rate = rate
        self.unsent += 1
        if self._every == 1 or (self.unsent == 1 and not self.gathers):
            self._push(gradient, rate)
            return
        if self.unsent == 1:
            self._accrued = gradient.copy()
        else:
            self._accrued += gradient
        if self.unsent >= self._every:
            self._push(self._accrued, rate)

    def send_rest(self) -> None:
        """Send what `push_every` has kept back, at the end."""
        if self.unsent and self.rate is not None:
            self._push(self._accrued, self.rate)

    def _push(self, gathered: Vector, rate: float) -> None:
        link = self._link
        step_size, given = self._step_size, rate if self._gradients else None
        threshold = None if step_size is None else step_size.step(1.0 if self._gradients else rate)
        link.send(gathered, threshold, steps=self.unsent, rate=given)
        self.unsent = 0
        if step_size is not None:
            step_size.sent(sum(link.sent.values()))
