from __future__ import annotations

import numpy as np
import pytest

from p2psgd.wire.update import weights_of

COORDINATES = np.array([0, 1, -(2**24), 2**24, 2**31 - 1, -(2**31)], np.int32)


def test_multiples_of_the_quantum_are_exact() -> None:
    for mode in ("async", "ring-sparse"):
        weights = weights_of(COORDINATES[:4], mode=mode, quantum_log2=-20)
        assert weights.dtype == np.float32
        assert weights.tolist() == [0.0, 2.0**-20, -16.0, 16.0]


def test_of_a_dense_ring_they_are_the_same_memory() -> None:
    for mode in ("ring-dense", "ring-dense-float16"):
        weights = weights_of(COORDINATES, mode=mode, quantum_log2=-20)
        assert np.shares_memory(weights, COORDINATES)
        assert weights.tobytes() == COORDINATES.tobytes()


def test_a_mode_must_be_known() -> None:
    with pytest.raises(ValueError, match="mode 'dense' is not known"):
        weights_of(COORDINATES, mode="dense", quantum_log2=0)
