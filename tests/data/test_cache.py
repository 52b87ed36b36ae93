"""Files named by the hash of their content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.data.fetch import STALE_S, Cache


def put(cache: Cache, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    cache.write(digest, content)
    return digest


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache", bytes_max=250)
    first, second = put(cache, b"1" * 100), put(cache, b"2" * 100)
    os.utime(cache.folder / first, (1, 1))
    os.utime(cache.folder / second, (2, 2))
    assert cache.read(first) == b"1" * 100  # and so it is the latest
    third = put(cache, b"3" * 100)
    assert [cache.read(digest) is not None for digest in (first, second, third)] == [True, False, True]
    assert put(cache, b"4" * 251) not in os.listdir(cache.folder), "it alone is more than there is room for"
    assert [cache.read(digest) is not None for digest in (first, third)] == [True, True]


def test_a_file_that_has_changed_is_thrown_away(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    digest = put(cache, b"content")
    (tmp_path / digest).write_bytes(b"Content")
    assert Cache(tmp_path).read(digest) is None
    assert not list(tmp_path.iterdir())


def test_what_others_are_writing_stays_and_what_they_left_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, bytes_max=10)
    (tmp_path / "fresh.part").write_bytes(b"x" * 100)
    (tmp_path / "stale.part").write_bytes(b"x" * 100)
    (tmp_path / "note.txt").write_bytes(b"of somebody else")
    os.utime(tmp_path / "stale.part", (0, os.stat(tmp_path).st_mtime - STALE_S - 60))
    digest = put(cache, b"content")
    assert {path.name for path in tmp_path.iterdir()} == {digest, "fresh.part", "note.txt"}


def test_a_cache_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot use .*file/cache as a cache for shards"):
        Cache(tmp_path / "file" / "cache")
    with pytest.raises(UsageError, match="a cache of 0 bytes holds nothing"):
        Cache(tmp_path, bytes_max=0)
