"""Benches on a CUDA device, `make bench-gpu`: ratios to its copy bandwidth and to other ways to do the same.

A bench is a module here with `run(gpu, *, large) -> list[Figure]`. Small sizes run in the suite, where the
host stands in for a device: that shows that all runs, and the figures then mean nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, Final

from tests.gpu.backends import Backend

BENCHES: Final = ("residual", "apply", "step")

_FLUSHED: Final = 2**27  # float32 numbers: several times any device's cache, and some 100 us to write


class Clock:
    """Times work on the current stream by events, with the caches full of something else.

    What is written before keeps the device busy while the work is ordered: no launch is waited for.
    """

    def __init__(self, gpu: Backend, *, large: bool) -> None:
        self._cuda = gpu.cupy.cuda
        self._other = gpu.cupy.zeros(_FLUSHED if large else 1000, "float32")
        self._repeats = 30 if large else 2

    def microseconds(self, work: Callable[[], object], after: Callable[[], object] = lambda: None) -> float:
        """The median; `after` each time, unmeasured."""
        work()  # compiles, allocates
        after()
        times: list[float] = []
        for number in range(self._repeats):
            begin, end = self._cuda.Event(), self._cuda.Event()
            self._other.fill(number)
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(1e3 * float(self._cuda.get_elapsed_time(begin, end)))
            after()
        return statistics.median(times)


def torch_on_device(gpu: Backend) -> Any:
    """PyTorch, if it is there and sees the device."""
    if gpu.name != "device":
        return None
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None
