"""`p2psgd lbfgs`: a recipe's loss over all of its data, minimized by L-BFGS on all nodes in lockstep.

Each node runs the same method on the same losses and gradients, which all nodes evaluate together; so all
come to the same weights, to the bit, and it does not matter which of them dies. The net computes in float64:
near a minimum float32 is too coarse for a line search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from p2psgd.base.errors import ExitCode, TrainerError, UsageError
from p2psgd.base.interruption import OF_A_TRAINER, Interruption
from p2psgd.client.attach import attach
from p2psgd.client.data_digest import CountedSamples, digest_data, sampled_rows
from p2psgd.client.link import Link
from p2psgd.ipc.script_state import STATE_BYTES_MAX, TRAINED, trained_digest, trained_weights
from p2psgd.recipes.datasets import Dataset, load_data_of
from p2psgd.recipes.gradients import ROWS, HostFeed, loss_and_accuracy, net_shape
from p2psgd.recipes.initial import starting_weights
from p2psgd.recipes.lbfgs import Lbfgs, NoProgress, Vector, dot
from p2psgd.recipes.model import Net, Shape, flat
from p2psgd.recipes.recipe import Recipe
from p2psgd.recipes.shared_state import VECTORS, SharedState

PRINT_EVERY_S: Final = 2.0
KEPT_BY: Final = "p2psgd lbfgs, 1"  # which script's state it is, and its version


class RecipeLoss:
    """The function that is minimized: the mean cross-entropy over all training samples, in nats, plus half of
    `l2` times the sum of all squared weights and biases.
    """

    def __init__(self, recipe: Recipe, dataset: Dataset, shape: Shape, link: Link) -> None:
        self._link = link
        self._samples = len(dataset.train.labels)
        self._portions = min(recipe.lbfgs.portions, self._samples)
        self._l2 = recipe.lbfgs.l2
        self._feed = HostFeed(dataset.train, ROWS)
        self._net: Any = Net(shape, ROWS, dtype="float64")
        self._slot = np.empty(shape.weights)
        rows = np.array(sampled_rows(self._samples))
        self._data = CountedSamples(self._samples, digest_data(self._feed.take(rows)))

    def __call__(self, point: Vector) -> tuple[float, Vector]:
        """Return loss and gradient (P,) at a point (P,), the same on all nodes."""
        loss, gradient = self._link._evaluate(self.part, point, self._data, portions=self._portions)
        return loss + 0.5 * self._l2 * dot(point, point), gradient + self._l2 * point

    def part(self, point: Vector, samples: range) -> tuple[float, Vector]:
        """Return what these samples add to the mean loss, and to its gradient (P,)."""
        loss, gradient = 0.0, np.zeros(point.size)
        for begin in range(samples.start, samples.stop, ROWS):
            rows = np.arange(begin, min(begin + ROWS, samples.stop))
            share = len(rows) / self._samples
            loss += share * self._net.gradient(point, *self._feed.take(rows), gradient=self._slot)
            gradient += share * self._slot
        return loss, gradient


def minimize(
    recipe: Recipe,
    *,
    initial: Path | None = None,
    steps: int | None = None,
    say: Callable[[str], Any] = print,
) -> None:
    """Minimize a recipe's loss together with all other nodes, on the daemon that P2PSGD_CONTROL or the
    default state directory leads to.

    `initial`: a file of the weights to start from. `steps`: the most iterations; None: as the recipe says.
    `say` gets lines for people. SIGTERM and SIGINT end it after the iteration in work.

    Raises UsageError (recipe or data at fault), TrainerError (the daemon refuses or is gone; a loss or a
    gradient is not finite).
    """
    dataset = load_data_of(recipe)
    shape = net_shape(recipe, dataset)
    _check_memory(recipe, shape)
    tensors = starting_weights(recipe, shape, initial)
    link = attach(
        tensors,
        quantum=recipe.quantum,
        label=recipe.label,
        two_nodes=recipe.run.two_nodes,
        mode="closure",
    )
    with link, Interruption(OF_A_TRAINER) as interruption:
        training = FullBatchTraining(
            recipe, dataset, link, interrupted=lambda: interruption.requested or link.stopping, say=say
        )
        finished = training.run(flat(tensors).astype(np.float64), steps or recipe.lbfgs.iterations)
        link.close(finished=finished)


def _check_memory(recipe: Recipe, shape: Shape) -> None:
    """Refuse a net whose history cannot be kept for a restart."""
    vectors = 2 * recipe.lbfgs.history + len(VECTORS)
    room = STATE_BYTES_MAX // (8 * vectors)
    if shape.weights >= room:
        raise UsageError(
            f"recipe {recipe.name}: {shape.weights} weights with history = {recipe.lbfgs.history} are more"
            f" than a node can keep, which is {room}: give a smaller history below [lbfgs]",
            ExitCode.CONFIGURATION,
        )


class FullBatchTraining:
    """A minimization, as one node takes part in it."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        link: Link,
        *,
        interrupted: Callable[[], bool],
        say: Callable[[str], Any] = print,
    ) -> None:
        self._settings, self._dataset, self._link = recipe.lbfgs, dataset, link
        self._interrupted, self._say = interrupted, say
        self._shape = net_shape(recipe, dataset)
        self._objective = RecipeLoss(recipe, dataset, self._shape, link)
        self._method: Lbfgs | None = None
        self._next_line = 0.0

    def run(self, start: Vector, iterations: int) -> bool:
        """Minimize from this point (P,), or go on from what is kept; return False if it was interrupted.

        Raises what `Link.evaluate` does.
        """
        try:
            self._method = method = self._begin(start)
            self._link.keep(self._keep)
            words = self._why_done(method, iterations)
            while not words and not self._interrupted():
                words = self._iterate(method, iterations)
        except (TrainerError, SystemExit):
            if not self._link.stopping:
                raise
            return False
        if not words:
            return False
        self._end(method, words)
        return True

    def _begin(self, start: Vector) -> Lbfgs:
        """Return the minimization at its start, or where the nodes of the run go on from."""
        history = self._settings.history
        shared = SharedState(self._link, read_kept(self._link.restored, start.size), start)
        state = shared.fetch()
        begins = 0 if state is None else state["iterations"]
        if shared.own.iterations > begins:
            self._say(
                f"this node holds iteration {shared.own.iterations}, and the run began at {begins} without"
                " it: what lies between is made again, unless the run has come that far"
            )
        if state is None:
            return Lbfgs(self._objective, start, history=history)
        self._say(f"goes on after iteration {state['iterations']}")
        return Lbfgs.resume(self._objective, state, history=history)

    def _iterate(self, method: Lbfgs, iterations: int) -> str:
        """Make an iteration, and report it; return why it was the last one, or nothing."""
        try:
            method.iterate()
        except NoProgress:
            return "no step makes the loss smaller"
        self._report(method)
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PRINT_EVERY_S
            self._say(describe(method))
        return self._why_done(method, iterations)

    def _why_done(self, method: Lbfgs, iterations: int) -> str:
        """Return why the minimization is done, empty if it is not: the rules of L-BFGS-B."""
        settings = self._settings
        if method.gradient_max <= settings.gradient_tolerance:
            return f"no number of the gradient is above {settings.gradient_tolerance:g}"
        if method.iterations and method.decrease <= settings.loss_tolerance:
            return f"the loss fell by no more than {settings.loss_tolerance:g} of itself"
        if method.iterations >= iterations:
            return f"all {iterations} iterations are made"
        return ""

    def _report(self, method: Lbfgs, test_accuracy: float | None = None) -> None:
        self._link.report(
            loss=method.loss,
            test_accuracy=test_accuracy,
            iteration=method.iterations,
            gradient_norm=norm(method),
            step_length=method.step,
        )

    def _end(self, method: Lbfgs, words: str) -> None:
        weights = method.point.astype(np.float32)
        _, accuracy = loss_and_accuracy(self._shape, weights, self._dataset.test)
        self._report(method, accuracy)
        digest = trained_digest(method.point)
        self._say(f"{describe(method)}; done, since {words}; the weights have digest {digest:016x}")

    def _keep(self) -> dict[str, Any]:
        """Return the state after the last iteration, for a later trainer, and the weights for an export."""
        assert self._method is not None
        state = self._method.state
        return {"by": KEPT_BY, TRAINED: state.pop("point"), **state}


def read_kept(restored: Mapping[str, Any] | None, weights: int) -> dict[str, Any] | None:
    """Return the state that an earlier trainer kept; None if none did, or if another script did."""
    if restored is None or restored.get("by") != KEPT_BY:
        return None
    point = trained_weights(restored, weights)
    return None if point is None else {**restored, "point": point}


def norm(method: Lbfgs) -> float:
    """Return the Euclidean norm of the gradient."""
    return math.sqrt(dot(method.gradient, method.gradient))


def describe(method: Lbfgs) -> str:
    """Return a line about how far a minimization is."""
    return (
        f"iteration {method.iterations}: loss {method.loss:.9g}, gradient {norm(method):.3g},"
        f" step {method.step:.3g}, {method.evaluations} evaluations"
    )
