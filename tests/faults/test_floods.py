"""Fault 24: a thousand strangers that say nothing, half of a greeting, or one byte a second; with TLS, that
begin a handshake and do not go on; the same from many addresses of one attacker, again and again.

Two real nodes train meanwhile, and must not notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2psgd.net.address import Address
from p2psgd.net.admission import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from tests.certificates import Certificates, careless
from tests.daemons import Daemon, all_stopped, until
from tests.faults.target import memory_bytes
from tests.node.test_node import Place, steps
from tests.siege import besieged, loopback_addresses
from tests.stranger import Stranger

pytestmark = pytest.mark.long

CROWD = 1000
HOSTS = 48  # of one attacker
MEMORY_MAX = 64 * 1024 * 1024  # what all of them may cost
HALF_A_GREETING = PREFIX.pack(100, FrameType.HELLO) + bytes(40)


@dataclass(frozen=True)
class Pair:
    """Two nodes that train together, the first of which is flooded."""

    daemons: list[Daemon]
    port: int
    tls: ssl.SSLContext | None = None  # of stranger-42

    def status(self) -> dict[str, Any]:
        status = self.daemons[0].status()
        assert status is not None
        return status

    def dropped(self, reason: str) -> int:
        return int(self.status()["dropped"].get(reason, 0))

    def sent_away(self) -> tuple[int, int]:
        """How many strangers so far, and how many of them only when their time was over."""
        dropped = self.status()["dropped"]
        late = int(dropped.get("no greeting", 0)) + int(dropped.get("no handshake", 0))
        at_once = int(dropped.get("too many greetings", 0)) + int(dropped.get("greeting rate", 0))
        return late + at_once, late

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
        began, before = time.monotonic(), [steps(daemon) for daemon in self.daemons]
        yield
        elapsed_s = time.monotonic() - began
        assert len(linked_s := self.linked_s()) == 2
        assert min(linked_s) > elapsed_s
        for daemon, count in zip(self.daemons, before, strict=True):
            assert steps(daemon) > count + 5 * elapsed_s
        self.assert_news_arrives()
        self.stranger().close()

    def stranger(self, source: str = "127.0.0.1") -> Stranger:
        """A peer that behaves."""
        return Stranger(self.daemons[0], self.port, tls=self.tls, source=source)

    def is_let_in(self, source: str) -> bool:
        """A peer with this address, which this node has never seen, links."""
        try:
            self.stranger(source).close()
        except (OSError, AssertionError):  # hung up on, it dials again as a node does
            return False
        return True

    def memory(self, what: str) -> int:
        """Of the flooded one, in bytes."""
        return memory_bytes(Path(f"/proc/{self.daemons[0].process.pid}"), what)

    def assert_news_arrives(self) -> None:
        for here, there in (self.daemons, self.daemons[::-1]):
            made = (here.status() or {})["updates"]["sent"]
            until(lambda: sequence_of(there, here) >= made, "what one makes, the other applies")  # noqa: B023


def sequence_of(observer: Daemon, origin: Daemon) -> int:
    status = observer.status() or {"frontier": []}
    return max((row["sequence"] for row in status["frontier"] if row["node"] == origin.state.name), default=0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with training_pair(tmp_path_factory.mktemp("pair"), None) as pair:
        yield pair


@pytest.fixture(scope="module")
def encrypted_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("encrypted")
    with training_pair(path, Certificates(path)) as pair:
        yield pair


@contextlib.contextmanager
def training_pair(path: Path, certificates: Certificates | None) -> Iterator[Pair]:
    place = Place(path, 2)

    def start(number: int) -> Daemon:
        tls = () if certificates is None else certificates.options(f"node-{number}")
        trained = (
            f"{sys.executable} -m tests.chaos.trainer {path / f'notes-{number}'} async"  # at a steady pace
        )
        return place.start(number, "--trainer", trained, *tls)

    with all_stopped([start(number) for number in range(2)]) as daemons:
        tls = None if certificates is None else certificates.client("stranger-42", node=42)
        pair = Pair(daemons, place.ports[0], tls)
        until(lambda: len(pair.linked_s()) == 2, "linked")
        until(lambda: min(map(steps, daemons)) > 20, "both train")
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
    flood(pair, first, each_second)


def client_hello() -> bytes:
    """The first bytes of a client that means it."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        careless(None).wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("first", "each_second", "begun"),
    [
        (b"", b"", False),
        (client_hello(), b"", True),
        (client_hello()[:100], b"", True),
        (client_hello()[:6], b"x", True),
    ],
    ids=["silent", "no more than a hello", "half a hello", "one byte a second"],
)
def test_fault_24_a_thousand_stalled_handshakes_are_capped_and_sent_away(
    encrypted_pair: Pair, first: bytes, each_second: bytes, begun: bool
) -> None:
    before = encrypted_pair.dropped("no handshake")
    flood(encrypted_pair, first, each_second)
    assert (encrypted_pair.dropped("no handshake") > before) == begun


def flood(pair: Pair, first: bytes, each_second: bytes) -> None:
    (Path(f"/proc/{pair.daemons[0].process.pid}") / "clear_refs").write_text("5")  # the peak starts again
    memory = pair.memory("VmRSS")
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
        assert pair.sent_away()[1] >= sent_away[1] + HANDSHAKES_MAX
        assert time.monotonic() - began > HANDSHAKE_TIMEOUT_S  # those that were let in first had all of it
        assert most < before + 2 * HANDSHAKES_MAX  # some are being closed, and files come and go
    until(lambda: pair.descriptors() < before + HANDSHAKES_MAX / 2, "all of them are gone")
    assert pair.memory("VmHWM") - memory < MEMORY_MAX


def test_fault_24_a_linked_peer_that_sends_a_byte_a_second_is_let_go_as_silent(pair: Pair) -> None:
    with pair.unaffected():
        before = pair.dropped("silent")
        stranger = pair.stranger()
        stranger.drain()
        frame = iter(pack_frame(FrameType.STATUS, bytes(1000)))  # longer than it gets time for
        while pair.dropped("silent") == before:
            with contextlib.suppress(OSError):
                stranger.socket.send(bytes([next(frame)]))
            time.sleep(1)
        stranger.close()


@pytest.mark.parametrize("kind", ["plaintext", "TLS"])
def test_fault_24_many_addresses_of_one_attacker_keep_no_newcomer_out(
    kind: str, request: pytest.FixtureRequest
) -> None:
    pair: Pair = request.getfixturevalue("pair" if kind == "plaintext" else "encrypted_pair")
    newcomer = "127.0.0.99" if kind == "plaintext" else "127.0.0.98"
    turned_away, before = pair.sent_away()[0], pair.descriptors()
    with pair.unaffected():
        with besieged(Address("127.0.0.1", pair.port), loopback_addresses(HOSTS)):
            until(lambda: pair.sent_away()[0] > turned_away + CROWD, "all the room is taken")
            until(lambda: pair.is_let_in(newcomer), "a newcomer is let in", timeout_s=20)
            assert pair.descriptors() < before + 2 * HANDSHAKES_MAX
        assert pair.dropped("displaced") > 0
