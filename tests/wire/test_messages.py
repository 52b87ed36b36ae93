"""Control messages: exactly the listed keys with exactly the listed types, and bombs cost nothing."""

from __future__ import annotations

import resource
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.errors import PeerError
from p2psgd.wire.frames import CONTROL_BYTES_MAX, FrameType
from p2psgd.wire.messages import (
    MESSAGES,
    FrontierRow,
    Gap,
    Goodbye,
    Hello,
    Message,
    Need,
    Reject,
    Status,
    Welcome,
    pack_frontier,
    pack_message,
    parse_frontier,
    parse_message,
)

HELLO = Hello(
    protocol=1,
    node=2**64 - 1,
    incarnation=5,
    name="node-1",
    run=bytes(32),
    weights=10,
    quantum_log2=-20,
    mode="async",
    label="",
)
EXAMPLES: list[Message] = [
    HELLO,
    Welcome(**HELLO.model_dump()),
    Reject(node=1, code="run", words="another run"),
    Status(frontier=bytes(0), loop_lag_ms=0),
    Need(node=1, incarnation=2, first=3, last=4),
    Gap(node=1, incarnation=2, floor=3),
    Goodbye(sequence=0),
]


def parse(frame: bytes) -> Message:
    return parse_message(FrameType(frame[4]), frame[5:])


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert parse(pack_message(message)) == message


def test_every_control_type_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(MESSAGES.values())
    assert set(MESSAGES) == set(FrameType) - {FrameType.UPDATE}


def refused(frame_type: FrameType, fields: Any) -> str:
    with pytest.raises(PeerError) as caught:
        parse_message(frame_type, fields if isinstance(fields, bytes) else msgpack.packb(fields))
    assert caught.value.reason == "message"
    return str(caught.value)


@pytest.mark.parametrize(
    "value", [True, -1, 1.0, "1", None, b"1", [1], {"a": 1}, float("nan"), 2**63 * 2 - 1 + 0.0]
)
def test_a_number_must_be_a_number(value: Any) -> None:
    assert refused(FrameType.NEED, {"node": 1, "incarnation": 2, "first": value, "last": 4})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sequence": 1, "more": 2},
        [1],
        1,
        None,
        {1: 2},
        {"sequence": msgpack.ExtType(5, b"x")},
        {"sequence": msgpack.Timestamp(1)},
        b"\x82\xa8sequence\x01\xa8sequence\x01",
        b"\x81\xa8sequence",
        b"\x81\xa8sequence\x01\x01",
        b"\xc1",
        b"\x91" * 100_00,
        b"\x81\xa1a" * 10_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa8sequence\xdb\x03\x93\x87\x00",
    ],
)
def test_anything_but_the_exact_map_is_refused(fields: Any) -> None:
    refused(FrameType.GOODBYE, fields)


def test_bombs_cost_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for bomb in (
        b"\xdc\xff\xff" * 20_000,
        b"\xde\xff\xff" * 20_000,
        b"\x91" * CONTROL_BYTES_MAX,
        b"\xdd\xff\xff\xff\xff" * 13_000,
    ):
        refused(FrameType.STATUS, bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024  # KiB


@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(frame_type: FrameType, body: bytes) -> None:
    try:
        message = parse_message(frame_type, body)
    except PeerError:
        return
    assert parse(pack_message(message)) == message


def test_long_names_and_words_are_refused() -> None:
    refused(FrameType.REJECT, {"node": 1, "code": "x" * 65, "words": ""})
    refused(FrameType.REJECT, {"node": 1, "code": "x", "words": "y" * 1001})


def test_a_frontier_survives_the_wire_in_order() -> None:
    rows = [FrontierRow(2, 1, 7, 9), FrontierRow(1, 2**64 - 1, 3, 2**64 - 1), FrontierRow(1, 5, 1, 0)]
    assert parse_frontier(pack_frontier(rows)) == sorted(rows)


@pytest.mark.parametrize(
    "table",
    [
        bytes(31),
        pack_frontier([FrontierRow(1, 1, 1, 1)]) * 2,
        pack_frontier([FrontierRow(2, 1, 1, 1)]) + pack_frontier([FrontierRow(1, 1, 1, 1)]),
        pack_frontier([FrontierRow(1, 1, 0, 1)]),
    ],
)
def test_a_frontier_out_of_order_or_with_holes_is_refused(table: bytes) -> None:
    with pytest.raises(PeerError):
        parse_frontier(table)
