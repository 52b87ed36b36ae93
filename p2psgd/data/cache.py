"""Shards on this machine's disk: files named by the hash of their content, whole or not there.

Several trainers of a machine, and several data sets, may share a cache: whoever has fetched a shard renames
it into its place, and what was used least recently goes when there is no room. A file that goes while another
trainer reads it stays readable there. Each reader checks what it reads by the name, every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from p2psgd.errors import ExitCode, UsageError, cannot

CACHE_BYTES: Final = 10 * 1024**3
FOLDER_VARIABLE: Final = "P2PSGD_CACHE"
BYTES_VARIABLE: Final = "P2PSGD_CACHE_BYTES"
STALE_S: Final = 3600.0  # a file that nobody has gone on writing for so long is of a trainer that died
WRITING: Final = ".part"
PIECE_BYTES: Final = 8 << 20

Moved = Callable[[], None]


def default_cache() -> Path:
    """$P2PSGD_CACHE, else $XDG_CACHE_HOME/p2psgd/shards, else that below ~/.cache."""
    told, base = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if told:
            return Path(told).expanduser()
        return Path(base if base.startswith("/") else Path.home() / ".cache") / "p2psgd" / "shards"
    except RuntimeError as error:
        why = str(error).rstrip(".")
        words = f"there is no place for a cache of shards: {why}; name one in {FOLDER_VARIABLE}"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def default_bytes() -> int:
    """$P2PSGD_CACHE_BYTES, else CACHE_BYTES."""
    told = os.environ.get(BYTES_VARIABLE, "")
    try:
        return int(told) if told else CACHE_BYTES
    except ValueError:
        words = f"{BYTES_VARIABLE}={told:.40} is refused: give a number of bytes"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def hash_of(content: bytes, moved: Moved) -> str:
    """SHA-256 in hex; `moved` is called again and again."""
    found = hashlib.sha256()
    for piece in _pieces(content):
        moved()
        found.update(piece)
    return found.hexdigest()


class Cache:
    """A folder of at most `bytes_max`, but for what is just being written."""

    def __init__(self, folder: Path, *, bytes_max: int = CACHE_BYTES) -> None:
        if bytes_max < 1:
            raise UsageError(f"a cache of {bytes_max} bytes holds nothing: give more")
        self.folder = folder
        self.bytes_max = bytes_max
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot(f"use {folder} as a cache for shards", error) from None

    def read(self, sha256: str, moved: Moved = lambda: None) -> bytes | None:
        """The content that hashes to this; None if it is not there. One that has changed is thrown away.

        `moved` is called as often as a piece was read, or hashed.
        """
        path, content = self.folder / sha256, io.BytesIO()
        try:
            with path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    moved()
                    content.write(piece)
        except OSError:
            return None
        found = content.getvalue()
        if hash_of(found, moved) != sha256:
            self._drop(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def write(self, sha256: str, content: bytes, moved: Moved = lambda: None) -> None:
        """Keep this content, which hashes to that, unless there is no room even in an empty cache. OSError if
        the disk does not take it.
        """
        if len(content) > self.bytes_max:
            return
        path = self.folder / f"{sha256}.{os.getpid()}.{time.monotonic_ns()}{WRITING}"
        try:
            with path.open("wb") as file:
                for piece in _pieces(content):
                    moved()
                    file.write(piece)
            self._make_room(len(content), besides=path)
            path.replace(self.folder / sha256)
        finally:
            self._drop(path)

    def _make_room(self, wanted_bytes: int, *, besides: Path) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another trainer has removed it
                facts = path.stat()
                if path.suffix == WRITING:
                    if path != besides and time.time() - facts.st_mtime > STALE_S:
                        path.unlink(missing_ok=True)
                elif len(path.name) == 64:  # nothing else is ours
                    found.append((facts.st_mtime, facts.st_size, path))
        left_bytes = sum(size for _, size, _ in found) + wanted_bytes
        for _, size, path in sorted(found):
            if left_bytes <= self.bytes_max:
                return
            self._drop(path)
            left_bytes -= size

    def _drop(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _pieces(content: bytes) -> Iterator[memoryview]:
    view = memoryview(content)
    return (view[begin : begin + PIECE_BYTES] for begin in range(0, len(view), PIECE_BYTES))
