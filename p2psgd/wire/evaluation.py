"""Frames of mode `closure`: an evaluation of loss and gradient, its portions, its table, and its sums.

What a trainer and its daemon say to each other about an evaluation is here too, since core and ipc share it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from p2psgd.wire import codec
from p2psgd.wire.fixed_point import EXPONENT_MAX, EXPONENT_MIN, NOTHING, PORTIONS_MAX, Exponents, Sums
from p2psgd.wire.frames import EVALUATION_HEADER_BYTES, EVALUATION_NUMBERS_MAX
from p2psgd.wire.reject import PeerError, RejectCode

MEMBER_BYTES: Final = 16
ATTEMPTS_MAX: Final = 100  # at one evaluation: two are needed, more if the closure is not deterministic

# ----------------------------------------------------------------------------
# Sets of portions: an int whose bit p stands for portion p; on the wire ceil(portions / 8) bytes, low first.

Portions = int


def each_of(portions: Portions) -> Iterator[int]:
    """Yield the portions of a set, in ascending order."""
    while portions:
        lowest = portions & -portions
        yield lowest.bit_length() - 1
        portions ^= lowest


def set_of(portions: Iterable[int]) -> Portions:
    """Return these portions as a set."""
    found = 0
    for portion in portions:
        found |= 1 << portion
    return found


def pack_portions(portions: Portions, count: int) -> bytes:
    """Pack a set of portions of `count`."""
    return portions.to_bytes((count + 7) // 8, "little")


def parse_portions(packed: bytes, count: int) -> Portions:
    """Parse a set; PeerError unless it is one of `count` portions."""
    portions = int.from_bytes(packed, "little")
    if len(packed) != (count + 7) // 8 or portions >> count:
        raise refusal(f"{len(packed)} bytes are no set of {count} portions")
    return portions


def parse_leases(packed: bytes, count: int) -> tuple[int, ...]:
    """Parse the leases of a member, u16 each; PeerError unless each is one of `count` portions, and once."""
    leases = tuple(int.from_bytes(packed[at : at + 2], "little") for at in range(0, len(packed), 2))
    if len(packed) % 2 or len(set(leases)) < len(leases) or any(each >= count for each in leases):
        raise refusal(f"leases {leases} of {count} portions")
    return leases


# ----------------------------------------------------------------------------
# Tables: the members, node and incarnation as u64 each, and by portion the place of its member, u16.

_MEMBER: Final = struct.Struct("<QQ")


def pack_table(
    members: Sequence[tuple[int, int]], sets: Sequence[Portions], count: int
) -> tuple[bytes, bytes]:
    """Pack members and the sets of portions, each of `count` portions in one of them."""
    places = np.zeros(count, "<u2")
    for place, portions in enumerate(sets):
        places[list(each_of(portions))] = place
    return b"".join(_MEMBER.pack(*member) for member in members), places.tobytes()


def parse_table(
    members: bytes, assignment: bytes, count: int
) -> tuple[tuple[tuple[int, int], ...], tuple[Portions, ...]]:
    """Parse members, ascending, and the set of each; PeerError unless each portion has one of them."""
    if len(members) % _MEMBER.size or len(assignment) != 2 * count:
        raise refusal(f"a table of {len(members)} and {len(assignment)} bytes")
    rows = tuple(_MEMBER.iter_unpack(members))
    places = np.frombuffer(assignment, "<u2")
    if any(one >= other for one, other in pairwise(rows)) or int(places.max()) >= len(rows):
        raise refusal("the members of its table do not ascend, or a portion has none of them")
    sets = [0] * len(rows)
    for portion, place in enumerate(places.tolist()):
        sets[place] |= 1 << portion
    return rows, tuple(sets)


# ----------------------------------------------------------------------------
# Exponents and limits of groups, int16 each, little endian.


def pack_exponents(exponents: Exponents) -> bytes:
    """Pack the exponents or limits of all groups."""
    return exponents.astype("<i2").tobytes()


def parse_exponents(packed: bytes, groups: int) -> Exponents:
    """Parse them; PeerError unless there are `groups`, all of them possible."""
    if len(packed) != 2 * groups:
        raise refusal(f"{len(packed)} bytes hold no {groups} exponents")
    exponents = np.frombuffer(packed, "<i2").astype(np.int16)
    possible = (exponents >= EXPONENT_MIN) & (exponents <= EXPONENT_MAX) | (exponents == NOTHING)
    if not possible.all():
        raise refusal("an exponent in it cannot be")
    return exponents


# ----------------------------------------------------------------------------
# The body of EVALUATION_NUMBERS: a header, then int64 numbers, little endian.


class Kind(enum.IntEnum):
    """The numbers that are fetched; a number on the wire."""

    PART = 0  # of a member's own sum
    TOTAL = 1  # of the sum of all members, from its owner
    RESULT = 2  # of an evaluation that is complete


@dataclass(frozen=True, slots=True)
class Numbers:
    """The place of numbers: of which evaluation and attempt, under which table (its number and leader; 0 of a
    result), and from where on.
    """

    kind: Kind
    evaluation: int
    attempt: int
    table: int
    leader: int
    offset: int


_HEADER: Final = struct.Struct("<QQQQHBB")
_CHECKSUM: Final = struct.Struct("<I")
assert _HEADER.size + _CHECKSUM.size == EVALUATION_HEADER_BYTES


def pack_numbers(place: Numbers, numbers: Sums) -> bytes:
    """Build the body of an EVALUATION_NUMBERS frame."""
    checked = _HEADER.pack(
        place.evaluation, place.table, place.leader, place.offset, place.attempt, place.kind, 0
    )
    payload = np.ascontiguousarray(numbers, "<i8").tobytes()
    checksum = codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0))
    return b"".join((checked, _CHECKSUM.pack(checksum), payload))


def parse_numbers(body: bytes | bytearray, count: int) -> tuple[Numbers, Sums]:
    """Return place and numbers, int64 (n,), of a run in which sums have `count` numbers; PeerError unless all
    of it is right.
    """
    if len(body) < EVALUATION_HEADER_BYTES:
        raise refusal(f"{len(body)} bytes are shorter than its header")
    evaluation, table, leader, offset, attempt, kind, rest = _HEADER.unpack_from(body)
    (checksum,) = _CHECKSUM.unpack_from(body, _HEADER.size)
    checked, payload = memoryview(body)[: _HEADER.size], memoryview(body)[EVALUATION_HEADER_BYTES:]
    if codec.continue_crc32c(payload, codec.continue_crc32c(checked, 0)) != checksum:
        raise PeerError(RejectCode.CHECKSUM, "the checksum of an evaluation's numbers does not match")
    numbers, remainder = divmod(len(payload), 8)
    fits = 1 <= numbers <= EVALUATION_NUMBERS_MAX and offset + numbers <= count and not remainder
    if not fits or kind > Kind.RESULT or rest or not evaluation or attempt > ATTEMPTS_MAX:
        raise refusal(f"{len(payload)} bytes from {offset} on, of kind {kind}, of evaluation {evaluation}")
    values = np.frombuffer(payload, "<i8").astype(np.int64)
    return Numbers(Kind(kind), evaluation, attempt, table, leader, offset), values


# ----------------------------------------------------------------------------
# What a trainer asks of its daemon, and what it gets for an answer.


@dataclass(frozen=True, slots=True)
class EvaluationAsked:
    """A trainer asks for an evaluation, or for what comes next of it.

    `digest` is that of the point and of all else that members must agree on, `sum` the one that it adds to.
    Since it asked last it has added the portions `added` to that, and has computed `computed`, whose rounded
    numbers have this checksum and whose groups have these exponents, or could not compute it (`failed`: why).
    """

    evaluation: int
    digest: int
    portions: int
    sum: int
    added: tuple[int, ...] = ()
    computed: int | None = None
    checksum: int = 0
    exponents: bytes = b""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationAnswered:
    """The answer: if `sum` is another one than before, begin at zero; add the portions `add` and forget those
    of `drop`; then compute `compute`, rounded by `limits`, and read the data of `prefetch` meanwhile. `done`:
    the totals are there. `error`: why the evaluation has ended without any.
    """

    evaluation: int
    sum: int
    limits: bytes = b""
    add: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    compute: int | None = None
    prefetch: int | None = None
    done: bool = False
    error: str = ""


def check_portions(portions: int) -> None:
    """Raise ValueError with a sentence unless data can be cut into this number of portions."""
    if not 1 <= portions <= PORTIONS_MAX:
        raise ValueError(f"portions {portions} is refused: 1 to {PORTIONS_MAX} are possible")


def refusal(words: str) -> PeerError:
    """Return the error for a frame of an evaluation that cannot be."""
    return PeerError(RejectCode.EVALUATION, f"a frame of an evaluation is refused: {words}")
