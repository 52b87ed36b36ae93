"""Covers: the contributions that an owner's updates take into account, in the updates and in snapshots."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgpack

from p2psgd.wire.frames import COVER_BYTES_MAX, ORIGINS_MAX, Body
from p2psgd.wire.reject import PeerError, RejectCode

NUMBER_MAX: Final = 2**63 - 1  # of a contribution
NEW: Final = -1  # the place of a contributor that no update has named before
EVERY: Final = -2  # the place of a first row that is of all others with a place, but for those that follow
NUMBERS_MAX: Final = 3 + 4 * ORIGINS_MAX  # in the array of a cover: its base, such a row, new contributors
NO_COVER_BYTES: Final = 8  # of an owner's update without rows, at most
_LENGTH: Final = struct.Struct("<H")
_OWNER: Final = struct.Struct("<QQ")
_ROW: Final = struct.Struct("<QQQ")


class CoverRow(NamedTuple):
    """A contributor, whose contributions are taken into account up to the `more`-th after those that the
    owner's updates before took.

    `place`: the contributor's among those that the owner's updates have named, in that order, from 0. For one
    that none has named it is NEW, and `node` and `incarnation` name it. EVERY, in the first row alone: all of
    them that have no row of their own.
    """

    place: int
    more: int
    node: int = 0
    incarnation: int = 0


def pack_cover(base: int, rows: Iterable[CoverRow]) -> bytes:
    """Pack what precedes the payload of an owner's update: its length, uint16, and a MessagePack array. It
    holds the base, then place and more of each row, and node and incarnation of new contributors.
    """
    numbers = [base]
    for row in rows:
        numbers += row if row.place == NEW else row[:2]
    packed: bytes = msgpack.packb(numbers)
    return _LENGTH.pack(len(packed)) + packed


def unpack_cover(payload: memoryview) -> tuple[int, tuple[CoverRow, ...], memoryview]:
    """Return base, rows, and what follows them; PeerError if they cannot be."""
    end = _LENGTH.size + (_LENGTH.unpack_from(payload)[0] if len(payload) >= _LENGTH.size else 0)
    if not _LENGTH.size < end <= min(len(payload), COVER_BYTES_MAX):
        raise _refusal(f"it has {len(payload)} bytes, which hold none")
    numbers = _unpack_numbers(payload[_LENGTH.size : end])
    rows, at = [], 1
    while at < len(numbers):
        size = 4 if numbers[at] == NEW else 2
        if at + size > len(numbers):
            raise _refusal("its last row is not whole")
        rows.append(CoverRow(*numbers[at : at + size]))
        at += size
    _check_rows(rows)
    return numbers[0], tuple(rows), payload[end:]


def after_cover(payload: memoryview) -> memoryview:
    """Return what follows a cover that was unpacked before."""
    return payload[_LENGTH.size + _LENGTH.unpack_from(payload)[0] :]


def _unpack_numbers(packed: memoryview) -> list[int]:
    """Unpack an array number by number: MessagePack would make room for arrays in it before it refused."""
    limits = {f"max_{kind}_len": 0 for kind in ("str", "bin", "array", "map", "ext")}
    unpacker = msgpack.Unpacker(max_buffer_size=COVER_BYTES_MAX, read_size=1, **limits)
    unpacker.feed(packed)
    try:
        count = unpacker.read_array_header()
        if not 1 <= count <= NUMBERS_MAX:
            raise _refusal(f"it is an array of {count} numbers, allowed are 1 to {NUMBERS_MAX}")
        numbers = [unpacker.unpack() for _ in range(count)]
    except (ValueError, msgpack.UnpackException) as error:
        raise _refusal(f"it is not an array of numbers in MessagePack: {error}") from None
    if any(type(each) is not int for each in numbers) or unpacker.tell() != len(packed):
        raise _refusal("it is not one array of integers")
    return numbers


def _check_rows(rows: list[CoverRow]) -> None:
    every = bool(rows) and rows[0].place == EVERY
    last = -1
    for number, row in enumerate(rows):
        is_new = row.place == NEW and row.node > 0 and row.incarnation >= 0
        ascends = row.place > last or is_new or (row.place == EVERY and number == 0)
        least = 0 if every and row.place >= 0 else 1
        if not ascends or not least <= row.more <= NUMBER_MAX or row.place >= ORIGINS_MAX:
            raise _refusal(f"a row of it cannot be: {tuple(row)}")
        last = ORIGINS_MAX if row.place == NEW else max(row.place, -1)  # new ones come last


def pack_table(owner: tuple[int, int], numbers: Iterable[tuple[tuple[int, int], int]]) -> bytes:
    """Pack the body of a SNAPSHOT_COVER frame: an owner, then node, incarnation and last number of each
    contributor, in the order in which its updates have named them, all uint64.
    """
    rows = (_ROW.pack(*contributor, number) for contributor, number in numbers)
    return b"".join((_OWNER.pack(*owner), *rows))


def parse_table(body: Body) -> tuple[tuple[int, int], dict[tuple[int, int], int]]:
    """Return the same; PeerError if it cannot be."""
    if len(body) <= _OWNER.size or (len(body) - _OWNER.size) % _ROW.size:
        raise _refusal(f"a table of {len(body)} bytes is not whole")
    rows = list(_ROW.iter_unpack(memoryview(body)[_OWNER.size :]))
    numbers = {(node, incarnation): number for node, incarnation, number in rows}
    if len(numbers) < len(rows) or len(rows) > ORIGINS_MAX:
        raise _refusal(f"a table of {len(rows)} rows names a contributor twice, or too many")
    if any(not node or not 0 < number <= NUMBER_MAX for (node, _), number in numbers.items()):
        raise _refusal("a table has a row that cannot be")
    return _OWNER.unpack_from(body), numbers


def _refusal(words: str) -> PeerError:
    return PeerError(RejectCode.COVER, f"an owner's cover is refused: {words}")
