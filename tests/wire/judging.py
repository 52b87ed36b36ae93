"""What the core and the reference say of a payload: its words, or that it is refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError
from tests.wire import reference
from tests.wire.arrays import uint32
from tests.wire.guarded import guarded_bytes


def decoded_or_none(payload: bytes | bytearray | memoryview, count: int, weights: int) -> list[int] | None:
    try:
        words: list[int] = codec.decode(payload, count, weights).tolist()
    except PeerError:
        return None
    return words


def measured_or_none(
    payload: bytes | bytearray | memoryview, count: int, weights: int
) -> codec.PayloadBits | None:
    try:
        return codec.measure(payload, count, weights)
    except PeerError:
        return None


def check_judgement(payload: bytes, count: int, weights: int) -> None:
    """The core judges the bytes as the reference does, and what it takes is written again as it was."""
    words = decoded_or_none(guarded_bytes(payload), count, weights)
    measured = measured_or_none(guarded_bytes(payload), count, weights)
    try:
        expected = reference.decode(payload, count, weights)
    except reference.PayloadRefused:
        assert words is None
        assert measured is None
        return
    assert words == expected.words
    assert measured == codec.PayloadBits(*reference.measure(payload, count, weights))
    assert reference.encode(words, weights, expected.choices) == payload
    check_encoding(uint32(words), weights)


def check_encoding(words: NDArray[np.uint32], weights: int) -> None:
    """The core writes what the reference writes, at most as long as plain or dense, and reads it."""
    payload = codec.encode(words, weights)
    assert payload == reference.encode(words.tolist(), weights)
    assert len(payload) <= min(plain_bytes(words), 1 + -(-weights // 5), codec.payload_bytes_max(len(words)))
    np.testing.assert_array_equal(codec.decode(payload, len(words), weights), words)
    bits = codec.measure(payload, len(words), weights)
    assert bits.header + bits.remainder + bits.quotient + bits.sign + bits.dense == 8 * len(payload)
    assert bits == codec.PayloadBits(*reference.measure(payload, len(words), weights))


def plain_bytes(words: NDArray[np.uint32]) -> int:
    """Length of the payload in blocks with plain signs."""
    gaps = np.array(reference.gaps_of(words.tolist()))
    return sum(plain_block_bytes(gaps[begin : begin + 512]) for begin in range(0, len(gaps), 512))


def plain_block_bytes(gaps: NDArray[np.int64]) -> int:
    sums = [int((gaps >> k).sum()) for k in range(codec.RICE_MAX + 1)]
    k = min(range(len(sums)), key=lambda k: k * len(gaps) + sums[k])
    return 1 + -(-len(gaps) // 8) * (k + 1) + -(-(sums[k] + len(gaps)) // 8)
