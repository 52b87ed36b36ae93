"""The built-in trainer on a CUDA device: CuPy in numpy's place, and mini-batches brought there."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.gpu.compute import DeviceCompute
from p2psgd.gpu.kernels import Kernels
from p2psgd.gpu.memory import pinned_empty
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.recipes.datasets import Samples
from p2psgd.recipes.gradients import Feed
from p2psgd.recipes.schedule import Indices

RESIDENT_BYTES_MAX: Final = 1 << 30  # of samples that are all kept on the device,
RESIDENT_PART: Final = 8  # if they take no more than this part of its free memory: others may train there too
FILL_ROWS: Final = 4096  # samples brought there at a time


class DeviceBackend:
    """The backend of the current device; compiles the kernels. `copy_s`: between copies of the residual."""

    xp: ModuleType = cupy

    def __init__(self, *, copy_s: float) -> None:
        device = cupy.cuda.Device()
        model = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        self.name = f"cuda:{device.id}, {model}"
        self._copy_s = copy_s
        self._kernels = Kernels()

    def make_compute(self, answer: AttachAnswer, memory: TrainerMemory[Any]) -> DeviceCompute:
        """Make weights and residual of a link; TrainerError if there is no room for them."""
        try:
            return DeviceCompute(answer, memory, self._kernels, copy_s=self._copy_s)
        except MemoryError:
            free, _ = cupy.cuda.Device().mem_info
            raise TrainerError(
                f"{self.name} has no room for {answer.weights} weights: they and their residual take"
                f" {12 * answer.weights / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free"
            ) from None

    def feed(self, samples: Samples, batch_max: int) -> Feed:
        """Return the samples' batches: on the device if there is room, else on the host."""
        size = 4 * len(samples.labels) * samples.inputs
        free, _ = cupy.cuda.Device().mem_info
        resident = size <= min(RESIDENT_BYTES_MAX, free // RESIDENT_PART)
        return ResidentFeed(samples, batch_max) if resident else CopyingFeed(samples, batch_max)


class CopyingFeed:
    """Feeds batches through two stages of page-locked memory: one is filled while the other is copied."""

    def __init__(self, samples: Samples, batch_max: int) -> None:
        self._samples = samples
        self._stages = [_Stage(batch_max, samples.inputs) for _ in range(2)]

    def take(self, rows: Indices) -> tuple[Any, Any]:
        """Return inputs and labels of these samples."""
        self._stages.reverse()
        return self._stages[0].copy(self._samples, rows)


class ResidentFeed:
    """Feeds batches from samples that all lie on the device."""

    def __init__(self, samples: Samples, batch_max: int) -> None:
        count = len(samples.labels)
        self._values = cupy.empty((count, samples.inputs), np.float32)
        self._labels = cupy.asarray(samples.labels)
        self._batch = cupy.empty((batch_max, samples.inputs), np.float32)
        feed = CopyingFeed(samples, min(count, FILL_ROWS))
        for begin in range(0, count, FILL_ROWS):
            rows = np.arange(begin, min(begin + FILL_ROWS, count))
            self._values[begin : begin + len(rows)] = feed.take(rows)[0]

    def take(self, rows: Indices) -> tuple[Any, Any]:
        """Return inputs and labels of these samples."""
        there = cupy.asarray(rows)
        batch = self._batch[: len(rows)]
        cupy.take(self._values, there, axis=0, out=batch)
        return batch, self._labels[there]


class _Stage:
    """Room for one mini-batch, here and there."""

    def __init__(self, rows: int, inputs: int) -> None:
        self._host: NDArray[np.float32] = pinned_empty(rows * inputs, np.float32).reshape(rows, inputs)
        self._device = cupy.empty((rows, inputs), np.float32)
        self._copied = cupy.cuda.Event(disable_timing=True)

    def copy(self, samples: Samples, rows: Indices) -> tuple[Any, Any]:
        self._copied.synchronize()
        here, there = self._host[: len(rows)], self._device[: len(rows)]
        samples.fill(rows, here)
        stream = cupy.cuda.get_current_stream()
        there.set(here, stream=stream)
        self._copied.record(stream)
        return there, cupy.asarray(samples.labels[rows])
