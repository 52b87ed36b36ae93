"""Samples in memory."""

import numpy as np

from p2psgd.recipes.datasets import ArraySamples


def test_rows_come_out_in_the_order_asked_for() -> None:
    samples = ArraySamples(np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 2, 3], np.int32))
    batch = np.empty((3, 3), np.float32)
    samples.fill(np.array([3, 0, 3]), batch)
    assert batch.tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
    assert samples.inputs == 3
