"""What a received update costs: decode and apply, warm and cold, its digest and its checksum."""

from __future__ import annotations

import time

import numpy as np

from p2psgd.wire import codec
from tests.bench import Figure, best_seconds, checksum
from tests.bench.codec import WEIGHTS_PER_INDEX, uniform_words

STEP = 32
UPDATES = 64


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, updates of 17,176 indices."""
    count = 17_176 if large else 500
    weights = count * WEIGHTS_PER_INDEX
    chance = np.random.default_rng(64)
    updates = [uniform_words(chance, weights=weights, count=count) for _ in range(UPDATES if large else 4)]
    payloads = [codec.encode(words, weights) for words in updates]
    coordinates = np.full(
        weights, 5, np.int32
    )  # full, not zeros: every page is there before the clock starts
    evict = np.zeros(
        24_000_000 if large else 1_000, np.int32
    )  # 96 MB: more than the last cache of most machines

    def receive(payload: bytes) -> None:
        codec.apply_coordinates(coordinates, codec.decode(payload, count, weights), STEP)

    def receive_all() -> None:
        for payload in payloads:
            receive(payload)

    cold = []
    for payload in payloads[: 10 if large else 2]:
        evict += 1
        begin = time.perf_counter()
        receive(payload)
        cold.append(time.perf_counter() - begin)
    rounds = 30 if large else 2
    best = best_seconds(
        {"warm": lambda: receive(payloads[0])}, rounds=rounds
    )  # apart: the others would cool it
    best |= best_seconds(
        {
            "all": receive_all,
            "decode": lambda: codec.decode(payloads[0], count, weights),
            "digest": lambda: codec.digest_words(updates[0], STEP, 1),
            "checksum": lambda: codec.crc32c(payloads[0]),
        },
        rounds=rounds,
    )
    per_index = 1e9 / count
    result = checksum(coordinates.tobytes())
    return [
        Figure("decode + apply, warm", best["warm"] * per_index, "ns per index", f"target 7; {result}"),
        Figure("decode + apply, cold", float(np.median(cold)) * per_index, "ns per index", "target 16"),
        Figure(
            "decode + apply, many updates in turn",
            best["all"] / len(payloads) * per_index,
            "ns per index",
            f"{len(payloads)} updates; target: no slower than one, cold",
        ),
        Figure("of it decode", best["decode"] * per_index, "ns per index", "warm"),
        Figure(
            "digest",
            best["digest"] * per_index,
            "ns per index",
            f"{best['digest'] / best['warm']:.2f} of warm",
        ),
        Figure("checksum", len(payloads[0]) / best["checksum"] / 1e9, "GB/s", "portable path"),
    ]
