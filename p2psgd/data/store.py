"""Where shards are: a folder, or any place that fsspec can read, such as s3://bucket/prefix.

One file at a time and one attempt each: what is tried again, and how often, is fetching.py's. fsspec is
imported only for URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, Protocol, cast

from p2psgd.errors import ExitCode, UsageError, words_of

PIECE_BYTES: Final = 2 << 20  # read at a time; a slow link brings it well before an attempt counts as stalled
_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}  # which extra has what fsspec needs for a scheme; else "data"


class Missing(Exception):
    """The store says that there is no such file, or that it is not for us: to ask again does not help."""


class Forbidden(Missing):
    """It is not for us: not with these credentials, which a person may mend meanwhile."""


class Unavailable(Exception):
    """The store gave no file, or not all of it, this time."""


class Store(Protocol):
    """Reads, and writes the list."""

    @property
    def place(self) -> str:
        """For people: the folder or URL."""

    @property
    def local(self) -> Path | None:
        """The folder, if it is one on this machine."""

    def read(self, name: str) -> Iterator[bytes]:
        """The content of a file below the place, piece by piece; Missing or Unavailable."""

    def names(self) -> list[str]:
        """All files below the place, in order; Missing or Unavailable."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file there; Missing or Unavailable."""


def is_url(place: str) -> bool:
    """Whether it is a URL, and no path of this machine."""
    return _URL.match(place) is not None


def open_store(place: str) -> Store:
    """The store at a folder or URL; UsageError if there is nothing that reads it."""
    if place.startswith("file://"):
        return FolderStore(Path(place.removeprefix("file://")))
    return RemoteStore(place) if is_url(place) else FolderStore(Path(place).expanduser())


class FolderStore:
    """A folder of this machine, or one that is mounted here."""

    def __init__(self, folder: Path) -> None:
        self.local: Path | None = folder
        self._folder = folder
        self.place = str(folder)

    def read(self, name: str) -> Iterator[bytes]:
        """Of a file in it."""
        try:
            with (self._folder / name).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError as error:
            _fail(error)

    def names(self) -> list[str]:
        """Of all files, also in folders within."""
        if not self._folder.is_dir():
            raise Missing("there is no such folder")
        try:
            paths = [path for path in self._folder.rglob("*") if path.is_file()]
        except OSError as error:
            _fail(error)
        return sorted(path.relative_to(self._folder).as_posix() for path in paths)

    def write(self, name: str, content: bytes) -> None:
        """It appears whole or not at all."""
        path = self._folder / name
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.write_bytes(content)
            fresh.replace(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            _fail(error)


class RemoteStore:
    """What fsspec reads; credentials and endpoints come from where its libraries look for them."""

    local: Path | None = None

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        scheme = url.split("://", 1)[0]
        extra = _EXTRAS.get(scheme, "data")
        try:
            import fsspec  # an extra, which folders do without

            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(self.place, use_listings_cache=False)
        except ImportError as error:
            words = f"{url} cannot be read here: {error}; pip install 'p2psgd[{extra}]'"
            raise UsageError(words, ExitCode.CONFIGURATION) from None
        except ValueError as error:
            raise UsageError(f"{url} is no URL that fsspec can read: {error}") from None
        self._root = self._root.rstrip("/")

    def read(self, name: str) -> Iterator[bytes]:
        """Of an object."""
        try:
            with cast(
                BinaryIO, self._files.open(f"{self._root}/{name}", "rb", block_size=PIECE_BYTES)
            ) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except Exception as error:  # of whatever library is behind it
            _fail(error)

    def names(self) -> list[str]:
        """Of all objects below it."""
        try:
            found: list[str] = self._files.find(self._root)
        except Exception as error:  # of whatever library is behind it
            _fail(error)
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def write(self, name: str, content: bytes) -> None:
        """As the store does it: whole or not at all, where that is an object store."""
        try:
            self._files.pipe_file(f"{self._root}/{name}", content)
        except Exception as error:  # of whatever library is behind it
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    words = words_of(error) if isinstance(error, OSError) else str(error)
    words = " ".join(words.split())[:300] or type(error).__name__
    if isinstance(error, FileNotFoundError):
        raise Missing("there is no such file") from None
    if isinstance(error, PermissionError):
        raise Forbidden(f"it may not be read: {words}") from None
    raise Unavailable(words) from None
