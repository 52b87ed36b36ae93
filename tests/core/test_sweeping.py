"""Work in slices on coordinates that change meanwhile: copies and the scrub."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.scrub import SCRUB_TICKS, SliceScanner
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire.update import UpdateHeader
from tests.core.cluster import WEIGHTS, initial_coordinates, make_spec, make_words

ME = Origin(1, 1)
TIMING = Timing(5.0)  # a scrub every 60 s


class Setting:
    """A state that changes all over between any two slices."""

    def __init__(self) -> None:
        self.state = State(make_spec(), ME, initial_coordinates(), UpdateLog(budget_bytes=1 << 24))
        self.scanner = SliceScanner(self.state, TIMING, 0.0)
        self.turns = 0

    def update(self) -> None:
        self.turns += 1
        words = make_words(list(range(self.turns % 97, WEIGHTS, 101)), negative=self.turns % 3 == 0)
        magnitude = 1 + self.turns % 5
        digest = self.state.digest_after(ME, words, magnitude)
        header = UpdateHeader(*ME, self.state.frontier.sequence(ME) + 1, digest, 1, magnitude, len(words))
        self.state.apply(ME, header, words, b"frame")

    def scrub(self, begin: float) -> bool:
        """A whole one; it takes SCRUB_TICKS."""
        for tick in range(SCRUB_TICKS):
            result = self.scanner.tick(begin + 0.2 * tick)
            assert (result is None) == (tick < SCRUB_TICKS - 1)
            assert self.scanner.scrubbing == (result is None)
            self.update()
        assert result is not None
        return result


@pytest.mark.usefixtures("small_pieces")
def test_a_copy_is_the_state_of_the_moment_when_it_is_handed_over() -> None:
    setting = Setting()
    copies: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
    live = setting.state.lattice.coordinates
    setting.scanner.begin_copy(lambda copy, _: copies.append((copy, live.copy())))
    turns = 0
    while setting.scanner.copying:
        setting.update()
        assert setting.scanner.turn() == (turns < 4)
        turns += 1
    assert turns == 5
    [(copy, then)] = copies
    assert copy.tobytes() == then.tobytes()
    setting.update()
    assert copy.tobytes() == then.tobytes()  # nobody changes it any more
    assert not setting.scanner.turn()


@pytest.mark.usefixtures("small_pieces")
def test_the_memory_of_a_copy_is_used_again_once_nobody_reads_it() -> None:
    setting = Setting()
    copies: list[NDArray[np.int32]] = []

    def copy() -> None:
        setting.scanner.begin_copy(lambda copy, _: copies.append(copy))
        while setting.scanner.turn():
            setting.update()

    copy()
    kept = copies[0].tobytes()
    copy()  # the first is still lent
    assert copies[1] is not copies[0]
    assert copies[0].tobytes() == kept
    setting.scanner.take_back(copies[0])
    copy()
    assert copies[2] is copies[0]
    setting.scanner.take_back(copies[2])
    setting.scanner.begin_copy(lambda copy, _: copies.append(copy))
    setting.scanner.abort()
    copy()
    assert copies[3] is copies[0]
    assert copies[3].tobytes() == setting.state.lattice.coordinates.tobytes()


def test_a_scrub_under_updates_finds_the_digest_that_is_kept() -> None:
    setting = Setting()
    assert setting.scanner.tick(59.9) is None
    assert not setting.scanner.scrubbing
    assert setting.scrub(60.0)
    assert setting.scanner.clean
    assert setting.scanner.scrubbed == pytest.approx(71.8)
    assert setting.scanner.tick(131.7) is None  # 12 failure timeouts after the end of the last
    assert not setting.scanner.scrubbing
    assert setting.scrub(131.8)


@pytest.mark.parametrize("tick", [0, 30, 59])
def test_a_bit_that_flips_is_found_by_this_scrub_or_the_next(tick: int) -> None:
    setting = Setting()
    for number in range(tick):
        setting.scanner.tick(60.0 + 0.2 * number)
        setting.update()
    setting.state.lattice.coordinates[2500] ^= 1 << 7
    results = [setting.scanner.tick(72.0 + 0.2 * number) for number in range(SCRUB_TICKS - tick)]
    first = results[-1]
    assert first is not None
    assert first == (tick >= 30)  # it had passed the place
    assert not setting.scrub(200.0)
    assert setting.scanner.clean is False


def test_where_memory_is_known_to_be_wrong_the_next_tick_looks_at_all_of_it() -> None:
    setting = Setting()
    for number in range(30):
        setting.scanner.tick(60.0 + 0.2 * number)
    setting.state.lattice.coordinates[10] ^= 1 << 7  # which the scrub under way has passed
    setting.scanner.scrub_at_once(66.0)
    assert setting.scanner.tick(66.0) is False
    assert not setting.scanner.scrubbing
    assert not setting.state.sweeps
    setting.state.lattice.coordinates[10] ^= 1 << 7
    assert setting.scrub(126.0)


def test_a_frontier_that_does_not_add_up_to_the_digest_is_found_too() -> None:
    setting = Setting()
    setting.update()
    rows = setting.state.frontier._rows
    [(origin, (sequence, digest, steps))] = rows.items()
    rows[origin] = (sequence, digest ^ 1 << 40, steps)
    assert not setting.scrub(60.0)
    assert setting.scanner.clean is False


@pytest.mark.usefixtures("small_pieces")
def test_when_the_coordinates_are_replaced_neither_goes_on() -> None:
    setting = Setting()
    copies: list[NDArray[np.int32]] = []
    setting.scanner.begin_copy(lambda copy, _: copies.append(copy))
    setting.scanner.turn()
    setting.scanner.tick(60.0)
    setting.scanner.abort()
    lattice = setting.state.lattice
    lattice.replace(lattice.coordinates.copy(), lattice.digest)
    assert not setting.scanner.turn()
    assert (setting.scanner.copying, setting.scanner.scrubbing, copies) == (None, False, [])
    assert setting.scrub(61.0)  # from its beginning
    setting.scanner.begin_copy(lambda copy, _: copies.append(copy))
    while setting.scanner.turn():
        setting.update()
    assert copies[0].tobytes() == setting.state.lattice.coordinates.tobytes()
