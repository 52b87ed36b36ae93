"""Define what a comparison consists of: a task, the ways to train it, and the cases that are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Setting = Mapping[str, Any]  # what a way is tuned by, `rate` and its own
Evaluate = Callable[[NDArray[np.float32]], float]  # held-out loss of flat weights

HOSTS: Final = 4
SLOWED: Final = 0.25  # of its share of the processors
FAULTY: Final = HOSTS - 1  # the host that is slowed or killed; DDP's and hivemind's meeting point is host 0
KILL_AFTER_S: Final = 8.0
LAN_MBIT: Final = 100
DELAY_MS: Final = 50  # from host to host, so a round trip takes twice as long


class Training(Protocol):
    """A task as each host has it: the model with its initial weights, and the samples."""

    model: Any
    rows: int

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """Return PyTorch's optimizer; the rate is set before each step."""

    def loss(self, net: Callable[..., Any], rows: NDArray[np.int64]) -> Any:
        """Return the mean loss of a mini-batch of these rows; `net` is the model, or what wraps it."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A way to train. `module` is run on each host; the search picks the best of `settings` on links of
    `search_mbit`, and among those that are as good the first is taken. 0: links without a rate limit, enough
    where only the learning rate is searched and the links change nothing else.
    """

    name: str
    label: str
    module: str
    settings: tuple[Setting, ...]
    options: Mapping[str, Any]
    search_mbit: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A run. `fault`: "", "slow" or "killed", which is host FAULTY, or "delayed", which are all links;
    `mbit` 0: links are as fast as this machine.
    """

    way: Way
    mbit: int
    seed: int = 1
    fault: str = ""
    limit_s: float = 180.0

    @property
    def name(self) -> str:
        return f"{self.way.name} {self.mbit} {self.fault or 'all'} {self.seed}"

    @property
    def delay_ms(self) -> int:
        return DELAY_MS if self.fault == "delayed" else 0

    def is_faulty(self, host: int) -> bool:
        """Return whether the fault is that host's."""
        return self.fault in ("slow", "killed") and host == FAULTY


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A training that all ways make, until the held-out loss is `target`. Samples are those of all hosts.

    The rate rises from a tenth over `warm_up` samples and then stays, so that nothing depends on the length
    of a run. `clip`: the norm that a step's gradient is clipped to, None if it is not. `wanted_ratio`: how
    many times as long as p2psgd DDP was wanted to take at LAN_MBIT. `stem` names the files of its figures.
    """

    name: str
    training: Callable[[int], Training]  # of a seed
    evaluation: Callable[[], Evaluate]
    batch: int  # of a host
    clip: float | None
    warm_up: int
    target: float
    snapshot_every_s: float
    search_s: float
    ways: Mapping[str, Way]
    cases: tuple[Case, ...]
    wanted_ratio: float | None
    stem: str

    @property
    def data(self) -> Path:
        return Path(f"docs/explanation/{self.stem}.json")

    def rate(self, full: float, samples: int) -> float:
        """Return the learning rate when all hosts together have used so many samples."""
        return full * min(1.0, 0.1 + 0.9 * samples / self.warm_up)
