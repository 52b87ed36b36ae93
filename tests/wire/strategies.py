"""What hypothesis draws for the codec's tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec

P_MAX = codec.WEIGHTS_MAX


@st.composite
def words_and_weights(draw: st.DrawFn) -> tuple[NDArray[np.uint32], int]:
    """Sorted words of many shapes: gaps of each magnitude, runs, mixtures, up to three blocks."""
    magnitudes = draw(st.lists(st.integers(0, 31), min_size=1, max_size=4))
    count = draw(st.one_of(st.integers(1, 20), st.integers(500, 530), st.integers(1, 1100)))
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    gaps = chance.integers(0, 2 ** chance.choice(magnitudes, count), dtype=np.uint64)
    indices = np.cumsum(gaps + 1) - 1
    indices = indices[indices < P_MAX]
    if not len(indices):
        indices = np.array([P_MAX - 1], np.uint64)
    words = (indices << 1 | chance.integers(0, 2, len(indices), dtype=np.uint64)).astype(np.uint32)
    least = max(int(indices[-1]) + 1, len(words) if len(words) <= 1024 else 4 * len(words))
    weights = draw(st.one_of(st.just(least), st.integers(least, P_MAX)))
    return words, weights


@st.composite
def hostile_payloads(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """(payload, count, weights): bytes that get past the first checks often enough to try the later ones."""
    count = draw(st.one_of(st.integers(1, 20), st.integers(505, 520)))
    weights = draw(st.one_of(st.integers(count, 2000), st.integers(2**16, 2**17), st.just(P_MAX)))
    parameter = draw(st.one_of(st.integers(0, 24), st.integers(0, 255)))
    values_bytes = (min(count, 512) + 7) // 8 * (min(parameter, 24) + 1)
    values = draw(
        st.one_of(st.just(bytes(values_bytes)), st.binary(min_size=values_bytes, max_size=values_bytes))
    )
    unary = draw(st.lists(st.sampled_from([0, 1, 2, 0x55, 0x80, 0xF0, 0xFF]), max_size=80).map(bytes))
    return bytes([parameter]) + values + unary, count, weights
