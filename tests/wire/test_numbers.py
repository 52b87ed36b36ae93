"""Adding numbers that come in a frame: the sums of numpy, and their checksum."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.wire import codec
from tests.wire.guarded import guarded, guarded_bytes

COUNTS = [0, 1, 3, 7, 8, 2047, 2048, 2049, 5000]  # 2,048 are a block


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_sums_and_their_checksum_are_those_of_separate_passes(count: int, offset: int) -> None:
    chance = np.random.default_rng(count)
    came = chance.standard_normal(count).astype(np.float32)
    own, sums = guarded(count, np.float32), guarded(count, np.float32)
    own[:] = chance.standard_normal(count) * 2.0 ** chance.integers(-30, 30, count)
    incoming = guarded_bytes(bytes(offset) + came.tobytes())[offset:]
    check = codec.add_numbers(incoming, own, sums)
    assert np.array_equal(sums, came + own)
    assert check == codec.crc32c(sums.tobytes())


def test_the_own_numbers_may_lie_where_the_sums_go() -> None:
    own = np.arange(5000, dtype=np.float32)
    came = np.full(5000, 0.5, np.float32)
    codec.add_numbers(came.tobytes(), own, own)
    assert np.array_equal(own, np.arange(5000) + 0.5)
    codec.add_numbers(own.data.cast("B"), came, own)
    assert np.array_equal(own, np.arange(5000) + 1)


@pytest.mark.parametrize("sizes", [(16, 3, 4), (16, 4, 3), (15, 4, 4), (20, 4, 4)])
def test_different_counts_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="equally many numbers"):
        codec.add_numbers(bytes(sizes[0]), np.zeros(sizes[1], np.float32), np.zeros(sizes[2], np.float32))


def test_other_arrays_and_sums_that_cannot_be_written_are_refused() -> None:
    numbers, frozen = np.zeros(4, np.float32), np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="own must be of float32"):
        codec.add_numbers(bytes(16), numbers.view(np.int32), numbers)
    with pytest.raises(ValueError, match="sums must be writable"):
        codec.add_numbers(bytes(16), numbers, frozen)
