"""A file for the frames of the log that RAM has no room for (p2psgd.core.update_log.FrameStore).

The file has no name: it is gone with the process. It is cut into segments that are filled one after the
other and used anew once all their frames are freed; the log frees oldest first, so they mostly are, and
there is nothing to search and no hole to fit a frame into. It never shrinks. A segment with a frame that was
freed while it was held, as part of a checkpoint's tail that a slow disk takes its time for, is not used anew
before `release`; all others are. A checksum before each frame shows a disk that gives back something else.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from pathlib import Path
from typing import Final

from p2psgd.wire import codec

SEGMENT_BYTES: Final = 4 * 1024**2  # a few of the largest frames there are
_CHECKSUM: Final = struct.Struct("<I")


class FrameFile:
    """A file of frames that takes at most `budget_bytes` of a file system, checksums included; not all of
    that are frames.
    """

    def __init__(self, directory: Path, *, budget_bytes: int) -> None:
        """Make the file in `directory`; OSError if that fails."""
        self.budget_bytes = budget_bytes
        self._segment_bytes = max(1, min(SEGMENT_BYTES, budget_bytes))
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 (closed by close())
        self._frames: list[int] = []  # held, by segment
        self._empty: list[int] = []  # segments of the file that hold none
        self._open = -1  # the segment that is being filled
        self._end = 0  # where in the file the next frame goes
        self._held: set[int] = set()  # segments with freed frames that may be read all the same

    def write(self, frame: bytes) -> int:
        """Keep a frame and return its place in the file. OSError if the budget or the disk has no room, or
        fails.
        """
        data = _CHECKSUM.pack(codec.crc32c(frame)) + frame
        if self._end + len(data) > (self._open + 1) * self._segment_bytes:
            self._open_next(len(data))
        place = self._end
        _write_all(self._file.fileno(), data, place)
        self._end += len(data)
        self._frames[self._open] += 1
        return place

    def read(self, handle: int, length: int) -> bytes:
        """Read the frame at a place; OSError if the disk fails or does not hold it any more."""
        data = os.pread(self._file.fileno(), _CHECKSUM.size + length, handle)
        frame = data[_CHECKSUM.size :]
        if len(frame) != length or _CHECKSUM.unpack_from(data)[0] != codec.crc32c(frame):
            raise OSError(errno.EIO, "a frame of the log was not read as it was written")
        return frame

    def free(self, handle: int, length: int, *, held: bool = False) -> None:
        """Release the frame at a place, which is not read any more, or, `held`, not after `release`."""
        segment = handle // self._segment_bytes
        self._frames[segment] -= 1
        if held:
            self._held.add(segment)
        self._reuse(segment)

    def release(self) -> None:
        """Allow reuse of the frames that were freed while held: they are not read any more either."""
        held, self._held = self._held, set()
        for segment in held:
            self._reuse(segment)

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()

    def _reuse(self, segment: int) -> None:
        """Make a segment available again, if it has no frame any more that is read."""
        if self._frames[segment] or segment in self._held:
            return
        if segment == self._open:
            self._end = segment * self._segment_bytes
        else:
            self._empty.append(segment)

    def _open_next(self, length: int) -> None:
        """Begin to fill another segment."""
        if length > self._segment_bytes:
            raise OSError(errno.ENOSPC, f"{length} bytes do not fit into a segment of {self._segment_bytes}")
        left = self._open
        if self._empty:
            self._open = self._empty.pop()
        elif (len(self._frames) + 1) * self._segment_bytes <= self.budget_bytes:
            self._open = len(self._frames)
            self._frames.append(0)
        else:
            raise OSError(errno.ENOSPC, f"the log's file has reached its {self.budget_bytes} bytes")
        if left >= 0:  # all of it may have been freed while it was held
            self._reuse(left)
        self._end = self._open * self._segment_bytes


def _write_all(descriptor: int, data: bytes, place: int) -> None:
    """Write with pwrite, which may take less than all when the disk is about to be full."""
    while data:
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written
