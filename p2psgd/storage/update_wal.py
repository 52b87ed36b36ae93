"""The write-ahead log of a node's own updates since its last checkpoints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2psgd.base.errors import ExitCode, P2psgdError, UsageError, words_of
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec, name_run
from p2psgd.storage.checkpoint import CheckpointMeta, is_whole
from p2psgd.storage.files import giving_up, make_directory, numbered, replacing
from p2psgd.wire import codec
from p2psgd.wire.frames import (
    PREFIX,
    UPDATE_HEADER_BYTES,
    FrameReader,
    FrameType,
    link_limits,
    pack_frame,
)
from p2psgd.wire.messages import unpack_map
from p2psgd.wire.mode import WORD_MAX
from p2psgd.wire.reject import PeerError
from p2psgd.wire.update import ENCODING_COVERED, ENCODING_RICE, UpdateHeader, decode_update, parse_update

# ----------------------------------------------------------------------------
# One file: the run that it belongs to, then UPDATE frames exactly as on the wire.
#
#     8 bytes  `p2psgd-u`
#     4        u32, version of this format
#     4        u32, length n of the header
#     n        the header, a MessagePack map: WalHeader
#              UPDATE frames to the end of the file, as a crash may leave it
#
# Any bytes are safe to read: every length is checked before anything of that size is made.


MAGIC: Final = b"p2psgd-u"
VERSION: Final = 1
HEADER_BYTES_MAX: Final = 4096
_START: Final = struct.Struct("<8sII")  # magic, version, bytes of the header


class WalError(P2psgdError):
    """A file of own updates cannot be read, or not to its end; the part before the fault is valid."""


class WalHeader(BaseModel):
    """The header of a file of own updates, which describes their run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    fingerprint: Annotated[bytes, Field(min_length=32, max_length=32)]
    label: Annotated[str, Field(max_length=200)]
    mode: Annotated[str, Field(min_length=1, max_length=WORD_MAX)]
    coordinates: Annotated[int, Field(ge=1, le=codec.WEIGHTS_MAX)]


def start_of(spec: RunSpec) -> bytes:
    """Return the bytes of a file before its first frame."""
    header = WalHeader(
        fingerprint=spec.fingerprint, label=spec.label, mode=spec.mode, coordinates=spec.coordinates
    )
    fields: bytes = msgpack.packb(header.model_dump())
    return _START.pack(MAGIC, VERSION, len(fields)) + fields


def read_start(file: io.BufferedIOBase) -> WalHeader:
    """Read up to the first frame; WalError if a file of own updates does not begin like that."""
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(MAGIC):
        raise WalError("it does not begin like a file of own updates")
    _, version, length = _START.unpack(start)
    if version != VERSION:
        raise WalError(f"it has format {version}, this p2psgd reads format {VERSION}")
    if length > HEADER_BYTES_MAX:
        raise WalError(f"its header takes {length} bytes, allowed are {HEADER_BYTES_MAX}")
    try:
        return WalHeader.model_validate(unpack_map(file.read(length), array_max=0))
    except (ValidationError, ValueError) as error:
        raise WalError(f"its header is not valid: {error!s:.300}") from None


def read_bodies(file: io.BufferedIOBase, coordinates: int) -> Iterator[bytes | bytearray]:
    """Yield the bodies of the UPDATE frames, of which only the lengths are checked.

    Each whole one comes before the WalError that says where and why the file cannot be read on.
    """
    reader = FrameReader()
    reader.open({FrameType.UPDATE: link_limits(coordinates)[FrameType.UPDATE]})
    number, waiting = 1, 0
    while True:
        try:
            frame = reader.next_frame()
        except PeerError as error:
            raise WalError(f"update {number} cannot be read: {error}") from None
        if frame is not None:
            _, body = frame
            assert not isinstance(body, memoryview)  # only of a RING_CHUNK, which has no place here
            yield body
            number += 1
            waiting -= PREFIX.size + len(body)
        elif count := file.readinto(reader.get_buffer()):
            reader.received(count)
            waiting += count
        elif waiting:
            raise WalError(f"it ends in the middle of update {number}")
        else:
            return


