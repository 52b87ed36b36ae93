"""Where the log keeps frames beyond RAM, and what the log knows of each frame."""

from __future__ import annotations

from typing import Final, Protocol

_LENGTH_BITS: Final = 32

Entry = bytes | int  # the frame, or where the store has it: handle << 32 | length, half the size of a tuple


class FrameStore(Protocol):
    """A place for frames beyond RAM. What it holds need not outlive the process."""

    def write(self, frame: bytes) -> int:
        """Keep a frame; returns its handle, which is not negative. OSError if it cannot."""

    def read(self, handle: int, length: int) -> bytes:
        """The frame of `length` bytes; OSError if it cannot be had again as it was. From any thread."""

    def free(self, handle: int, length: int, *, held: bool) -> None:
        """The frame will not be read any more; `held`: not after `release`."""

    def release(self) -> None:
        """What was freed and held will not be read any more either."""


def entry_of(handle: int, length: int) -> int:
    """What stands in the log for a frame in the store."""
    return handle << _LENGTH_BITS | length


def place_of(entry: int) -> tuple[int, int]:
    """Handle and length of a frame in the store."""
    return entry >> _LENGTH_BITS, length_of(entry)


def length_of(entry: Entry) -> int:
    """Bytes of the frame."""
    return len(entry) if isinstance(entry, bytes) else entry & (1 << _LENGTH_BITS) - 1
