"""The own updates of a node as `own_file` has left them on its disk: which files there are, and what of them
can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from p2psgd.core.run_spec import RunSpec, name_run
from p2psgd.durable.atomic import numbered
from p2psgd.durable.state_directory import giving_up
from p2psgd.durable.tail_frames import is_whole
from p2psgd.errors import ExitCode, PeerError, RecordingError, UsageError, words_of
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES, FrameType, pack_frame
from p2psgd.wire.recording import RecordingHeader, read_bodies, read_start
from p2psgd.wire.update import ENCODING_RICE, UpdateHeader, parse_update

OWN_PREFIX: Final = "own-"
OWN_SUFFIX: Final = ".rec"
SEARCH_BYTES_MAX: Final = 64 * 1024**2  # behind a damaged place, for a whole update: many of the largest
_MARK: Final = bytes([ENCODING_RICE]) + bytes(7)  # in each update's header, before its checksum
_MARK_PLACE: Final = PREFIX.size + UPDATE_HEADER_BYTES - 4 - len(_MARK)


def own_path(folder: Path, number: int) -> Path:
    """The file of that number."""
    return folder / f"{OWN_PREFIX}{number:08d}{OWN_SUFFIX}"


def own_paths(folder: Path) -> list[Path]:
    """The files of own updates in a folder, oldest first; OSError if it cannot be looked into."""
    return [own_path(folder, number) for number in numbered(folder, OWN_PREFIX, OWN_SUFFIX)]


def read_own(path: Path, spec: RunSpec) -> Iterator[tuple[UpdateHeader, bytes]]:
    """The whole updates of one such file, header and frame each; it ends where the file is torn, as a crash
    leaves it.

    RecordingError, after the last of them, if the file is damaged there and others follow, or if it lacks its
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
                for body in read_bodies(file, spec.weights):
                    header, payload = parse_update(body, spec.weights)
                    codec.decode(payload, header.count, spec.weights)
                    yield header, pack_frame(FrameType.UPDATE, bytes(body))
                    read, place = read + 1, place + PREFIX.size + len(body)
            except (RecordingError, PeerError):
                file.seek(place)
                found = file.read(SEARCH_BYTES_MAX)
                if not (place or found):
                    raise RecordingError(
                        f"{path} is empty, and was not when it was written: the file system has lost this "
                        "node's own updates in it, and those that no checkpoint and no peer has are gone; "
                        "check the disk"
                    ) from None
                if not place or _holds_update(found, spec.weights):
                    words = f"of this node's own updates in it, only the first {read} can be read"
                    raise RecordingError(f"{path} is damaged: {words}") from None
    except OSError as error:
        words = f"cannot read this node's own updates in {path}: {words_of(error)}"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def another_run(path: Path, other: RunSpec | RecordingHeader, spec: RunSpec) -> UsageError:
    """What to say of a file in the folder of a run that is another run's."""
    return UsageError(
        f"{path} is of run {name_run(other.fingerprint, other.label, other.mode)}, this node is to train run "
        f"{name_run(spec.fingerprint, spec.label, spec.mode)}: give this run another directory with --state, "
        f"or give up what the other run has there: {giving_up(path.parent.parent)}",
        ExitCode.CONFIGURATION,
    )


def _holds_update(data: bytes, weights: int) -> bool:
    """A whole update begins somewhere behind the first byte."""
    at = data.find(_MARK, _MARK_PLACE + 1)
    while at >= 0:
        start = at - _MARK_PLACE
        length, kind = PREFIX.unpack_from(data, start)
        if kind == FrameType.UPDATE and is_whole(data[start : start + PREFIX.size + length], weights):
            return True
        at = data.find(_MARK, at + 1)
    return False
