from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.observe.compression import (
    COUNTS,
    FRAME_BITS,
    RECENT_STEPS,
    OwnCompression,
    Tally,
    describe_sums,
)
from p2psgd.observe.status import BITS
from p2psgd.wire import codec
from p2psgd.wire.update import OwnUpdateMade

TENSORS = (("hidden", (40, 100)), ("bias", (1,)), ("output", (999,)))
WEIGHTS = 5000


def begun() -> OwnCompression:
    own = OwnCompression()
    own.begin(TENSORS)
    return own


def words_of(*indices: int) -> NDArray[np.uint32]:
    return np.array([index << 1 for index in indices], dtype=np.uint32)


def count(own: OwnCompression, steps: int, *indices: int, step: int = 7) -> int:
    """Count one update; returns the bits of its frame."""
    words = words_of(*indices)
    payload = codec.encode(words, WEIGHTS)
    own.count(OwnUpdateMade(steps, step, payload, words))
    return FRAME_BITS + 8 * len(payload)


def test_before_the_run_is_known_there_is_nothing_to_tell() -> None:
    assert OwnCompression().describe() is None


def test_in_short_only_the_totals_are_told() -> None:
    own = begun()
    for steps in (1, 2, 3):
        count(own, steps, 0, 4000)
    short, whole = own.describe(tensors_max=0), own.describe()
    assert short is not None
    assert whole is not None
    assert (short.total, short.recent, short.tensors) == (whole.total, whole.recent, ())
    assert whole.total.updates == 3
    assert [row.indices for row in whole.tensors] == [3, 3, 0]


def test_mini_batches_of_former_lives_are_not_counted() -> None:
    own = OwnCompression()
    own.begin(TENSORS, steps=40)
    count(own, 43, 0)
    assert own.total().sums["steps"] == 3


def test_indices_are_counted_for_the_tensor_they_lie_in() -> None:
    own = begun()
    count(own, 1, 0, 3999, 4000, 4001, 4999)
    count(own, 2, 17, 4000)
    assert own.total().tensor_indices.tolist() == [3, 2, 2]
    assert own.total().sums["indices"] == 7


def test_the_step_of_a_tensor_is_that_of_the_last_update_that_touched_it() -> None:
    own = begun()
    count(own, 1, 0, 4000, step=5)
    count(own, 1, 1, step=9)
    assert own.total().tensor_thresholds.tolist() == [9, 5, 0]
    for steps in range(2, 3 * RECENT_STEPS):
        count(own, steps, 4500, step=11)
    assert own.total().tensor_thresholds.tolist() == [9, 5, 11]
    assert own.recent().tensor_thresholds.tolist() == [0, 0, 11]


def test_bits_add_up_to_those_of_the_frames() -> None:
    own = begun()
    random = np.random.default_rng(1)
    bits = 0
    for steps in range(1, 30):
        size = int(random.integers(1, 1000))
        bits += count(own, steps, *sorted(random.choice(WEIGHTS, size, replace=False)))
    total = own.total().sums
    assert sum(total[name] for name in BITS) == bits
    assert total["updates"] == 29
    assert total["blocks"] > 29
    assert total["header"] == 29 * FRAME_BITS + 8 * total["blocks"]


def test_a_dense_update_is_counted_as_one() -> None:
    own = begun()
    random = np.random.default_rng(1)
    indices = np.flatnonzero(random.random(WEIGHTS) < 0.6)
    words = (indices << 1 | random.integers(0, 2, len(indices))).astype(np.uint32)
    payload = codec.encode(words, WEIGHTS)
    own.count(OwnUpdateMade(1, 7, payload, words))
    bits = FRAME_BITS + 8 * len(payload)
    total = describe_sums(own.total().sums, WEIGHTS)
    assert (total.dense_updates, total.blocks, total.bits.total) == (1, 0, bits)
    assert total.bits.dense > 0


def test_mini_batches_are_counted_once_however_many_updates_they_make() -> None:
    own = begun()
    for steps in (1, 1, 2, 5, 5):  # 3 and 4 changed no weight by a step
        count(own, steps, 3)
    total = own.total().sums
    assert (total["steps"], total["updates"]) == (5, 5)


def test_recent_updates_are_those_of_the_last_100_to_200_mini_batches() -> None:
    own = begun()
    for made in range(1, 5 * RECENT_STEPS):
        count(own, made, 3)
        total, recent = own.total().sums, own.recent().sums
        assert total["updates"] == total["steps"] == made
        assert min(made, RECENT_STEPS) <= recent["updates"] <= 2 * RECENT_STEPS
        assert recent["steps"] == recent["updates"]


def test_the_updates_of_a_mini_batch_are_recent_together() -> None:
    own = begun()
    for steps in range(1, 3 * RECENT_STEPS):
        for index in (1, 2, 3):
            count(own, 2 * steps, index)
        recent = own.recent().sums
        assert recent["updates"] % 3 == 0
        assert 3 * min(steps, RECENT_STEPS) <= recent["updates"] <= 6 * RECENT_STEPS
        assert recent["steps"] == 2 * recent["updates"] // 3  # every other one made none


def test_tallies_add_up_in_every_figure() -> None:
    one, two = (Tally.empty(3) for _ in range(2))
    for place, name in enumerate((*COUNTS, *BITS)):
        one.sums[name], two.sums[name] = place, 100 * place
    one.add(two)
    assert one.sums == {name: 101 * place for place, name in enumerate((*COUNTS, *BITS))}
    told = describe_sums(one.sums, 10)
    assert {name: getattr(told, name) for name in COUNTS} | told.bits.by_name() == one.sums
