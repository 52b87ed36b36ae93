"""Define the task of speech: frames of speech, ReLU 340 - 512 - 512 - 512 - 204, 0.8 million weights, plain
SGD.

A host imports only what a bare environment with PyTorch and numpy has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.cases import Evaluate
from benchmarks.rivals.weights import set_weights
from p2psgd.recipes.datasets import STATES, SpeechSamples
from p2psgd.recipes.model import Activation, Shape, initial_weights

DATA: Final = Path(__file__).parents[2] / "p2psgd" / "recipes" / "dataset_files"
SHAPE: Final = Shape(340, (512, 512, 512), STATES, Activation.RELU)
HELD_OUT: Final = 2_000  # frames of unseen voices, evenly spaced; evaluating them takes a processor 0.1 s
FOUR_PASSES: Final = 1.84  # the loss where plain SGD ends after so many, about


def speech(part: str) -> SpeechSamples:
    """ "train" or "test"."""
    with np.load(DATA / f"speech_small_{part}.npz") as arrays:
        return SpeechSamples(
            *(arrays[name] for name in ("mel", "phone", "third", "utterance_start")),
        )


class SpeechTraining:
    """The model is a torch.nn.Sequential; its parameters in order are SHAPE's tensors."""

    def __init__(self, seed: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        layers: list[Any] = []
        for width_in, width_out in SHAPE.layers:
            layers += [self._torch.nn.Linear(width_in, width_out), self._torch.nn.ReLU()]
        self.model: Any = self._torch.nn.Sequential(*layers[:-1])
        first = initial_weights(SHAPE, seed).values()
        set_weights(self.model, np.concatenate([each.ravel() for each in first]))
        self._samples = speech("train")
        self.rows = len(self._samples.labels)
        self._labels = self._samples.labels.astype(np.int64)

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """Return plain SGD."""
        return self._torch.optim.SGD(parameters, lr=0.0)

    def loss(self, net: Callable[..., Any], rows: NDArray[np.int64]) -> Any:
        batch = np.empty((len(rows), self._samples.inputs), np.float32)
        self._samples.fill(rows, batch)
        labels = self._torch.from_numpy(self._labels[rows])
        return self._torch.nn.functional.cross_entropy(net(self._torch.from_numpy(batch)), labels)


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


def evaluation() -> Evaluate:
    """Return what computes the loss on held-out frames; by numpy, and with all that p2psgd needs."""
    gradients: Any = importlib.import_module("p2psgd.recipes.gradients")
    held_out = HeldOut()
    return lambda weights: float(gradients.loss_and_accuracy(SHAPE, weights, held_out)[0])
