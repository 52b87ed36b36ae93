"""Probes on the wire: a question is told from an answer by its padding."""

from __future__ import annotations

import pytest

from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, PROBE_PADDING_MAX, FrameReader, FrameType, link_limits
from p2psgd.wire.ring_messages import pack_probe, parse_probe


@pytest.mark.parametrize("padding", [0, 1, 1000, PROBE_PADDING_MAX])
def test_a_probe_survives_the_wire(padding: int) -> None:
    frame, reader = pack_probe(2**64 - 1, padding), FrameReader()
    reader.open(link_limits(1000))
    while frame:
        buffer = reader.get_buffer()[: len(frame)]
        buffer[:] = frame[: len(buffer)]
        reader.received(len(buffer))
        frame = frame[len(buffer) :]
        found = reader.next_frame()
    assert found is not None
    assert found[0] is FrameType.PROBE
    assert parse_probe(found[1]) == (2**64 - 1, padding > 0)


def test_the_longest_probe_is_as_long_as_its_frame_may_be() -> None:
    assert len(pack_probe(1, PROBE_PADDING_MAX)) - PREFIX.size == link_limits(1000)[FrameType.PROBE]


@pytest.mark.parametrize("length", [1, 7])
def test_a_probe_without_a_number_is_refused(length: int) -> None:
    with pytest.raises(PeerError, match="shorter than its number") as caught:
        parse_probe(bytes(length))
    assert caught.value.reason == "ring"
