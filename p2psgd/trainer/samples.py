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

    def join(self, others: list[ArraySamples]) -> ArraySamples:
        """These and those after them."""
        parts = [self, *others]
        return ArraySamples(
            np.concatenate([part._values for part in parts]), np.concatenate([part._labels for part in parts])
        )


class SamplesToCome:
    """Samples of which only the number of values is known yet."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    @property
    def labels(self) -> Labels:
        """Of none."""
        return np.empty(0, np.int32)

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        """Of none."""
        raise IndexError("these samples come shard by shard")
