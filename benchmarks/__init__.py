"""Benches: figures as ratios to a limit or a peer measured in the same run; the machine is shared and noisy.

`python -m benchmarks [--large] [NAME...]` prints them; the small sizes run in the suite, so none can rot.
A bench is a module here with `run(*, large: bool) -> list[Figure]`, named in `BENCHES`; one of its notes
holds `checksum(...)` of what was computed, so that figures of wrong results stand out.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

BENCHES: Final = (
    "codec",
    "residual",
    "apply",
    "daemon",
    "idle",
    "tls",
    "floods",
    "step",
    "turns",
    "allreduce",
    "closure",
    "overlap",
    "ring_kill",
    "large_model",
)  # modules here, in the order of printing


@dataclass(frozen=True)
class Figure:
    """A measured number; `note` says what it is compared with, or how it was taken."""

    name: str
    value: float
    unit: str
    note: str = ""


def checksum(result: bytes | memoryview) -> str:
    """Return the checksum of a result, as a note shows it."""
    # Imported here: benches of others' programs run where there is no native core.
    codec = importlib.import_module("p2psgd.wire.codec")
    return f"result {codec.crc32c(result):08x}"


def best_seconds(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The shortest time of each, taken in turns, so that a slow moment of the machine hits all of them."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, work in contenders.items():
            begin = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best
