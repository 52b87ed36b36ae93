"""Links in dense rings of real control servers, whose sums are made by numpy (tests/ipc/rings.py)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.ipc.daemons import Daemon

INITIAL: dict[str, NDArray[np.float32]] = {
    "weight": np.full((20, 30), 0.1, np.float32),
    "bias": np.zeros(30, np.float32),
    "scale": np.array(2, np.float32),
}
WEIGHTS = 631
Vector = NDArray[np.float32]


def follow(daemon: Daemon, payload: str = "dense") -> Link:
    return attach(INITIAL, mode="ring", payload=payload, control=daemon.path)


def both(work: Callable[[Link, int], object], links: tuple[Link, Link]) -> None:
    """Do the same with both links at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, links, (0, 1)))


def random_delta(seed: int, size: int = WEIGHTS) -> Vector:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)
