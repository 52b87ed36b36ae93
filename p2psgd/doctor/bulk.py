"""How long what a link carries is measured, and how its rate is worked out. Pure.

Bytes go in bursts, each twice as long as the one before, until one takes a third of the time that there is:
so the last has seen TCP's slow start and a shaper's allowance behind it, and on a slow link little is sent.
"""

from __future__ import annotations

from typing import Final

from p2psgd.doctor.messages import BULK_BYTES

BYTES_MAX: Final = 32 * 1024 * 1024  # each way
SECONDS_MAX: Final = 1.0
SECONDS_MIN: Final = 0.1
ALL_SECONDS: Final = 16.0  # of one node with all its peers, each way; beyond so many each gets less
FIRST_FRAMES: Final = 2


def seconds_each(peers: int) -> float:
    """About how long one measurement takes, each way, where there are so many peers."""
    return max(SECONDS_MIN, min(SECONDS_MAX, ALL_SECONDS / max(1, peers)))


class Bursts:
    """How many frames to send next, of one measurement one way that is to take about `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.frames = FIRST_FRAMES
        self._enough_s = seconds / 3
        self._left = BYTES_MAX // BULK_BYTES - FIRST_FRAMES

    def goes_on(self, took_s: float) -> bool:
        """The last burst and its answer took so long; is there another?"""
        self.frames *= 2
        self._left -= self.frames
        return took_s < self._enough_s and self._left >= 0


class Counter:
    """Of one burst as it comes. The first frame is left out, for nobody has timed its way here."""

    def __init__(self) -> None:
        self.received = 0
        self._first: float | None = None
        self._last = 0.0

    def take(self, size: int, now: float) -> None:
        """A frame of so many bytes is there, at so many seconds."""
        if self._first is None:
            self._first = now
        else:
            self.received += size
        self._last = now

    @property
    def took_us(self) -> int:
        return 0 if self._first is None else round(1e6 * (self._last - self._first))


def rate(received: int, took_us: int) -> float | None:
    """Bytes a second; None of nothing."""
    return 1e6 * received / took_us if took_us > 0 and received > 0 else None
