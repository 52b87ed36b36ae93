"""What a link carries: bytes that are sent for about a second, and counted where they come."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from p2psgd.doctor.messages import BULK_BYTES_MAX, BulkEnd, pack, pack_bulk
from p2psgd.doctor.stream import Stream

BYTES_MAX: Final = 32 * 1024 * 1024  # each way
SECONDS_MAX: Final = 1.0
SECONDS_MIN: Final = 0.1
ALL_SECONDS: Final = 16.0  # of one node with all its peers, each way; beyond so many each gets less


@dataclass(slots=True)
class Counter:
    """Of what comes: bytes after the first frame, whose way here nobody has timed, and their time."""

    received: int = 0
    _first: float = 0.0
    _last: float = 0.0
    _begun: bool = False

    def take(self, size: int, now: float) -> None:
        """A frame of so many bytes is there."""
        if self._begun:
            self.received += size
        else:
            self._begun, self._first = True, now
        self._last = now

    @property
    def took_us(self) -> int:
        return round(1e6 * (self._last - self._first))


def rate(received: int, took_us: int) -> float | None:
    """Bytes a second; None of nothing."""
    return 1e6 * received / took_us if took_us > 0 and received > 0 else None


def seconds_each(peers: int) -> float:
    """How long one measurement takes, each way, where there are so many peers."""
    return max(SECONDS_MIN, min(SECONDS_MAX, ALL_SECONDS / max(1, peers)))


async def send_bulk(stream: Stream, *, seconds: float) -> None:
    """Send for so long, or BYTES_MAX, whatever comes first; OSError if the connection fails."""
    frame = pack_bulk(BULK_BYTES_MAX)
    end = time.monotonic() + seconds
    left = BYTES_MAX
    while left >= BULK_BYTES_MAX and time.monotonic() < end:
        stream.write(frame)
        left -= BULK_BYTES_MAX
        await stream.drain()
    stream.write(pack(BulkEnd()))
    await stream.drain()
