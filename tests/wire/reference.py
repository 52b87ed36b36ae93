"""The codec once more, in Python to be read beside SPEC.md: the core in C++ must give the same bits.

Slow and trusting towards its callers, strict towards payloads. Words are plain integers `index << 1 |
negative`; bit streams are lists of 0 and 1 in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_GAPS = 512
GROUP_VALUES = 8
RICE_MAX = 24
U64 = 2**64


class PayloadRefused(Exception):
    """A payload that SPEC.md forbids."""


def bits_of(value: int, width: int) -> list[int]:
    """The `width` low bits of `value`, least significant first."""
    return [value >> place & 1 for place in range(width)]


def bytes_of(bits: Sequence[int]) -> bytes:
    """Bits to bytes, least significant first, the last byte filled with zeros."""
    return sum(bit << place for place, bit in enumerate(bits)).to_bytes((len(bits) + 7) // 8, "little")


def best_parameter(gaps: Sequence[int]) -> int:
    """The smallest Rice parameter of the least cost; what all parameters have in common is left out."""
    return min(range(RICE_MAX + 1), key=lambda k: k * len(gaps) + sum(gap >> k for gap in gaps))


def encode_block(gaps: Sequence[int], signs: Sequence[int], parameter: int) -> bytes:
    values = [gap % 2**parameter << 1 | sign for gap, sign in zip(gaps, signs, strict=True)]
    values += [0] * (-len(values) % GROUP_VALUES)
    packed = [bit for value in values for bit in bits_of(value, parameter + 1)]
    unary = [bit for gap in gaps for bit in [0] * (gap >> parameter) + [1]]
    return bytes([parameter]) + bytes_of(packed) + bytes_of(unary)


def encode(words: Sequence[int], *, parameters: Sequence[int] | None = None) -> bytes:
    """The payload of sorted words; `parameters` forces each block's, for payloads valid but not ours."""
    indices = [-1] + [word >> 1 for word in words]
    gaps = [after - before - 1 for before, after in pairwise(indices)]
    signs = [word & 1 for word in words]
    blocks = []
    for number, begin in enumerate(range(0, len(words), BLOCK_GAPS)):
        part = slice(begin, begin + BLOCK_GAPS)
        parameter = best_parameter(gaps[part]) if parameters is None else parameters[number]
        blocks.append(encode_block(gaps[part], signs[part], parameter))
    return b"".join(blocks)


class Decoded(NamedTuple):
    words: list[int]
    parameters: list[int]


def indices_max(weights: int) -> int:
    return min(weights, max(1024, weights // 4), 2**18)


def decode(payload: bytes, count: int, weights: int) -> Decoded:
    """The words of a payload and its blocks' parameters; PayloadRefused if SPEC.md forbids it."""
    if not 1 <= count <= indices_max(weights):
        raise PayloadRefused(f"{count} indices")
    words: list[int] = []
    parameters: list[int] = []
    at = 0  # in bytes
    lowest = 0  # the index that a gap of 0 means
    while len(words) < count:
        size = min(BLOCK_GAPS, count - len(words))
        parameter, at = _take(payload, at, 1)[0], at + 1
        if parameter > RICE_MAX:
            raise PayloadRefused(f"block header {parameter}")
        width = parameter + 1
        groups = -(-size // GROUP_VALUES)
        packed = int.from_bytes(_take(payload, at, groups * width), "little")
        at += groups * width
        values = [packed >> place * width & (1 << width) - 1 for place in range(groups * GROUP_VALUES)]
        if any(values[size:]):
            raise PayloadRefused("padding of the last group")
        quotients, at = _unary(payload, at, size)
        for value, quotient in zip(values, quotients, strict=False):
            index = lowest + (quotient << parameter) + (value >> 1)
            if index >= weights:
                raise PayloadRefused(f"index {index} of {weights}")
            words.append(index << 1 | value & 1)
            lowest = index + 1
        parameters.append(parameter)
    if at != len(payload):
        raise PayloadRefused("trailing bytes")
    return Decoded(words, parameters)


def _take(payload: bytes, at: int, size: int) -> bytes:
    if at + size > len(payload):
        raise PayloadRefused("truncated")
    return payload[at : at + size]


def _unary(payload: bytes, at: int, count: int) -> tuple[list[int], int]:
    """`count` quotients from the bytes at `at`, and where the bytes after them begin."""
    quotients: list[int] = []
    zeros = 0
    while len(quotients) < count:
        for place, bit in enumerate(bits_of(_take(payload, at, 1)[0], 8)):
            if len(quotients) == count:
                if payload[at] >> place:
                    raise PayloadRefused("padding of the quotients")
                break
            if bit:
                quotients.append(zeros)
                zeros = 0
            else:
                zeros += 1
        at += 1
    return quotients, at


class Swept(NamedTuple):
    residual: NDArray[np.float32]
    words: list[int]
    next_start: int


def residual_pass(
    residual: NDArray[np.float32], delta: NDArray[np.float32], *, threshold: float, room: int, start: int = 0
) -> Swept:
    """[Strom 2015] lines 4 to 7, weight by weight in float32, beginning at `start` and wrapping."""
    limit = np.float32(threshold)
    after = residual + delta
    words: list[int] = []
    missed: list[int] = []
    for index in [*range(start, len(after)), *range(start)]:
        r = after[index]
        if abs(r) > limit:
            if len(words) == room:
                missed.append(index)
                continue
            words.append(index << 1 | int(r < 0))
            after[index] = r - limit if r > 0 else r + limit
    return Swept(after, sorted(words), missed[0] if missed else 0)


def index_hash(index: int, key: int) -> int:
    """h(i): splitmix64's finalizer, made odd."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) % U64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % U64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % U64
    return z ^ z >> 31 | 1


def digest_words(words: Iterable[int], step: int, key: int) -> int:
    return sum((-step if word & 1 else step) * index_hash(word >> 1, key) for word in words) % U64


def digest_coordinates(coordinates: Iterable[int], key: int, start: int = 0) -> int:
    return sum(int(k) * index_hash(start + place, key) for place, k in enumerate(coordinates)) % U64


def crc32c(data: bytes) -> int:
    """Bit by bit: the Castagnoli polynomial, reflected, all ones before and after."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
