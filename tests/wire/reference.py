"""The codec once more, in Python to be read beside SPEC.md: the core in C++ must give the same bits.

Slow and trusting towards its callers, strict towards payloads. Words are plain integers `index << 1 |
negative`; bit streams are lists of 0 and 1 in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import xor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_GAPS: Final = 512
GROUP_VALUES: Final = 8
RICE_MAX: Final = 24
SIGN_MODE_MAX: Final = 7
DENSE_MARK: Final = 0x1F
DENSE_DIGITS: Final = 5  # weights in a byte of a dense payload
U64: Final = 2**64


class PayloadRefused(Exception):
    """A payload that SPEC.md forbids."""


class BlockChoice(NamedTuple):
    """What an encoder chooses for a block."""

    parameter: int  # k
    sign_mode: int  # m, 0 for plain signs


Choices = tuple[BlockChoice, ...]
DENSE: Final[Choices] = ()  # a dense payload has no blocks


def bits_of(value: int, width: int) -> list[int]:
    """The `width` low bits of `value`, least significant first."""
    return [value >> place & 1 for place in range(width)]


def bytes_of(bits: Sequence[int]) -> bytes:
    """Bits to bytes, least significant first, the last byte filled with zeros."""
    return sum(bit << place for place, bit in enumerate(bits)).to_bytes((len(bits) + 7) // 8, "little")


def filled(size: int) -> int:
    """Values of a block of `size` gaps, with those that fill up its last group."""
    return -(-size // GROUP_VALUES) * GROUP_VALUES


def gaps_of(words: Sequence[int]) -> list[int]:
    indices = [-1] + [word >> 1 for word in words]
    return [after - before - 1 for before, after in pairwise(indices)]


class SignChanges(NamedTuple):
    """The signs of a block as its coded form sees them."""

    runs: list[int]  # zeros before each change of a near word, and before the end
    far: list[int]  # the changes of the far words

    def cost(self, m: int) -> int:
        return sum(m + 1 + (run >> m) for run in self.runs) + len(self.far)

    def bits(self, m: int) -> list[int]:
        return [bit for run in self.runs for bit in [0] * (run >> m) + [1] + bits_of(run, m)] + self.far


def sign_changes(gaps: Sequence[int], signs: Sequence[int], k: int) -> SignChanges:
    changes = [before ^ sign for before, sign in pairwise([0, *signs])]
    near = [change for gap, change in zip(gaps, changes, strict=True) if gap >> k == 0]
    far = [change for gap, change in zip(gaps, changes, strict=True) if gap >> k > 0]
    positions = [position for position, change in enumerate([*near, 1]) if change]
    return SignChanges([after - before - 1 for before, after in pairwise([-1, *positions])], far)


def best_choice(gaps: Sequence[int], signs: Sequence[int]) -> BlockChoice:
    """The smallest k of the least cost (what every k costs is left out); then the same for m, if it pays."""
    k = min(range(RICE_MAX + 1), key=lambda k: k * len(gaps) + sum(gap >> k for gap in gaps))
    changes = sign_changes(gaps, signs, k)
    m = min(range(1, SIGN_MODE_MAX + 1), key=changes.cost)
    return BlockChoice(k, m if changes.cost(m) < len(gaps) else 0)


def encode_block(gaps: Sequence[int], signs: Sequence[int], choice: BlockChoice) -> bytes:
    k, m = choice
    if m == 0:
        width, values = k + 1, [gap % 2**k << 1 | sign for gap, sign in zip(gaps, signs, strict=True)]
        coded = []
    else:
        width, values = k, [gap % 2**k for gap in gaps]
        coded = sign_changes(gaps, signs, k).bits(m)
    values += [0] * (filled(len(gaps)) - len(gaps))
    packed = [bit for value in values for bit in bits_of(value, width)]
    unary = [bit for gap in gaps for bit in [0] * (gap >> k) + [1]]
    return bytes([m << 5 | k]) + bytes_of(packed) + bytes_of(unary) + bytes_of(coded)


def encode_dense(words: Sequence[int], weights: int) -> bytes:
    digits = [0] * (-(-weights // DENSE_DIGITS) * DENSE_DIGITS)
    for word in words:
        digits[word >> 1] = 1 + (word & 1)
    fives = range(0, len(digits), DENSE_DIGITS)
    return bytes([DENSE_MARK, *(sum(digits[five + j] * 3**j for j in range(DENSE_DIGITS)) for five in fives)])


def encode(words: Sequence[int], weights: int, choices: Choices | None = None) -> bytes:
    """The payload of sorted words; `choices` forces its form and blocks, for payloads valid but not ours."""
    if choices == DENSE:
        return encode_dense(words, weights)
    gaps, signs = gaps_of(words), [word & 1 for word in words]
    payload = b""
    for number, begin in enumerate(range(0, len(words), BLOCK_GAPS)):
        part = slice(begin, begin + BLOCK_GAPS)
        choice = best_choice(gaps[part], signs[part]) if choices is None else choices[number]
        payload += encode_block(gaps[part], signs[part], choice)
    if choices is None and 1 + -(-weights // DENSE_DIGITS) < len(payload):
        return encode_dense(words, weights)
    return payload


def measure(payload: bytes, count: int, weights: int) -> tuple[int, int, int, int, int, int, int]:
    """Bits of headers, remainders, quotients, signs, dense body; blocks; blocks with coded signs."""
    words, choices = decode(payload, count, weights)
    if choices == DENSE:
        return 8, 0, 0, 0, 8 * (len(payload) - 1), 0, 0
    gaps, signs = gaps_of(words), [word & 1 for word in words]
    remainder = quotient = sign = 0
    for number, choice in enumerate(choices):
        part = slice(number * BLOCK_GAPS, (number + 1) * BLOCK_GAPS)
        values = filled(len(gaps[part]))
        k, m = choice
        remainder += values * k
        quotient += 8 * -(-sum(1 + (gap >> k) for gap in gaps[part]) // 8)
        sign += values if m == 0 else 8 * -(-sign_changes(gaps[part], signs[part], k).cost(m) // 8)
    coded = sum(choice.sign_mode > 0 for choice in choices)
    return 8 * len(choices), remainder, quotient, sign, 0, len(choices), coded


class Decoded(NamedTuple):
    words: list[int]
    choices: Choices


def indices_max(weights: int) -> int:
    return min(weights, 2**18)


def decode(payload: bytes, count: int, weights: int) -> Decoded:
    """The words of a payload and what its encoder chose; PayloadRefused if SPEC.md forbids it."""
    if not 1 <= count <= indices_max(weights):
        raise PayloadRefused(f"{count} indices")
    if payload[:1] == bytes([DENSE_MARK]):
        return Decoded(_decode_dense(payload, count, weights), DENSE)
    reader = _Reader(payload)
    words: list[int] = []
    choices: list[BlockChoice] = []
    lowest = 0  # the index that a gap of 0 means
    while len(words) < count:
        choice, gaps, signs = _decode_block(reader, min(BLOCK_GAPS, count - len(words)))
        choices.append(choice)
        for gap, sign in zip(gaps, signs, strict=True):
            index = lowest + gap
            if index >= weights:
                raise PayloadRefused(f"index {index} of {weights}")
            words.append(index << 1 | sign)
            lowest = index + 1
    if reader.at != 8 * len(payload):
        raise PayloadRefused("trailing bytes")
    return Decoded(words, tuple(choices))


class _Reader:
    """Takes bits off a payload, least significant first."""

    def __init__(self, payload: bytes) -> None:
        self.at = 0  # in bits
        self._size = 8 * len(payload)
        self._bits = int.from_bytes(payload, "little")

    def number(self, width: int) -> int:
        if self.at + width > self._size:
            raise PayloadRefused("truncated")
        self.at += width
        return self._bits >> self.at - width & (1 << width) - 1

    def unary(self) -> int:
        """The zeros before the next one."""
        rest = self._bits >> self.at
        if rest == 0:
            raise PayloadRefused("truncated")
        zeros = (rest & -rest).bit_length() - 1
        self.at += zeros + 1
        return zeros

    def pad(self) -> None:
        if self.number(-self.at % 8):
            raise PayloadRefused("padding")


def _decode_block(reader: _Reader, size: int) -> tuple[BlockChoice, list[int], list[int]]:
    """The next block's choice, gaps and signs."""
    k, m = reader.number(5), reader.number(3)
    if k > RICE_MAX:
        raise PayloadRefused(f"Rice parameter {k}")
    values = [reader.number(k + 1 if m == 0 else k) for _ in range(filled(size))]
    if any(values[size:]):
        raise PayloadRefused("filling of the last group")
    quotients = [reader.unary() for _ in range(size)]
    reader.pad()
    if m == 0:
        signs = [value & 1 for value in values[:size]]
        values = [value >> 1 for value in values]
    else:
        signs = _decode_signs(reader, quotients, m)
    gaps = [(quotient << k) + value for quotient, value in zip(quotients, values, strict=False)]
    return BlockChoice(k, m), gaps, signs


