"""What the kernels' Python face refuses before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gpu.backends import Backend

WEIGHTS = 8


def attempt(gpu: Backend, **changed: Any) -> None:
    """A pass over eight weights with some of its arguments changed."""
    kernels = gpu.load("kernels").Kernels()
    zeros = gpu.cupy.zeros
    given: dict[str, Any] = {
        "source": zeros(WEIGHTS, np.float32),
        "delta": zeros(WEIGHTS, np.float32),
        "target": zeros(WEIGHTS, np.float32),
        "words": zeros(WEIGHTS, np.uint32),
        "first": 0,
        "threshold": 1.0,
        "ranges": ((0, WEIGHTS),),
        "room": WEIGHTS,
    } | changed
    group = gpu.load("pass_state").PassGroup(given["threshold"], given["ranges"], given["room"])
    kernels.residual_pass(
        *(given[name] for name in ("source", "delta", "target", "words")),
        kernels.make_state(WEIGHTS, 2),
        [group],
        first=given["first"],
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"threshold": 0.0}, "threshold 0.0 must be positive and finite"),
        ({"threshold": -1.0}, "threshold -1.0 must be positive and finite"),
        ({"threshold": float("nan")}, "threshold nan must be positive and finite"),
        ({"threshold": float("inf")}, "threshold inf must be positive and finite"),
        ({"threshold": 0.1}, "threshold 0.1 is not exact in float32"),
        ({"threshold": 1e300}, "not exact in float32"),
        ({"room": -1}, "a room of -1 words is negative"),
        ({"room": 9}, "the groups have room for 9 words and words for 8"),
        ({"ranges": ()}, "a pass over 0 ranges, allowed are 1 to 2"),
        ({"ranges": ((0, 1), (1, 2), (2, 3))}, "a pass over 3 ranges, allowed are 1 to 2"),
        ({"ranges": ((3, 3),)}, "weights 3 to 3 are no range of 8 weights"),
        ({"ranges": ((-1, 3),)}, "weights -1 to 3 are no range"),
        ({"ranges": ((0, 9),)}, "weights 0 to 9 are no range of 8 weights"),
        ({"first": 2**31 - 7}, r"8 weights from 2147483641 on do not all lie below 2\*\*31"),
        ({"first": -1}, "8 weights from -1 on do not all lie"),
    ],
)
def test_numbers_that_will_not_do(gpu: Backend, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        attempt(gpu, **changed)


def test_arrays_that_will_not_do(gpu: Backend) -> None:
    zeros = gpu.cupy.zeros
    for changed, kind, sentence in (
        ({"delta": zeros(7, np.float32)}, ValueError, "source has 8 weights and delta 7"),
        ({"target": zeros(9, np.float32)}, ValueError, "source has 8 weights and target 9"),
        ({"source": zeros(6, np.float32)}, ValueError, "source has 6 weights and delta 8"),
        (
            {"delta": zeros(8, np.float64)},
            TypeError,
            "delta must be of float32, float16, bfloat16; it is of float64",
        ),
        ({"delta": np.zeros(8, np.float32)}, TypeError, "delta must be a CuPy array; it is of ndarray"),
        ({"words": zeros(8, np.int32)}, TypeError, "words must be of uint32; it is of int32"),
        ({"target": zeros(16, np.float32)[::2]}, ValueError, "target must be one-dimensional and contiguous"),
        ({"source": zeros((2, 4), np.float32)}, ValueError, "source must be one-dimensional"),
    ):
        with pytest.raises(kind, match=sentence):
            attempt(gpu, **changed)


def test_results_are_read_once_and_before_the_next_pass(gpu: Backend) -> None:
    kernels = gpu.load("kernels").Kernels()
    state = kernels.make_state(WEIGHTS, 1)
    arrays = [gpu.cupy.zeros(WEIGHTS, dtype) for dtype in (np.float32, np.float32, np.float32, np.uint32)]
    groups = [gpu.load("pass_state").PassGroup(1.0, ((0, WEIGHTS),), WEIGHTS)]
    with pytest.raises(ValueError, match="there is no pass whose results"):
        state.read()
    kernels.residual_pass(*arrays, state, groups)
    with pytest.raises(ValueError, match="results of the pass before this one have not been read"):
        kernels.residual_pass(*arrays, state, groups)
    assert state.read().counts == ((0,),)
    with pytest.raises(ValueError, match="there is no pass whose results"):
        state.read()


def test_a_pass_that_was_refused_leaves_nothing_to_the_next_one(gpu: Backend) -> None:
    kernels, group = gpu.load("kernels").Kernels(), gpu.load("pass_state").PassGroup
    state = kernels.make_state(2 * WEIGHTS, 2)
    zeros = gpu.cupy.zeros
    arrays = [gpu.cupy.full(WEIGHTS, 2.0, np.float32), *(zeros(WEIGHTS, np.float32) for _ in range(2))]
    words, good = zeros(WEIGHTS, np.uint32), [group(1.0, ((0, WEIGHTS),), WEIGHTS)]
    for refused, sentence in (
        ([group(1.0, ((0, 2), (2, WEIGHTS + 1)), WEIGHTS)], "the ranges end at weight 9 and there are 8"),
        ([group(4.0, ((0, 2), (3, 4)), WEIGHTS + 1)], "room for 9 words and words for 8"),
    ):
        kernels.residual_pass(*arrays, words, state, good)
        assert state.read().counts == ((WEIGHTS,),)
        with pytest.raises(ValueError, match=sentence):
            kernels.residual_pass(*arrays, words, state, refused)
    kernels.residual_pass(*arrays, words, state, good)
    assert state.read().counts == ((WEIGHTS,),)
