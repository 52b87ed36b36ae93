"""Payloads: bits per index against the bound log2 C(N, n) + n, and speed against copying the raw words."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.bench import Figure, best_seconds, checksum

WEIGHTS_PER_INDEX = 850  # [Strom 2015] table 3: what tau = 4 sends of 14.6 M weights


def uniform_words(chance: np.random.Generator, *, weights: int, count: int) -> NDArray[np.uint32]:
    """Every index as likely as any other."""
    return signed(chance, np.sort(chance.choice(weights, count, replace=False)))


def clustered_words(chance: np.random.Generator, *, weights: int, count: int) -> NDArray[np.uint32]:
    """Densities that differ by layer: 20 stretches with log-normal shares of the indices."""
    shares = chance.lognormal(0, 1, 20)
    edges = np.linspace(0, weights, 21).astype(np.int64)
    counts = np.minimum((shares / shares.sum() * count).astype(np.int64), np.diff(edges))
    parts = [
        np.sort(chance.choice(high - low, part, replace=False)) + low
        for low, high, part in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return signed(chance, np.concatenate(parts))


def signed(chance: np.random.Generator, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
    return (indices << 1 | chance.integers(0, 2, len(indices))).astype(np.uint32)


def bound_bits(weights: int, count: int) -> float:
    """(log2 C(weights, count) + count) / count: what any code needs for a uniform choice with signs."""
    choices = math.lgamma(weights + 1) - math.lgamma(count + 1) - math.lgamma(weights - count + 1)
    return choices / math.log(2) / count + 1


def figures_of(name: str, words: NDArray[np.uint32], *, weights: int, rounds: int) -> list[Figure]:
    payload = codec.encode(words, weights)
    assert (codec.decode(payload, len(words), weights) == words).all()
    raw = words.tobytes()
    seconds = best_seconds(
        {
            "encode": lambda: codec.encode(words, weights),
            "decode": lambda: codec.decode(payload, len(words), weights),
            "copy": lambda: np.frombuffer(raw, np.uint32).copy(),
        },
        rounds=rounds,
    )
    bits = 8 * len(payload) / len(words)
    bound = bound_bits(weights, len(words))
    speeds = [
        Figure(
            f"{name}: {way}",
            len(words) / seconds[way] / 1e6,
            "M indices/s",
            f"{seconds[way] / seconds['copy']:.1f} times a copy of the raw words",
        )
        for way in ("encode", "decode")
    ]
    return [
        Figure(f"{name}: bits per index with sign", bits, "bits", f"bound of a uniform choice {bound:.3f}"),
        Figure(f"{name}: bits over that bound", 100 * (bits / bound - 1), "%", checksum(payload)),
        *speeds,
    ]


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, 1/850 of them sent."""
    count = 17_176 if large else 1_000
    weights = count * WEIGHTS_PER_INDEX
    return [
        figure
        for name, make in (("uniform", uniform_words), ("clustered", clustered_words))
        for figure in figures_of(
            name,
            make(np.random.default_rng(4), weights=weights, count=count),
            weights=weights,
            rounds=400 if large else 3,
        )
    ]