def _decode_signs(reader: _Reader, quotients: Sequence[int], m: int) -> list[int]:
    """The signs of a block that codes them, from its sign section."""
    near = [place for place, quotient in enumerate(quotients) if quotient == 0]
    far = [place for place, quotient in enumerate(quotients) if quotient > 0]
    changes = [0] * len(quotients)
    position = -1
    while position < len(near):
        position += 1 + (reader.unary() << m) + reader.number(m)  # left to right: the order of sending
        if position > len(near):
            raise PayloadRefused("a run beyond the last near word")
        if position < len(near):
            changes[near[position]] = 1
    for place in far:
        changes[place] = reader.number(1)
    reader.pad()
    return list(accumulate(changes, xor))


def _decode_dense(payload: bytes, count: int, weights: int) -> list[int]:
    body = payload[1:]
    if len(body) != -(-weights // DENSE_DIGITS):
        raise PayloadRefused("truncated or trailing bytes")
    if any(byte >= 3**DENSE_DIGITS for byte in body):
        raise PayloadRefused("a byte that is not five digits")
    digits = [byte // 3**j % 3 for byte in body for j in range(DENSE_DIGITS)]
    if any(digits[weights:]):
        raise PayloadRefused("filling of the last byte")
    words = [index << 1 | digit - 1 for index, digit in enumerate(digits) if digit]
    if len(words) != count:
        raise PayloadRefused(f"{len(words)} indices")
    return words


class Swept(NamedTuple):
    residual: NDArray[np.float32]
    words: list[int]
    missed: int | None


def residual_pass(
    source: NDArray[np.float32], delta: NDArray[np.float32], *, threshold: float, room: int, first: int = 0
) -> Swept:
    """[Strom 2015] lines 4 to 7, weight by weight in float32; words of the indices `first` + i."""
    limit = np.float32(threshold)
    after = source + delta
    words: list[int] = []
    missed = None
    for i, r in enumerate(after):
        if abs(r) > limit:
            if len(words) == room:
                missed = i if missed is None else missed
                continue
            words.append(first + i << 1 | int(r < 0))
            after[i] = r - limit if r > 0 else r + limit
    return Swept(after, words, missed)


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
