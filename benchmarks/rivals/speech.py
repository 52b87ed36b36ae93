"""Define the task that all ways train: frames of speech, ReLU 340 - 512 - 512 - 512 - 204, 0.8 million
weights, plain SGD.

The same walk over the same samples, the same initial weights, loss and rate. Imports only what a bare
environment with PyTorch and numpy has.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.job import Job, Notes
from p2psgd.recipes.datasets import STATES, SpeechSamples
from p2psgd.recipes.model import Activation, Shape, initial_weights
from p2psgd.recipes.schedule import Order, Walk

DATA: Final = Path(__file__).parents[2] / "p2psgd" / "recipes" / "dataset_files"
SHAPE: Final = Shape(340, (512, 512, 512), STATES, Activation.RELU)
HELD_OUT: Final = 2_000  # frames of unseen voices, evenly spaced; evaluating them takes a processor 0.1 s


def speech(part: str) -> SpeechSamples:
    """ "train" or "test"."""
    with np.load(DATA / f"speech_small_{part}.npz") as arrays:
        return SpeechSamples(
            *(arrays[name] for name in ("mel", "phone", "third", "utterance_start")),
        )


class HeldOut:
    """Samples of the test set, the same for all."""

    def __init__(self) -> None:
        self._test = speech("test")
        self._rows = np.linspace(0, len(self._test.labels) - 1, HELD_OUT).astype(np.int64)

    @property
    def inputs(self) -> int:
        return self._test.inputs

    @property
    def labels(self) -> NDArray[np.int32]:
        return self._test.labels[self._rows]

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        self._test.fill(self._rows[rows], batch)


def make_model(seed: int) -> Any:
    """A torch.nn.Sequential; its parameters in order are SHAPE's tensors."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    layers: list[Any] = []
    for width_in, width_out in SHAPE.layers:
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    set_weights(model, np.concatenate([each.ravel() for each in initial_weights(SHAPE, seed).values()]))
    return model


def set_weights(model: Any, weights: NDArray[np.float32]) -> None:
    """Flat, as `weights_of` gives them."""
    torch: Any = importlib.import_module("torch")
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())


def weights_of(model: Any) -> NDArray[np.float32]:
    """(P,) float32, copied."""
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])


def sgd(parameters: Iterable[Any]) -> Any:
    """Plain; the rate is set before each step."""
    return importlib.import_module("torch").optim.SGD(parameters, lr=0.0)


def last_snapshot(notes: Iterable[Path]) -> tuple[str, int] | None:
    """The newest file of weights that these notes name, and its number of mini-batches."""
    lines = [json.loads(line) for path in notes if path.exists() for line in path.read_text().splitlines()]
    found = [(line["at"], line["snapshot"], line["steps"]) for line in lines if "snapshot" in line]
    return max(found)[1:] if found else None


def train(
    job: Job,
    notes: Notes,
    model: Any,
    *,
    net: Callable[[Any], Any],
    step: Callable[[float], None],
    zero: Callable[[], None],
    share: tuple[int, int],
    first: int = 0,
) -> None:
    """Until this process is ended. `net` computes the model's outputs, `step` updates it at a rate, `zero`
    forgets its gradients; `first` mini-batches were made before.
    """
    torch: Any = importlib.import_module("torch")
    samples, (own, shares) = speech("train"), share
    walk = Walk(len(samples.labels), job.batch, own, shares, warm_steps=0, positions=None)
    order = Order(len(samples.labels), job.seed)
    batch = np.empty((job.batch, samples.inputs), np.float32)
    inputs, labels = torch.from_numpy(batch), samples.labels.astype(np.int64)
    cross_entropy = torch.nn.functional.cross_entropy
    order.rows(walk.at(first))  # the permutation is not what is compared
    notes.await_go()
    for number in itertools.count(first):
        rows = order.rows(walk.at(number))
        samples.fill(rows, batch)
        zero()
        cross_entropy(net(inputs), torch.from_numpy(labels[rows])).backward()
        step(job.rate(number * job.batch * shares))
        notes.made(number + 1, lambda: weights_of(model))
