"""The updates by which a first node gives its weights to a run."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.first_weights import FIRST_MAX, START, common_start, digits
from p2psgd.ipc.layout import send_indices_max
from p2psgd.ipc.run_proposal import BEGUN
from p2psgd.wire import codec

WEIGHTS = 300_000
NEAR_MAX = 2**23  # as far from zero as a run may begin


@pytest.mark.parametrize("first", [0, 17, FIRST_MAX, -NEAR_MAX])
@pytest.mark.parametrize("given_before", [0, 1, 7, 26])
def test_the_first_weight_leaves_its_place_last_and_all_end_where_they_should(
    first: int, given_before: int
) -> None:
    random = np.random.default_rng(1)
    wanted = random.integers(-NEAR_MAX, NEAR_MAX, WEIGHTS, dtype=np.int32, endpoint=True)
    wanted[0] = first
    present = np.zeros(WEIGHTS, np.int32)
    present[0] = START
    for _ in range(2):  # by a node that is killed, then by one that has other weights and goes on
        for number, updates in enumerate(digits(wanted, present), 1):
            assert present[0] == START, "it comes last, and at once"
            for magnitude, words in updates:
                assert 1 <= magnitude <= codec.MAGNITUDE_MAX
                assert 1 <= len(words) <= send_indices_max(WEIGHTS)
                indices = words >> 1
                assert (np.diff(indices.astype(np.int64)) > 0).all()
                if 0 in indices:
                    np.testing.assert_array_equal(present[1:], wanted[1:], "others are given before")
                present[indices] += np.where(words & 1, -magnitude, magnitude).astype(np.int32)
            if number == given_before:
                break
        else:
            break
        assert present[0] == START, "not whole"
        given_before = 0
        wanted[1:] //= 2
    assert present[0] == first < BEGUN < START


def test_all_nodes_bring_the_same_start_which_no_model_of_zeros_has() -> None:
    start = common_start({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}, 2.0**-24)
    assert start["a"].tolist() == [[START * 2.0**-24, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert not start["b"].any()
    transposed = common_start({"a": np.ones((2, 3), np.float32).T}, 2.0**-24)["a"]
    assert transposed[0, 0] == START * 2.0**-24
    with pytest.raises(TrainerError, match=r"quantum 0\.3 is not a power of two"):
        common_start({"a": np.ones(3, np.float32)}, 0.3)
