"""Writes a node's recording (p2psgd.wire.recording) beside the loop, and never at the node's cost.

Frames go into a bounded queue; a thread of its own writes them a few times a second. Whatever goes wrong (the
limit is reached, the disk is full, fails, or is slower than the run) ends the recording with one sentence in
the log and in the status, while the node goes on; what the file then holds is whole up to an update.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any, Final

from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import UsageError
from p2psgd.ops import numerals
from p2psgd.wire.recording import RecordingHeader, pack_start

RECORD_BYTES_MAX: Final = 4 * 1024**3  # the usual limit of a file
QUEUE_BYTES_MAX: Final = 64 * 1024**2  # half a second of updates at 1 Gbit/s
WRITE_EVERY_S: Final = 0.2
CLOSE_LIMIT_S: Final = 5.0  # for what is still in the queue when the node stops

log = logging.getLogger("p2psgd.recorder")


class Recorder:
    """The recording of one run into a file that does not exist yet."""

    def __init__(self, path: Path, *, bytes_max: int = RECORD_BYTES_MAX) -> None:
        """Make the file; UsageError if there is one already or it cannot be made."""
        self.path = path
        self.updates = 0  # in the file or on their way to it
        self.bytes = 0
        self.note = ""  # why it ended before the run did
        self._bytes_max = bytes_max
        self._file = make_file(path)
        self._lock = threading.Lock()  # guards what follows and the counts
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, spec: RunSpec) -> None:
        """The run is known: from here on updates may be added."""
        header = RecordingHeader(
            tensors=spec.tensors,
            quantum_log2=spec.quantum_log2,
            mode=spec.mode,
            label=spec.label,
            initial=spec.initial,
            fingerprint=spec.fingerprint,
            weights=spec.weights,
        )
        start = pack_start(header)
        self._queue.append(start)
        self._queue_bytes = self.bytes = len(start)
        self._thread = threading.Thread(target=self._write_on, name="recorder", daemon=True)
        self._thread.start()

    def add(self, frame: bytes) -> None:
        """Take one more UPDATE frame; never waits."""
        with self._lock:
            if self.note:
                return
            if self.bytes + len(frame) > self._bytes_max:
                self._end(f"reached its limit of {numerals.size(self._bytes_max)} (--record-bytes)")
            elif self._queue_bytes + len(frame) > QUEUE_BYTES_MAX:
                self._end(f"was {numerals.size(self._queue_bytes)} behind: the disk is slower than the run")
            else:
                self._queue.append(frame)
                self._queue_bytes += len(frame)
                self.updates += 1
                self.bytes += len(frame)

    def status(self) -> dict[str, Any]:
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
        """Write what is left, for a few seconds at most; a file without a run in it is removed."""
        self._closing.set()
        if self._thread is None:
            os.close(self._file)
            self.path.unlink(missing_ok=True)
            return
        await asyncio.to_thread(self._thread.join, CLOSE_LIMIT_S)
        if self._thread.is_alive():
            with self._lock:
                self._end(f"was not written to its end within {CLOSE_LIMIT_S:.0f} s of the node's stop")

    def _end(self, why: str) -> None:
        self.note = f"the recording {why}; it ends there, the node goes on"
        log.warning("%s: %s", self.path, self.note)

    def _write_on(self) -> None:
        """The thread: until the node closes and the queue is empty, or writing fails."""
        updates, written = -1, 0  # in the file; the first of the queue is no update but the start
        last = False
        try:
            while not last:
                last = self._closing.wait(WRITE_EVERY_S)
                with self._lock:
                    batch, self._queue = self._queue, []
                size = sum(map(len, batch))
                write_whole(self._file, b"".join(batch), end=written)
                updates, written = updates + len(batch), written + size
                with self._lock:
                    self._queue_bytes -= size
            os.close(self._file)
        except OSError as error:
            with self._lock:
                self._queue.clear()
                self.updates, self.bytes = max(updates, 0), written
                self._end(f"cannot be written: {(error.strerror or str(error)).lower()}")


def make_file(path: Path) -> int:
    """The descriptor of a new file at `path`; UsageError with one sentence if it cannot be made."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise UsageError(
            f"{path} exists already: a recording never replaces a file; name another one"
        ) from None
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise UsageError(f"the recording cannot be written to {path}: {words}") from None


def write_whole(file: int, data: bytes, *, end: int) -> None:
    """Append to a file that ends at `end`, all or nothing; OSError if the device does not take it."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, end)
        raise
