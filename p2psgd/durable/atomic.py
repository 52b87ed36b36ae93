"""Files that appear whole or not at all, and directories, also across a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

FRESH_SUFFIX: Final = ".new"  # of a file that is being written
FILE_MODE: Final = 0o640  # weights and votes are not for everybody, also in a directory made by hand
DIRECTORY_MODE: Final = 0o750


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` once it is whole and on disk; `mode` less the umask is
    who may use it.

    Nothing changes if the with block raises. OSError if it cannot be written.
    """
    fresh = path.with_name(f".{path.name}{FRESH_SUFFIX}")
    try:
        fresh.unlink(missing_ok=True)  # of a process that was killed; it may have another mode
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def make_directory(place: Path, *, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory unless there is one, and those above it that are missing; each is on disk in the one
    above it when this returns. OSError if that cannot be done.
    """
    if place.is_dir():
        return
    make_directory(place.parent, mode=0o777)  # others may keep something there
    place.mkdir(mode=mode, exist_ok=True)
    sync_folder(place.parent)


def numbered(folder: Path, prefix: str, suffix: str) -> list[int]:
    """The numbers between them in the names of a folder's files, ascending; none if there is no such folder.

    OSError if it cannot be looked into.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    ours = (name for name in names if name.startswith(prefix) and name.endswith(suffix))
    texts = (name[len(prefix) : -len(suffix)] for name in ours)
    return sorted(int(text) for text in texts if text.isascii() and text.isdecimal())


def sync_folder(folder: Path) -> None:
    """Wait until names made, changed or removed in this folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
