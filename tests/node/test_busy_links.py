"""The trainer is shown whether the links are busy with what was made before."""

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

PEERS = [Origin(number, 1) for number in range(1, 5)]


class Shown:
    """Links of which a test says how many bytes they have not sent, and a trainer that notes what it sees.

    Attributes:
        now: The clock; `pass_time` moves it from look to look.
    """

    def __init__(self, *caught_up: bool) -> None:
        self.unsent = dict.fromkeys(PEERS, 0)
        self.seen: list[bool] = []
        self.later: list[Callable[[], None]] = []
        self.now = 100.0
        self.peers = {
            origin: SimpleNamespace(origin=origin, caught_up=whether, feed=None)
            for origin, whether in zip(PEERS, caught_up, strict=False)
        }
        replica: Any = SimpleNamespace(peers=self.peers)
        self.links = BusyLinks(
            replica,
            self,
            unsent_bytes=self.unsent.__getitem__,
            call_later=self._call_later,
            now=lambda: self.now,
        )

    def show_links(self, *, busy: bool) -> None:
        self.seen.append(busy)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert LOOK_S <= delay_s < 1.1 * LOOK_S
        self.later.append(callback)

    def leave(self, *unsent: int) -> None:
        """The links now have so many bytes that are not sent."""
        self.unsent.update(zip(PEERS, unsent, strict=False))

    def pass_time(self, looks: int) -> int:
        """Let the clock pass so many looks, or fewer if none is wanted any more; return their number."""
        for number in range(looks):
            if not self.later:
                return number
            self.now += LOOK_S
            self.later.pop()()
        return looks


@pytest.mark.parametrize(
    ("caught_up", "unsent", "busy"),
    [
        ((), (), False),
        ((True, True), (0, 0), False),
        ((True,), (9,), True),
        ((True, True), (9, 1), True),
        ((True, True, True), (9, 9, 0), True),
        ((True, False), (9, 0), True),  # who is still being sent the past does not count
        ((True, False), (0, 9), False),
        ((False, False), (9, 9), False),
    ],
)
def test_they_are_busy_while_most_peers_that_follow_wait(
    caught_up: tuple[bool, ...], unsent: tuple[int, ...], *, busy: bool
) -> None:
    shown = Shown(*caught_up)
    shown.leave(*unsent)
    shown.links.update_made()
    assert shown.seen == [busy]
    assert len(shown.later) == busy


def test_a_peer_that_is_given_a_snapshot_does_not_count() -> None:
    shown = Shown(True, True)
    shown.peers[PEERS[0]].feed = object()
    shown.leave(9, 0)
    shown.links.update_made()
    assert shown.seen == [False]


def test_busy_links_are_looked_at_until_all_are_free_by_one_timer() -> None:
    shown = Shown(True, True, True)
    shown.leave(5, 5, 5)
    for _ in range(3):
        shown.links.update_made()
    assert len(shown.later) == 1
    shown.pass_time(3)
    assert len(shown.later) == 1
    shown.leave(0, 0, 0)
    shown.pass_time(1)
    assert shown.seen[-2:] == [True, False]
    assert not shown.later


@pytest.mark.parametrize("others", [(0, 0), (0, 0, 0), (0,)])
def test_a_slow_link_has_as_long_again_as_half_of_the_links_took(others: tuple[int, ...]) -> None:
    shown = Shown(True, *(True for _ in others))
    shown.leave(5, *(5 for _ in others))
    shown.links.update_made()
    shown.pass_time(10)
    shown.leave(5, *others)  # seen at the 11th look
    assert 10 <= shown.pass_time(100) <= 12
    assert shown.seen[-2:] == [True, False]


def test_a_slow_link_holds_up_nobody_whose_links_are_fast() -> None:
    shown = Shown(True, True, True)
    shown.leave(5, 0, 0)
    shown.links.update_made()
    assert shown.seen == [False]


def test_with_the_next_update_a_slow_link_has_its_time_again() -> None:
    shown = Shown(True, True)
    for _ in range(2):
        shown.leave(5, 5)
        shown.links.update_made()
        shown.pass_time(4)
        shown.leave(5, 0)
        assert 4 <= shown.pass_time(100) <= 6
        assert shown.seen[-2:] == [True, False]


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
    with socket.socket() as closed:
        pass
    transport: Any = SimpleNamespace(get_extra_info=lambda _: closed, get_write_buffer_size=lambda: 0)
    assert unsent_bytes(transport) == 0
