"""Measure what received updates cost: decode and apply, one and many, warm and cold, their digest and
checksum.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import Figure, best_seconds, checksum
from benchmarks.codec import WEIGHTS_PER_INDEX, uniform_words
from p2psgd.wire import codec
from p2psgd.wire.cpu_paths import cpu_path

STEP = 32
UPDATES = 64


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, updates of 17,176 indices."""
    count = 17_176 if large else 500
    weights = count * WEIGHTS_PER_INDEX
    chance = np.random.default_rng(64)
    updates = [uniform_words(chance, weights=weights, count=count) for _ in range(UPDATES if large else 4)]
    payloads = [codec.encode(words, weights) for words in updates]
    # Full, not zeros: every page is there before the clock starts.
    coordinates = np.full(weights, 5, np.int32)
    together = coordinates.copy()
    # 96 MB: more than the last cache of most machines.
    evict = np.zeros(24_000_000 if large else 1_000, np.int32)

    room = np.empty((len(payloads), count), np.uint32)

    def receive(payload: bytes) -> None:
        codec.apply_coordinates(coordinates, codec.decode_into(payload, room[0], weights), STEP)

    def receive_in_turn() -> None:
        for payload in payloads:
            receive(payload)

    def receive_together() -> None:
        decoded = [codec.decode_into(*pair, weights) for pair in zip(payloads, room, strict=True)]
        codec.apply_coordinates_together(together, [(words, STEP) for words in decoded])

    def cold(work: Callable[[], object]) -> float:
        np.add(evict, 1, out=evict)
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    receive_in_turn()
    receive_together()
    assert together.tobytes() == coordinates.tobytes()
    result = checksum(together.tobytes())
    rounds = 30 if large else 2
    # Apart: the others would cool it.
    best = best_seconds({"warm": lambda: receive(payloads[0])}, rounds=rounds)
    colds = [cold(lambda payload=payload: receive(payload)) for payload in payloads[:rounds]]  # type: ignore[misc]
    many = [(cold(receive_in_turn), cold(receive_together)) for _ in range(rounds // 2)]
    best |= best_seconds(
        {
            "decode": lambda: codec.decode(payloads[0], count, weights),
            "digest": lambda: codec.digest_words(updates[0], STEP, 1),
            "checksum": lambda: codec.crc32c(payloads[0]),
        },
        rounds=rounds,
    )
    one = 1e9 / count
    each = one / len(payloads)
    in_turn, at_once = (min(times) for times in zip(*many, strict=True))
    return [
        Figure("decode + apply, warm", best["warm"] * one, "ns per index", f"target 7; {result}"),
        Figure("decode + apply, cold", min(colds) * one, "ns per index", "target 16"),
        Figure("many in turn, cold", in_turn * each, "ns per index", f"{len(payloads)} updates"),
        Figure("many together, cold", at_once * each, "ns per index", f"{len(payloads)} updates"),
        Figure("one to many together, both cold", min(colds) * len(payloads) / at_once, "times", "target 1"),
        Figure("in turn to together", in_turn / at_once, "times", "both cold"),
        Figure("of it decode", best["decode"] * one, "ns per index", "warm"),
        Figure("digest", best["digest"] * one, "ns per index", "warm"),
        Figure("checksum", len(payloads[0]) / best["checksum"] / 1e9, "GB/s", f"{cpu_path()} path"),
    ]
