"""RING_CHUNK frames of a dense ring, both ways: numbers are sent from where they lie."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.outbound import Outbound
from p2psgd.core.peer import Peer
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.ring import RING_CHUNK_BYTES, RingChunkHeader, pack_ring_chunk

SEGMENT_NUMBERS_MIN: Final = 1 << 14  # 64 KiB: below, it costs more to handle a frame than to wait for it
SEGMENT_NUMBERS: Final = 1 << 19  # in one frame at most: 2 MiB of float32, 17 ms of a 1 Gbit/s link
SEGMENTS_IN_CHUNK: Final = 4  # so that a node sends the first while it receives the others


def segment_numbers(count: int, nodes: int) -> int:
    """How many numbers of a bucket of `count` go into one frame: as many as overlapping allows, since each
    frame takes Python's time.
    """
    wanted = -(-count // (nodes * SEGMENTS_IN_CHUNK))
    return min(max(wanted, SEGMENT_NUMBERS_MIN), SEGMENT_NUMBERS)


def send_chunk(
    out: Outbound,
    peer: Peer,
    header: RingChunkHeader,
    numbers: NDArray[np.float32] | NDArray[np.float16],
    check: int | None = None,
) -> None:
    """One frame, `check` the CRC-32C of its numbers if it is known; the memory of `numbers` stays as it is
    until the peer has read it, or drops it unread.
    """
    flat = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).data.cast("B")
    start = PREFIX.pack(RING_CHUNK_BYTES + flat.nbytes, FrameType.RING_CHUNK)
    out.send_numbers(peer, start + pack_ring_chunk(header, flat, check), flat)


def count_numbers(numbers: memoryview, *, half: bool) -> int:
    """How many came; PeerError if that is no whole number."""
    count, rest = divmod(len(numbers), 2 if half else 4)
    if rest:
        raise PeerError("ring", f"a chunk of {len(numbers)} bytes does not hold whole numbers")
    return count
