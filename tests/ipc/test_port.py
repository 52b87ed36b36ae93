"""What the daemon keeps between trainers: a residual in which nothing is NaN or infinite."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.ipc import attachment, layout
from p2psgd.ipc import trainer_session as port_module
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.trainer_session import TrainerPort
from p2psgd.wire.mode import ASYNC, Mode, parse_mode
from tests.ipc.daemons import WEIGHTS, ZEROS

BAD = [0, 1, 1500, WEIGHTS - 1]
VALUES = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
GOOD = np.linspace(-1, 1, WEIGHTS, dtype=np.float32)


@pytest.fixture(params=[7, 1000, WEIGHTS, 1 << 18])
def slice_weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many weights are looked through at a time."""
    weights: int = request.param
    for module in (attachment, port_module):
        monkeypatch.setattr(module, "CHECKED_WEIGHTS", weights)
    return weights


@pytest.fixture
def port() -> Iterator[TrainerPort]:
    port = TrainerPort(WEIGHTS)
    yield port
    port.close()


def check(port: TrainerPort) -> int:
    """Look through all of it; how many slices that took."""
    slices = 1
    while not port.check_residual():
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


def serve_trainer(port: TrainerPort, leaves: NDArray[np.float32]) -> NDArray[np.float32]:
    """A trainer that publishes nothing, and scribbles this into its residual; what it found there."""
    check(port)
    with port.attach() as (residual, *_):
        parts = map_segment(residual, np.float32, layout.RESIDUAL_PARTS * WEIGHTS, Access.WRITE)
    found = parts[:WEIGHTS].copy()
    parts[:WEIGHTS] = leaves
    port.detach(finished=False)
    return found


def test_what_a_trainer_left_is_looked_through_slice_by_slice_and_what_is_not_finite_gets_zero(
    port: TrainerPort, slice_weights: int
) -> None:
    np.testing.assert_array_equal(serve_trainer(port, spoilt()), ZEROS)
    assert check(port) == -(-WEIGHTS // slice_weights)
    assert port.unfinite == len(BAD)
    port.unfinite = 0
    np.testing.assert_array_equal(serve_trainer(port, spoilt()), mended())
    check(port)
    assert port.unfinite == len(BAD)


def test_a_finite_residual_is_handed_on_as_it_is(port: TrainerPort) -> None:
    serve_trainer(port, GOOD)
    np.testing.assert_array_equal(serve_trainer(port, GOOD), GOOD)
    assert port.unfinite == 0


def test_what_was_lent_stays_as_it_was_although_the_next_trainer_gets_zeros(
    port: TrainerPort, slice_weights: int
) -> None:
    serve_trainer(port, spoilt())
    assert port.check_residual() == (slice_weights >= WEIGHTS)
    lent = port.lend_residual()
    assert lent is not None
    before = lent.tobytes()
    np.testing.assert_array_equal(serve_trainer(port, ZEROS), mended())
    assert lent.tobytes() == before


def test_a_restored_residual_is_looked_through_as_well(slice_weights: int) -> None:
    given = spoilt()
    port = TrainerPort(WEIGHTS, residual=given, mini_batches=4)
    try:
        assert check(port) == -(-WEIGHTS // slice_weights)
        assert port.unfinite == len(BAD)
        np.testing.assert_array_equal(serve_trainer(port, ZEROS), mended())
        assert given.tobytes() == spoilt().tobytes()
    finally:
        port.close()


@pytest.mark.parametrize("mode", [ASYNC, parse_mode("ring-dense")])
def test_a_residual_that_nobody_has_written_takes_no_memory_by_being_looked_through(mode: Mode) -> None:
    port = TrainerPort(WEIGHTS, mode=mode)
    try:
        for _ in range(2 if mode.dense else 1):
            assert port.check_residual()
            with port.attach() as (residual, *_):
                assert os.fstat(residual).st_blocks == 0
            port.detach(finished=False)
    finally:
        port.close()


@pytest.mark.parametrize("fails", ["create_segment", "map_segment"])
def test_a_copy_that_cannot_be_made_changes_nothing(
    port: TrainerPort, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """As when no descriptor is left."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left")

    serve_trainer(port, spoilt())
    port.lend_residual()
    open_before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(port_module, fails, fail)
        with pytest.raises(OSError, match="no descriptor"):
            port.check_residual()
    assert len(os.listdir("/proc/self/fd")) <= open_before
    np.testing.assert_array_equal(serve_trainer(port, ZEROS), mended())
