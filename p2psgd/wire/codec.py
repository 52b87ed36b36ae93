"""The Python face of the C++ core (native/): payloads, residual pass, applying, digests, checksums, counters.

A function that needs no more than the core does is the core's own: calls that only pass on would be a third
of all calls on the way of an update.

A word is a uint32, `index << 1 | negative`. Buffers belong to the caller, are one-dimensional, contiguous and
aligned, and are never converted: another element type is a TypeError, another shape or alignment a
ValueError. The GIL is released while the core works, so a buffer must not be written meanwhile. A fault of
ours is a ValueError; a fault of a peer is a PeerError. Limits and formats: SPEC.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import p2psgd.wire.cpu_paths  # noqa: F401 (importing it chooses the path that runs)
from p2psgd.wire import _native
from p2psgd.wire._native import Precision, Status
from p2psgd.wire.reject import PeerError, RejectCode

WEIGHTS_MAX: Final = _native.WEIGHTS_MAX  # 2**31: an index has 31 bits
COUNTS_PER_SHARD: Final = 2  # of a replica: how many nodes hold a shard, and how often it was used
BLOCK_GAPS: Final = _native.BLOCK_GAPS  # 512 gaps in a block of a payload
RICE_MAX: Final = _native.RICE_MAX  # 24, the largest Rice parameter
MAGNITUDE_MAX: Final = _native.STEP_MAX  # 2**20 quanta in one update
TOGETHER_MAX: Final = _native.TOGETHER_MAX  # 4096 updates in one call that applies many together
COORDINATE_MAX: Final = 2**24  # float32 holds every integer up to here; past it replicas would differ
COORDINATE_WARN: Final = 2**23  # half of the way there
DELTA_TYPES: Final = {  # what a delta may hold; all widen to float32 exactly
    "float32": Precision.FLOAT32,
    "float16": Precision.FLOAT16,
    "bfloat16": Precision.BFLOAT16,
}

_DENSE: Final = b"\x1f"  # the first byte of a dense payload
_FAULTS: Final = {
    Status.TRUNCATED: "ends before its last index",
    Status.PARAMETER_OUT_OF_RANGE: f"has a block with a Rice parameter above {RICE_MAX}",
    Status.PADDING_NOT_ZERO: "has padding bits that are not zero",
    Status.RUN_OUT_OF_RANGE: "has a run of signs that is longer than its block",
    Status.DIGITS_OUT_OF_RANGE: "has a byte above 242, which is not five digits",
    Status.COUNT_MISMATCH: "holds another number of indices",
}


@dataclass(frozen=True, slots=True)
class PayloadBits:
    """The use of a payload's bits: the first five add up to 8 * len(payload).

    `header`: of the blocks, or the first byte of a dense payload. `remainder`: low bits of gaps, with those
    that fill up the last group. `quotient`: unary, with its padding. `sign`: of a block with plain signs one
    for each value, filling included; of one with coded signs its sign section with the padding. `dense`: all
    of a dense payload but its first byte. `blocks`: their number, 0 for a dense payload.
    """

    header: int
    remainder: int
    quotient: int
    sign: int
    dense: int
    blocks: int
    sign_coded_blocks: int


indices_max = _native.indices_max  # (weights)
"""Most indices that one update for `weights` (1 to 2**31) weights may hold.

min(weights, 2**18): the ceiling bounds the work that a single frame can ask of its receiver.
"""


payload_bytes_max = _native.payload_bytes_max  # (count)
"""Upper bound, in bytes, of what `encode` makes of `count` words."""


encode = _native.encode  # (words, weights)
"""The payload of an update's words: encoding 1, the shorter of its two forms (SPEC.md, section 7).

