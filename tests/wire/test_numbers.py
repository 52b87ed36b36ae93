"""Numbers that come in a frame, added or copied, and weights made of their sums: what numpy makes, and the
checksums and digests of separate passes.
"""

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
    checks = codec.add_numbers(incoming, own, sums)
    assert np.array_equal(sums, came + own)
    assert checks == (codec.crc32c(incoming), codec.crc32c(sums.tobytes()), True)
    assert codec.check_numbers(own) == (codec.crc32c(own.tobytes()), True)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_copy_and_its_checksum_are_those_of_separate_passes(count: int, offset: int) -> None:
    came = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    numbers = guarded(count, np.float32)
    incoming = guarded_bytes(bytes(offset) + came.tobytes())[offset:]
    assert codec.copy_numbers(incoming, numbers) == codec.crc32c(came.tobytes())
    assert np.array_equal(numbers, came)


@pytest.mark.parametrize("count", COUNTS)
def test_new_weights_and_both_digests_are_those_of_separate_passes(count: int) -> None:
    chance = np.random.default_rng(count)
    old, sums, new = guarded(count, np.int32), guarded(count, np.float32), guarded(count, np.int32)
    old.view(np.float32)[:] = chance.standard_normal(count)
    sums[:] = chance.standard_normal(count) * 2.0 ** chance.integers(-30, 30, count)
    third = np.float32(1 / 3)
    digests = codec.move_weights(old, sums, float(third), new, key=99, start=12)
    assert np.array_equal(new.view(np.float32), old.view(np.float32) + sums * third)
    assert digests == (codec.digest_coordinates(old, 99, 12), codec.digest_coordinates(new, 99, 12))


def test_weights_that_overflow_are_infinite_or_not_a_number() -> None:
    most = np.float32(3e38)
    old = np.array([most, -most, most], np.float32)
    sums = np.array([most, -most, np.inf], np.float32)
    new = np.zeros(3, np.int32)
    codec.move_weights(old.view(np.int32), sums, 1.0, new, key=1)
    assert new.view(np.float32).tolist() == [np.inf, -np.inf, np.inf]


def test_new_weights_beside_the_old_ones_of_other_sizes_or_places_are_refused() -> None:
    old, sums, new = np.zeros(4, np.int32), np.zeros(4, np.float32), np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="equally many weights"):
        codec.move_weights(old, sums[1:], 1.0, new, key=1)
    with pytest.raises(ValueError, match="equally many weights"):
        codec.move_weights(old, sums, 1.0, new[1:], key=1)
    with pytest.raises(ValueError, match="next overlaps old"):
        codec.move_weights(old, sums, 1.0, old, key=1)
    with pytest.raises(ValueError, match="next overlaps sums"):
        codec.move_weights(old, sums, 1.0, sums.view(np.int32), key=1)
    with pytest.raises(ValueError, match="the factor is not exact in float32"):
        codec.move_weights(old, sums, 1 / 3, new, key=1)
    with pytest.raises(ValueError, match="do not all lie below"):
        codec.move_weights(old, sums, 1.0, new, key=1, start=2**31 - 3)


def test_a_copy_of_another_size_or_onto_itself_is_refused() -> None:
    numbers = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="equally many numbers"):
        codec.copy_numbers(bytes(15), numbers)
    with pytest.raises(ValueError, match="incoming overlaps numbers"):
        codec.copy_numbers(numbers.data.cast("B"), numbers)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 2047, 2048, 4999])
def test_own_numbers_that_are_not_finite_are_found_wherever_they_are(bad: float, place: int) -> None:
    own, sums = np.full(5000, np.finfo(np.float32).max, np.float32), np.zeros(5000, np.float32)
    incoming = np.full(5000, np.inf, np.float32).tobytes()
    assert codec.add_numbers(incoming, own, sums)[2]  # what came is another node's business
    assert codec.check_numbers(own)[1]
    own[place] = bad
    assert not codec.add_numbers(incoming, own, sums)[2]
    assert not codec.check_numbers(own)[1]


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
