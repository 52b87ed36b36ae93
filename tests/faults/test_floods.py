"""Fault 24: a thousand strangers that say nothing, half of a greeting, or one byte a second.

Two real nodes train meanwhile, and must not notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2psgd.net.mesh import GREETING_TIMEOUT_S, GREETINGS_MAX
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from tests.daemons import Daemon, all_stopped, until
from tests.stranger import Stranger
from tests.test_node import Place, calm, endless, mini_batches

pytestmark = pytest.mark.timeout(240)

CROWD = 1000
HALF_A_GREETING = PREFIX.pack(100, FrameType.HELLO) + bytes(40)


@dataclass(frozen=True)
class Pair:
    """Two nodes that train together, the first of which is flooded."""

    daemons: list[Daemon]
    port: int

    def status(self) -> dict[str, Any]:
        status = self.daemons[0].status()
        assert status is not None
        return status

    def dropped(self, reason: str) -> int:
        return int(self.status()["dropped"].get(reason, 0))

    def sent_away(self) -> tuple[int, int]:
        """How many strangers so far, and how many of them only when their time was over."""
        dropped = self.status()["dropped"]
        late = int(dropped.get("no greeting", 0))
        return late + int(dropped.get("too many greetings", 0)), late

    def linked_s(self) -> list[float]:
        """For how long each of the two has been linked with the other."""
        statuses = [daemon.status() or {"peers": []} for daemon in self.daemons]
        return [
            peer["since_s"]
            for status in statuses
            for peer in status["peers"]
            if peer["state"] == "connected" and peer["node"].startswith("node-")
        ]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.daemons[0].process.pid}/fd"))

    @contextlib.contextmanager
    def unaffected(self) -> Iterator[None]:
        """Meanwhile the two stay linked, both train, each applies what the other makes, and afterwards a
        peer that behaves is let in.
        """
        began, before = time.monotonic(), [mini_batches(daemon) for daemon in self.daemons]
        yield
        elapsed_s = time.monotonic() - began
        assert len(linked_s := self.linked_s()) == 2
        assert min(linked_s) > elapsed_s
        for daemon, count in zip(self.daemons, before, strict=True):
            assert mini_batches(daemon) > count + 5 * elapsed_s
        self.assert_news_arrives()
        Stranger(self.daemons[0], self.port).close()

    def assert_news_arrives(self) -> None:
        for here, there in (self.daemons, self.daemons[::-1]):
            made = (here.status() or {})["updates"]["sent"]
            until(lambda: sequence_of(there, here) >= made, "what one makes, the other applies")  # noqa: B023


def sequence_of(observer: Daemon, origin: Daemon) -> int:
    status = observer.status() or {"frontier": []}
    return max((row["sequence"] for row in status["frontier"] if row["node"] == origin.state.name), default=0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path: Path = tmp_path_factory.mktemp("pair")
    place = Place(path, 2)
    with all_stopped([place.start(number, *endless(calm(path))) for number in range(2)]) as daemons:
        pair = Pair(daemons, place.ports[0])
        until(lambda: len(pair.linked_s()) == 2, "linked")
        until(lambda: min(map(mini_batches, daemons)) > 100, "both train")
        yield pair


@contextlib.contextmanager
def crowd(port: int) -> Iterator[list[socket.socket]]:
    """A thousand connections at once."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(CROWD):
            connected = socket.create_connection(("127.0.0.1", port), timeout=20)
            connected.setblocking(False)
            sockets.append(stack.enter_context(connected))
        yield sockets


def say(sockets: list[socket.socket], data: bytes) -> None:
    """To each, as far as it still listens."""
    for connected in sockets:
        with contextlib.suppress(OSError):
            connected.send(data)


@pytest.mark.parametrize(
    ("first", "each_second"),
    [(b"", b""), (HALF_A_GREETING, b""), (PREFIX.pack(100, FrameType.HELLO), b"x")],
    ids=["silent", "half a greeting", "one byte a second"],
)
def test_fault_24_a_thousand_strangers_at_the_door_are_capped_and_sent_away(
    pair: Pair, first: bytes, each_second: bytes
) -> None:
    before, sent_away, began = pair.descriptors(), pair.sent_away(), time.monotonic()
    with pair.unaffected(), crowd(pair.port) as sockets:
        say(sockets, first)
        told_s, most = 0.0, 0
        while pair.sent_away()[0] < sent_away[0] + CROWD:
            most = max(most, pair.descriptors())
            elapsed_s = time.monotonic() - began
            assert elapsed_s < 60, "the strangers are sent away"
            if elapsed_s > told_s + 1:
                told_s = elapsed_s
                say(sockets, each_second)
            time.sleep(0.1)
        assert pair.sent_away()[1] >= sent_away[1] + GREETINGS_MAX
        assert time.monotonic() - began > GREETING_TIMEOUT_S  # those that were let in first had all of it
        assert most < before + 2 * GREETINGS_MAX  # some are being closed, and files come and go
    until(lambda: pair.descriptors() < before + GREETINGS_MAX / 2, "all of them are gone")


def test_fault_24_a_linked_peer_that_sends_a_byte_a_second_is_let_go_as_silent(pair: Pair) -> None:
    with pair.unaffected():
        before = pair.dropped("silent")
        stranger = Stranger(pair.daemons[0], pair.port)
        stranger.drain()
        frame = iter(pack_frame(FrameType.STATUS, bytes(1000)))  # longer than it gets time for
        while pair.dropped("silent") == before:
            with contextlib.suppress(OSError):
                stranger.socket.send(bytes([next(frame)]))
            time.sleep(1)
        stranger.close()
