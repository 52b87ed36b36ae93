"""A hand-made peer: greets properly over a real socket and then sends whatever a test wants."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import PROTOCOL_VERSION, FrontierRow, Hello, Status, pack_frontier, pack_message
from p2psgd.wire.update import UpdateHeader, pack_update
from tests import DEADLINE_S
from tests.core.cluster import make_words
from tests.daemons import Daemon, until


def status_of(*rows: FrontierRow) -> bytes:
    """A STATUS frame of a peer that has applied so much and knows of no view."""
    table = pack_frontier(list(rows))
    return pack_message(
        Status(
            frontier=table,
            view=0,
            cluster_id=0,
            ready=False,
            confirmed=b"",
            whole=True,
            evict_requests=b"",
            loss=0,
            steps=0,
            ring=b"",
        )
    )


class Stranger:
    """A linked peer of node id `node`; `run` is what the daemon's status says of its run. With `tls` it shows
    the certificate in there, which must be that of `stranger-{node}`. It connects from the address `source`.
    """

    def __init__(
        self,
        daemon: Daemon,
        port: int,
        *,
        node: int = 42,
        tls: ssl.SSLContext | None = None,
        source: str = "127.0.0.1",
    ) -> None:
        self.node = node
        self._reader: threading.Thread | None = None
        self.run: dict[str, Any] = until(daemon.run, "the run is known")
        self.weights: int = self.run["weights"]
        self.key = int.from_bytes(bytes.fromhex(self.run["fingerprint"])[:8], "little")
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=DEADLINE_S, source_address=(source, 0)
        )
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket)
            self._greet()
        except BaseException:
            self.socket.close()
            raise

    def _greet(self) -> None:
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            node=self.node,
            incarnation=1,
            name=f"stranger-{self.node}",
            run=bytes.fromhex(self.run["fingerprint"]),
            weights=self.weights,
            quantum_log2=self.run["quantum_log2"],
            mode=self.run["mode"],
            label=self.run["label"],
            rank="",
        )
        self.socket.sendall(pack_message(hello))
        length, number = PREFIX.unpack(self.receive(PREFIX.size))
        assert number == FrameType.WELCOME
        self.receive(length)

    def drain(self) -> None:
        """Read and throw away whatever comes, in the background."""

        def read() -> None:
            buffer = bytearray(1 << 20)
            with contextlib.suppress(OSError):
                while self.socket.recv_into(buffer):
                    pass

        self.socket.settimeout(None)
        self._reader = threading.Thread(target=read)
        self._reader.start()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not None:
            self._reader.join()
        self.socket.close()

    def receive(self, count: int) -> bytes:
        """Exactly so many bytes."""
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece
            data += piece
        return data

    def want_everything(self) -> None:
        """Say that nothing was applied here, so that the daemon sends all it makes."""
        self.socket.sendall(status_of())

    def update(self, indices: list[int], *, count: int | None = None, weights: int | None = None) -> bytes:
        """The body of this node's first update; `count` and `weights` may lie."""
        words = make_words(indices)
        payload = codec.encode(words, weights or self.weights)
        digest = codec.digest_words(words, 1, self.key)
        header = UpdateHeader(self.node, 1, 1, digest, 1, 1, len(indices) if count is None else count)
        return pack_update(header, payload)

    def updates(self, sets: list[NDArray[np.uint32]], *, origin: int) -> list[bytes]:
        """Frames of a run of valid updates of one origin, which this peer may pass on as any holder may."""
        digest, frames = 0, []
        for sequence, words in enumerate(sets, start=1):
            digest = (digest + codec.digest_words(words, 1, self.key)) % 2**64
            header = UpdateHeader(origin, 1, sequence, digest, sequence, 1, len(words))
            frames.append(
                pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, self.weights)))
            )
        return frames
