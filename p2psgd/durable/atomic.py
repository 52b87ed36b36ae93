"""Files that appear whole or not at all, also across a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

FRESH_SUFFIX: Final = ".new"  # of a file that is being written


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` once it is whole and on disk.

    Nothing changes if the with block raises. OSError if it cannot be written.
    """
    fresh = path.with_name(f".{path.name}{FRESH_SUFFIX}")
    try:
        with fresh.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


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
