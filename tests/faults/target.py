"""A daemon under attack, what can be seen of it, and frames that lie to it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import Reject, parse_message
from tests import DEADLINE_S
from tests.certificates import Certificates
from tests.core.cluster import make_words
from tests.daemons import Daemon
from tests.stranger import Stranger


class Target:
    """One daemon whose trainer has finished."""

    def __init__(self, daemon: Daemon, port: int, certificates: Certificates | None) -> None:
        self.daemon = daemon
        self.port = port
        self.certificates = certificates  # None: it speaks plaintext
        self._hosts = itertools.cycle(f"127.1.{number // 250}.{number % 250 + 1}" for number in range(1000))

    def stranger(self, node: int) -> Stranger:
        """A linked peer."""
        return Stranger(self.daemon, self.port, node=node, tls=self._context(node), source=self._next_host())

    def connect(self) -> socket.socket:
        """A connection that has not said HELLO."""
        source = (self._next_host(), 0)
        connected = socket.create_connection(
            ("127.0.0.1", self.port), timeout=DEADLINE_S, source_address=source
        )
        context = self._context(1)
        return connected if context is None else context.wrap_socket(connected)

    def _next_host(self) -> str:
        """Of each host the daemon lets in only so many connections in a minute."""
        return next(self._hosts)

    def _context(self, node: int) -> ssl.SSLContext | None:
        if self.certificates is None:
            return None
        return self.certificates.client(f"stranger-{node}", node=node)

    def status(self) -> dict[str, Any]:
        status = self.daemon.status()
        assert status is not None
        return status

    def frontier(self) -> dict[int, int]:
        """Sequence by node."""
        return {int(row["id"], 16): row["sequence"] for row in self.status()["frontier"]}

    def coordinates(self) -> NDArray[np.int32]:
        return np.frombuffer(self.daemon.replica()[1], np.int32)

    def state(self) -> tuple[tuple[int, bytes], dict[int, int]]:
        """All that no bad frame may change."""
        return self.daemon.replica(), self.frontier()

    def code_of_refusal(self, node: int, data: bytes) -> str:
        """Link as `node`, send `data`, and return the code of the REJECT that the daemon hangs up with."""
        stranger = self.stranger(node)
        try:
            return refusal(stranger.socket, data)
        finally:
            stranger.close()

    def takes_less_memory(self, limit: int, action: Callable[[], None]) -> bool:
        """Whether the daemon's resident memory peaks less than `limit` bytes above what it was before.

        Three attempts: the first also pays for what Python keeps for good, and whatever else the daemon does
        falls into any of them.
        """
        return any(self._memory_taken(action) < limit for _ in range(3))

    def _memory_taken(self, action: Callable[[], None]) -> int:
        process = Path(f"/proc/{self.daemon.process.pid}")
        (process / "clear_refs").write_text("5")  # the peak starts again
        before = memory_bytes(process, "VmRSS")
        action()
        return memory_bytes(process, "VmHWM") - before


def memory_bytes(process: Path, what: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def refusal(connected: socket.socket, data: bytes) -> str:
    """Send, read until the other side hangs up, and return the label of its REJECT; empty if none came."""
    received = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        connected.sendall(data)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := connected.recv(65536):
            received += piece
    label = ""
    while received:
        length, number = PREFIX.unpack_from(received)
        body = received[PREFIX.size : PREFIX.size + length]
        del received[: PREFIX.size + length]
        if number == FrameType.REJECT:
            message = parse_message(FrameType.REJECT, body)
            assert isinstance(message, Reject)
            label = message.to_error().label
    return label


CHECKED = struct.Struct("<QQQQQIIIB7s")


def forged_update(
    stranger: Stranger, indices: list[int], *, weights: int | None = None, payload: bytes = b"", **lies: Any
) -> bytes:
    """An UPDATE frame whose checksum is right and whose header says `lies`, by the names of its fields."""
    words = make_words(indices)
    payload = payload or codec.encode(words, weights or stranger.weights)
    fields: dict[str, Any] = {
        "node": stranger.node,
        "incarnation": 1,
        "sequence": 1,
        "digest": codec.digest_words(words, 1, stranger.key),
        "steps": 1,
        "magnitude": 1,
        "count": len(indices),
        "length": len(payload),
        "encoding": 1,
        "zero": bytes(7),
    }
    assert lies.keys() <= fields.keys()
    checked = CHECKED.pack(*(fields | lies).values())
    checksum = codec.crc32c(payload, codec.crc32c(checked))
    return pack_frame(FrameType.UPDATE, checked + checksum.to_bytes(4, "little") + payload)
