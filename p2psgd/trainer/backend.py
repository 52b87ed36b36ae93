"""What the built-in trainer computes with: numpy, or what p2psgd.gpu has in its place."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.trainer.compute import MakeCompute
from p2psgd.trainer.host_compute import HostCompute
from p2psgd.trainer.net import Labels
from p2psgd.trainer.samples import Samples
from p2psgd.trainer.schedule import Indices


class Feed(Protocol):
    """Brings mini-batches of one set of samples to where they are computed with."""

    def take(self, rows: Indices) -> tuple[Any, Any]:
        """The samples with these indices: inputs (rows, inputs) float32, labels (rows,) int32.

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
        """What a link needs for such arrays."""

    def feed(self, samples: Samples, batch_max: int) -> Feed:
        """Of these samples, up to `batch_max` of them at a time."""


class HostFeed:
    """Into one array of the host's."""

    def __init__(self, samples: Samples, batch_max: int) -> None:
        self._samples = samples
        self._inputs = np.empty((batch_max, samples.inputs), np.float32)

    def take(self, rows: Indices) -> tuple[NDArray[np.float32], Labels]:
        """Inputs and labels of these samples."""
        inputs = self._inputs[: len(rows)]
        self._samples.fill(rows, inputs)
        return inputs, self._samples.labels[rows]


class HostBackend:
    """numpy."""

    name = ""
    xp: ModuleType = np
    make_compute: MakeCompute = HostCompute

    def feed(self, samples: Samples, batch_max: int) -> HostFeed:
        """Of these samples."""
        return HostFeed(samples, batch_max)


HOST = HostBackend()
