"""The trainer is shown when all links still have to send what was made before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from p2psgd.core.frontier import Origin
from p2psgd.net.connection import unsent_bytes
from p2psgd.node.backpressure import LOOK_S, BusyLinks

FIRST, SECOND = Origin(1, 1), Origin(2, 1)


class Shown:
    """Links of which a test says how many bytes they have not sent, and a trainer that notes what it sees."""

    def __init__(self, *caught_up: bool) -> None:
        self.unsent = dict.fromkeys((FIRST, SECOND), 0)
        self.seen: list[bool] = []
        self.later: list[Callable[[], None]] = []
        peers = {
            origin: SimpleNamespace(origin=origin, caught_up=whether)
            for origin, whether in zip(self.unsent, caught_up, strict=False)
        }
        replica: Any = SimpleNamespace(peers=peers)
        self.links = BusyLinks(
            replica, self, unsent_bytes=self.unsent.__getitem__, call_later=self._call_later
        )

    def show_links(self, *, busy: bool) -> None:
        self.seen.append(busy)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert delay_s == LOOK_S
        self.later.append(callback)


@pytest.mark.parametrize(
    ("caught_up", "unsent", "busy"),
    [
        ((), (0, 0), False),
        ((True, True), (0, 0), False),
        ((True, True), (9, 0), False),
        ((True, True), (9, 1), True),
        ((True, False), (9, 0), True),  # who is still being sent the past does not count
        ((True, False), (0, 9), False),
        ((False, False), (9, 9), False),
    ],
)
def test_they_are_busy_if_every_peer_that_follows_waits(
    caught_up: tuple[bool, ...], unsent: tuple[int, int], *, busy: bool
) -> None:
    shown = Shown(*caught_up)
    shown.unsent.update(zip((FIRST, SECOND), unsent, strict=True))
    shown.links.look()
    assert shown.seen == [busy]
    assert len(shown.later) == busy


def test_busy_links_are_looked_at_until_one_is_free_by_one_timer() -> None:
    shown = Shown(True, True)
    shown.unsent.update({FIRST: 5, SECOND: 5})
    for _ in range(3):
        shown.links.look()
    assert len(shown.later) == 1
    shown.later.pop()()
    assert len(shown.later) == 1
    shown.unsent[SECOND] = 0
    shown.later.pop()()
    assert shown.seen[-2:] == [True, False]
    assert not shown.later


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_the_peer_does_not_read_is_unsent(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def measure() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.getsockname())
            with server.accept()[0] as peer:
                transport.write(bytes(100))
                assert unsent_bytes(transport) == 0
                given = 64 << 20  # more than the kernel holds
                transport.write(bytes(given))
                assert given / 2 < unsent_bytes(transport) < given
                read = 0
                peer.setblocking(False)
                while read < given + 100:
                    read += len(await loop.sock_recv(peer, 1 << 20))
                while transport.get_write_buffer_size():
                    await asyncio.sleep(0)
                assert unsent_bytes(transport) == 0
                transport.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(measure())


def test_without_a_connection_nothing_is_unsent() -> None:
    assert unsent_bytes(None) == 0
