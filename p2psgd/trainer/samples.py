"""What a trainer needs of a set of samples, and the plain case: arrays in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.trainer.net import Labels


class Samples(Protocol):
    """Labelled samples that hand out mini-batches as float32."""

    @property
    def inputs(self) -> int:
        """Values per sample."""

    @property
    def labels(self) -> Labels:
        """(n,) classes of all samples."""

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        """Write the samples with these indices into `batch` (len(rows), inputs)."""


class ArraySamples:
    """Samples held as one float32 array; checked by whoever loaded it."""

    def __init__(self, values: NDArray[np.float32], labels: Labels) -> None:
        self._values = values  # (n, inputs)
        self._labels = labels  # (n,)

    @property
    def inputs(self) -> int:
        return int(self._values.shape[1])

    @property
    def labels(self) -> Labels:
        return self._labels

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        # mode="clip": with an out array the default mode would gather into a temporary one first
        np.take(self._values, rows, axis=0, out=batch, mode="clip")