# ----------------------------------------------------------------------------
# A node's own updates as `UpdateWal` has left them on its disk: which files there are, and what of them can
# be read.


OWN_PREFIX: Final = "own-"
OWN_SUFFIX: Final = ".rec"
SEARCH_BYTES_MAX: Final = 64 * 1024**2  # behind a damaged place, for a whole update: many of the largest
_MARK: Final = re.compile(
    bytes([ord("["), ENCODING_RICE, ENCODING_COVERED, ord("]")]) + rb"\x00{7}"
)  # in each update's header, before its checksum
_MARK_PLACE: Final = PREFIX.size + UPDATE_HEADER_BYTES - 4 - 8


def own_path(folder: Path, number: int) -> Path:
    """Return the path of the file of that number."""
    return folder / f"{OWN_PREFIX}{number:08d}{OWN_SUFFIX}"


def own_paths(folder: Path) -> list[Path]:
    """Return the files of own updates in a folder, oldest first; OSError if it cannot be looked into."""
    return [own_path(folder, number) for number in numbered(folder, OWN_PREFIX, OWN_SUFFIX)]


def read_own(path: Path, spec: RunSpec) -> Iterator[tuple[UpdateHeader, bytes]]:
    """Yield the whole updates of one file of own updates, header and frame each; it ends where the file is
    torn, as a crash leaves it.

    WalError, after the last of them, if the file is damaged there and others follow, or if it lacks its
    start, which was on disk before the file had its name: the file system has lost it. UsageError if it is
    another run's or cannot be read.
    """
    read, place = 0, 0
    try:
        with path.open("rb") as file:
            try:
                run = read_start(file)
                if run.fingerprint != spec.fingerprint:
                    raise another_run(path, run, spec)
                place = file.tell()
                for body in read_bodies(file, spec.coordinates):
                    header, payload = parse_update(body, spec.coordinates)
                    decode_update(header, payload, spec.coordinates)
                    yield header, pack_frame(FrameType.UPDATE, bytes(body))
                    read, place = read + 1, place + PREFIX.size + len(body)
            except (WalError, PeerError):
                file.seek(place)
                found = file.read(SEARCH_BYTES_MAX)
                if not (place or found):
                    raise WalError(
                        f"{path} is empty, and was not when it was written: the file system has lost this "
                        "node's own updates in it, and those that no checkpoint and no peer has are gone; "
                        "check the disk"
                    ) from None
                if not place or _holds_update(found, spec.coordinates):
                    words = f"of this node's own updates in it, only the first {read} can be read"
                    raise WalError(f"{path} is damaged: {words}") from None
    except OSError as error:
        words = f"cannot read this node's own updates in {path}: {words_of(error)}"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def another_run(path: Path, other: RunSpec | WalHeader, spec: RunSpec) -> UsageError:
    """Build the error for a file in the folder of a run that belongs to another run."""
    return UsageError(
        f"{path} is of run {name_run(other.fingerprint, other.label, other.mode)}, this node is to train run "
        f"{name_run(spec.fingerprint, spec.label, spec.mode)}: give this run another directory with --state, "
        f"or give up what the other run has there: {giving_up(path.parent.parent)}",
        ExitCode.CONFIGURATION,
    )


def _holds_update(data: bytes, weights: int) -> bool:
    """Return whether a whole update begins somewhere behind the first byte."""
    for mark in _MARK.finditer(data, _MARK_PLACE + 1):
        start = mark.start() - _MARK_PLACE
        length, kind = PREFIX.unpack_from(data, start)
        if kind == FrameType.UPDATE and is_whole(data[start : start + PREFIX.size + length], weights):
            return True
    return False


# ----------------------------------------------------------------------------
# A file of UPDATE frames that ends, whatever happens to the disk, after a whole one.


BUFFERS_MAX: Final = 1024  # Linux's UIO_MAXIOV: what one writev takes


