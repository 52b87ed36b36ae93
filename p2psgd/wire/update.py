"""UPDATE frames: header and payload of an update, and the weights that it changes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.cover import CoverRow, after_cover, pack_cover, unpack_cover
from p2psgd.wire.frames import UPDATE_HEADER_BYTES
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# The update message: a fixed header of 64 bytes, then the payload.
#
# Written once by its origin and passed on unchanged by every relay, so everything in it is the origin's word.
# Not MessagePack: it is most of the traffic, and a receiver checks it field by field before it touches a
# weight. See SPEC.md.


ENCODING_RICE: Final = 1  # both forms of SPEC.md, section 7; APPEND ONLY
ENCODING_COVERED: Final = 2  # the same after a cover, in runs whose ranges have owners
_CHECKED: Final = struct.Struct(
    "<QQQQQIIIB7s"
)  # the first 60 bytes, which the checksum covers with the payload
_CHECKSUM: Final = struct.Struct("<I")
_ZERO: Final = bytes(7)
assert _CHECKED.size + _CHECKSUM.size == UPDATE_HEADER_BYTES


@dataclass(slots=True)  # not frozen: one is made for every update, and that would take four times as long
class UpdateHeader:
    """The header of an update: which origin changed how many weights by how much.

    `sequence` counts the origin's updates from 1, `digest` is the origin's running digest after this
    update, `steps` how many training steps of the origin are complete with it (news for people and
    schedules, never a decision about replication), `magnitude` the size of the change in quanta, `count` the
    number of weights changed.

    Of an owner's update `cover` says which contributions are taken into account by it and those before it,
    and the payload's indices are counted from `base`; else it is None, and `base` 0.
    """

    node: int
    incarnation: int
    sequence: int
    digest: int
    steps: int
    magnitude: int
    count: int
    base: int = 0
    cover: tuple[CoverRow, ...] | None = None


def pack_update(header: UpdateHeader, payload: bytes) -> bytes:
    """Build the body of an UPDATE frame; the payload holds indices counted from the header's base."""
    encoding = ENCODING_RICE
    if header.cover is not None:
        encoding = ENCODING_COVERED
        payload = pack_cover(header.base, header.cover) + payload
    checked = _CHECKED.pack(
        header.node,
        header.incarnation,
        header.sequence,
        header.digest,
        header.steps,
        header.magnitude,
        header.count,
        len(payload),
        encoding,
        _ZERO,
    )
    checksum = codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0))
    return b"".join((checked, _CHECKSUM.pack(checksum), payload))


def parse_update(
    body: bytes | bytearray | memoryview, weights: int, *, owners: bool | None = None
) -> tuple[UpdateHeader, memoryview]:
    """Parse header and payload of an UPDATE body for a replica of `weights` weights; PeerError if anything
    but the payload is wrong. `owners`: whether the run's ranges have owners, so that updates have covers;
    None where that was checked before.

    `codec.decode` checks the payload itself, and the digest is checked by callers that know the origin's
    digest before.
    """
    view = memoryview(body)
    if len(view) < UPDATE_HEADER_BYTES:
        raise PeerError(
            RejectCode.UPDATE_LENGTH, f"an update of {len(view)} bytes is shorter than its header"
        )
    node, incarnation, sequence, digest, steps, magnitude, count, length, encoding, zero = (
        _CHECKED.unpack_from(view)
    )
    payload = view[UPDATE_HEADER_BYTES:]
    if length != len(payload):
        raise PeerError(
            RejectCode.UPDATE_LENGTH, f"the header announces {length} payload bytes, {len(payload)} came"
        )
    (checksum,) = _CHECKSUM.unpack_from(view, _CHECKED.size)
    if codec.continue_crc32c(payload, codec.continue_crc32c(view[: _CHECKED.size], 0)) != checksum:
        raise PeerError(RejectCode.CHECKSUM, "the update's checksum does not match its bytes")
    if encoding not in (ENCODING_RICE, ENCODING_COVERED) or zero != _ZERO:
        raise PeerError(
            RejectCode.ENCODING,
            f"encoding {encoding} of an update is not known, or its reserved bytes are not zero",
        )
    if owners is not None and (encoding == ENCODING_COVERED) != owners:
        has, have = ("no cover", "have") if owners else ("a cover", "do not have")
        raise PeerError(RejectCode.ENCODING, f"an update has {has}, and the ranges of the run {have} owners")
    if sequence == 0:
        raise PeerError(RejectCode.SEQUENCE, "an update's sequence number is 0, they start at 1")
    if not 1 <= magnitude <= codec.MAGNITUDE_MAX:
        raise PeerError(
            RejectCode.MAGNITUDE, f"magnitude {magnitude} is not within 1 to {codec.MAGNITUDE_MAX} quanta"
        )
    least = int(encoding == ENCODING_RICE)  # one that is only a cover changes nothing
    if not least <= count <= codec.indices_max(weights):
        words = f"{count} indices, allowed are {least} to {codec.indices_max(weights)}"
        raise PeerError(RejectCode.COUNT, words)
    header = UpdateHeader(node, incarnation, sequence, digest, steps, magnitude, count)
    if encoding == ENCODING_COVERED:
        payload = _parse_cover(header, payload, weights)
    return header, payload


