"""What hypothesis draws for the codec's tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.wire import reference
from tests.wire.reference import DENSE, BlockChoice, Choices

P_MAX = codec.WEIGHTS_MAX
COUNTS = st.one_of(st.integers(1, 20), st.integers(500, 530), st.integers(1, 1100))
SIGN_CHANGES = st.sampled_from([0.0, 0.005, 0.02, 0.1, 0.2, 0.35, 0.5, 1.0])


@st.composite
def words_and_weights(draw: st.DrawFn) -> tuple[NDArray[np.uint32], int]:
    """Sorted words of many shapes: gaps of each magnitude, runs, mixtures, up to three blocks.

    Signs change with one chance at near words, with another at far ones; the weights may end with the last
    index, so that most of them are in the update.
    """
    magnitudes = draw(st.lists(st.integers(0, 31), min_size=1, max_size=4))
    count = draw(COUNTS)
    near_changes, far_changes = draw(SIGN_CHANGES), draw(SIGN_CHANGES)
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    gaps = chance.integers(0, 2 ** chance.choice(magnitudes, count), dtype=np.uint64)
    indices = np.cumsum(gaps + 1) - 1
    indices = indices[indices < P_MAX]
    if not len(indices):
        indices = np.array([P_MAX - 1], np.uint64)
    far = gaps[: len(indices)] > np.median(gaps)
    changes = chance.random(len(indices)) < np.where(far, far_changes, near_changes)
    negative = np.cumsum(changes).astype(np.uint64) % 2
    words = (indices << 1 | negative).astype(np.uint32)
    least = int(indices[-1]) + 1
    weights = draw(
        st.one_of(st.just(least), st.integers(least, min(2 * least, P_MAX)), st.integers(least, P_MAX))
    )
    return words, weights


@st.composite
def choices_of(draw: st.DrawFn, words: list[int], weights: int) -> Choices:
    """Any form, and any k and m for each block, but none that would make a payload of many thousand bytes."""
    if weights <= 20_000 and draw(st.booleans()):
        return DENSE
    least = max(0, (words[-1] >> 1).bit_length() - 13)
    choice = st.builds(BlockChoice, st.integers(least, 24), st.integers(0, 7))
    blocks = -(-len(words) // codec.BLOCK_GAPS)
    return tuple(draw(st.lists(choice, min_size=blocks, max_size=blocks)))


@st.composite
def foreign_payloads(draw: st.DrawFn) -> tuple[bytes, list[int], int, Choices]:
    """(payload, words, weights, choices): right, with choices that our encoder would seldom make."""
    words, weights = draw(words_and_weights())
    listed = words[:600].tolist()
    choices = draw(choices_of(listed, weights))
    return reference.encode(listed, weights, choices), listed, weights, choices


@st.composite
def damaged_payloads(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """(payload, count, weights): right but for a few bits, bytes or a number."""
    payload, words, weights, _ = draw(foreign_payloads())
    count = len(words)
    damaged = bytearray(payload)
    for _ in range(draw(st.integers(0, 3))):
        # the last bytes hold the signs, the first the header and the fillings of small blocks
        place = draw(st.one_of(st.integers(0, 7), st.integers(-4, -1), st.integers(0, 2**20))) % len(damaged)
        damaged[place] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 0x1F, 242, 243, 255])))
    cut = draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
    damaged = damaged[: max(0, len(damaged) - cut)]
    damaged += draw(st.sampled_from([b"", b"", b"", b"", b"\0", b"\1"]))
    count += draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    weights = min(P_MAX, max(1, weights + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 5]))))
    return bytes(damaged), count, weights


@st.composite
def hostile_payloads(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """(payload, count, weights): bytes that get past the first checks often enough to try the later ones."""
    count = draw(st.one_of(st.integers(1, 20), st.integers(505, 520)))
    weights = draw(st.one_of(st.integers(count, 2000), st.integers(2**16, 2**17), st.just(P_MAX)))
    parameter, mode = draw(st.one_of(st.integers(0, 24), st.integers(0, 31))), draw(st.integers(0, 7))
    width = min(parameter, 24) + (mode == 0)
    values_bytes = (min(count, 512) + 7) // 8 * width
    values = draw(
        st.one_of(st.just(bytes(values_bytes)), st.binary(min_size=values_bytes, max_size=values_bytes))
    )
    stream = st.lists(st.sampled_from([0, 1, 2, 0x55, 0x80, 0xF0, 0xFF]), max_size=80).map(bytes)
    return bytes([mode << 5 | parameter]) + values + draw(stream) + draw(stream), count, weights
