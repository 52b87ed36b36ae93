"""Bodies of mode `owners`, and bodies that a receiver must refuse; made with struct, MessagePack and the
Python reference alone.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from tests.wire import reference

U64_MAX: Final = 2**64 - 1
NUMBER_MAX: Final = 2**63 - 1
P_MAX: Final = 2**31
NEW: Final = -1
EVERY: Final = -2

Row = tuple[
    int, ...
]  # of a cover: place or -2, more; or -1, more, node, incarnation. Of a table: node, incarnation, last
Refused = tuple[str, str, str, int, bytes]  # name, type, code, weights, body


@dataclass(frozen=True)
class Case:
    """A body, and what is in it: numbers of its header, rows, and words."""

    name: str
    type_name: str
    weights: int
    numbers: dict[str, int]
    rows: Sequence[Row]
    words: Sequence[int]
    body: bytes


def shifted(words: Sequence[int], base: int, weights: int) -> bytes:
    """The payload of words whose indices are counted from `base`."""
    return reference.encode([word - (base << 1) for word in words], weights - base)


def packed(numbers: Any) -> bytes:
    array: bytes = msgpack.packb(numbers)
    return struct.pack("<H", len(array)) + array


def cover(base: int, rows: Sequence[Row]) -> bytes:
    return packed([base, *(number for row in rows for number in row)])


def contribution_of(
    number: int,
    magnitude: int,
    base: int,
    count: int,
    payload: bytes,
    *,
    rate: float = 0.0,
    round_number: int = 0,
) -> bytes:
    checked = struct.pack("<QIIIfI", number, magnitude, base, count, rate, round_number)
    return checked + struct.pack("<I", reference.crc32c(checked + payload)) + payload


def update_of(numbers: dict[str, int], count: int, content: bytes, *, encoding: int = 2) -> bytes:
    """`content`: the cover, and the payload after it."""
    names = ("node", "incarnation", "sequence", "digest", "steps", "magnitude")
    header = (*(numbers[name] for name in names), count, len(content), encoding, bytes(7))
    checked = struct.pack("<QQQQQIIIB7s", *header)
    return checked + struct.pack("<I", reference.crc32c(checked + content)) + content


def table_of(owner: Row, rows: Sequence[Row]) -> bytes:
    return struct.pack("<QQ", *owner) + b"".join(struct.pack("<QQQ", *row) for row in rows)


HEADER: Final = {
    "node": 0xB2,
    "incarnation": 2000,
    "sequence": 1,
    "digest": 0x0123456789ABCDEF,
    "steps": 7,
    "magnitude": 32,
}
LARGEST: Final = dict.fromkeys(HEADER, U64_MAX) | {"magnitude": 2**20}
WORDS: Final = [17 << 1, 29 << 1]
ROWS: Final[list[Row]] = [(0, 2), (3, 1), (NEW, 5, 0xA1, 1000)]
MOST: Final[list[Row]] = [(EVERY, 1), (0, 2), (3, 0), (NEW, 5, 0xA1, 1000)]
MANY: Final[list[Row]] = [(NEW, NUMBER_MAX, U64_MAX - each, U64_MAX) for each in range(40)]


def contribution(
    name: str,
    number: int,
    magnitude: int,
    words: Sequence[int],
    weights: int,
    *,
    rate: int = 0,
    round_number: int = 0,
) -> Case:
    base = words[0] >> 1 if words else 0
    payload = shifted(words, base, weights) if words else b""
    body = contribution_of(number, magnitude, base, len(words), payload, rate=rate, round_number=round_number)
    numbers = {"number": number, "magnitude": magnitude, "base": base, "rate": rate, "round": round_number}
    return Case(name, "CONTRIBUTION", weights, numbers, [], words, body)


def update(
    name: str, header: dict[str, int], rows: Sequence[Row], words: Sequence[int], weights: int
) -> Case:
    base = words[0] >> 1 if words else 0
    payload = shifted(words, base, weights) if words else b""
    body = update_of(header, len(words), cover(base, rows) + payload)
    return Case(name, "UPDATE", weights, {**header, "base": base}, rows, words, body)


def table(name: str, owner: Row, rows: Sequence[Row]) -> Case:
    numbers = {"node": owner[0], "incarnation": owner[1]}
    return Case(name, "SNAPSHOT_COVER", 30, numbers, rows, [], table_of(owner, rows))


def cases() -> list[Case]:
    alone = {**HEADER, "magnitude": 1}
    last = [(P_MAX - 1) << 1 | 1]
    dense = [index << 1 | index % 2 for index in range(10, 30)]
    return [
        contribution("the worked example", 1, 32, WORDS, 30),
        contribution("the first weight", 1, 1, [0], 1),
        contribution("the largest numbers", NUMBER_MAX, 2**20, last, P_MAX),
        contribution("a gradient", 2, 32, WORDS, 30, rate=1),
        contribution("a gradient at the largest rate", 2, 32, WORDS, 30, rate=100),
        contribution("a range in the dense form", 2, 3, dense, 30),
        contribution("the end of a round", 2, 32, WORDS, 30, round_number=7),
        contribution("nothing to a round", 3, 1, [], 30, round_number=2**32 - 1),
        contribution("two blocks", 3, 9, [index << 1 for index in range(1000, 60_000, 97)], 100_000),
        update("the worked example", HEADER, [(NEW, 1, 0xA1, 1000)], WORDS, 30),
        update("known and new contributors", HEADER, ROWS, WORDS, 30),
        update("all contributors but two", HEADER, MOST, WORDS, 30),
        update("all contributors", HEADER, [(EVERY, 2**63 - 1)], WORDS, 30),
        update("no rows", HEADER, [], WORDS, 30),
        update("the largest numbers", LARGEST, [(1023, NUMBER_MAX)], last, P_MAX),
        update("a range in the dense form", HEADER, [(0, 1)], dense, 30),
        update("a cover alone", alone, [(0, 2)], [], 30),
        update("no rows, and no index", alone, [], [], 30),
        update("many new contributors", alone, MANY, [], 30),
        table("one contributor", (0xB2, 2000), [(0xA1, 1000, 3)]),
        table("rows in the order of places", (0xB2, 2000), [(0xC3, 1, 1), (0xA1, 1001, 9), (0xA1, 1000, 3)]),
        table("the largest numbers", (U64_MAX, U64_MAX), [(U64_MAX, U64_MAX, NUMBER_MAX)]),
    ]


def refused_cases() -> list[Refused]:
    return [*_refused_contributions(), *_refused_covers(), *_refused_updates(), *_refused_tables()]


def _refused_contributions() -> list[Refused]:
    payload = shifted(WORDS, 17, 30)
    right = contribution_of(1, 32, 17, 2, payload)
    wrong: list[tuple[str, str, bytes]] = [
        ("no bytes", "CONTRIBUTION", b""),
        ("a byte less than a header", "CONTRIBUTION", right[:31]),
        ("a header alone", "PAYLOAD", contribution_of(1, 32, 17, 2, b"")),
        ("no index and no round", "PAYLOAD", contribution_of(1, 1, 0, 0, b"")),
        ("no index and a payload", "CONTRIBUTION", contribution_of(1, 1, 0, 0, payload, round_number=1)),
        ("no index and a base", "CONTRIBUTION", contribution_of(1, 1, 17, 0, b"", round_number=1)),
        ("no index and a magnitude", "CONTRIBUTION", contribution_of(1, 32, 0, 0, b"", round_number=1)),
        ("a bit of the payload", "CHECKSUM", right[:-1] + bytes([right[-1] ^ 1])),
        ("a bit of the header", "CHECKSUM", bytes([right[0] ^ 2]) + right[1:]),
        ("number 0", "CONTRIBUTION", contribution_of(0, 32, 17, 2, payload)),
        ("number 2^63", "CONTRIBUTION", contribution_of(NUMBER_MAX + 1, 32, 17, 2, payload)),
        ("magnitude 0", "CONTRIBUTION", contribution_of(1, 0, 17, 2, payload)),
        ("magnitude 2^20 + 1", "CONTRIBUTION", contribution_of(1, 2**20 + 1, 17, 2, payload)),
        ("a base of P", "CONTRIBUTION", contribution_of(1, 32, 30, 2, payload)),
        ("a rate that is no number", "CONTRIBUTION", contribution_of(1, 32, 17, 2, payload, rate=math.nan)),
        ("a rate below 0", "CONTRIBUTION", contribution_of(1, 32, 17, 2, payload, rate=-1.0)),
        ("a rate above 100", "CONTRIBUTION", contribution_of(1, 32, 17, 2, payload, rate=101.0)),
        ("no index", "PAYLOAD", contribution_of(1, 32, 17, 0, payload)),
        ("an index less", "PAYLOAD", contribution_of(1, 32, 17, 1, payload)),
        ("more indices than weights from the base on", "PAYLOAD", contribution_of(1, 32, 17, 14, payload)),
        ("2^32 - 1 indices", "PAYLOAD", contribution_of(1, 32, 17, 2**32 - 1, payload)),
        ("an index of P", "PAYLOAD", contribution_of(1, 32, 18, 2, payload)),
        ("a byte too many", "PAYLOAD", contribution_of(1, 32, 17, 2, payload + b"\x00")),
        ("a byte too few", "PAYLOAD", contribution_of(1, 32, 17, 2, payload[:-1])),
    ]
    return [(name, "CONTRIBUTION", code, 30, body) for name, code, body in wrong]


def _refused_covers() -> list[Refused]:
    payload = shifted(WORDS, 17, 30)
    numbers: dict[str, Any] = {
        "no base": [],
        "4,100 integers": [17, *range(1024), *[1] * 3075],
        "a map": {17: 1},
        "an integer": 17,
        "an array in it": [17, [1], 1],
        "a map in it": [17, {1: 1}, 1],
        "text in it": [17, "0", 1],
        "bytes in it": [17, b"0", 1],
        "an extension in it": [17, msgpack.ExtType(5, b"0"), 1],
        "nil in it": [17, None, 1],
        "true in it": [17, True, 1],
        "1.0 in it": [17, 1.0, 1],
        "part of a row": [17, 0],
        "part of a row of a new contributor": [17, NEW, 1, 0xA1],
        "none more": [17, 0, 0],
        "less": [17, 0, -1],
        "2^63 more": [17, 0, NUMBER_MAX + 1],
        "place -3": [17, -3, 1],
        "none more of all": [17, EVERY, 0],
        "all in the second row": [17, 0, 1, EVERY, 1],
        "all twice": [17, EVERY, 1, EVERY, 1],
        "place 1,024": [17, 1024, 1],
        "a place twice": [17, 3, 1, 3, 1],
        "places out of order": [17, 3, 1, 2, 1],
        "a place after a new contributor": [17, NEW, 1, 0xA1, 1000, 0, 1],
        "node 0": [17, NEW, 1, 0, 1000],
        "incarnation -1": [17, NEW, 1, 0xA1, -1],
        "none more of a new contributor": [17, NEW, 0, 0xA1, 1000],
    }
    covers: dict[str, bytes] = {name: packed(each) for name, each in numbers.items()}
    covers |= {
        "no room for its length": b"\x01",
        "a length of 0": b"\x00\x00",
        "a length beyond the body": struct.pack("<H", 100) + packed([17])[2:],
        "a length beyond the limit": struct.pack("<H", 32_767) + bytes(32_767),
        "an array cut off": b"\x02\x00\x92\x11",
        "a byte after the array": b"\x03\x00\x91\x11\x00",
        "the byte c1": b"\x02\x00\x91\xc1",
        "an array of 2^32 - 1": b"\x05\x00\xdd\xff\xff\xff\xff",
        "arrays in arrays": struct.pack("<H", 3000) + b"\xdc\x10\x01" * 1000,
    }
    return [
        (name, "UPDATE", "COVER", 30, update_of(HEADER, 2, each + (b"" if len(each) < 2 else payload)))
        for name, each in covers.items()
    ]


def _refused_updates() -> list[Refused]:
    payload = shifted(WORDS, 17, 30)
    alone = {**HEADER, "magnitude": 1}
    wrong: list[tuple[str, str, bytes]] = [
        ("a base of P", "PAYLOAD", update_of(HEADER, 2, cover(30, []) + payload)),
        ("a base of -1", "PAYLOAD", update_of(HEADER, 2, cover(-1, []) + payload)),
        ("a base of 2^64 - 1", "PAYLOAD", update_of(HEADER, 2, cover(U64_MAX, []) + payload)),
        ("an index of P", "PAYLOAD", update_of(HEADER, 2, cover(18, []) + payload)),
        ("an index less", "PAYLOAD", update_of(HEADER, 1, cover(17, []) + payload)),
        (
            "more indices than weights from the base on",
            "PAYLOAD",
            update_of(HEADER, 14, cover(17, []) + payload),
        ),
        ("more indices than weights", "COUNT", update_of(HEADER, 31, cover(0, []) + payload)),
        ("a cover alone with a base", "PAYLOAD", update_of(alone, 0, cover(1, [(0, 1)]))),
        ("a cover alone with a magnitude", "PAYLOAD", update_of(HEADER, 0, cover(0, [(0, 1)]))),
        ("a cover alone with a payload", "PAYLOAD", update_of(alone, 0, cover(0, [(0, 1)]) + b"\x00")),
        ("encoding 3", "ENCODING", update_of(HEADER, 2, cover(17, []) + payload, encoding=3)),
    ]
    return [(name, "UPDATE", code, 30, body) for name, code, body in wrong]


def _refused_tables() -> list[Refused]:
    owner, row = (0xB2, 2000), (0xA1, 1000, 3)
    wrong: dict[str, bytes] = {
        "no rows": table_of(owner, []),
        "part of an owner": table_of(owner, [])[:-1],
        "part of a row": table_of(owner, [row, row])[:-8],
        "a contributor twice": table_of(owner, [row, (0xA1, 1000, 4)]),
        "node 0": table_of(owner, [(0, 1000, 3)]),
        "number 0": table_of(owner, [(0xA1, 1000, 0)]),
        "number 2^63": table_of(owner, [(0xA1, 1000, NUMBER_MAX + 1)]),
        "1,025 contributors": table_of(owner, [(each, 0, 1) for each in range(1, 1026)]),
    }
    return [(name, "SNAPSHOT_COVER", "COVER", 30, body) for name, body in wrong.items()]
