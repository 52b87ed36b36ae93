"""The residual pass: what is emitted, what stays, and that nothing is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.wire import reference
from tests.wire.guarded import guarded

Floats = NDArray[np.float32]

STREAMED = 3 * 2**19  # from so many weights on the AVX2 path writes past the caches


def float32(values: list[float]) -> Floats:
    return np.array(values, np.float32)


def guarded_copy(values: NDArray[Any], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
    copy: NDArray[Any] = guarded(len(values), dtype)
    copy[:] = values
    return copy


def bfloat16(values: Floats) -> Any:
    """A bfloat16 array as far as the core looks at one; the low bits of `values` are dropped."""
    bits = guarded_copy(values.view(np.uint32) >> 16, np.uint16)
    return SimpleNamespace(dtype=SimpleNamespace(name="bfloat16", isnative=True), view=lambda _: bits)


def widened(delta: Any) -> Floats:
    """What the elements of a delta are in float32."""
    if delta.dtype.name == "bfloat16":
        return (delta.view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # type: ignore[no-any-return]
    return delta.astype(np.float32)  # type: ignore[no-any-return]


def sweep(source: Floats, delta: Any, *, threshold: float, room: int, first: int = 0) -> reference.Swept:
    """The core's pass in guarded memory, in the reference's terms."""
    before = source.tobytes()
    delta = guarded_copy(delta) if delta.dtype == np.float32 else delta
    target: Floats = guarded_copy(np.full(len(source), np.nan, np.float32))
    words: NDArray[np.uint32] = guarded(room, np.uint32)
    count, missed = codec.residual_pass(
        guarded_copy(source), delta, target, words, threshold=threshold, first=first
    )
    assert source.tobytes() == before
    return reference.Swept(target, words[:count].tolist(), missed)


@st.composite
def passes(draw: st.DrawFn) -> tuple[Floats, Any, float, int, int]:
    """(source, delta of any type, threshold, room, first)"""
    weights = draw(st.one_of(st.integers(1, 100), st.sampled_from([128, 1000, 40_000])))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    threshold = draw(st.sampled_from([2.0**-15, 3 * 2.0**-20, 1.0, 0.1]))
    threshold = float(np.float32(threshold))
    spread = threshold * draw(st.sampled_from([0.1, 0.4, 1.5]))
    source = np.clip(chance.normal(0, spread, weights), -threshold, threshold).astype(np.float32)
    delta: Any = chance.normal(0, spread, weights).astype(np.float32)
    match draw(st.sampled_from(sorted(codec.DELTA_TYPES))):
        case "float16":
            delta = guarded_copy(delta, np.float16)
        case "bfloat16":
            delta = bfloat16(delta)
        case _:
            pass
    room = draw(st.sampled_from([0, 1, weights // 100, weights // 3, weights]))
    return source, delta, threshold, room, draw(st.sampled_from([0, 1, 77, 2**31 - weights]))


@given(passes())
def test_the_core_does_what_the_reference_does_bit_for_bit(
    case: tuple[Floats, Any, float, int, int],
) -> None:
    source, delta, threshold, room, first = case
    expected = reference.residual_pass(source, widened(delta), threshold=threshold, room=room, first=first)
    actual = sweep(source, delta, threshold=threshold, room=room, first=first)
    assert actual.words == expected.words
    assert actual.missed == expected.missed
    assert actual.residual.tobytes() == expected.residual.tobytes()


@pytest.mark.parametrize("weights", [1, 63, 200, STREAMED + 45])
def test_a_negated_delta_is_one_with_the_other_sign(weights: int) -> None:
    chance = np.random.default_rng(weights)
    source, delta = (chance.normal(0, 0.5, weights).astype(np.float32) for _ in range(2))
    found = []
    for each, negated in ((-delta, False), (delta, True)):
        target, words = np.empty(weights, np.float32), np.empty(weights, np.uint32)
        count, missed = codec.residual_pass(source, each, target, words, threshold=1.0, negated=negated)
        found.append((words[:count].tobytes(), missed, target.tobytes()))
    assert found[0] == found[1]
    with pytest.raises(TypeError, match="a negated delta must be of float32; it is of float16"):
        codec.residual_pass(source, delta.astype(np.float16), target, words, threshold=1.0, negated=True)


@given(passes(), st.integers(0, 2**32 - 1))
def test_what_is_sent_and_what_stays_add_up_to_what_came(
    case: tuple[Floats, Any, float, int, int], seed: int
) -> None:
    """Exactly, for values on a common grid: target + sum(+-threshold) = source + delta."""
    weights, room = len(case[0]), case[3]
    chance = np.random.default_rng(seed)
    source, delta = (chance.integers(-40, 41, weights).astype(np.float32) * 2.0**-20 for _ in range(2))
    threshold = 32 * 2.0**-20
    after = sweep(source, delta, threshold=threshold, room=room)
    words = np.array(after.words, np.uint32)
    sent = np.zeros(weights)
    sent[words >> 1] = np.where(words & 1, -threshold, threshold)
    np.testing.assert_array_equal(after.residual.astype(np.float64) + sent, source.astype(np.float64) + delta)
    if len(words) < room:
        assert np.abs(after.residual).max() <= threshold * 1.5


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_slices_aligned_to_their_elements_only_give_the_same_bits(
    dtype: type[np.floating[Any]], offset: int
) -> None:
    """At a size where the target is written past the caches, in strips that begin at its alignment."""
    weights = STREAMED + 45
    chance = np.random.default_rng(offset)
    memory: Floats = chance.normal(0, 0.3, weights + 16).astype(np.float32)
    delta: NDArray[Any] = chance.normal(0, 0.3, weights + 16).astype(dtype)
    source = memory[7 - offset :][:weights]
    delta = delta[offset // 2 :][:weights]
    target: Floats = np.full(weights + 16, 77, np.float32)
    words = np.empty(weights, np.uint32)
    count, missed = codec.residual_pass(
        source, delta, target[offset:][:weights], words[:-9], threshold=1.0, first=5
    )
    expected = source + delta.astype(np.float32)
    indices = np.flatnonzero(np.abs(expected) > 1)
    negative = expected[indices] < 0
    expected[indices] += np.where(negative, np.float32(1), np.float32(-1))
    assert (words[:count] == (indices + 5) << 1 | negative).all()
    assert missed is None
    assert target[offset:][:weights].tobytes() == expected.tobytes()
    assert (target[:offset] == 77).all()
    assert (target[offset + weights :] == 77).all()


@pytest.mark.parametrize("kind", sorted(codec.DELTA_TYPES))
def test_a_sweep_past_the_caches_stays_inside_its_buffers(kind: str) -> None:
    weights = STREAMED + 70
    chance = np.random.default_rng(5)
    source, values = (chance.normal(0, 0.2, weights).astype(np.float32) for _ in range(2))
    half = guarded_copy(values, np.float16)
    delta = {"float32": values, "float16": half, "bfloat16": bfloat16(values)}[kind]
    swept = sweep(source, delta, threshold=4.0, room=0)
    assert swept.residual.tobytes() == (source + widened(delta)).tobytes()


def test_every_float16_and_every_bfloat16_widens_exactly() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert (
        sweep(np.zeros(len(halves), np.float32), halves, threshold=2.0**20, room=0).residual.tobytes()
        == (np.zeros(len(halves), np.float32) + halves.astype(np.float32)).tobytes()
    )
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    wide = wide[np.isfinite(wide)]
    swept = sweep(np.zeros(len(wide), np.float32), bfloat16(wide), threshold=2.0**127, room=0)
    assert swept.residual.tobytes() == (np.zeros(len(wide), np.float32) + wide).tobytes()


def test_an_array_of_ml_dtypes_is_taken() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    delta = float32([0.5, -3.0, 1.0]).astype(ml_dtypes.bfloat16)
    assert sweep(np.zeros(3, np.float32), delta, threshold=1.0, room=3).words == [1 << 1 | 1]


def test_only_what_is_beyond_the_threshold_is_sent() -> None:
    just_above = np.nextafter(np.float32(1), np.float32(2))
    delta = float32([1.0, -1.0, just_above, -just_above, 0.0, 5.0, -0.0])
    swept = sweep(np.zeros(7, np.float32), delta, threshold=1.0, room=7)
    assert swept.words == [2 << 1, 3 << 1 | 1, 5 << 1]
    epsilon = float(just_above) - 1
    assert swept.residual.tolist() == [1.0, -1.0, epsilon, -epsilon, 0.0, 4.0, 0.0]


def test_a_weight_sends_one_threshold_a_pass_however_far_it_is_beyond() -> None:
    residual = float32([5.0])
    sent = []
    for _ in range(3):
        swept = sweep(residual, np.zeros(1, np.float32), threshold=2.0, room=1)
        residual = swept.residual
        sent.append(len(swept.words))
    assert sent == [1, 1, 0]
    assert residual.tolist() == [1.0]


def test_what_finds_no_room_stays_and_the_first_of_it_is_named() -> None:
    delta = float32([0.5, 2.0] * 50)
    swept = sweep(np.zeros(100, np.float32), delta, threshold=1.5, room=30, first=1000)
    assert [word >> 1 for word in swept.words] == list(range(1001, 1061, 2))
    assert swept.missed == 61
    assert swept.residual[1::2].tolist() == [0.5] * 30 + [2.0] * 20


@pytest.mark.parametrize("dtype", codec.DELTA_TYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 31, 32, 40_000, 50_000 - 1])
def test_a_delta_that_is_not_finite_is_refused(bad: float, place: int, dtype: str) -> None:
    chance = np.random.default_rng(7)
    source, delta = (chance.normal(0, 1, 50_000).astype(np.float32) for _ in range(2))
    delta[place] = bad
    delta[-1] = bad  # a second one: the first is named
    given: Any = bfloat16(delta) if dtype == "bfloat16" else delta.astype(dtype)
    with pytest.raises(ValueError, match=rf"at weight {place + 9} the residual and delta add up to NaN"):
        sweep(source, given, threshold=1.0, room=100, first=9)


def test_a_damaged_residual_and_a_sum_that_overflows_are_refused_as_well() -> None:
    largest = float(np.finfo(np.float32).max)
    for source, delta in ((np.nan, 0.0), (np.inf, 0.0), (largest, largest), (-largest, -largest)):
        with pytest.raises(ValueError, match=r"at weight 3 the residual and delta"):
            sweep(float32([0, 0, 0, source]), float32([0, 0, 0, delta]), threshold=1.0, room=0)


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


def test_other_arguments_are_refused_and_nothing_is_written() -> None:
    source, delta, target = np.zeros(8, np.float32), np.ones(8, np.float32), np.zeros(8, np.float32)
    words = np.empty(8, np.uint32)
    readonly = target.view()
    readonly.flags.writeable = False

    def attempt(*arrays: Any, first: int = 0) -> None:
        codec.residual_pass(*arrays, threshold=0.5, first=first)

    with pytest.raises(ValueError, match="source has 8 weights, delta 7 and target 8"):
        attempt(source, delta[:7], target, words)
    with pytest.raises(ValueError, match="delta 8 and target 7"):
        attempt(source, delta, target[:7], words)
    with pytest.raises(ValueError, match=r"weights from start 2147483641 on do not all lie below 2\*\*31"):
        attempt(source, delta, target, words, first=2**31 - 7)
    with pytest.raises(TypeError):
        attempt(source, delta, target, words, first=-1)
    with pytest.raises(ValueError, match="number of weights"):
        attempt(source[:0], delta[:0], target[:0], words)
    with pytest.raises(TypeError, match="delta must be of float32, float16, bfloat16; it is of float64"):
        attempt(source, delta.astype(np.float64), target, words)
    with pytest.raises(TypeError, match="it is of >f2"):
        attempt(source, delta.astype(">f2"), target, words)
    with pytest.raises(TypeError, match="delta must be a buffer of float32"):
        attempt(source, [0.0] * 8, target, words)
    with pytest.raises(TypeError, match="words must be of uint32"):
        attempt(source, delta, target, words.view(np.int32))
    with pytest.raises(ValueError, match="target must be writable"):
        attempt(source, delta, readonly, words)
    with pytest.raises(ValueError, match="delta must be contiguous"):
        attempt(source[:4], delta[::2], target[:4], words)
    with pytest.raises(ValueError, match="source must be one-dimensional"):
        attempt(source.reshape(2, 4), delta, target, words)
    with pytest.raises(ValueError, match="source must be aligned"):
        attempt(np.zeros(33, np.uint8)[1:].view(np.float32), delta, target, words)
    assert not target.any()


def test_a_target_that_overlaps_what_is_read_is_refused() -> None:
    memory, delta = np.zeros(16, np.float32), np.ones(8, np.float32)
    words = np.empty(8, np.uint32)
    for begin in (1, 4, 7):
        with pytest.raises(ValueError, match="target overlaps source"):
            codec.residual_pass(memory[:8], delta, memory[begin : begin + 8], words, threshold=2.0)
    with pytest.raises(ValueError, match="target overlaps delta"):
        codec.residual_pass(memory[:8], delta, delta, words, threshold=2.0)
    with pytest.raises(ValueError, match="target overlaps delta"):
        codec.residual_pass(memory[:8], memory[8:12].view(np.float16), memory[8:], words, threshold=2.0)
    for buffer, name in ((memory[:8], "words overlaps source"), (delta, "words overlaps delta")):
        with pytest.raises(ValueError, match=name):
            codec.residual_pass(memory[:8], delta, memory[8:], buffer.view(np.uint32), threshold=2.0)
    with pytest.raises(ValueError, match="target overlaps words"):
        codec.residual_pass(memory[:8], delta, memory[8:], memory[8:].view(np.uint32), threshold=2.0)
    codec.residual_pass(memory[:8], delta, memory[8:], words, threshold=2.0)
    assert memory.tolist() == [0.0] * 8 + [1.0] * 8
