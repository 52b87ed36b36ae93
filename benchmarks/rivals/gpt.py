"""Define the task of text: the byte-level GPT of benchmarks/learn with 0.5 million weights, by AdamW."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.cases import Evaluate
from benchmarks.rivals.weights import set_weights

SIZES: Final = {"width": 128, "layers": 2, "context": 64}
BETAS: Final = (0.9, 0.99)
WEIGHT_DECAY: Final = 0.1
HELD_OUT: Final = 128  # windows of unseen files, evenly spaced; evaluating them takes a processor 0.15 s


class GptTraining:
    """Samples are windows of a context and the byte after it."""

    def __init__(self, seed: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        learn: Any = importlib.import_module("benchmarks.learn.gpt")
        self._torch.manual_seed(seed)
        self.model: Any = learn.GPT(**SIZES)
        self._windows, _ = learn.load(SIZES["context"])
        self.rows = len(self._windows)

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """Return AdamW with the betas of one machine."""
        return self._torch.optim.AdamW(parameters, lr=0.0, betas=BETAS, weight_decay=WEIGHT_DECAY)

    def loss(self, net: Callable[..., Any], rows: NDArray[np.int64]) -> Any:
        return net(self._windows[self._torch.from_numpy(rows)])


def evaluation() -> Evaluate:
    """Return what computes the loss on windows of unseen files, in one thread."""
    torch: Any = importlib.import_module("torch")
    learn: Any = importlib.import_module("benchmarks.learn.gpt")
    torch.set_num_threads(1)
    model = learn.GPT(**SIZES).eval()
    _, test = learn.load(SIZES["context"])
    windows = test[:: len(test) // HELD_OUT][:HELD_OUT]

    def evaluate(weights: NDArray[np.float32]) -> float:
        set_weights(model, weights)
        with torch.no_grad():
            return float(model(windows))

    return evaluate
