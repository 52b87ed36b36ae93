"""The residual pass: what is emitted, what stays, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.wire import reference
from tests.wire.guarded import guarded

Floats = NDArray[np.float32]


def float32(values: list[float]) -> Floats:
    return np.array(values, np.float32)


def guarded_copy(values: Floats) -> Floats:
    copy: Floats = guarded(len(values), np.float32)
    copy[:] = values
    return copy


def sweep(residual: Floats, delta: Floats, *, threshold: float, room: int, start: int = 0) -> reference.Swept:
    """The core's pass over copies, in the reference's terms."""
    after = guarded_copy(residual)
    words: NDArray[np.uint32] = guarded(room, np.uint32)
    count, following = codec.residual_pass(
        after, guarded_copy(delta), words, threshold=threshold, start=start
    )
    return reference.Swept(after, words[:count].tolist(), following)


@st.composite
def passes(draw: st.DrawFn) -> tuple[Floats, Floats, float, int, int]:
    """(residual, delta, threshold, room, start)"""
    weights = draw(st.one_of(st.integers(1, 100), st.sampled_from([128, 1000, 40_000])))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    threshold = draw(st.sampled_from([2.0**-15, 3 * 2.0**-20, 1.0, 0.1]))
    threshold = float(np.float32(threshold))
    spread = threshold * draw(st.sampled_from([0.1, 0.4, 1.5]))
    residual = np.clip(chance.normal(0, spread, weights), -threshold, threshold).astype(np.float32)
    delta = chance.normal(0, spread, weights).astype(np.float32)
    room = draw(st.sampled_from([0, 1, weights // 100, weights // 3, weights]))
    return residual, delta, threshold, room, draw(st.integers(0, weights - 1))


@given(passes())
def test_the_core_does_what_the_reference_does_bit_for_bit(
    case: tuple[Floats, Floats, float, int, int],
) -> None:
    residual, delta, threshold, room, start = case
    expected = reference.residual_pass(residual, delta, threshold=threshold, room=room, start=start)
    actual = sweep(residual, delta, threshold=threshold, room=room, start=start)
    assert actual.words == expected.words
    assert actual.next_start == expected.next_start
    assert actual.residual.tobytes() == expected.residual.tobytes()


@given(passes(), st.integers(0, 2**32 - 1))
def test_what_is_sent_and_what_stays_add_up_to_what_came(
    case: tuple[Floats, Floats, float, int, int], seed: int
) -> None:
    """Exactly, for values on a common grid: residual after + sum(+-threshold) = residual before + delta."""
    weights, room, start = len(case[0]), case[3], case[4]
    chance = np.random.default_rng(seed)
    residual, delta = (chance.integers(-40, 41, weights).astype(np.float32) * 2.0**-20 for _ in range(2))
    threshold = 32 * 2.0**-20
    after = sweep(residual, delta, threshold=threshold, room=room, start=start)
    words = np.array(after.words, np.uint32)
    sent = np.zeros(weights)
    sent[words >> 1] = np.where(words & 1, -threshold, threshold)
    np.testing.assert_array_equal(
        after.residual.astype(np.float64) + sent, residual.astype(np.float64) + delta
    )
    if len(words) < room:
        assert np.abs(after.residual).max() <= threshold * 1.5


def test_only_what_is_beyond_the_threshold_is_sent() -> None:
    just_above = np.nextafter(np.float32(1), np.float32(2))
    delta = float32([1.0, -1.0, just_above, -just_above, 0.0, 5.0, -0.0])
    swept = sweep(np.zeros(7, np.float32), delta, threshold=1.0, room=7)
    assert swept.words == [2 << 1, 3 << 1 | 1, 5 << 1]
    epsilon = float(just_above) - 1
    assert swept.residual.tolist() == [1.0, -1.0, epsilon, -epsilon, 0.0, 4.0, 0.0]


def test_a_weight_sends_one_threshold_a_pass_however_far_it_is_beyond() -> None:
    residual = float32([5.0])
    still = np.zeros(1, np.float32)
    words = np.empty(1, np.uint32)
    sent = [codec.residual_pass(residual, still, words, threshold=2.0)[0] for _ in range(3)]
    assert sent == [1, 1, 0]
    assert residual.tolist() == [1.0]


def test_a_full_update_goes_on_where_it_ended_and_starves_nobody() -> None:
    weights, room = 100, 30
    residual = np.zeros(weights, np.float32)
    delta = np.full(weights, 2.0, np.float32)
    still = np.zeros(weights, np.float32)
    words = np.empty(room, np.uint32)
    sent: list[int] = []
    starts = []
    start = 0
    for turn in range(4):
        count, start = codec.residual_pass(
            residual, still if turn else delta, words, threshold=1.5, start=start
        )
        assert (np.diff(words[:count].astype(np.int64)) > 0).all()
        sent += (words[:count] >> 1).tolist()
        starts.append(start)
    assert starts == [30, 60, 90, 0]
    assert sorted(sent) == list(range(weights))
    assert (residual == 0.5).all()


def test_a_sweep_that_wraps_gives_sorted_words() -> None:
    delta = np.full(100, 2.0, np.float32)
    swept = sweep(np.zeros(100, np.float32), delta, threshold=1.5, room=30, start=80)
    assert [word >> 1 for word in swept.words] == [*range(10), *range(80, 100)]
    assert swept.next_start == 10


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 31, 32, 40_000, 50_000 - 1])
def test_a_delta_that_is_not_finite_changes_nothing(bad: float, place: int) -> None:
    chance = np.random.default_rng(7)
    residual, delta = (chance.normal(0, 1, 50_000).astype(np.float32) for _ in range(2))
    delta[place] = bad
    delta[-1] = bad  # a second one: the first is named
    words = np.full(100, 77, np.uint32)
    before = residual.tobytes(), delta.tobytes(), words.tobytes()
    with pytest.raises(ValueError, match=rf"delta\[{place}\] is NaN or infinite"):
        codec.residual_pass(residual, delta, words, threshold=1.0)
    assert before == (residual.tobytes(), delta.tobytes(), words.tobytes())


def test_the_largest_and_smallest_finite_deltas_are_taken() -> None:
    largest = float(np.finfo(np.float32).max)
    smallest = 2.0**-149
    delta = float32([largest, -largest, smallest, -smallest])
    swept = sweep(np.zeros(4, np.float32), delta, threshold=largest / 2, room=4)
    assert swept.words == [0, 3]
    assert sweep(np.zeros(4, np.float32), delta, threshold=smallest, room=4).words == [0, 3]


@pytest.mark.parametrize("threshold", [0.0, -1.0, np.nan, np.inf])
def test_a_threshold_must_be_positive_and_finite(threshold: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        sweep(np.zeros(4, np.float32), np.ones(4, np.float32), threshold=threshold, room=4)


def test_a_threshold_must_be_exact() -> None:
    with pytest.raises(ValueError, match="not exact in float32"):
        sweep(np.zeros(4, np.float32), np.ones(4, np.float32), threshold=0.1, room=4)
    with pytest.raises(ValueError, match="not exact in float32"):
        sweep(np.zeros(4, np.float32), np.ones(4, np.float32), threshold=1e300, room=4)


def test_other_arguments_are_refused_and_nothing_changes() -> None:
    residual, delta, words = np.zeros(8, np.float32), np.ones(8, np.float32), np.empty(8, np.uint32)
    readonly = residual.view()
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match="residual has 8 weights and delta 7"):
        codec.residual_pass(residual, delta[:7], words, threshold=0.5)
    with pytest.raises(ValueError, match="start 8 is not below"):
        codec.residual_pass(residual, delta, words, threshold=0.5, start=8)
    with pytest.raises(TypeError):
        codec.residual_pass(residual, delta, words, threshold=0.5, start=-1)
    with pytest.raises(ValueError, match="number of weights"):
        codec.residual_pass(residual[:0], delta[:0], words, threshold=0.5)
    with pytest.raises(TypeError, match="delta must be of float32"):
        codec.residual_pass(residual, delta.astype(np.float64), words, threshold=0.5)
    with pytest.raises(TypeError, match="words must be of uint32"):
        codec.residual_pass(residual, delta, words.view(np.int32), threshold=0.5)
    with pytest.raises(ValueError, match="residual must be writable"):
        codec.residual_pass(readonly, delta, words, threshold=0.5)
    with pytest.raises(ValueError, match="delta must be contiguous"):
        codec.residual_pass(residual[:4], delta[::2], words, threshold=0.5)
    with pytest.raises(ValueError, match="residual must be one-dimensional"):
        codec.residual_pass(residual.reshape(2, 4), delta, words, threshold=0.5)
    with pytest.raises(ValueError, match="residual must be aligned"):
        codec.residual_pass(np.zeros(33, np.uint8)[1:].view(np.float32), delta, words, threshold=0.5)
    assert not residual.any()