Blocks of split-stream Golomb-Rice ([Strom 2015]), with coded signs where that is shorter, or five weights
to a byte for an update of most weights. `words`: 1 to `indices_max(weights)` of them, in ascending order
of distinct indices below `weights`; ValueError if not.
"""


def decode(payload: bytes | bytearray | memoryview, count: int, weights: int) -> NDArray[np.uint32]:
    """Decode the `count` words of a payload from any source: any bytes are safe.

    PeerError (reason "payload") unless the payload is whole, holds exactly `count` indices below `weights`,
    and nothing more.
    """
    if not 1 <= count <= indices_max(weights):  # before there is memory for it
        raise _count_refusal(count, weights)
    words = np.empty(count, np.uint32)
    fault = _native.decode(payload, weights, words)
    if fault is not None:
        raise _refusal(*fault, payload, count, weights)
    return words


def decode_into(
    payload: bytes | bytearray | memoryview, words: NDArray[np.uint32], weights: int
) -> NDArray[np.uint32]:
    """Decode as `decode` does, for as many words as `words` has room, into it; return it. After an error it
    holds anything.

    For many updates in a row: memory that is there already costs no page faults, half of the time otherwise.
    """
    if not 1 <= len(words) <= indices_max(weights):
        raise _count_refusal(len(words), weights)
    fault = _native.decode(payload, weights, words)
    if fault is not None:
        raise _refusal(*fault, payload, len(words), weights)
    return words


def measure(payload: bytes | bytearray | memoryview, count: int, weights: int) -> PayloadBits:
    """Measure where the bits of a payload of `count` words go; PeerError for exactly those that `decode`
    refuses.
    """
    if not 1 <= count <= indices_max(weights):
        raise _count_refusal(count, weights)
    measured = _native.measure(payload, weights, count)
    if len(measured) == 2:
        raise _refusal(*measured, payload, count, weights)
    return PayloadBits(*measured)


def _count_refusal(count: int, weights: int) -> PeerError:
    allowed = f"1 to {indices_max(weights)} for {weights} weights"
    return PeerError(RejectCode.PAYLOAD, f"a payload of {count} indices, allowed are {allowed}")


def _refusal(
    status: Status, where: int, payload: bytes | bytearray | memoryview, count: int, weights: int
) -> PeerError:
    """Build the error for a payload that the core refuses."""
    length = len(payload)
    if status is Status.TRAILING_BYTES:
        return PeerError(
            RejectCode.PAYLOAD, f"{where} of the payload's {length} bytes follow its {count} indices"
        )
    what = _FAULTS.get(status, f"holds an index that is not below the {weights} weights")
    place = "dense" if payload[:1] == _DENSE else f"block {where}"
    return PeerError(RejectCode.PAYLOAD, f"the payload of {count} indices in {length} bytes {what} ({place})")


def residual_pass(
    source: NDArray[np.float32],
    delta: NDArray[Any],
    target: NDArray[np.float32],
    words: NDArray[np.uint32],
    *,
    threshold: float,
    first: int = 0,
    negated: bool = False,
) -> tuple[int, int | None]:
    """Accumulate, threshold, emit, subtract ([Strom 2015], lines 4 to 7); returns (count, missed).

    Every weight i: r = source + delta in float32; r > threshold: emit `first` + i with a plus and subtract
    the threshold; r < -threshold: emit it with a minus and add it; target = r. Arrays of one length,
    `delta` of any of `DELTA_TYPES` (bfloat16 is an array whose dtype has that name), `target` apart from the
    others. A float32 delta is taken with the other sign if `negated`. The words come out sorted in
    words[:count]; what finds no room there stays in the target, and `missed` is the first such i, else None.
    `threshold` must be exact in float32. ValueError for a sum that is NaN or infinite: `target` and `words`
    are then undefined, `source` is never written.
    """
    if getattr(delta, "dtype", None) == np.float32:
        kind = Precision.NEGATED if negated else Precision.FLOAT32
        return _native.residual_pass(source, delta, target, words, kind, threshold, first)
    if negated:
        raise TypeError(f"a negated delta must be of float32; it is of {getattr(delta, 'dtype', None)}")
    precision, values = _bits(delta)
    return _native.residual_pass(source, values, target, words, precision, threshold, first)


def _bits(delta: NDArray[Any]) -> tuple[Precision, NDArray[Any]]:
    """Return the type of a delta's elements, and the array as the core takes it: 16-bit floats by
    their bits.
    """
    dtype = getattr(delta, "dtype", None)
    precision = Precision.FLOAT32 if dtype is None else DELTA_TYPES.get(dtype.name)
    if precision is None or (dtype is not None and not dtype.isnative):
        raise TypeError(f"delta must be of {', '.join(DELTA_TYPES)}; it is of {dtype}")
    return precision, delta if precision is Precision.FLOAT32 else delta.view(np.uint16)


apply_coordinates = _native.apply_coordinates  # (coordinates, words, magnitude)
"""Add or subtract `magnitude` quanta at every word's index; returns the largest |coordinate| touched, where.

