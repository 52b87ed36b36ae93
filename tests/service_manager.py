"""A service manager's end of sd_notify, for tests: a real datagram socket and what came in through it."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import DEADLINE_S


class ServiceManager:
    """Listens at a path, or, with @ before it, at a name without a file. `address` is $NOTIFY_SOCKET."""

    def __init__(self, address: Path | str) -> None:
        self.address = str(address)
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._end.bind(self.address.replace("@", "\0", 1) if self.address.startswith("@") else self.address)
        self.told: list[dict[str, str]] = []  # what each datagram said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()

    def next(self, timeout_s: float = DEADLINE_S) -> dict[str, str]:
        """What the next datagram says; TimeoutError if none comes."""
        self._end.settimeout(timeout_s)
        text = self._end.recv(65536).decode()
        assert text.endswith("\n")
        said = dict(line.split("=", 1) for line in text.splitlines())
        self.told.append(said)
        return said

    def until(self, key: str, words: str = "") -> str:
        """Wait for a datagram with this key, and `words` in its value; return the value."""
        while True:
            value = self.next().get(key)
            if value is not None and words in value:
                return value

    def is_silent(self, seconds: float, key: str) -> bool:
        """Whether nothing with this key comes for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                if key in self.next(left):
                    return False
            except TimeoutError:
                return True
        return True

    def empty(self) -> None:
        """Read what has come so far."""
        while True:
            try:
                self.next(0.001)
            except TimeoutError:
                return
