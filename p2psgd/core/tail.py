"""What a checkpoint keeps of the log: references to its frames, so that a file can be written of them while
the log goes on.

A frame in RAM stays what it was, whoever lets go of it; one in the store can be read until the log is
released. Reading takes time, so it is done in the thread that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from p2psgd.core.frame_store import Entry, FrameStore, length_of, place_of


class UnreadableTailError(Exception):
    """A frame of the tail cannot be had again as it was."""


class Tail:
    """Frames in an order in which each origin's sequences ascend, without holes."""

    def __init__(self, lanes: list[list[Entry]], store: FrameStore | None = None) -> None:
        """`lanes`: of each origin, in order."""
        self._lanes = lanes
        self._store = store

    @classmethod
    def of(cls, frames: Iterable[bytes]) -> Tail:
        """Of frames that are all in RAM."""
        return cls([list(frames)])

    @property
    def frame_bytes(self) -> int:
        """Of all frames."""
        return sum(sum(map(length_of, lane)) for lane in self._lanes)

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def __iter__(self) -> Iterator[bytes]:
        """Frame by frame, those in the store read as they come; UnreadableTailError if one cannot be."""
        for lane in self._lanes:
            for entry in lane:
                yield entry if isinstance(entry, bytes) else self._read(entry)

    def _read(self, entry: int) -> bytes:
        assert self._store is not None
        try:
            return self._store.read(*place_of(entry))
        except OSError as error:
            raise UnreadableTailError(str(error)) from None

    def readable(self, is_whole: Callable[[bytes], bool]) -> Tail:
        """Of each origin only what comes after its last frame that cannot be read, or is not whole."""
        return Tail([self._after_last_bad(lane, is_whole) for lane in self._lanes], self._store)

    def _after_last_bad(self, lane: list[Entry], is_whole: Callable[[bytes], bool]) -> list[Entry]:
        for index in reversed(range(len(lane))):
            entry = lane[index]
            try:
                frame = entry if isinstance(entry, bytes) else self._read(entry)
            except UnreadableTailError:
                return lane[index + 1 :]
            if not is_whole(frame):
                return lane[index + 1 :]
        return lane
