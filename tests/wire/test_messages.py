"""Control messages: exactly the listed keys with exactly the listed types, and bombs cost nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.wire.frames import HANDSHAKE_LIMITS, FrameType, link_limits
from p2psgd.wire.messages import (
    FOREIGN_REJECT,
    GREETING_KEYS_MAX,
    MESSAGES,
    PROTOCOL_VERSION,
    TEXT_MAX,
    Message,
    OtherProtocolError,
    Reject,
    pack_loss,
    pack_message,
    parse_confirmed,
    parse_frontier,
    parse_ip,
    parse_loss,
    parse_members,
    parse_message,
    parse_nodes,
    parse_peers,
)
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import parse_ring_state
from tests.vectors import (
    MessageVector,
    RefusedMessageVector,
    message_vectors,
    refused_message_vectors,
)
from tests.wire.bombs import bombs
from tests.wire.messages import longest, messages
from tests.wire.versions import LATER_HELLO, OLD_HELLO, OLD_REJECT

CONTROL = sorted(MESSAGES)
PARSERS: dict[str, Callable[[bytes], object]] = {
    "frontier": parse_frontier,
    "confirmed": parse_confirmed,
    "members": parse_members,
    "forbidden": parse_nodes,
    "evict_requests": parse_nodes,
    "ip": lambda packed: parse_ip(packed) if packed else None,
    "peers": parse_peers,
    "ring": lambda state: parse_ring_state(state) if state else None,
}
LIMITS = {**link_limits(10**6), **HANDSHAKE_LIMITS}
MEMORY_MAX = 640 * 1024  # bytes that parsing a hostile body may take, beside the body


def parse(frame: bytes) -> Message:
    return parse_message(FrameType(frame[4]), frame[5:])


def parse_whole(frame_type: FrameType, body: bytes) -> Message:
    """The message, with its tables read as well."""
    message = parse_message(frame_type, body)
    for name in PARSERS.keys() & MESSAGES[frame_type].model_fields.keys():
        PARSERS[name](getattr(message, name))
    return message


@given(messages())
def test_a_message_survives_the_wire(drawn: tuple[FrameType, Message]) -> None:
    frame_type, message = drawn
    frame = pack_message(message)
    assert frame[4] == frame_type
    assert len(frame) - 5 == int.from_bytes(frame[:4], "little")
    assert parse(frame) == message


@pytest.mark.parametrize("vector", message_vectors(), ids=lambda vector: f"{vector.type_name}: {vector.name}")
def test_a_vector_is_read_and_written(vector: MessageVector) -> None:
    message = parse_whole(FrameType(vector.frame[4]), vector.frame[5:])
    assert FrameType[vector.type_name] == vector.frame[4]
    assert message.model_dump() == vector.fields
    assert pack_message(MESSAGES[FrameType[vector.type_name]].model_validate(vector.fields)) == vector.frame


@pytest.mark.parametrize(
    "vector", refused_message_vectors(), ids=lambda vector: f"{vector.type_name}: {vector.name}"
)
def test_a_vector_is_refused(vector: RefusedMessageVector) -> None:
    with pytest.raises(PeerError) as caught:
        parse_whole(FrameType[vector.type_name], vector.body)
    assert caught.value.code is RejectCode.MESSAGE


def test_the_vectors_show_every_message() -> None:
    assert {vector.type_name for vector in message_vectors()} == {each.name for each in CONTROL}


def test_every_type_is_a_message_but_those_with_bodies_of_their_own() -> None:
    raw = {FrameType.UPDATE, FrameType.SNAPSHOT_CHUNK, FrameType.SNAPSHOT_TAIL}
    raw |= {FrameType.RING_UPDATE, FrameType.RING_CHUNK, FrameType.CONTRIBUTION, FrameType.SNAPSHOT_COVER}
    raw |= {FrameType.RULE_STATE, FrameType.EVALUATION_NUMBERS}
    assert set(MESSAGES) == set(FrameType) - raw


@pytest.mark.parametrize("frame_type", CONTROL)
def test_the_longest_message_fits_its_frame_and_the_limit_is_not_loose(frame_type: FrameType) -> None:
    message = longest(frame_type)
    frame = pack_message(message)
    assert len(frame) - 5 <= LIMITS[frame_type]
    assert LIMITS[frame_type] <= max(4096, 2 * len(frame))
    assert parse(frame) == message


def refused(frame_type: FrameType, fields: Any) -> str:
    with pytest.raises(PeerError) as caught:
        parse_message(frame_type, fields if isinstance(fields, bytes) else msgpack.packb(fields))
    assert caught.value.code is RejectCode.MESSAGE
    words = str(caught.value)
    assert frame_type.name in words
    assert len(words) < 300
    return words


def right(frame_type: FrameType) -> dict[str, Any]:
    """Fields of a right message of this type."""
    return longest(frame_type).model_dump()


WRONG = [True, -1, 2**64 - 0.0, 1.0, "1", None, b"1", [1], {"a": 1}, float("nan"), msgpack.ExtType(5, b"x")]
FIELDS = [(frame_type, name) for frame_type in CONTROL for name in MESSAGES[frame_type].model_fields]


@pytest.mark.parametrize(("frame_type", "name"), FIELDS, ids=lambda each: str(getattr(each, "name", each)))
def test_a_field_has_its_own_type_and_is_there_once(frame_type: FrameType, name: str) -> None:
    fields = right(frame_type)
    for value in WRONG:
        if type(value) is not type(fields[name]):
            refused(frame_type, {**fields, name: value})
    for changed in (
        {key: fields[key] for key in fields if key != name},
        {**fields, f"{name}2": fields[name]},
    ):
        if frame_type is FrameType.REJECT:
            assert parse_message(frame_type, msgpack.packb(changed)) == FOREIGN_REJECT
        else:
            refused(frame_type, changed)
    twice = msgpack.packb(name) + msgpack.packb(fields[name])
    refused(frame_type, bytes([0x80 | len(fields) + 1]) + msgpack.packb(fields)[1:] + twice)


@pytest.mark.parametrize(("frame_type", "name"), FIELDS, ids=lambda each: str(getattr(each, "name", each)))
def test_a_field_beyond_its_range_is_refused(frame_type: FrameType, name: str) -> None:
    """`right` is at the upper end of every range; beyond 2^64 - 1 there is no MessagePack."""
    fields = right(frame_type)
    value = fields[name]
    match value:
        case bool():
            return
        case int() if name == "protocol":
            for number in (0, 65536, -1):
                refused(frame_type, {**fields, name: number})
        case int() if value == 2**64 - 1:
            refused(frame_type, {**fields, name: -1})
        case int():
            refused(frame_type, {**fields, name: value + (-1 if value < 0 else 1)})
        case str():
            refused(frame_type, {**fields, name: value + "x"})
        case bytes():
            refused(frame_type, {**fields, name: value + b"x"})
        case _:
            pass


@pytest.mark.parametrize(
    ("frame_type", "name"),
    [each for each in FIELDS if each[1] in ("first", "last", "trimmed_to", "round")]
    + [(each, "view") for each in (FrameType.PREPARE, FrameType.PROMISE, FrameType.ACCEPTED, FrameType.VIEW)],
)
def test_what_counts_from_one_is_not_0(frame_type: FrameType, name: str) -> None:
    refused(frame_type, {**right(frame_type), name: 0})


@pytest.mark.parametrize("frame_type", [FrameType.ACCEPT, FrameType.VIEW])
def test_a_view_of_nobody_is_refused(frame_type: FrameType) -> None:
    refused(frame_type, {**right(frame_type), "members": b""})


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted_round": 0},
        {"members": b""},
        {"accepted_round": 0, "members": b""},
        {"accepted_round": 0, "members": b"", "forbidden": b"", "cluster_id": 0},
        {"accepted_round": 0, "members": b"", "forbidden": b"", "accepted_node": 0},
        {"accepted_round": 0, "members": b"", "cluster_id": 0, "accepted_node": 0},
    ],
)
def test_a_promise_holds_a_whole_value_or_none(changes: dict[str, Any]) -> None:
    assert "an accepted value has members" in refused(
        FrameType.PROMISE, {**right(FrameType.PROMISE), **changes}
    )


@pytest.mark.parametrize("frame_type", CONTROL)
@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa0\x91\x01",
        b"\xc0",
        b"\x01",
        b"\x91\x01",
        b"\x81\x01\x02",
        b"\x81\xa8sequence",
        b"\x81\xa8sequence\x01\x01",
        b"\x82\xa8sequence\x01\xa8sequence\x01",
        b"\x81\xa8sequence\xd6\xff\0\0\0\1",
        b"\x81\xa8sequence\x81\xa1a\x01",
        b"\x81\xa8\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xc1",
    ],
)
def test_anything_but_the_exact_map_is_refused(frame_type: FrameType, body: bytes) -> None:
    refused(frame_type, body)


@pytest.mark.parametrize("frame_type", CONTROL)
def test_fault_23_msgpack_bombs_cost_no_memory(frame_type: FrameType) -> None:
    for bomb in bombs(LIMITS[frame_type], len(MESSAGES[frame_type].model_fields)):
        tracemalloc.start()
        if frame_type is FrameType.REJECT and bomb.startswith(b"\x81\xa8sequence\xc6\x00\x00"):
            assert parse_message(frame_type, bomb) == FOREIGN_REJECT  # one long value, which is there
        else:
            refused(frame_type, bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_MAX, (frame_type.name, bomb[:20], peak)


@given(st.sampled_from(CONTROL), st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(frame_type: FrameType, body: bytes) -> None:
    try:
        message = parse_message(frame_type, body)
    except PeerError:
        return
    assert parse(pack_message(message)) == message


@given(messages(), st.data())
def test_a_damaged_message_is_a_message_or_refused(
    drawn: tuple[FrameType, Message], data: st.DataObject
) -> None:
    frame_type, message = drawn
    body = bytearray(pack_message(message)[5:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_message(frame_type, body)
    except PeerError:
        return
    assert parse(pack_message(found)) == found


def test_words_may_be_as_long_as_their_frame_allows() -> None:
    refused(FrameType.SNAPSHOT_END, {"reason": "y" * (TEXT_MAX + 1)})
    refused(FrameType.REJECT, {"node": 1, "code": "", "details": "", "incarnation": 0})


@pytest.mark.parametrize("frame_type", [FrameType.HELLO, FrameType.WELCOME])
@pytest.mark.parametrize(
    ("fields", "number"), [(OLD_HELLO, 1), (LATER_HELLO, 4), ({"protocol": 65535}, 65535)]
)
def test_a_greeting_of_another_version_is_judged_by_its_number(
    frame_type: FrameType, fields: dict[str, Any], number: int
) -> None:
    sentence = f"protocol {number} there, {PROTOCOL_VERSION} here: install the same p2psgd on both"
    with pytest.raises(OtherProtocolError, match=sentence) as caught:
        parse_message(frame_type, msgpack.packb(fields))
    assert caught.value.code is RejectCode.PROTOCOL
    known = (caught.value.node, caught.value.name, caught.value.mode)
    assert known == (fields.get("node", 0), fields.get("name", ""), fields.get("mode", ""))


@pytest.mark.parametrize("odd", [True, 1.0, "1", b"1", None, 0, 65536, -1, 2**64 - 1])
def test_what_is_no_protocol_number_is_a_wrong_message(odd: object) -> None:
    assert "protocol" in refused(FrameType.HELLO, {**OLD_HELLO, "protocol": odd})
    assert "protocol" in refused(FrameType.HELLO, {"node": 1})


def test_what_stands_in_a_greeting_of_another_version_is_bounded() -> None:
    odd = {"protocol": 4, "node": True, "name": "x" * 3000, "mode": b"doctor"}
    with pytest.raises(OtherProtocolError) as caught:
        parse_message(FrameType.HELLO, msgpack.packb(odd))
    assert (caught.value.node, caught.value.name, caught.value.mode) == (0, "x" * 64, "")


@pytest.mark.parametrize("frame_type", [FrameType.HELLO, FrameType.WELCOME, FrameType.REJECT])
def test_a_greeting_of_any_version_has_a_bounded_number_of_keys(frame_type: FrameType) -> None:
    fields = {"protocol": 4, **{f"k{each}": each for each in range(GREETING_KEYS_MAX)}}
    assert "max_map_len" in refused(frame_type, fields)


@pytest.mark.parametrize("frame_type", [FrameType.HELLO, FrameType.WELCOME, FrameType.REJECT])
def test_nested_maps_of_as_many_keys_as_greetings_may_have_cost_no_memory(frame_type: FrameType) -> None:
    unit = b"\xde" + GREETING_KEYS_MAX.to_bytes(2, "big") + b"\xa0"
    wide = b"".join(b"\xa1" + bytes([each, 1]) for each in range(GREETING_KEYS_MAX - 1)) + b"\xa0"
    for bomb in (unit * 1024, (unit[:3] + wide) * 40):
        tracemalloc.start()
        refused(frame_type, bomb[: LIMITS[frame_type]])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_MAX, (bomb[:20], peak)


@pytest.mark.parametrize("fields", [OLD_REJECT, {}, {**right(FrameType.REJECT), "more": 1}])
def test_a_rejection_by_another_version_has_a_sentence(fields: dict[str, Any]) -> None:
    message = parse_message(FrameType.REJECT, msgpack.packb(fields))
    assert isinstance(message, Reject)
    error = message.to_error()
    assert error.code is RejectCode.OTHER
    assert str(error) == "rejected by a peer of another protocol version"


@pytest.mark.parametrize("code", list(RejectCode))
def test_a_code_without_details_has_a_sentence_of_its_own(code: RejectCode) -> None:
    error = Reject(node=1, code=code, details="", incarnation=0).to_error()
    assert (error.code, str(error), error.label) == (code, code.sentence, code.label)


@pytest.mark.parametrize(("details", "end"), [("", "does not know"), ("no room", "does not know: no room")])
def test_a_code_of_a_later_version_is_told_to_people_with_its_number(details: str, end: str) -> None:
    error = Reject(node=1, code=65535, details=details, incarnation=0).to_error()
    assert (error.code, error.label) == (RejectCode.OTHER, "code 65535")
    assert str(error) == f"it rejects this node with code 65535, which this version of p2psgd {end}"


@pytest.mark.parametrize("loss", [0.0, 2.5, -1.0, 3.0e38])
def test_a_loss_travels_as_its_bits_and_what_is_none_as_not_known(loss: float) -> None:
    assert parse_loss(pack_loss(loss)) == pytest.approx(loss, rel=1e-6)
    for unknown in (None, float("nan"), float("inf"), 1e300):
        assert parse_loss(pack_loss(unknown)) is None