def _parse_cover(header: UpdateHeader, payload: memoryview, weights: int) -> memoryview:
    """Set the header's base and cover; return what follows."""
    base, cover, rest = unpack_cover(payload)
    only_cover = base == 0 and header.magnitude == 1 and not rest
    if not 0 <= base < weights or not (header.count or only_cover):
        words = f"an owner's update from weight {base} of {weights} on, with {header.count} indices"
        raise PeerError(RejectCode.PAYLOAD, words)
    header.base, header.cover = base, cover
    return rest


def without_cover(header: UpdateHeader, body: bytes | bytearray) -> bytes:
    """Return the body of an owner's update without its cover, which is of no use to a trainer."""
    payload = after_cover(memoryview(body)[UPDATE_HEADER_BYTES:])
    return pack_update(replace(header, cover=()), bytes(payload))


def by_digits(
    words: NDArray[np.uint32], sizes: NDArray[np.int64], *, magnitude_max: int = codec.MAGNITUDE_MAX
) -> list[tuple[int, NDArray[np.uint32]]]:
    """Return updates, a magnitude and words each, that move the weights of `words` (n,) by `sizes` (n,)
    quanta: one for each binary digit, and of the highest as many as it takes; that is `magnitude_max`, a
    power of two.
    """
    updates = []
    largest = magnitude_max.bit_length() - 1
    for bit in range(largest):
        chosen = words[(sizes >> bit) & 1 == 1]
        if len(chosen):
            updates.append((1 << bit, chosen))
    rest = sizes >> largest
    while (rest > 0).any():
        updates.append((1 << largest, words[rest > 0]))
        rest = np.maximum(rest - 1, 0)
    return updates


def decode_update(header: UpdateHeader, payload: bytes | memoryview, weights: int) -> NDArray[np.uint32]:
    """Return the words uint32 (count,) of an update whose header was parsed; PeerError unless the payload is
    whole.
    """
    if not header.count:
        return np.empty(0, np.uint32)
    words = codec.decode(payload, header.count, weights - header.base)
    if header.base:
        words += np.uint32(header.base << 1)
    return words


# ----------------------------------------------------------------------------
# An update of the own trainer, before it has a place in this node's sequence: one type from shared memory to
# the log.


@dataclass(frozen=True, slots=True)
class OwnUpdateMade:
    """The node's trainer made an update: `words` is what `payload` decodes to, already checked. `rate`: of a
    gradient for a rule of owners, the learning rate; else 0.
    """

    steps: int
    magnitude: int
    payload: bytes
    words: NDArray[np.uint32]
    rate: float = 0.0


# ----------------------------------------------------------------------------
# The weights for which a replica's coordinates stand: the one place that knows how a mode writes them.
#
# Of a dense ring they are the bit patterns of float32 numbers; else multiples of the quantum, which float32
# holds exactly.


def weights_of(coordinates: NDArray[np.int32], *, mode: str, quantum_log2: int) -> NDArray[np.float32]:
    """Convert coordinates int32 (P,) to weights float32 (P,); of a dense ring the same memory."""
    if parse_mode(mode).dense:
        return coordinates.view(np.float32)
    return coordinates.astype(np.float32) * np.float32(2.0**quantum_log2)
