"""Control messages and their frames, and bodies that a receiver must refuse; made with MessagePack and struct
alone.

A value here is an integer, a boolean, text, bytes, or `Rows` of a table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import msgpack

U64_MAX: Final = 2**64 - 1
TYPES: Final = {
    "HELLO": 1,
    "WELCOME": 2,
    "REJECT": 3,
    "STATUS": 5,
    "FETCH": 6,
    "TRIMMED": 7,
    "GOODBYE": 8,
    "PREPARE": 9,
    "PROMISE": 10,
    "ACCEPT": 11,
    "ACCEPTED": 12,
    "VIEW": 13,
    "SNAPSHOT_REQUEST": 14,
    "SNAPSHOT_META": 15,
    "SNAPSHOT_END": 18,
    "RING_BEGIN": 19,
    "RING_BUCKET": 21,
    "PEERS": 24,
    "EVALUATION_REPORT": 27,
    "EVALUATION_LEASE": 28,
    "EVALUATION_TABLE": 29,
    "EVALUATION_RESULT": 30,
    "EVALUATION_FETCH": 31,
}


@dataclass(frozen=True)
class Rows:
    """A table, row by row."""

    rows: tuple[tuple[int, ...], ...]

    def packed(self) -> bytes:
        return b"".join(struct.pack(f"<{len(row)}Q", *row) for row in self.rows)


def rows(*each: tuple[int, ...]) -> Rows:
    return Rows(each)


@dataclass(frozen=True)
class Places:
    """A table of peers: node, 16 bytes of address, port."""

    rows: tuple[tuple[int, bytes, int], ...]

    def packed(self) -> bytes:
        return b"".join(struct.pack("<Q16sH", *row) for row in self.rows)


Fields = dict[str, Any]
Case = tuple[str, str, Fields]  # name, type, fields in the specification's order
Refused = tuple[str, str, bytes]  # name, type, body

GREETING: Final[Fields] = {
    "protocol": 3,
    "node": 0xA1,
    "incarnation": 1000,
    "name": "anna",
    "run": bytes(range(32)),
    "weights": 30,
    "quantum_log2": -20,
    "mode": "async",
    "label": "example",
    "rank": "0/2",
}
LARGEST: Final[Fields] = {
    "protocol": 3,
    "node": U64_MAX,
    "incarnation": U64_MAX,
    "name": "\u00fc" * 64,
    "run": b"\xff" * 32,
    "weights": 2**31,
    "quantum_log2": -30,
    "mode": "m" * 64,
    "label": "\U0001f600" * 200,
    "rank": "1022/1024",
}
SMALLEST: Final[Fields] = {
    **GREETING,
    "node": 1,
    "incarnation": 0,
    "name": "a",
    "weights": 1,
    "quantum_log2": 0,
    "mode": "m",
    "label": "",
    "rank": "",
}
REJECT: Final[Fields] = {"node": 0xB2, "code": 2, "details": "another run", "incarnation": 0}
LARGEST_REJECT: Final[Fields] = {
    "node": U64_MAX,
    "code": 65535,
    "details": "\U0001f600" * 900,
    "incarnation": U64_MAX,
}
# node, incarnation, sequence, digest, trimmed_to, durable, least, steps
FRONTIER: Final = rows(
    (0xA1, 1000, 7, 0x0123456789ABCDEF, 2, 5, 6, 3),
    (0xA1, 1001, 1, 0, 0, 0, 0, 0),
    (0xB2, 2000, U64_MAX, U64_MAX, U64_MAX, U64_MAX, U64_MAX, U64_MAX),
)
CONFIRMED: Final = rows((0xA1, 1001, 2), (U64_MAX, U64_MAX, U64_MAX))
MEMBERS: Final = rows((0xA1, 1001, 3), (0xB2, 2000, 1), (U64_MAX, U64_MAX, 2))
FORBIDDEN: Final = rows((0,), (0xC3,))
EVICT_REQUESTS: Final = rows((0xB2,))
CLUSTER_ID: Final = 0xCB3CE6BC3A3D587F
VALUE: Final[Fields] = {"members": MEMBERS, "forbidden": FORBIDDEN, "cluster_id": CLUSTER_ID}
NO_VALUE: Final[Fields] = {"members": rows(), "forbidden": rows(), "cluster_id": 0}
BALLOT: Final[Fields] = {"view": 3, "round": 2, "node": 0xA1}
HIGHEST: Final[Fields] = {"view": U64_MAX, "round": 2**62, "node": U64_MAX}


def status(**changes: Any) -> Fields:
    fields: Fields = {
        "frontier": rows(),
        "view": 0,
        "cluster_id": 0,
        "ready": False,
        "confirmed": rows(),
        "whole": True,
        "evict_requests": rows(),
        "loss": 0,
        "steps": 0,
        "ring": b"",
    }
    return {**fields, **changes}


def ring_state(generation: int, done: int, *flags: int) -> bytes:
    return struct.pack("<QQBBB", generation, done, *flags)


BEGIN: Final[Fields] = {
    "view": 3,
    "generation": 2,
    "round": 12,
    "digest": 0x0123456789ABCDEF,
}
IPV4: Final = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1])
IPV6: Final = bytes.fromhex("20010db8000000000000000000000001")
PLACES: Final = Places(((0xA1, IPV4, 7315), (U64_MAX, IPV6, 65535)))
TOLD: Final[Fields] = {"ip": IPV6, "port": 7315, "peers": PLACES}
BUCKET: Final[Fields] = {
    "view": 3,
    "generation": 2,
    "round": 12,
    "bucket": 1,
    "kind": 0,
    "offset": 25,
    "count": 5,
    "name": "hidden.bias",
    "shape": "(5,)",
    "hop": 0,
    "contributors": 0,
}
LARGEST_BUCKET: Final[Fields] = {
    "view": U64_MAX,
    "generation": U64_MAX,
    "round": U64_MAX,
    "bucket": 4095,
    "kind": 1,
    "offset": 2**31 - 1,
    "count": 2**31,
    "name": "\U0001f600" * 200,
    "shape": "\u00fc" * 200,
    "hop": 2**32 - 1,
    "contributors": 1024,
}


OF_EVALUATION: Final[Fields] = {"evaluation": 3, "attempt": 1}
EXPONENTS: Final = struct.pack("<2h", -5, 1024)
REPORT: Final[Fields] = {
    **OF_EVALUATION,
    "digest": 0x0123456789ABCDEF,
    "portions": 12,
    "limits": struct.pack("<2h", 8, 8),
    "exponents": EXPONENTS,
    "added": b"\x03\x08",
    "held": b"\x10\x00",
    "checksums": struct.pack("<Q", 77),
    "failed": 0,
    "words": "",
    "active": True,
}
LEASE: Final[Fields] = {
    **OF_EVALUATION,
    "limits": EXPONENTS,
    "granted": b"\x13\x08",
    "decided": b"\x10\x00",
    "leases": struct.pack("<2H", 5, 6),
    "ahead": True,
    "error": "",
}
TABLE: Final[Fields] = {
    **OF_EVALUATION,
    "number": 2,
    "leader": 0xB2,
    "holders": struct.pack("<4Q", 0xA1, 1000, 0xB2, 2000),
    "assignment": struct.pack("<3H", 1, 0, 1),
    "exponents": EXPONENTS,
}
RESULT: Final[Fields] = {
    "evaluation": 3,
    "first": 1,
    "last": U64_MAX,
    "digest": 0,
    "portions": 4096,
    "limits": EXPONENTS,
    "exponents": EXPONENTS,
}
NUMBERS: Final[Fields] = {
    **OF_EVALUATION,
    "kind": 1,
    "table": 2,
    "leader": 0xB2,
    "offset": 0,
    "count": 131072,
}


def cases() -> list[Case]:
    """At least one for each type of control message."""
    of_member = {
        "view": 2,
        "cluster_id": CLUSTER_ID,
        "ready": True,
        "confirmed": CONFIRMED,
        "evict_requests": EVICT_REQUESTS,
    }
    return [
        ("a greeting", "HELLO", GREETING),
        ("the smallest greeting", "HELLO", SMALLEST),
        ("the largest greeting", "HELLO", LARGEST),
        ("an answer to it", "WELCOME", GREETING),
        ("another run", "REJECT", REJECT),
        (
            "an incarnation behind another",
            "REJECT",
            {**REJECT, "code": 5, "details": "", "incarnation": 2000},
        ),
        ("a code alone", "REJECT", {**REJECT, "node": 0, "code": 0, "details": ""}),
        ("the largest refusal", "REJECT", LARGEST_REJECT),
        ("nothing applied, no view", "STATUS", status()),
        ("a member", "STATUS", status(frontier=FRONTIER, **of_member, loss=2**32 - 1)),
        ("a joiner", "STATUS", status(frontier=FRONTIER, view=U64_MAX, cluster_id=1, loss=128)),
        ("a member of a ring", "STATUS", status(**of_member, ring=ring_state(7, 12, 1, 0, 1))),
        ("far along", "STATUS", status(ring=ring_state(2**62, 2**32 - 1, 1, 1, 1))),
        ("missing updates", "FETCH", {"node": 0xA1, "incarnation": 1000, "first": 1, "last": U64_MAX}),
        ("no longer held", "TRIMMED", {"node": 0xA1, "incarnation": 1000, "trimmed_to": 65536}),
        ("stops without an update", "GOODBYE", {"sequence": 0}),
        ("stops", "GOODBYE", {"sequence": U64_MAX}),
        ("phase 1", "PREPARE", BALLOT),
        ("phase 1 of the highest ballot", "PREPARE", HIGHEST),
        ("nothing accepted", "PROMISE", {**BALLOT, "accepted_round": 0, "accepted_node": 0, **NO_VALUE}),
        ("a value accepted", "PROMISE", {**BALLOT, "accepted_round": 1, "accepted_node": 0xB2, **VALUE}),
        ("phase 2", "ACCEPT", {**BALLOT, **VALUE}),
        ("phase 2, nobody forbidden", "ACCEPT", {**HIGHEST, **VALUE, "forbidden": rows()}),
        ("accepted", "ACCEPTED", BALLOT),
        ("a view", "VIEW", {"view": 3, **VALUE}),
        ("a view of one", "VIEW", {"view": 2, **VALUE, "members": rows((0, 0, 1)), "forbidden": rows()}),
        ("asks for a snapshot", "SNAPSHOT_REQUEST", {"view": 3}),
        ("a snapshot begins", "SNAPSHOT_META", {"frontier": FRONTIER, "digest": U64_MAX}),
        ("a snapshot of nothing", "SNAPSHOT_META", {"frontier": rows(), "digest": 0}),
        ("a whole snapshot", "SNAPSHOT_END", {"reason": "", "tail": 2}),
        ("no snapshot", "SNAPSHOT_END", {"reason": "busy with another copy: ask again", "tail": 0}),
        ("a generation begins", "RING_BEGIN", BEGIN),
        ("a bucket", "RING_BUCKET", BUCKET),
        ("the largest bucket", "RING_BUCKET", LARGEST_BUCKET),
        ("a port alone", "PEERS", {"ip": b"", "port": 1, "peers": Places(())}),
        ("an address of its own, and others", "PEERS", TOLD),
        ("a standing", "EVALUATION_REPORT", REPORT),
        ("a failure", "EVALUATION_REPORT", {**REPORT, "failed": 4096, "words": "no such file"}),
        ("a trainer that is gone", "EVALUATION_REPORT", {**REPORT, "active": False}),
        ("leases", "EVALUATION_LEASE", LEASE),
        ("the end of an evaluation", "EVALUATION_LEASE", {**LEASE, "error": "it differs"}),
        ("a table", "EVALUATION_TABLE", TABLE),
        ("a result", "EVALUATION_RESULT", RESULT),
        ("asks for a total", "EVALUATION_FETCH", NUMBERS),
        ("asks for a result", "EVALUATION_FETCH", {**NUMBERS, "kind": 2, "table": 0, "leader": 0}),
    ]


def body_of(fields: Fields) -> bytes:
    plain = {
        key: value.packed() if isinstance(value, Rows | Places) else value for key, value in fields.items()
    }
    packed: bytes = msgpack.packb(plain)
    return packed


def frame_of(type_name: str, fields: Fields) -> bytes:
    body = body_of(fields)
    return struct.pack("<IB", len(body), TYPES[type_name]) + body


def refused_cases() -> list[Refused]:
    return [*_refused_maps(), *_refused_fields(), *_refused_tables()]


def _refused_maps() -> list[Refused]:
    need = body_of({"node": 1, "incarnation": 1, "first": 1, "last": 9})
    end = b"\xa6reason"
    return [
        ("not a map", "GOODBYE", b"\x91\x01"),
        ("no keys", "GOODBYE", b"\x80"),
        ("a byte after the map", "GOODBYE", body_of({"sequence": 1}) + b"\x00"),
        ("a key twice", "GOODBYE", b"\x82" + body_of({"sequence": 1})[1:] * 2),
        ("a key too many", "GOODBYE", body_of({"sequence": 1, "more": 1})),
        ("a key too few", "FETCH", b"\x83" + need[1:-6]),
        ("cut off", "FETCH", need[:-1]),
        ("a key that is a number", "GOODBYE", b"\x81\x01\x01"),
        ("a map as a value", "GOODBYE", b"\x81\xa8sequence\x80"),
        ("an array as a value", "GOODBYE", b"\x81\xa8sequence\x91\x01"),
        ("an extension", "GOODBYE", b"\x81\xa8sequence\xd4\x05\x00"),
        ("a time", "GOODBYE", b"\x81\xa8sequence\xd6\xff\x00\x00\x00\x01"),
        ("the byte c1", "GOODBYE", b"\x81\xa8sequence\xc1"),
        ("text that is not UTF-8", "SNAPSHOT_END", b"\x81" + end + b"\xa1\xff"),
        ("half of a surrogate pair", "SNAPSHOT_END", b"\x81" + end + b"\xa3\xed\xa0\x80"),
        ("text of 2^32 - 1 bytes", "SNAPSHOT_END", b"\x81" + end + b"\xdb\xff\xff\xff\xff"),
        ("an array of 2^32 - 1", "GOODBYE", b"\xdd\xff\xff\xff\xff"),
        ("a map of 2^32 - 1", "GOODBYE", b"\xdf\xff\xff\xff\xff"),
        ("arrays in arrays", "GOODBYE", b"\x91" * 2000),
        ("maps in maps", "STATUS", b"\x81\xa1a" * 2000),
    ]


def _refused_fields() -> list[Refused]:
    numbers: dict[str, Any] = {
        "true": True,
        "-1": -1,
        "1.0": 1.0,
        "not a number": float("nan"),
        "text": "1",
        "bytes": b"1",
        "nil": None,
    }
    promise = {**BALLOT, "accepted_round": 1, "accepted_node": 0xB2, **VALUE}
    of = {
        "FETCH": {"node": 1, "incarnation": 1, "first": 1, "last": 9},
        "TRIMMED": {"node": 1, "incarnation": 1, "trimmed_to": 1},
        "HELLO": GREETING,
        "REJECT": REJECT,
        "STATUS": status(),
        "PREPARE": BALLOT,
        "PROMISE": promise,
        "ACCEPT": {**BALLOT, **VALUE},
        "VIEW": {"view": 3, **VALUE},
        "SNAPSHOT_END": {"reason": ""},
        "RING_BEGIN": BEGIN,
        "RING_BUCKET": BUCKET,
        "PEERS": TOLD,
        "EVALUATION_REPORT": REPORT,
        "EVALUATION_LEASE": LEASE,
        "EVALUATION_TABLE": TABLE,
        "EVALUATION_RESULT": RESULT,
        "EVALUATION_FETCH": NUMBERS,
    }
    wrong: list[tuple[str, str, Fields]] = [
        *((f"{name} as a sequence", "FETCH", {"first": value}) for name, value in numbers.items()),
        ("first 0", "FETCH", {"first": 0}),
        ("last 0", "FETCH", {"last": 0}),
        ("trimmed to 0", "TRIMMED", {"trimmed_to": 0}),
        ("protocol 0", "HELLO", {"protocol": 0}),
        ("protocol 65536", "HELLO", {"protocol": 65536}),
        ("node 0", "HELLO", {"node": 0}),
        ("a name of none", "HELLO", {"name": ""}),
        ("a name of 65", "HELLO", {"name": "n" * 65}),
        ("a label of 201", "HELLO", {"label": "l" * 201}),
        ("a rank of five digits", "HELLO", {"rank": "0/10000"}),
        ("half a rank", "HELLO", {"rank": "1/"}),
        ("a rank and more", "HELLO", {"rank": "1/2\n"}),
        ("a fingerprint of 31 bytes", "HELLO", {"run": bytes(31)}),
        ("a fingerprint as text", "HELLO", {"run": "r" * 32}),
        ("no weights", "HELLO", {"weights": 0}),
        ("2^31 + 1 weights", "HELLO", {"weights": 2**31 + 1}),
        ("quantum 2", "HELLO", {"quantum_log2": 1}),
        ("quantum 2^-31", "HELLO", {"quantum_log2": -31}),
        ("a code as text", "REJECT", {"code": "run"}),
        ("code -1", "REJECT", {"code": -1}),
        ("code 65536", "REJECT", {"code": 65536}),
        ("details of 901", "REJECT", {"details": "w" * 901}),
        ("an incarnation of -1", "REJECT", {"incarnation": -1}),
        ("a reason of 901", "SNAPSHOT_END", {"reason": "w" * 901}),
        ("ready 1", "STATUS", {"ready": 1}),
        ("a loss of more than 32 bits", "STATUS", {"loss": 2**32}),
        ("a ring state cut off", "STATUS", {"ring": ring_state(1, 1, 0, 0, 0)[:-1]}),
        ("a ring state too long", "STATUS", {"ring": ring_state(1, 1, 0, 0, 0) + b"\x00"}),
        ("a flag of 2", "STATUS", {"ring": ring_state(1, 1, 0, 2, 0)}),
        ("a generation beyond 2^62", "STATUS", {"ring": ring_state(2**62 + 1, 1, 0, 0, 0)}),
        ("round 2^32", "STATUS", {"ring": ring_state(1, 2**32, 0, 0, 0)}),
        ("generation 0", "RING_BEGIN", {"generation": 0}),
        ("round 0", "RING_BEGIN", {"round": 0}),
        ("bucket 4096", "RING_BUCKET", {"bucket": 4096}),
        ("kind 2", "RING_BUCKET", {"kind": 2}),
        ("no numbers", "RING_BUCKET", {"count": 0}),
        ("offset 2^31", "RING_BUCKET", {"offset": 2**31}),
        ("a name of 201", "RING_BUCKET", {"name": "n" * 201}),
        ("1,025 contributors", "RING_BUCKET", {"contributors": 1025}),
        ("port 0", "PEERS", {"port": 0}),
        ("port 65536", "PEERS", {"port": 65536}),
        ("an address of 4 bytes", "PEERS", {"ip": bytes([10, 0, 0, 1])}),
        ("an address of 17 bytes", "PEERS", {"ip": bytes(17)}),
        ("the unspecified address", "PEERS", {"ip": bytes(16)}),
        ("0.0.0.0", "PEERS", {"ip": bytes(10) + b"\xff\xff" + bytes(4)}),
        ("a multicast address", "PEERS", {"ip": b"\xff\x02" + bytes(13) + b"\x01"}),
        ("the broadcast address", "PEERS", {"ip": bytes(10) + b"\xff" * 6}),
        ("part of a place", "PEERS", {"peers": PLACES.packed()[:-1]}),
        ("a peer twice", "PEERS", {"peers": PLACES.packed()[:26] * 2}),
        ("peers out of order", "PEERS", {"peers": PLACES.packed()[26:] + PLACES.packed()[:26]}),
        ("a peer at port 0", "PEERS", {"peers": Places(((1, IPV4, 0),))}),
        ("a peer at 224.0.0.251", "PEERS", {"peers": Places(((1, IPV4[:12] + bytes([224, 0, 0, 251]), 1),))}),
        ("1,025 peers", "PEERS", {"peers": Places(tuple((n, IPV4, 1) for n in range(1025)))}),
        ("evaluation 0", "EVALUATION_REPORT", {"evaluation": 0}),
        ("no portions", "EVALUATION_REPORT", {"portions": 0}),
        ("4,097 portions", "EVALUATION_REPORT", {"portions": 4097}),
        ("three checksums", "EVALUATION_REPORT", {"checksums": bytes(24)}),
        ("three leases", "EVALUATION_LEASE", {"leases": bytes(6)}),
        ("a table of nobody", "EVALUATION_TABLE", {"holders": b""}),
        ("a table without a leader", "EVALUATION_TABLE", {"leader": 0}),
        ("no first result", "EVALUATION_RESULT", {"first": 0}),
        ("kind 3", "EVALUATION_FETCH", {"kind": 3}),
        ("131,073 numbers", "EVALUATION_FETCH", {"count": 131073}),
        ("view 0", "PREPARE", {"view": 0}),
        ("round 0", "PREPARE", {"round": 0}),
        ("a view of nobody", "ACCEPT", {"members": rows()}),
        ("a view of nobody", "VIEW", {"members": rows()}),
        ("view 0", "VIEW", {"view": 0}),
        ("1,025 forbidden", "VIEW", {"forbidden": rows(*((n,) for n in range(1025)))}),
        ("members without a ballot", "PROMISE", {"accepted_round": 0}),
        ("a ballot without members", "PROMISE", {"members": rows()}),
        ("a cluster id alone", "PROMISE", {"accepted_round": 0, **NO_VALUE, "cluster_id": 1}),
    ]
    return [(name, kind, body_of({**of[kind], **changes})) for name, kind, changes in wrong]


def _refused_tables() -> list[Refused]:
    """Right messages whose tables are wrong."""
    one, two = (1, 1, 1, *[0] * 5), (2, 1, 1, *[0] * 5)
    frontiers: dict[str, bytes] = {
        "part of a row": rows(one).packed() + bytes(32),
        "rows out of order": rows(two, one).packed(),
        "lives out of order": rows((1, 2, *one[2:]), one).packed(),
        "a row twice": rows(one, one).packed(),
        "sequence 0": rows((1, 1, 0, *[0] * 5)).packed(),
        "floor beyond the sequence": rows((1, 1, 1, 0, 2, 0, 0, 0)).packed(),
        "durable beyond the sequence": rows((1, 1, 1, 0, 0, 2, 0, 0)).packed(),
        "least beyond the sequence": rows((1, 1, 1, 0, 0, 0, 2, 0)).packed(),
    }
    confirmed: dict[str, bytes] = {
        "part of a row": bytes(16),
        "rows out of order": rows((2, 1, 1), (1, 1, 1)).packed(),
        "two lives of a node": rows((1, 1, 1), (1, 2, 1)).packed(),
    }
    members: dict[str, bytes] = {
        "part of a row": rows((1, 1, 1)).packed() + bytes(16),
        "rows out of order": rows((2, 1, 1), (1, 1, 1)).packed(),
        "two lives of a node": rows((1, 1, 1), (1, 2, 1)).packed(),
    }
    nodes: dict[str, bytes] = {
        "part of a row": bytes(7),
        "rows out of order": rows((2,), (1,)).packed(),
        "a row twice": rows((1,), (1,)).packed(),
    }
    view = {"view": 3, **VALUE}
    meta = {"frontier": rows(), "digest": 0}
    tables: list[tuple[str, str, Fields, dict[str, bytes]]] = [
        ("frontier", "STATUS", status(), frontiers),
        ("frontier", "SNAPSHOT_META", meta, frontiers),
        ("confirmed", "STATUS", status(), confirmed),
        ("members", "VIEW", view, members),
        ("evict_requests", "STATUS", status(), nodes),
        ("forbidden", "VIEW", view, nodes),
        ("members", "ACCEPT", {**BALLOT, **VALUE}, members),
    ]
    return [
        (f"{key}: {name}", kind, body_of({**fields, key: table}))
        for key, kind, fields, wrong in tables
        for name, table in wrong.items()
    ]
