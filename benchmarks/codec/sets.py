"""Make the updates that the codec is measured on: updates drawn at random, and updates that a training really
sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.storage.update_wal import read_bodies, read_start
from p2psgd.wire import codec
from p2psgd.wire.update import parse_update

Words = NDArray[np.uint32]

WEIGHTS_PER_INDEX: Final = 850  # [Strom 2015] table 3: what tau = 4 sends of 14.6 M weights
TIMED_MAX: Final = 300  # updates of a file that are timed, evenly spread over the run: some MB in all


@dataclass(frozen=True)
class UpdateSet:
    """Updates of one kind for a replica of `weights` weights.

    `timed`: those that all contenders code; `updates`: all of them, whose size is compared with the bound.
    `real`: recorded from a training.
    """

    name: str
    weights: int
    updates: list[Words]
    timed: list[Words]
    real: bool = False


def uniform_words(chance: np.random.Generator, *, weights: int, count: int) -> Words:
    """Every index as likely as any other."""
    return signed(chance, np.sort(chance.choice(weights, count, replace=False)))


def clustered_words(chance: np.random.Generator, *, weights: int, count: int) -> Words:
    """Densities that differ by layer: 20 stretches with log-normal shares of the indices."""
    shares = chance.lognormal(0, 1, 20)
    edges = np.linspace(0, weights, 21).astype(np.int64)
    counts = np.minimum((shares / shares.sum() * count).astype(np.int64), np.diff(edges))
    parts = [
        np.sort(chance.choice(high - low, part, replace=False)) + low
        for low, high, part in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return signed(chance, np.concatenate(parts))


def signed(chance: np.random.Generator, indices: NDArray[np.int64]) -> Words:
    """Words of these indices with signs like coin flips."""
    return (indices << 1 | chance.integers(0, 2, len(indices))).astype(np.uint32)


def synthetic_sets(*, count: int, updates: int) -> list[UpdateSet]:
    """Uniform and clustered updates of about `count` indices each."""
    weights = count * WEIGHTS_PER_INDEX
    sets = []
    for name, make in (("uniform", uniform_words), ("clustered", clustered_words)):
        chance = np.random.default_rng(4)
        drawn = [make(chance, weights=weights, count=count) for _ in range(updates)]
        sets.append(UpdateSet(name, weights, drawn, drawn))
    return sets


def recorded_set(name: str, path: Path) -> UpdateSet:
    """The updates in a node's file of own updates; WalError or PeerError if it cannot be read to its end."""
    with path.open("rb") as file:
        coordinates, updates = read_start(file).coordinates, []
        for body in read_bodies(file, coordinates):
            header, payload = parse_update(body, coordinates)
            updates.append(codec.decode(payload, header.count, coordinates))
    return UpdateSet(name, coordinates, updates, spread(updates, TIMED_MAX), real=True)


def spread(updates: list[Words], count: int) -> list[Words]:
    """At most `count` of them, at even distances."""
    stride = -(-len(updates) // count)
    return updates[stride // 2 :: stride]
