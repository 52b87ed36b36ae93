from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.cli.doctor.messages import BULK, BULK_BYTES, Counted, Done, Facts, Kind, pack, parse
from p2psgd.cli.doctor.session import BYTES_MAX, Bursts, Counter, rate, seconds_each
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, FrameType, link_limits
from p2psgd.wire.messages import Message

FACTS = Facts(version="1", python="3", numpy="2", port=7315, line="10.0.0.1:7315", hosts=bytes(32))


@pytest.mark.parametrize("message", [FACTS, Counted(received=5, took_us=6), Done()])
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    frame = pack(message)
    assert PREFIX.unpack_from(frame) == (len(frame) - PREFIX.size, FrameType.DOCTOR)
    assert parse(frame[PREFIX.size :]) == message


def test_bulk_bytes_are_not_looked_at() -> None:
    assert parse(BULK[PREFIX.size :]) is None
    assert len(BULK) == PREFIX.size + 1 + BULK_BYTES


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_are_a_message_or_refused(body: bytes) -> None:
    with contextlib.suppress(PeerError):
        parse(body)


@given(st.sampled_from(sorted(Kind)), st.binary(max_size=300))
def test_any_bytes_of_a_known_kind_are_a_message_or_refused(kind: Kind, rest: bytes) -> None:
    with contextlib.suppress(PeerError):
        parse(bytes([kind]) + rest)


@pytest.mark.parametrize(
    "body",
    [
        pack(FACTS.model_copy(update={"port": True}))[PREFIX.size :],
        pack(FACTS.model_copy(update={"port": 65536}))[PREFIX.size :],
        pack(FACTS.model_copy(update={"line": "x" * 271}))[PREFIX.size :],
        pack(FACTS)[PREFIX.size :] + b"\0",
        pack(Done())[PREFIX.size :] + bytes(5000),
        bytes([Kind.DONE]),
        bytes([0]),
        bytes([255]) + b"\x80",
    ],
)
def test_what_is_not_exactly_a_message_is_refused(body: bytes) -> None:
    with pytest.raises(PeerError):
        parse(body)


def test_no_node_takes_a_doctors_frame() -> None:
    assert FrameType.DOCTOR not in link_limits(1000)


@pytest.mark.parametrize("bytes_per_s", [1e4, 1e6, 1e9, 1e15])
def test_bursts_are_bounded_in_bytes_and_stop_when_one_took_long(bytes_per_s: float) -> None:
    bursts = Bursts(1.0)
    frames, took_s, last_s = 0, 0.0, 0.0
    going = True
    while going:
        last_s = bursts.frames * BULK_BYTES / bytes_per_s
        frames, took_s = frames + bursts.frames, took_s + last_s
        going = bursts.goes_on(last_s)
    assert frames * (BULK_BYTES + 1) <= BYTES_MAX
    assert took_s < 2 or frames == 2  # the first one comes in any case
    assert last_s >= 1 / 3 or frames > BYTES_MAX // (BULK_BYTES + 1) / 2


def test_many_peers_get_less_time_each() -> None:
    assert seconds_each(1) == seconds_each(16) == 1.0
    assert seconds_each(64) == 0.25
    assert seconds_each(1023) == 0.1


def test_the_first_frame_only_starts_the_clock() -> None:
    counter = Counter()
    counter.take(1000, 5.0)
    assert rate(counter.received, counter.took_us) is None
    counter.take(1000, 5.5)
    counter.take(1000, 6.0)
    assert rate(counter.received, counter.took_us) == 2000