(0, 0) for no words. ValueError, with nothing changed, for an index outside or a magnitude not within 1 to
MAGNITUDE_MAX. Beyond COORDINATE_MAX float32 copies would no longer be exact: the caller compares and stops.
"""


apply_weights = _native.apply_weights  # (weights, words, amount)
"""Add or subtract `amount` = magnitude * quantum, positive and exact in float32, at every word's index.

ValueError, with nothing changed, for an index outside.
"""


apply_coordinates_together = _native.apply_coordinates_together  # (coordinates, updates)
"""Apply many updates, (words, magnitude) each, with the result of one after the other, but faster.

At most TOGETHER_MAX of them. The weights are walked once, range by range, with all updates' words in a
range: fast if words are sorted by index, as `decode` gives them. Returns the largest |coordinate| that
any word left, and the least index that had it; (0, 0) for no words. ValueError, with nothing changed,
for any index outside or magnitude not within 1 to MAGNITUDE_MAX.
"""


apply_weights_together = _native.apply_weights_together  # (weights, updates)
"""The same for a working copy: (words, amount) each, amounts as for `apply_weights`."""


digest_words = _native.digest_words  # (words, magnitude, key)
"""What an update adds to a replica's digest: sum(+-magnitude * h(index)) mod 2**64.

h(i) = splitmix64 finalizer of (key + (i + 1) * 0x9E3779B97F4A7C15) mod 2**64, made odd; `key` is the
run's.
"""


def digest_coordinates(coordinates: NDArray[np.int32], key: int, start: int = 0) -> int:
    """Compute sum(coordinate * h(i)) mod 2**64 over the weights i from `start` on; the digests of slices add
    up.
    """
    return _native.digest_coordinates(coordinates, key, start)


continue_crc32c = _native.crc32c  # (data, crc)
"""CRC-32C (RFC 3720, appendix B.4) of `data`, continuing from the `crc` of what came before it."""


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Compute the CRC-32C of `data` as `continue_crc32c` does; nothing came before it unless `crc`
    is given.
    """
    return _native.crc32c(data, crc)


add_numbers = _native.add_numbers  # (incoming, own, sums)
"""sums = incoming + own, the bytes of float32 numbers and two arrays (K,), one perhaps the other; return
the CRC-32C of `incoming` and of `sums`, and whether all of `own` are finite.
"""


check_numbers = _native.check_numbers  # (own)
"""The CRC-32C of `own` (K,), and whether all of them are finite."""


copy_numbers = _native.copy_numbers  # (incoming, numbers)
"""numbers = incoming, the bytes of float32 numbers and an array (K,) elsewhere; return their CRC-32C."""


def move_weights(
    old: NDArray[np.int32],
    sums: NDArray[np.float32],
    factor: float,
    new: NDArray[np.int32],
    *,
    key: int,
    start: int = 0,
) -> tuple[int, int]:
    """Compute new = old + sums * factor, product and sum rounded to float32 each, `old` and `new` the bits of
    float32 weights from `start` on, all (K,); return the digests (`digest_coordinates`) of `old` and of
    `new`.

    `factor` must be exact in float32, `new` apart from the others.
    """
    return _native.move_weights(old, sums, factor, new, key, start)


load_counter = _native.load_counter  # (counters, index)
"""A counter that another process may store; what was written before is seen after this. Loads and stores of
all counters have one order (sequentially consistent).
"""


store_counter = _native.store_counter  # (counters, index, value)
"""Publish a counter to another process, and with it everything written before."""
