"""The residual pass on the device leaves and sends, bit for bit, what the native core does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.gpu.backends import Backend, schedule
from tests.gpu.passes import Group, by_the_core, check, delta_of, on_the_device

TILE = 4096
KINDS = ["float32", "float16", "bfloat16"]


def float32(values: list[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def random_pass(
    seed: int, weights: int, *, kind: str = "float32", spread: float = 0.4
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    chance = np.random.default_rng(seed)
    source, delta = (chance.normal(0, spread, weights).astype(np.float32) for _ in range(2))
    return source, delta_of(kind, delta)


def one_group(weights: int, *, room: int, threshold: float = 1.0) -> list[Group]:
    return [Group(threshold, ((0, weights),), room)]


@st.composite
def groups_of(draw: st.DrawFn, weights: int) -> list[Group]:
    """Ranges that do not touch each other twice, some weights in none, dealt out to groups in any order."""
    cuts = sorted({0, weights, *draw(st.lists(st.integers(0, weights), max_size=8))})
    ranges = list(pairwise(cuts))
    ranges = draw(st.permutations(ranges))
    ranges = ranges[: draw(st.integers(1, len(ranges)))]
    owners = [draw(st.integers(0, 2)) for _ in ranges]
    groups = []
    for owner in sorted(set(owners)):
        own = tuple(span for span, of in zip(ranges, owners, strict=True) if of == owner)
        size = sum(end - begin for begin, end in own)
        room = draw(st.sampled_from([0, 1, size // 100, size // 3, size]))
        groups.append(Group(draw(st.sampled_from([2.0**-15, 1.0, float(np.float32(0.1))])), own, room))
    return groups


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the backend stays
@given(data=st.data())
def test_any_ranges_groups_and_rooms_give_what_the_core_gives(
    gpu: Backend, kind: str, data: st.DataObject
) -> None:
    weights = data.draw(
        st.one_of(st.integers(1, 300), st.sampled_from([TILE - 1, TILE, TILE + 1, 3 * TILE + 77]))
    )
    spread = data.draw(st.sampled_from([2.0**-16, 0.1, 0.4, 1.5]))
    source, delta = random_pass(data.draw(st.integers(0, 2**32 - 1)), weights, kind=kind, spread=spread)
    groups = data.draw(groups_of(weights))
    offsets = data.draw(st.sampled_from([(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 1, 1), (4, 4, 4)]))
    first = data.draw(st.sampled_from([0, 1, 77, 2**31 - weights]))
    order = data.draw(st.sampled_from(["forward", "reverse", "random"]))
    with schedule(order, data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 9))):
        check(gpu, source, delta, groups, first=first, offsets=offsets)


@pytest.mark.parametrize(
    "weights", [1, 2, 3, 31, 32, 33, 127, 128, 511, 512, 513, 4095, 4096, 4097, 8192, 12_289]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_size_around_those_of_rows_warps_and_tiles_is_swept_whole(
    gpu: Backend, kind: str, weights: int
) -> None:
    source, delta = random_pass(weights, weights, kind=kind)
    check(gpu, source, delta, one_group(weights, room=weights))
    check(gpu, source, delta, one_group(weights, room=weights // 9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 1 / 850, 0.03, 1.0])
def test_a_million_weights_at_any_share_that_is_sent(gpu: Backend, kind: str, share: float) -> None:
    weights = 2**20 + 1234
    chance = np.random.default_rng(3)
    source = chance.uniform(-0.5, 0.5, weights).astype(np.float32)
    values = chance.uniform(-0.4, 0.4, weights).astype(np.float32)
    values[chance.random(weights) < share] = 2.5
    swept = check(gpu, source, delta_of(kind, values), one_group(weights, room=weights))
    assert abs(sum(swept.counts[0]) - share * weights) < 0.01 * weights


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_million_weights(gpu: Backend, kind: str) -> None:
    if gpu.name != "device":
        pytest.skip("a matter of minutes on the host")
    weights = 10**8 + 7
    source, delta = random_pass(4, weights, kind=kind, spread=0.24)
    check(gpu, source, delta, one_group(weights, room=weights // 100))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(
    "room", [0, 1, 15, 16, 17, 100, TILE // 2, TILE - 1, TILE, TILE + 1, 3 * TILE - 1, 3 * TILE]
)
def test_room_may_end_anywhere_in_a_tile(gpu: Backend, room: int, order: str) -> None:
    """All weights cross: the last that has room is in each place of a row, a warp, a tile."""
    weights = 3 * TILE
    source, delta = random_pass(room, weights)
    delta += np.where(delta < 0, np.float32(-9), np.float32(9))
    with schedule(order, room):
        swept = check(gpu, source, delta, one_group(weights, room=room))
    assert swept.missed == [room if room < weights else None]
    assert sum(swept.counts[0]) == room


def test_what_has_no_room_keeps_its_sum_to_the_last_bit(gpu: Backend) -> None:
    """Half a bit taken off an odd sum and put back again gives another sum."""
    weights = TILE + 50
    odd = np.full(weights, 1.0 + 2.0**-23, np.float32)
    half_a_bit = np.float32(2.0**-24)
    assert odd[0] - half_a_bit + half_a_bit != odd[0]
    groups = one_group(weights, room=TILE + 3, threshold=float(half_a_bit))
    swept = check(gpu, odd, np.zeros(weights, np.float32), groups)
    assert swept.missed == [TILE + 3]
    assert swept.target.view(np.float32)[-1] == odd[0]


def test_words_come_in_the_order_of_the_ranges_and_missed_as_well(gpu: Backend) -> None:
    """Upper weights first, as after a turn."""
    source, delta = np.zeros(3 * TILE, np.float32), np.zeros(3 * TILE, np.float32)
    delta[[5, 100, TILE + 1, 2 * TILE + 7, 3 * TILE - 1]] = 2.0
    ranges = ((TILE + 1, 3 * TILE), (0, TILE + 1))
    swept = check(gpu, source, delta, [Group(1.0, ranges, 4)], first=10)
    assert [word >> 1 for word in swept.words[0]] == [TILE + 11, 2 * TILE + 17, 3 * TILE + 9, 15]
    assert swept.counts == [(3, 1)]
    assert swept.missed == [100]


def test_groups_have_rooms_and_thresholds_of_their_own(gpu: Backend) -> None:
    source, delta = random_pass(8, 5 * TILE, spread=1.0)
    groups = [
        Group(1.0, ((10, TILE + 10), (4 * TILE + 1, 5 * TILE)), 300),
        Group(0.5, ((TILE + 10, 2 * TILE),), 0),
        Group(2.0**-10, ((2 * TILE, 4 * TILE),), 2 * TILE),
    ]
    swept = check(gpu, source, delta, groups)
    assert [missed is None for missed in swept.missed] == [False, False, True]


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_more_tiles_than_two_looks_back_reach(gpu: Backend, order: str) -> None:
    """The first of a hundred ranges of one weight each takes longest, or is last in turn."""
    weights = 100
    source, delta = random_pass(2, weights, spread=2.0)
    ranges = tuple((i, i + 1) for i in range(weights))
    with schedule(order, 5, blocks=70):
        check(gpu, source, delta, [Group(1.0, ranges, weights)])
        check(gpu, source, delta, [Group(1.0, ranges[:40], 9), Group(1.0, ranges[40:], 30)])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 1])
def test_every_number_of_16_bits_widens_exactly(gpu: Backend, kind: str, offset: int) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    numbers: NDArray[Any] = bits.view(np.float16) if kind == "float16" else bits
    finite = np.isfinite(numbers) if kind == "float16" else (bits & 0x7F80) != 0x7F80
    delta = numbers[finite]
    weights = len(delta)
    groups = one_group(weights, room=0, threshold=2.0**127)
    check(gpu, np.zeros(weights, np.float32), delta, groups, offsets=(0, offset, 0))
    check(gpu, np.full(weights, 2.0**-140, np.float32), delta, groups, offsets=(0, offset, 0))


def test_denormals_stay(gpu: Backend) -> None:
    least = 2.0**-149
    source = np.tile(float32([least, -least, 3 * least, 2.0**-127, -(2.0**-126), 0.0, -0.0]), 1500)
    delta = np.tile(float32([least, least, -least, -(2.0**-128), 2.0**-127, -0.0, -0.0]), 1500)
    weights = len(source)
    check(gpu, source, delta, one_group(weights, room=weights, threshold=least))
    check(gpu, source, delta, one_group(weights, room=weights, threshold=2.0**-128))
    check(gpu, source, delta, one_group(weights, room=weights, threshold=1.0))


def test_the_largest_numbers_and_those_at_the_threshold_are_taken(gpu: Backend) -> None:
    largest = float(np.finfo(np.float32).max)
    above = float(np.nextafter(np.float32(1), np.float32(2)))
    delta = np.tile(float32([largest, -largest, 1.0, -1.0, above, -above, 0.0]), 700)
    weights = len(delta)
    for threshold in (1.0, largest / 2, largest):
        check(
            gpu, np.zeros(weights, np.float32), delta, one_group(weights, room=weights, threshold=threshold)
        )
    check(gpu, np.full(weights, -0.0, np.float32), delta, one_group(weights, room=7, threshold=1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 515, TILE - 1, TILE, 2 * TILE + 30, 5 * TILE + 2])
def test_a_sum_that_is_not_finite_is_refused_and_the_first_is_named(
    gpu: Backend, kind: str, bad: float, place: int
) -> None:
    source, values = random_pass(7, 5 * TILE + 9)
    values = values.copy()
    values[[place, -1]] = bad
    delta = delta_of(kind, values)
    with (
        schedule("random", place),
        pytest.raises(
            ValueError, match=f"^at weight {place + 9} the residual and delta add up to NaN or infinity$"
        ),
    ):
        on_the_device(gpu, source, delta, one_group(len(source), room=50), first=9)


def test_the_first_that_is_not_finite_is_that_of_the_first_range(gpu: Backend) -> None:
    source, delta = random_pass(7, 4 * TILE)
    source[[3, 2 * TILE + 5, 3 * TILE]] = np.nan
    groups = [Group(1.0, ((2 * TILE + 3, 3 * TILE), (0, TILE)), 9), Group(1.0, ((3 * TILE, 4 * TILE),), 9)]
    with pytest.raises(ValueError, match=f"at weight {2 * TILE + 5} "):
        on_the_device(gpu, source, delta, groups)
    with pytest.raises(ValueError, match=f"at weight {2 * TILE + 5} "):
        by_the_core(source, delta, groups)


def test_sums_that_overflow_and_a_damaged_residual_are_refused(gpu: Backend) -> None:
    largest = float(np.finfo(np.float32).max)
    for source, delta in ((np.nan, 0.0), (np.inf, 0.0), (largest, largest), (-largest, -largest)):
        with pytest.raises(ValueError, match="at weight 3 the residual"):
            on_the_device(gpu, float32([0, 0, 0, source]), float32([0, 0, 0, delta]), one_group(4, room=0))


def test_weights_outside_the_ranges_may_be_anything(gpu: Backend) -> None:
    source, delta = random_pass(7, 2 * TILE)
    source[[0, 9, TILE + 1]] = np.nan
    check(gpu, source, delta, [Group(1.0, ((1, 9), (TILE + 2, 2 * TILE)), 500)])


def test_a_state_serves_pass_after_pass(gpu: Backend) -> None:
    """Of other ranges, and after a refusal; what earlier passes left in it is taken for nothing."""
    weights = 9 * TILE + 5
    state = gpu.load("kernels").Kernels().make_state(weights, 3)
    for number in range(9):
        source, delta = random_pass(number, weights)
        groups = one_group(weights, room=700) if number % 3 else [Group(1.0, ((7, 99), (TILE, weights)), 400)]
        with schedule("random", number, blocks=6):
            if number == 2:
                delta[77] = np.nan
                with pytest.raises(ValueError, match="at weight 77"):
                    on_the_device(gpu, source, delta, groups, state=state)
            else:
                check(gpu, source, delta, groups, state=state)


def test_the_number_of_the_pass_may_begin_anew(gpu: Backend) -> None:
    """Neither a tile's state nor a refusal of the old count is then taken for one of the new count."""
    weights = 9 * TILE
    state = gpu.load("kernels").Kernels().make_state(weights, 1)
    for number in range(3):
        check(gpu, *random_pass(number, weights), one_group(weights, room=weights), state=state)
    state.epoch = gpu.load("pass_state").EPOCH_MAX - 1
    refused = np.full(50, np.nan, np.float32)
    for _ in range(3):
        with pytest.raises(ValueError, match="at weight 0 "):
            on_the_device(gpu, refused, refused, one_group(50, room=9), state=state)
    for number in range(3):
        source, delta = random_pass(9 + number, weights, spread=0.2)
        with schedule("random", number, blocks=8):
            check(gpu, source, delta, one_group(weights, room=weights), state=state)
    assert state.epoch == 5


def test_tickets_may_pass_the_end_of_their_counter(gpu: Backend) -> None:
    weights = 5 * TILE
    state = gpu.load("kernels").Kernels().make_state(weights, 1)
    state.first_ticket = 2**32 - 7
    state.ticket.fill(2**32 - 7)
    for seed in range(4):
        check(gpu, *random_pass(seed, weights), one_group(weights, room=weights), state=state)
