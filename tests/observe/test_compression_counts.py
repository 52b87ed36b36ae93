from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.observe.compression import (
    FRAME_BITS,
    RECENT_MINI_BATCHES,
    OwnCompression,
    Tally,
)
from p2psgd.wire import codec

TENSORS = (("hidden", (40, 100)), ("bias", (1,)), ("output", (999,)))
WEIGHTS = 5000
ME, PEER = Origin(1, 1), Origin(2, 1)


def words_of(*indices: int) -> NDArray[np.uint32]:
    return np.array([index << 1 for index in indices], dtype=np.uint32)


def count(own: OwnCompression, mini_batch: int, *indices: int, step: int = 7) -> int:
    """Count one update; returns the bits of its frame."""
    words = words_of(*indices)
    payload = codec.encode(words, WEIGHTS)
    own.count(mini_batch=mini_batch, step=step, words=words, payload=payload)
    return FRAME_BITS + 8 * len(payload)


def test_indices_are_counted_for_the_tensor_they_lie_in() -> None:
    own = OwnCompression(TENSORS, ME)
    count(own, 1, 0, 3999, 4000, 4001, 4999)
    count(own, 2, 17, 4000)
    assert own.total().tensor_indices.tolist() == [3, 2, 2]
    assert own.total().indices == 7


def test_the_step_of_a_tensor_is_that_of_the_last_update_that_touched_it() -> None:
    own = OwnCompression(TENSORS, ME)
    count(own, 1, 0, 4000, step=5)
    count(own, 1, 1, step=9)
    assert own.total().tensor_steps.tolist() == [9, 5, 0]
    for mini_batch in range(2, 3 * RECENT_MINI_BATCHES):
        count(own, mini_batch, 4500, step=11)
    assert own.total().tensor_steps.tolist() == [9, 5, 11]
    assert own.recent().tensor_steps.tolist() == [0, 0, 11]


def test_bits_add_up_to_those_of_the_frames() -> None:
    own = OwnCompression(TENSORS, ME)
    random = np.random.default_rng(1)
    bits = 0
    for mini_batch in range(1, 30):
        size = int(random.integers(1, 1000))
        bits += count(own, mini_batch, *sorted(random.choice(WEIGHTS, size, replace=False)))
    total = own.total()
    assert total.bits == bits
    assert total.updates == 29
    assert total.blocks > 29
    assert total.header_bits == 29 * FRAME_BITS + 8 * total.blocks


def test_a_dense_update_is_counted_as_one() -> None:
    own = OwnCompression(TENSORS, ME)
    random = np.random.default_rng(1)
    indices = np.flatnonzero(random.random(WEIGHTS) < 0.6)
    words = (indices << 1 | random.integers(0, 2, len(indices))).astype(np.uint32)
    payload = codec.encode(words, WEIGHTS)
    own.count(mini_batch=1, step=7, words=words, payload=payload)
    bits = FRAME_BITS + 8 * len(payload)
    total = own.total()
    assert (total.dense_updates, total.blocks, total.bits) == (1, 0, bits)
    assert total.dense_bits > 0


def test_mini_batches_are_counted_once_however_many_updates_they_make() -> None:
    own = OwnCompression(TENSORS, ME)
    for mini_batch in (1, 1, 2, 5, 5):  # 3 and 4 changed no weight by a step
        count(own, mini_batch, 3)
    assert (own.total().mini_batches, own.total().updates) == (5, 5)


def test_recent_updates_are_those_of_the_last_100_to_200_mini_batches() -> None:
    own = OwnCompression(TENSORS, ME)
    for made in range(1, 5 * RECENT_MINI_BATCHES):
        count(own, made, 3)
        assert own.total().updates == own.total().mini_batches == made
        assert min(made, RECENT_MINI_BATCHES) <= own.recent().updates <= 2 * RECENT_MINI_BATCHES
        assert own.recent().mini_batches == own.recent().updates


def test_the_updates_of_a_mini_batch_are_recent_together() -> None:
    own = OwnCompression(TENSORS, ME)
    for mini_batch in range(1, 3 * RECENT_MINI_BATCHES):
        for index in (1, 2, 3):
            count(own, 2 * mini_batch, index)
        recent = own.recent()
        assert recent.updates % 3 == 0
        assert 3 * min(mini_batch, RECENT_MINI_BATCHES) <= recent.updates <= 6 * RECENT_MINI_BATCHES
        assert recent.mini_batches == 2 * recent.updates // 3  # every other one made none


def test_tallies_add_up_in_every_figure() -> None:
    one, two = (Tally.empty(3) for _ in range(2))
    for place, name in enumerate(Tally.__slots__):
        if not name.startswith("tensor"):
            setattr(one, name, place)
            setattr(two, name, 100 * place)
    one.add(two)
    for place, name in enumerate(Tally.__slots__):
        if not name.startswith("tensor"):
            assert getattr(one, name) == 101 * place, name
