"""A store for frames in the memory of a test, whose disk can be made to fail."""

from __future__ import annotations

import errno


class MemoryStore:
    """As large as it gets, unless `writable` or `readable` is off."""

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.writable = True
        self.readable = True
        self.writes = 0
        self.freed: list[int] = []  # while they were held

    def write(self, frame: bytes) -> int:
        self.writes += 1
        if not self.writable:
            raise OSError(errno.ENOSPC, "no space left on the device")
        self.frames[self.writes] = frame
        return self.writes

    def read(self, handle: int, length: int) -> bytes:
        if not self.readable:
            raise OSError(errno.EIO, "the device failed")
        frame = self.frames[handle]
        assert len(frame) == length
        return frame

    def free(self, handle: int, length: int, *, held: bool) -> None:
        assert len(self.frames[handle]) == length
        if held:
            self.freed.append(handle)
        else:
            del self.frames[handle]

    def release(self) -> None:
        for handle in self.freed:
            del self.frames[handle]
        self.freed.clear()
