from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import s3fs

from tests.data.store_server import FaultyProxy, environment, s3_server
from tests.ipc.conftest import daemon, start_daemon
from tests.ipc.daemons import LoopFactory

__all__ = ["daemon", "start_daemon"]  # fixtures


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    """That of a script which has none; whoever goes through shards sets one."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyProxy]:
    """Before the server; this process and its children ask it, and keep what they get in a cache of this
    test's.
    """
    proxy = FaultyProxy(server)
    for name, value in environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # they know the last proxy
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield proxy
    proxy.close()


@pytest.fixture
def bucket(proxy: FaultyProxy) -> Any:
    """A new one: its URL, and a function that puts a file there."""
    files = s3fs.S3FileSystem(use_listings_cache=False)
    name = f"bucket-{uuid4().hex[:8]}"
    files.mkdir(name)

    class Bucket:
        url = f"s3://{name}"

        def put(self, path: str, content: bytes) -> None:
            files.pipe_file(f"{name}/{path}", content)

        def save(self, path: str, **arrays: Any) -> None:
            file = io.BytesIO()
            np.savez(file, **arrays)
            self.put(path, file.getvalue())

    return Bucket()