class FrameFile:
    """A file that ends with a whole frame after every append. This process alone has its `descriptor`, which
    it closes; `bytes` are in it, `bytes_held` from the start, and `whole` pieces since then.
    """

    def __init__(self, descriptor: int, *, bytes_held: int = 0) -> None:
        self.whole = 0
        self.bytes = bytes_held
        self._descriptor = descriptor

    def append(self, batch: Sequence[bytes]) -> None:
        """Write the whole batch; OSError if the device takes no more, the file then cut to what is whole."""
        place, offset = 0, 0  # of the next byte to write
        try:
            while place < len(batch):
                rest = memoryview(batch[place])[offset:]
                offset += os.writev(self._descriptor, [rest, *batch[place + 1 : place + BUFFERS_MAX]])
                while place < len(batch) and offset >= len(batch[place]):
                    offset -= len(batch[place])
                    self.bytes += len(batch[place])
                    self.whole += 1
                    place += 1
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes)
            raise

    def sync(self) -> None:
        """Wait until everything written is on disk; OSError if that fails."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


# ----------------------------------------------------------------------------
# A node's own updates since its last checkpoints, so that no crash takes what it alone had.
#
# Files `own-N.rec` beside the checkpoints, each with a start, which it has before it has its name. `rotate`
# begins a new file and removes those of which every update is in all checkpoints that are kept: an update
# is never in no file, and the older of the two checkpoints is as good to go on from as the newer one.
# A file that was found damaged before its end is not removed but put aside.
#
# A thread writes and synchronises, about once a second: that much of one's own a power cut can take, and
# only if no peer has it.


SYNC_S: Final = 1.0
QUEUE_BYTES_MAX: Final = 64 * 1024**2  # half a second of updates at 1 Gbit/s
FILE_BYTES_MAX: Final = 4 * 1024**3  # a checkpoint is due long before
ASIDE_MAX: Final = 3  # damaged files that are kept when no checkpoint needs them
CLOSE_LIMIT_S: Final = 5.0  # for what is still in the queue when the node stops
_ASIDE: Final = ".damaged"

Kept = Sequence[CheckpointMeta]


class UpdateWal:
    """A writer of own updates, with a thread of its own, into a new file of `folder`.

    If writing fails, `on_error` gets one sentence, in whichever thread it happens, and what could not be
    written is kept and tried again, into a new file: a hole would make all that comes after it useless. Only
    if too much is waiting are updates left out until `rotate`.
    """

    def __init__(
        self, folder: Path, spec: RunSpec, *, on_error: Callable[[str], None], sync_s: float = SYNC_S
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._on_error = on_error
        self._sync_s = sync_s
        self._lock = threading.Lock()  # guards the next four
        self._failed = False  # the thread has ended by a fault
        self._queue: list[bytes | Kept] = []
        self._queue_bytes = 0  # in the queue, and waiting to be written
        self._stopped = False
        self._closing = threading.Event()
        self._file: FrameFile | None = None  # this and what follows is the thread's own
        self._waiting: list[bytes] = []  # to be written next
        self._in_trouble = False
        self._ends: dict[Path, tuple[Origin, int] | None] = {}  # of each file its last update
        self._damaged: set[Path] = set()
        self._path = folder
        self.busy_since: float | None = None  # monotonic: the disk has had work since then; set by the thread
        self._thread = threading.Thread(target=self._run, name="own updates", daemon=True)
        self._thread.start()

    def add(self, frame: bytes) -> None:
        """Queue one more UPDATE frame of this incarnation; never waits."""
        with self._lock:
            if self._stopped or self._failed:
                return
            behind = self._queue_bytes
            if behind + len(frame) <= QUEUE_BYTES_MAX:
                self._queue.append(frame)
                self._queue_bytes += len(frame)
                return
            self._stopped = True
        self._report(f"until its next checkpoint: the disk is {behind // 10**6} MB behind the run")

    def rotate(self, kept: Kept) -> None:
        """Begin a new file now that a checkpoint is on disk, and `kept` are all there are, then remove the
        files that none of them needs. Never waits.
        """
        with self._lock:
            if not self._failed:
                self._queue.append(tuple(kept))
            self._stopped = False

    def close(self) -> None:
        """Write and synchronise what is left; waits CLOSE_LIMIT_S at most."""
        self._closing.set()
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            self._report(f"at its stop: the disk took longer than {CLOSE_LIMIT_S:.0f} s")

    def _report(self, why: str) -> None:
        self._on_error(f"this node's own updates are not written to {self._folder} {why}")

    def _run(self) -> None:
        try:
            self._write_on()
        except BaseException as error:
            with self._lock:
                self._failed = True
                self._queue.clear()
            self._report(f"until this node is started again: the thread that writes them failed, {error!r}")
            raise
        finally:
            self.busy_since = None

    def _write_on(self) -> None:
        """Write in the thread until the node closes and the queue is empty."""
        self.busy_since = time.monotonic()
        self._carry_out(self._start)
        last = False
        while not last:
            self.busy_since = None
            last = self._closing.wait(self._sync_s)
            self.busy_since = time.monotonic()
            with self._lock:
                batch, self._queue = self._queue, []
            for item in batch:
                if isinstance(item, bytes):
                    self._waiting.append(item)
                else:
                    self._carry_out(self._write_waiting)
                    self._carry_out(partial(self._begin, item))
            self._carry_out(self._write_waiting)
        self._close_file()

    def _carry_out(self, work: Callable[[], None]) -> None:
        """Run disk work; after an error there is no file until one can be begun."""
        try:
            work()
        except OSError as error:
            if self._file is not None and self._ends.get(self._path) is None:  # nothing whole is in it
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
                self._ends.pop(self._path, None)
            self._close_file()
            if not self._in_trouble:
                self._report(f"for now, and this is tried again: {words_of(error)}")
            self._in_trouble = True

    def _start(self) -> None:
        for path in own_paths(self._folder):
            last = None
            try:
                for header, _ in read_own(path, self._spec):
                    last = Origin(header.node, header.incarnation), header.sequence
            except WalError:
                self._damaged.add(path)
            except UsageError:  # a file that cannot be read now is never removed
                continue
            self._ends[path] = last
        self._begin(())

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        size = sum(map(len, self._waiting))
        if self._file is None:
            self._begin(())
            assert self._file is not None
        fits = self._file.bytes + size <= FILE_BYTES_MAX
        if fits:
            self._file.append(self._waiting)
            self._file.sync()
            header, _ = parse_update(memoryview(self._waiting[-1])[PREFIX.size :], self._spec.coordinates)
            self._ends[self._path] = Origin(header.node, header.incarnation), header.sequence
        self._waiting = []
        self._in_trouble = False
        with self._lock:
            self._queue_bytes -= size
            told, self._stopped = self._stopped, self._stopped or not fits
        if not fits and not told:
            self._report("until its next checkpoint: the file would become too large")

    def _begin(self, kept: Kept) -> None:
        """Start a new file, then remove what no checkpoint needs any more."""
        self._close_file()
        make_directory(self._folder)
        numbers = numbered(self._folder, OWN_PREFIX, OWN_SUFFIX)
        paths = [own_path(self._folder, each) for each in numbers]
        number = numbers[-1] + 1 if numbers else 1
        self._path = own_path(self._folder, number)
        start = start_of(self._spec)
        try:
            with replacing(self._path) as file:
                file.write(start)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._file = FrameFile(os.open(self._path, flags), bytes_held=len(start))
        except OSError:  # what is tried again and again must not leave a file each time
            self._path.unlink(missing_ok=True)
            raise
        self._ends[self._path] = None
        for path in paths:
            if kept and path in self._ends and self._is_covered(path, kept):
                with contextlib.suppress(OSError):  # tried again after the next checkpoint
                    if path in self._damaged:
                        self._put_aside(path)
                    else:
                        path.unlink()
                    del self._ends[path]

    def _put_aside(self, path: Path) -> None:
        """Keep a damaged file under another name: a person may find more in it than `read_own` does."""
        aside = path.with_suffix(_ASIDE)
        path.replace(aside)
        self._on_error(f"{path}, which is damaged, is kept as {aside}; only the newest {ASIDE_MAX} such are")
        for number in numbered(self._folder, OWN_PREFIX, _ASIDE)[:-ASIDE_MAX]:
            own_path(self._folder, number).with_suffix(_ASIDE).unlink()

    def _is_covered(self, path: Path, kept: Kept) -> bool:
        end = self._ends[path]
        return end is None or all(meta.covers(*end) for meta in kept)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
