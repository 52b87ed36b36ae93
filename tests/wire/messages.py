"""Messages for tests: what hypothesis draws of each, and the longest of each that a node may send."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from hypothesis import strategies as st

from p2psgd.wire.evaluation import ATTEMPTS_MAX
from p2psgd.wire.fixed_point import GROUPS_MAX, PORTIONS_MAX
from p2psgd.wire.frames import EVALUATION_NUMBERS_MAX, FrameType
from p2psgd.wire.messages import (
    HELD_MAX,
    LEASES_MAX,
    MEMBERS_MAX,
    MESSAGES,
    ORIGINS_MAX,
    PROTOCOL_VERSION,
    TEXT_MAX,
    U64_MAX,
    ConfirmedRow,
    FrontierRow,
    IPAddress,
    MemberRow,
    Message,
    PeerRow,
    pack_confirmed,
    pack_frontier,
    pack_ip,
    pack_members,
    pack_nodes,
    pack_peers,
    plain_ip,
)
from p2psgd.wire.mode import WORD_MAX
from p2psgd.wire.ring_messages import (
    BUCKETS_MAX,
    GENERATION_MAX,
    RESULT_HOP,
    ROUND_MAX,
    RingState,
    pack_ring_state,
)

U64: Final = st.one_of(st.integers(0, 9), st.integers(0, U64_MAX))
COUNTED: Final = st.one_of(st.integers(1, 9), st.integers(1, U64_MAX))
TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]))  # surrogates have no UTF-8


@st.composite
def frontier_rows(draw: st.DrawFn) -> list[FrontierRow]:
    origins = draw(st.lists(st.tuples(U64, U64), unique=True, max_size=6))
    rows = []
    for origin in sorted(origins):
        sequence = draw(COUNTED)
        trimmed_to, durable, least = draw(st.tuples(*[st.integers(0, sequence)] * 3))
        rows.append(FrontierRow(*origin, sequence, draw(U64), trimmed_to, durable, least, draw(U64)))
    return rows


CONFIRMED: Final = st.lists(
    st.builds(ConfirmedRow, U64, U64, U64), unique_by=lambda row: row.node, max_size=6
)
MEMBERS: Final = st.lists(
    st.builds(MemberRow, U64, U64, U64), unique_by=lambda row: row.node, min_size=1, max_size=6
)
FORBIDDEN: Final = st.lists(U64, unique=True, max_size=6)

STANDING: Final = st.builds(
    RingState, st.integers(0, GENERATION_MAX), st.integers(0, ROUND_MAX), *[st.booleans()] * 3
)
CALLED: Final = TEXT.filter(lambda text: len(text) <= 200)

GREETING: Final = {
    "protocol": st.just(PROTOCOL_VERSION),
    "node": st.integers(1, U64_MAX),
    "incarnation": U64,
    "name": TEXT.filter(lambda text: 1 <= len(text) <= 64),
    "run": st.binary(min_size=32, max_size=32),
    "weights": st.integers(1, 2**31),
    "quantum_log2": st.integers(-30, 0),
    "mode": TEXT.filter(lambda text: 1 <= len(text) <= WORD_MAX),
    "label": CALLED,
    "rank": st.from_regex(r"\A([0-9]{1,4}/[0-9]{1,4})?\Z", alphabet="0123456789/"),
}
ORIGIN: Final = {"node": U64, "incarnation": U64}
BALLOT: Final = {"view": COUNTED, "round": COUNTED, "node": U64}
VALUE: Final = {
    "members": MEMBERS.map(pack_members),
    "forbidden": FORBIDDEN.map(pack_nodes),
    "cluster_id": U64,
}
NO_VALUE: Final = {"accepted_round": 0, "accepted_node": 0, "members": b"", "forbidden": b"", "cluster_id": 0}
SOME_VALUE: Final = st.fixed_dictionaries({"accepted_round": COUNTED, "accepted_node": U64, **VALUE})
FIELDS: Final[dict[FrameType, st.SearchStrategy[dict[str, Any]]]] = {
    FrameType.HELLO: st.fixed_dictionaries(GREETING),
    FrameType.WELCOME: st.fixed_dictionaries(GREETING),
    FrameType.REJECT: st.fixed_dictionaries(
        {"node": U64, "code": st.integers(0, 65535), "details": TEXT, "incarnation": U64}
    ),
    FrameType.STATUS: st.fixed_dictionaries(
        {
            "frontier": frontier_rows().map(pack_frontier),
            "view": U64,
            "cluster_id": U64,
            "ready": st.booleans(),
            "confirmed": CONFIRMED.map(pack_confirmed),
            "whole": st.booleans(),
            "evict_requests": FORBIDDEN.map(pack_nodes),
            "loss": st.integers(0, 2**32 - 1),
            "steps": U64,
            "ring": st.one_of(st.just(b""), STANDING.map(pack_ring_state)),
        }
    ),
    FrameType.FETCH: st.fixed_dictionaries({**ORIGIN, "first": COUNTED, "last": COUNTED}),
    FrameType.TRIMMED: st.fixed_dictionaries({**ORIGIN, "trimmed_to": COUNTED}),
    FrameType.GOODBYE: st.fixed_dictionaries({"sequence": U64}),
    FrameType.PREPARE: st.fixed_dictionaries(BALLOT),
    FrameType.PROMISE: st.builds(
        lambda ballot, value: {**ballot, **value},
        st.fixed_dictionaries(BALLOT),
        st.one_of(st.just(NO_VALUE), SOME_VALUE),
    ),
    FrameType.ACCEPT: st.fixed_dictionaries({**BALLOT, **VALUE}),
    FrameType.ACCEPTED: st.fixed_dictionaries(BALLOT),
    FrameType.VIEW: st.fixed_dictionaries({"view": COUNTED, **VALUE}),
    FrameType.SNAPSHOT_REQUEST: st.fixed_dictionaries({"view": U64}),
    FrameType.SNAPSHOT_META: st.fixed_dictionaries(
        {"frontier": frontier_rows().map(pack_frontier), "digest": U64}
    ),
    FrameType.SNAPSHOT_END: st.fixed_dictionaries({"reason": TEXT, "tail": U64}),
    FrameType.RING_BEGIN: st.fixed_dictionaries(
        {
            "view": COUNTED,
            "generation": COUNTED,
            "round": COUNTED,
            "digest": U64,
        }
    ),
    FrameType.RING_BUCKET: st.fixed_dictionaries(
        {
            "view": COUNTED,
            "generation": U64,
            "round": COUNTED,
            "bucket": st.integers(0, BUCKETS_MAX - 1),
            "kind": st.integers(0, 1),
            "offset": st.integers(0, 2**31 - 1),
            "count": st.integers(1, 2**31),
            "name": CALLED,
            "shape": CALLED,
            "hop": st.one_of(st.integers(0, 9), st.just(RESULT_HOP)),
            "contributors": st.integers(0, MEMBERS_MAX),
        }
    ),
}


ATTEMPT: Final = st.integers(0, ATTEMPTS_MAX)
PORTION_COUNT: Final = st.integers(1, PORTIONS_MAX)
SOME_BYTES: Final = st.binary(max_size=64)
OF_EVALUATION: Final = {"evaluation": COUNTED, "attempt": ATTEMPT}
FIELDS.update(
    {
        FrameType.EVALUATION_REPORT: st.fixed_dictionaries(
            {
                **OF_EVALUATION,
                "digest": U64,
                "portions": PORTION_COUNT,
                "limits": SOME_BYTES,
                "exponents": SOME_BYTES,
                "added": SOME_BYTES,
                "held": SOME_BYTES,
                "checksums": st.binary(max_size=8 * HELD_MAX),
                "failed": st.integers(0, PORTIONS_MAX),
                "words": TEXT,
                "active": st.booleans(),
            }
        ),
        FrameType.EVALUATION_LEASE: st.fixed_dictionaries(
            {
                **OF_EVALUATION,
                "limits": SOME_BYTES,
                "granted": SOME_BYTES,
                "decided": SOME_BYTES,
                "leases": st.binary(max_size=2 * LEASES_MAX),
                "ahead": st.booleans(),
                "error": TEXT,
            }
        ),
        FrameType.EVALUATION_TABLE: st.fixed_dictionaries(
            {
                **OF_EVALUATION,
                "number": COUNTED,
                "leader": COUNTED,
                "holders": st.binary(min_size=16, max_size=64),
                "assignment": st.binary(min_size=2, max_size=64),
                "exponents": SOME_BYTES,
            }
        ),
        FrameType.EVALUATION_RESULT: st.fixed_dictionaries(
            {
                "evaluation": COUNTED,
                "first": COUNTED,
                "last": COUNTED,
                "digest": U64,
                "portions": PORTION_COUNT,
                "limits": SOME_BYTES,
                "exponents": SOME_BYTES,
            }
        ),
        FrameType.EVALUATION_FETCH: st.fixed_dictionaries(
            {
                **OF_EVALUATION,
                "kind": st.integers(0, 2),
                "table": U64,
                "leader": U64,
                "offset": st.integers(0, 2**31),
                "count": st.integers(1, EVALUATION_NUMBERS_MAX),
            }
        ),
    }
)
PORTS: Final = st.integers(1, 65535)


def ips() -> st.SearchStrategy[IPAddress]:
    """Return addresses that a node may have; IPv4, mapped into IPv6, is judged as what it is."""
    plain = st.ip_addresses().map(lambda ip: plain_ip(str(ip)))
    return plain.filter(lambda ip: not (ip.is_multicast or ip.is_unspecified or str(ip) == "255.255.255.255"))


PEERS: Final = st.lists(st.builds(PeerRow, U64, ips(), PORTS), unique_by=lambda row: row.node, max_size=6)
FIELDS[FrameType.PEERS] = st.fixed_dictionaries(
    {"ip": st.one_of(st.just(b""), ips().map(pack_ip)), "port": PORTS, "peers": PEERS.map(pack_peers)}
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[FrameType, Message]:
    """Any control message, with whole and sorted tables."""
    frame_type = draw(st.sampled_from(sorted(MESSAGES)))
    return frame_type, MESSAGES[frame_type](**draw(FIELDS[frame_type]))


HIGHEST_IP: Final = ipaddress.IPv6Address("feff:" + ":".join(["ffff"] * 7))


def longest(frame_type: FrameType) -> Message:
    """The message of this type whose frame is the longest."""
    high = range(U64_MAX, U64_MAX - MEMBERS_MAX, -1)
    row = (U64_MAX,) * 7
    fields: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "name": "\U0001f600" * 64,
        "mode": "\U0001f600" * WORD_MAX,
        "code": 65535,
        "label": "\U0001f600" * 200,
        "rank": "1022/1024",
        "details": "\U0001f600" * TEXT_MAX,
        "reason": "\U0001f600" * TEXT_MAX,
        "run": bytes(32),
        "weights": 2**31,
        "quantum_log2": -30,
        "ready": True,
        "loss": 2**32 - 1,
        "whole": False,
        "steps": U64_MAX,
        "frontier": pack_frontier([FrontierRow(node, *row) for node in high[:ORIGINS_MAX]]),
        "confirmed": pack_confirmed([ConfirmedRow(node, U64_MAX, U64_MAX) for node in high]),
        "members": pack_members(MemberRow(node, U64_MAX, U64_MAX) for node in high),
        "forbidden": pack_nodes(high),
        "evict_requests": pack_nodes(high),
        "ring": pack_ring_state(RingState(GENERATION_MAX, ROUND_MAX, True, True, True)),
        "ip": pack_ip(HIGHEST_IP),
        "port": 65535,
        "peers": pack_peers(PeerRow(node, HIGHEST_IP, 65535) for node in high),
    }
    if frame_type is FrameType.RING_BUCKET:
        fields |= {"name": fields["label"], "shape": fields["label"], "hop": RESULT_HOP, "kind": 1}
        fields |= {
            "bucket": BUCKETS_MAX - 1,
            "offset": 2**31 - 1,
            "count": 2**31,
            "contributors": MEMBERS_MAX,
        }
    if frame_type >= FrameType.EVALUATION_REPORT:
        fields |= {
            "attempt": ATTEMPTS_MAX,
            "portions": PORTIONS_MAX,
            **dict.fromkeys(("limits", "exponents"), bytes(2 * GROUPS_MAX)),
            **dict.fromkeys(("added", "held", "granted", "decided"), bytes(PORTIONS_MAX // 8)),
            "checksums": bytes(8 * HELD_MAX),
            "failed": PORTIONS_MAX,
            **dict.fromkeys(("words", "error"), fields["details"]),
            "active": False,
            "ahead": False,
            "leases": bytes(2 * LEASES_MAX),
            "holders": bytes(16 * MEMBERS_MAX),
            "assignment": bytes(2 * PORTIONS_MAX),
            "kind": 2,
            "offset": 2**31,
            "count": EVALUATION_NUMBERS_MAX,
        }
    model = MESSAGES[frame_type]
    return model(**{name: fields.get(name, U64_MAX) for name in model.model_fields})
