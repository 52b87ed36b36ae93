"""Writes a node's recording (p2psgd.wire.recording) beside the loop, and never at the node's cost.

Frames go into a bounded queue; a thread of its own writes them a few times a second. Whatever goes wrong (the
limit is reached, the disk is full, fails, or is slower than the run) ends the recording with one sentence in
the log and in the status, while the node goes on; what the file then holds is whole up to an update. Each
life of a node records into a file of its own, so that a restart is never refused for what the last one left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
from pathlib import Path
from typing import Final, TypedDict

from p2psgd.base import formatting
from p2psgd.base.errors import words_of
from p2psgd.core.run_spec import RunSpec
from p2psgd.storage.update_wal import FrameFile, start_of

RECORD_BYTES_MAX: Final = 4 * 1024**3  # the usual limit of a file
RECORD_BYTES_RANGE: Final = (
    256 * 1024,
    2**63 - 1,
)  # from twice the longest start to a file system's own limit
PLACES_MAX: Final = 1000  # FILE, FILE.1 ... FILE.999: lives of a node that restarts again and again
QUEUE_BYTES_MAX: Final = 64 * 1024**2  # half a second of updates at 1 Gbit/s
WRITE_EVERY_S: Final = 0.2
CLOSE_LIMIT_S: Final = 5.0  # for what is still in the queue when the node stops

log = logging.getLogger("p2psgd.recorder")


class Recorded(TypedDict):
    """How far a recording is; `note` says why it has ended."""

    file: str
    updates: int
    bytes: int
    bytes_max: int
    note: str


class Recorder:
    """The recording of one run, in a file that is made once the run is known and replaces no other."""

    def __init__(self, path: Path, *, bytes_max: int = RECORD_BYTES_MAX) -> None:
        """`bytes_max` should lie in RECORD_BYTES_RANGE: the start is written whatever the limit."""
        self.path = path.absolute()  # once the run is known, that of the file that was made
        self.updates = 0  # in the file or on their way to it
        self.bytes = 0
        self.note = ""  # why it ended before the run did
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # guards what follows and the counts
        self._queue: list[bytes] = []
        self._queue_bytes = 0  # in the queue, and in the batch that is being written
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, spec: RunSpec) -> None:
        """The run is known: make the file, and from here on updates may be added."""
        try:
            file, self.path = make_file(self.path)
        except OSError as error:
            self._end(f"cannot be made: {words_of(error)}", kept=False)
            return
        log.info("recording into %s", self.path)
        start = start_of(spec)
        self._queue.append(start)
        self._queue_bytes = self.bytes = len(start)
        self._thread = threading.Thread(target=self._write_on, args=(file,), name="recorder", daemon=True)
        self._thread.start()

    def add(self, frame: bytes) -> None:
        """Take one more UPDATE frame; never waits."""
        with self._lock:
            if self.note:
                return
            if self.bytes + len(frame) > self._bytes_max:
                self._end(f"reached its limit of {formatting.size(self._bytes_max)} (--record-bytes)")
            elif self._queue_bytes + len(frame) > QUEUE_BYTES_MAX:
                self._end(f"was {formatting.size(self._queue_bytes)} behind: the disk is slower than the run")
            else:
                self._queue.append(frame)
                self._queue_bytes += len(frame)
                self.updates += 1
                self.bytes += len(frame)

    def status(self) -> Recorded:
        """For the node's status; JSON-ready."""
        with self._lock:
            return {
                "file": str(self.path),
                "updates": self.updates,
                "bytes": self.bytes,
                "bytes_max": self._bytes_max,
                "note": self.note,
            }

    async def close(self) -> None:
        """Write what is left, for a few seconds at most."""
        self._closing.set()
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, CLOSE_LIMIT_S)
        if self._thread.is_alive():
            with self._lock:
                self._end(f"was not written to its end within {CLOSE_LIMIT_S:.0f} s of the node's stop")

    def _end(self, why: str, *, kept: bool = True) -> None:
        self.note = f"the recording {why}; {'it ends there' if kept else 'there is none'}, the node goes on"
        log.warning("%s: %s", self.path, self.note)

    def _write_on(self, descriptor: int) -> None:
        """The thread: until the node closes and the queue is empty, or writing fails."""
        last, file = False, FrameFile(descriptor)
        try:
            with contextlib.closing(file):
                while not last:
                    last = self._closing.wait(WRITE_EVERY_S)
                    with self._lock:
                        batch, self._queue = self._queue, []
                    file.append(batch)
                    with self._lock:
                        self._queue_bytes -= sum(map(len, batch))
        except OSError as error:
            kept = file.whole > 0
            if not kept:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            with self._lock:
                self._queue.clear()
                self._queue_bytes = 0
                self.updates, self.bytes = max(file.whole - 1, 0), file.bytes
                self._end(f"cannot be written: {words_of(error)}", kept=kept)


def make_file(path: Path) -> tuple[int, Path]:
    """The descriptor and the path of a new file: `path`, or the first of path.1 ... path.999 that is free.

    OSError if none can be made.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    for number in range(PLACES_MAX):
        place = path.with_name(f"{path.name}.{number}") if number else path
        with contextlib.suppress(FileExistsError):
            return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), place
    raise FileExistsError(errno.EEXIST, f"it exists already, and so do .1 to .{PLACES_MAX - 1} of it")
