"""PROBE: a frame that is sent to learn how long a link takes to carry it.

A number, and padding. One with padding is a question, and is answered by its number alone.
"""

from __future__ import annotations

import struct
from typing import Final

from p2psgd.errors import PeerError
from p2psgd.wire.frames import PROBE_PADDING_MAX, Body, FrameType, pack_frame

_NUMBER: Final = struct.Struct("<Q")


def pack_probe(number: int, padding: int = 0) -> bytes:
    """The whole frame, with so many bytes of padding: zeros, for no link that we know compresses."""
    assert 0 <= padding <= PROBE_PADDING_MAX, padding
    return pack_frame(FrameType.PROBE, _NUMBER.pack(number) + bytes(padding))


def parse_probe(body: Body) -> tuple[int, bool]:
    """Its number, and whether it is a question; PeerError if it is too short."""
    if len(body) < _NUMBER.size:
        raise PeerError("ring", f"a probe of {len(body)} bytes is shorter than its number")
    (number,) = _NUMBER.unpack_from(body)
    return number, len(body) > _NUMBER.size
