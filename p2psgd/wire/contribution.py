"""CONTRIBUTION frames: what a node proposes for the range of one owner."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.cover import NUMBER_MAX
from p2psgd.wire.frames import CONTRIBUTION_HEADER_BYTES
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.rule import RATE_MAX

_HEADER: Final = struct.Struct("<QIIIfI")
_CHECKSUM: Final = struct.Struct("<I")
assert _HEADER.size + _CHECKSUM.size == CONTRIBUTION_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ContributionHeader:
    """The header of a contribution. `number` counts those from one node to one owner, from 1; `magnitude` is
    the size of each number in quanta, `count` how many indices the payload holds, counted from `base`.
    `rate`: 0 if the numbers are changes, as made; else they are a gradient, for the run's rule to make
    changes of at this learning rate. `round`: in rounds, the one to which the node gives this owner nothing
    more; 0 if more may follow. Only one with a round may have no indices; its magnitude is 1, its base 0.
    """

    number: int
    magnitude: int
    base: int
    count: int
    rate: float = 0.0
    round: int = 0


def pack_contribution(header: ContributionHeader, payload: bytes) -> bytes:
    """Build the body of a CONTRIBUTION frame."""
    checked = _HEADER.pack(
        header.number, header.magnitude, header.base, header.count, header.rate, header.round
    )
    checksum = codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0))
    return b"".join((checked, _CHECKSUM.pack(checksum), payload))


def parse_contribution(
    body: bytes | bytearray, weights: int, *, gradients: bool
) -> tuple[ContributionHeader, NDArray[np.uint32]]:
    """Return header and words uint32 (count,) of a contribution in a run of `weights` weights; PeerError
    unless all of it is right. `gradients`: the run's rule takes them.
    """
    if len(body) < CONTRIBUTION_HEADER_BYTES:
        words = f"a contribution of {len(body)} bytes is shorter than its header"
        raise PeerError(RejectCode.CONTRIBUTION, words)
    header = ContributionHeader(*_HEADER.unpack_from(body))
    (checksum,) = _CHECKSUM.unpack_from(body, _HEADER.size)
    checked, payload = memoryview(body)[: _HEADER.size], memoryview(body)[CONTRIBUTION_HEADER_BYTES:]
    if codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0)) != checksum:
        raise PeerError(RejectCode.CHECKSUM, "the checksum of a contribution does not match its bytes")
    numbered = 1 <= header.number <= NUMBER_MAX
    if not numbered or not 1 <= header.magnitude <= codec.MAGNITUDE_MAX or header.base >= weights:
        words = f"number {header.number}, magnitude {header.magnitude}, from weight {header.base} on"
        raise PeerError(RejectCode.CONTRIBUTION, f"a contribution that cannot be: {words}")
    if not (0 <= header.rate <= RATE_MAX if gradients else header.rate == 0):
        words = f"a contribution at a learning rate of {header.rate:g}"
        raise PeerError(
            RejectCode.CONTRIBUTION, f"{words}, possible is {f'0 to {RATE_MAX:g}' * gradients or 0}"
        )
    if header.round and not header.count:
        if (header.magnitude, header.base, len(payload)) != (1, 0, 0):
            words = f"magnitude {header.magnitude}, from weight {header.base} on, {len(payload)} bytes"
            raise PeerError(RejectCode.CONTRIBUTION, f"a contribution of no indices that cannot be: {words}")
        return header, np.empty(0, np.uint32)
    return header, decode_words(payload, header.count, header.base, weights)


def decode_words(payload: bytes | memoryview, count: int, base: int, weights: int) -> NDArray[np.uint32]:
    """Return the words uint32 (count,) of a payload whose indices are counted from `base`; PeerError unless
    it is whole.
    """
    words = codec.decode(payload, count, weights - base)
    if base:
        words += np.uint32(base << 1)
    return words


def encode_words(words: NDArray[np.uint32], weights: int) -> tuple[int, bytes]:
    """Return the first index of these words, and the payload in which indices are counted from there; 0 and
    nothing for no words.
    """
    if not len(words):
        return 0, b""
    base = int(words[0]) >> 1
    return base, codec.encode(words - np.uint32(base << 1), weights - base)
