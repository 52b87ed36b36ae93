"""The HTTP server on real sockets, on both loops: what it answers, refuses and puts up with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from p2psgd.net import listen
from p2psgd.node import http_server
from p2psgd.node.http_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer, Response
from tests import DEADLINE_S
from tests.conftest import LoopFactory

BODY = b"x" * 300_000  # more than a socket's buffer takes at once


def broken() -> Response:
    raise KeyError("a bug")


class Served:
    """A server in a loop of its own, asked from outside of it."""

    def __init__(self, port: int, server: HttpServer) -> None:
        self.port = port
        self.server = server

    async def exchange(self, data: bytes) -> bytes:
        """Everything it answers until it hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(DEADLINE_S):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, path: str = "/", *lines: str, method: str = "GET", host: str = "localhost") -> bytes:
        head = [f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]
        return await self.exchange("\r\n".join(head).encode())


Story = Callable[[Served], Awaitable[None]]


def run(loop_factory: LoopFactory, story: Story) -> None:
    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        routes = {"/": lambda: Response(b"hello"), "/big": lambda: Response(BODY), "/broken": broken}
        server = HttpServer(routes, names=frozenset({"node-7.lan"}))
        server.start(listening)
        try:
            await story(Served(listening.getsockname()[1], server))
        finally:
            await server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_without_a_descriptor_for_it_a_newcomer_is_cut_and_the_oldest_gives_way(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /")
        assert status_of(await served.get()) == 200
        monkeypatch.setattr(listen, "is_reserved", lambda _: True)
        with contextlib.suppress(ConnectionError):
            assert await served.get() == b""
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert served.server.cut == {"descriptors": 1, "displaced": 1}
        monkeypatch.setattr(listen, "is_reserved", lambda _: False)
        assert status_of(await served.get()) == 200

    run(loop_factory, story)


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(http_server, "DEADLINE_S", 0.5)
    return iter(())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_get_is_answered_and_the_connection_closed(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        head, _, body = (await served.get("/?x=1")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert (b"Connection: close" in head, b"Content-Length: 5" in head, body) == (True, True, b"hello")

    run(loop_factory, story)


def test_an_answer_larger_than_any_buffer_comes_whole(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        assert (await served.get("/big")).endswith(b"\r\n\r\n" + BODY)

    run(loop_factory, story)


def test_a_head_gets_the_head_alone(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        answer = await served.get("/big", method="HEAD")
        assert b"Content-Length: 300000" in answer
        assert answer.endswith(b"\r\n\r\n")

    run(loop_factory, story)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9400", "[::1]:9400", "10.1.2.3", "node-7.lan:80"])
def test_an_address_localhost_and_its_own_name_are_answered(loop_factory: LoopFactory, host: str) -> None:
    async def story(served: Served) -> None:
        assert status_of(await served.get(host=host)) == 200

    run(loop_factory, story)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:9400", "", "127.0.0.1.evil.example", "[x]"]
)
def test_any_other_name_is_refused_for_it_may_be_rebound(loop_factory: LoopFactory, host: str) -> None:
    async def story(served: Served) -> None:
        assert status_of(await served.get(host=host)) in (400, 421)

    run(loop_factory, story)


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello", 405),
        (b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"GET /absent HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /broken HTTP/1.1\r\n" + HOST + b"\r\n", 500),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 421),
        (b"GET  /\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(100) + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: identity\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET /" + b"x" * 2 * REQUEST_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 2 * REQUEST_BYTES_MAX, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 2000 + b"\r\n", 431),
    ],
)
def test_what_is_no_good_request_is_refused_and_the_next_is_answered(
    loop_factory: LoopFactory, data: bytes, status: int
) -> None:
    async def story(served: Served) -> None:
        assert status_of(await served.exchange(data)) == status
        assert status_of(await served.get()) == 200

    run(loop_factory, story)


def test_requests_after_the_first_are_not_answered(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        answer = await served.exchange(
            b"GET / HTTP/1.1\r\n" + HOST + b"\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n"
        )
        assert answer.count(b"HTTP/1.1 200") == 1

    run(loop_factory, story)


def test_who_goes_on_sending_after_its_request_is_cut(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert status_of(await reader.read()) == 200
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    writer.write(b"z" * 4096)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()

    run(loop_factory, story)


@pytest.mark.usefixtures("short_deadline")
@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_who_does_not_finish_its_request_is_cut_and_counted(loop_factory: LoopFactory, data: bytes) -> None:
    async def story(served: Served) -> None:
        with contextlib.suppress(ConnectionError):
            assert await served.exchange(data) == b""
        assert served.server.cut == {"late": 1}

    run(loop_factory, story)


@pytest.mark.usefixtures("short_deadline")
def test_one_byte_after_the_other_does_not_put_off_the_end(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"G")
                await asyncio.sleep(0.05)
                if served.server.cut["late"]:
                    break
        assert served.server.cut == {"late": 1}
        writer.close()

    run(loop_factory, story)


def test_newcomers_take_the_places_of_those_that_hold_them(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(CONNECTIONS_MAX + 5)]
        assert status_of(await served.get()) == 200
        assert served.server.cut["displaced"] >= 5
        for _, writer in silent:
            writer.close()

    run(loop_factory, story)


def test_the_loop_is_never_held_up_by_a_flood(loop_factory: LoopFactory) -> None:
    """The loop's other work goes on, and few requests are taken at a time."""

    async def story(served: Served) -> None:
        done, turns, began = 0, 0, time.monotonic()

        async def flood() -> None:
            nonlocal done
            while time.monotonic() < began + 1:
                with contextlib.suppress(OSError):
                    await served.get()
                    done += 1

        async def other_work() -> None:
            nonlocal turns
            while time.monotonic() < began + 1:
                await asyncio.sleep(0)
                turns += 1

        await asyncio.gather(other_work(), *(flood() for _ in range(20)))
        assert 0 < done <= 1.5 / http_server.PACE_S
        assert turns > done

    run(loop_factory, story)
