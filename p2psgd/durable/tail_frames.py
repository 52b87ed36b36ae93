"""The UPDATE frames of a checkpoint's tail: each is looked at as it is written, and again as it is read.

A frame lies in RAM for long, where a bit of it may change. The weights of a checkpoint do not need its tail,
so damage costs that part of the tail and no more.
"""

from __future__ import annotations

from p2psgd.core.frontier import Origin
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, FrameType, link_limits
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import UpdateHeader, parse_update

Read = list[tuple[UpdateHeader, bytes]]


def is_whole(frame: bytes, weights: int) -> bool:
    """It is one UPDATE frame, and its header and checksum are right."""
    return _header_of(frame, weights) is not None


def split_frames(tail: bytes, weights: int) -> tuple[Read, str]:
    """The whole UPDATE frames, cut apart, and what is wrong with the first of the others, if there are any.

    None is found behind a length that cannot be.
    """
    found: Read = []
    fault, start, limit = "", 0, link_limits(weights)[FrameType.UPDATE]
    while start < len(tail):
        if len(tail) - start < PREFIX.size:
            return found, fault or "it ends inside a frame"
        length, frame_type = PREFIX.unpack_from(tail, start)
        end = start + PREFIX.size + length
        if frame_type != FrameType.UPDATE or not 0 < length <= limit or end > len(tail):
            return found, fault or "it is not made of whole updates"
        frame = tail[start:end]
        header = _header_of(frame, weights)
        if header is None:
            fault = fault or "an update of it has changed"
        else:
            found.append((header, frame))
        start = end
    return found, fault


def ending_at(rows: list[FrontierRow], read: Read) -> list[bytes]:
    """Of each origin only what leads without a hole to its row: of no use is what comes before one."""
    first = {Origin(row.node, row.incarnation): row.sequence + 1 for row in rows}
    kept = []
    for header, frame in reversed(read):
        origin = Origin(header.node, header.incarnation)
        if header.sequence == first.get(origin, 0) - 1:
            first[origin] = header.sequence
            kept.append(frame)
    return kept[::-1]


def _header_of(frame: bytes, weights: int) -> UpdateHeader | None:
    """None if it is no whole UPDATE frame."""
    if len(frame) <= PREFIX.size or PREFIX.unpack_from(frame) != (len(frame) - PREFIX.size, FrameType.UPDATE):
        return None
    try:
        return parse_update(memoryview(frame)[PREFIX.size :], weights)[0]
    except PeerError:
        return None
