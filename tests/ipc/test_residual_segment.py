"""What the daemon keeps between trainers: a residual in which nothing is NaN or infinite."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.ipc import layout, residual_segment
from p2psgd.ipc.residual_segment import ResidualSegment
from p2psgd.ipc.segments import Access, map_segment
from tests.ipc.daemons import WEIGHTS, ZEROS

BAD = [0, 1, 1500, WEIGHTS - 1]
VALUES = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
GOOD = np.linspace(-1, 1, WEIGHTS, dtype=np.float32)


@pytest.fixture(params=[7, 1000, WEIGHTS, 1 << 18])
def slice_weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many weights are looked through at a time."""
    weights: int = request.param
    monkeypatch.setattr(residual_segment, "CHECKED_WEIGHTS", weights)
    return weights


@pytest.fixture
def segment() -> Iterator[ResidualSegment]:
    segment = ResidualSegment(WEIGHTS)
    yield segment
    segment.close()


def check(segment: ResidualSegment) -> int:
    """Look through all of it; how many slices that took."""
    slices = 1
    while not segment.check():
        slices += 1
    return slices


def spoilt() -> NDArray[np.float32]:
    residual = GOOD.copy()
    residual[BAD] = VALUES
    return residual


def mended() -> NDArray[np.float32]:
    residual = GOOD.copy()
    residual[BAD] = 0
    return residual


def serve_trainer(segment: ResidualSegment, leaves: NDArray[np.float32]) -> NDArray[np.float32]:
    """A trainer that publishes nothing, and scribbles this into its residual; what it found there."""
    check(segment)
    descriptor, half = segment.hand_over()
    assert half == 0
    parts = map_segment(descriptor, np.float32, layout.RESIDUAL_PARTS * WEIGHTS, Access.WRITE)
    found = parts[:WEIGHTS].copy()
    parts[:WEIGHTS] = leaves
    segment.take_back(half=0, age=0)
    return found


def test_what_a_trainer_left_is_looked_through_slice_by_slice_and_what_is_not_finite_gets_zero(
    segment: ResidualSegment, slice_weights: int
) -> None:
    np.testing.assert_array_equal(serve_trainer(segment, spoilt()), ZEROS)
    assert check(segment) == -(-WEIGHTS // slice_weights)
    assert segment.unfinite == len(BAD)
    segment.unfinite = 0
    np.testing.assert_array_equal(serve_trainer(segment, spoilt()), mended())
    check(segment)
    assert segment.unfinite == len(BAD)


def test_a_finite_residual_is_handed_on_as_it_is(segment: ResidualSegment) -> None:
    serve_trainer(segment, GOOD)
    np.testing.assert_array_equal(serve_trainer(segment, GOOD), GOOD)
    assert segment.unfinite == 0


def test_what_was_lent_stays_as_it_was_although_the_next_trainer_gets_zeros(
    segment: ResidualSegment, slice_weights: int
) -> None:
    serve_trainer(segment, spoilt())
    assert segment.check() == (slice_weights >= WEIGHTS)
    lent = segment.lend()
    assert lent is not None
    before = lent.tobytes()
    np.testing.assert_array_equal(serve_trainer(segment, ZEROS), mended())
    assert lent.tobytes() == before


def test_a_restored_residual_is_looked_through_as_well(slice_weights: int) -> None:
    given = spoilt()
    segment = ResidualSegment(WEIGHTS, residual=given)
    try:
        assert check(segment) == -(-WEIGHTS // slice_weights)
        assert segment.unfinite == len(BAD)
        np.testing.assert_array_equal(serve_trainer(segment, ZEROS), mended())
        assert given.tobytes() == spoilt().tobytes()
    finally:
        segment.close()


@pytest.mark.parametrize("dense", [False, True])
def test_a_residual_that_nobody_has_written_takes_no_memory_by_being_looked_through(dense: bool) -> None:
    segment = ResidualSegment(WEIGHTS, dense=dense)
    try:
        for _ in range(2 if dense else 1):
            assert segment.check()
            assert os.fstat(segment.hand_over()[0]).st_blocks == 0
            segment.take_back(half=0, age=0)
    finally:
        segment.close()


@pytest.mark.parametrize("fails", ["create_segment", "map_segment"])
def test_a_copy_that_cannot_be_made_changes_nothing(
    segment: ResidualSegment, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """As when no descriptor is left."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left")

    serve_trainer(segment, spoilt())
    segment.lend()
    open_before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(residual_segment, fails, fail)
        with pytest.raises(OSError, match="no descriptor"):
            segment.check()
    assert len(os.listdir("/proc/self/fd")) <= open_before
    np.testing.assert_array_equal(serve_trainer(segment, ZEROS), mended())
