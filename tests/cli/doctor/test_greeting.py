"""A doctor in this process, and visitors that are made by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest

from p2psgd.cli.doctor.greeting import Greeter, Outcome, doctor_hello
from p2psgd.net.address import Address
from p2psgd.net.admission import HANDSHAKES_MAX
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import Hello, pack_message, parse_message
from p2psgd.wire.reject import RejectCode
from tests import DEADLINE_S
from tests.conftest import LoopFactory
from tests.wire.versions import LATER_HELLO, OLD_HELLO, OLD_REJECT

NODE = 7


class Hand:
    """A visitor's connection to the doctor that is tested."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def greet(self, **changes: Any) -> FrameType:
        hello = doctor_hello(NODE, "evil\x1b[2J").model_copy(update=changes)
        self.writer.write(pack_message(hello))
        return (await self.read())[0]

    async def read(self) -> tuple[FrameType, bytes]:
        length, kind = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
        return FrameType(kind), await self.reader.readexactly(length)

    async def closed(self) -> None:
        """Read until the doctor hangs up."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


@contextlib.asynccontextmanager
async def greeting() -> AsyncIterator[tuple[Greeter, Hand]]:
    """A doctor that waits for one peer, which says nothing, and a visitor's connection to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    absent = socket.create_server(("127.0.0.1", 0))
    peer = Address("127.0.0.1", absent.getsockname()[1])
    greeter = Greeter([peer], doctor_hello(1, "doctor"), None)
    greeted = asyncio.create_task(greeter.greet(listening, wait_s=60))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield greeter, Hand(reader, writer)
        assert not greeted.done(), greeted.result()
    finally:
        writer.close()
        greeted.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await greeted
        absent.close()
        listening.close()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pack_frame(FrameType.STATUS, b"\x80"), "frame order"),
        (pack_frame(FrameType.WELCOME, pack_message(doctor_hello(NODE, "a"))[5:]), "frame order"),
        (pack_frame(FrameType.HELLO, b"\xff\x80"), "message"),
        (PREFIX.pack(2**32 - 1, FrameType.HELLO), "frame length"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame type"),
    ],
)
def test_a_visitor_that_breaks_a_rule_is_dropped_and_counted(
    loop_factory: LoopFactory, frame: bytes, reason: str
) -> None:
    async def scenario() -> None:
        async with greeting() as (greeter, hand):
            hand.writer.write(frame)
            await hand.closed()
            assert greeter.dropped == {reason: 1}
            assert not greeter.visitors

    run(loop_factory, scenario())


def test_a_visitor_is_answered_once_and_noted(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with greeting() as (greeter, hand):
            assert await hand.greet() is FrameType.WELCOME
            await hand.closed()
            assert greeter.visitors == {NODE: ("127.0.0.1", "the doctor of evil\x1b[2J")}
            assert not greeter.dropped

    run(loop_factory, scenario())


def test_another_protocol_and_a_node_are_answered_with_a_reason(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        for changes, code, counted in (
            ({"protocol": 4}, RejectCode.PROTOCOL, {"protocol": 1}),
            ({"mode": "async"}, RejectCode.DOCTOR, {}),
            ({"mode": "async", "protocol": 4}, RejectCode.DOCTOR, {}),  # after PROTOCOL a node would end
            ({"node": 1}, RejectCode.SELF, {}),
        ):
            async with greeting() as (greeter, hand):
                hello = doctor_hello(NODE, "b").model_copy(update=changes)
                hand.writer.write(pack_message(hello))
                kind, body = await hand.read()
                reject: Any = parse_message(kind, body)
                assert (kind, reject.code, reject.node) == (FrameType.REJECT, code, 1)
                await hand.closed()
                assert greeter.dropped == counted

    run(loop_factory, scenario())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (OLD_HELLO, RejectCode.DOCTOR),  # after PROTOCOL a node would end
        ({**OLD_HELLO, "mode": "doctor"}, RejectCode.PROTOCOL),
        ({**LATER_HELLO, "mode": "doctor"}, RejectCode.PROTOCOL),
    ],
)
def test_a_visitor_with_the_keys_of_another_protocol_is_told_the_version(
    loop_factory: LoopFactory, fields: dict[str, Any], code: RejectCode
) -> None:
    async def scenario() -> None:
        async with greeting() as (greeter, hand):
            hand.writer.write(pack_frame(FrameType.HELLO, msgpack.packb(fields)))
            kind, body = await hand.read()
            reject: Any = parse_message(kind, body)
            assert reject.code == code
            assert "install the same p2psgd on both" in reject.details
            await hand.closed()
            assert list(greeter.visitors) == [fields["node"]]

    run(loop_factory, scenario())


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (FrameType.WELCOME, OLD_HELLO, "protocol 1 there, 3 here"),
        (FrameType.WELCOME, LATER_HELLO, "protocol 4 there, 3 here"),
        (FrameType.REJECT, OLD_REJECT, "rejected by a peer of another protocol version"),
    ],
)
def test_a_peer_that_answers_with_the_keys_of_another_protocol_is_one_of_another_version(
    loop_factory: LoopFactory, kind: FrameType, fields: dict[str, Any], words: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack_frame(kind, msgpack.packb(fields)))
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            peer = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            greeter = Greeter([peer], doctor_hello(1, "doctor"), None)
            greeted = asyncio.create_task(greeter.greet(None, wait_s=60))
            await until(lambda: greeter.peers[0].outcome is not Outcome.UNTRIED)
            assert greeter.peers[0].outcome is Outcome.VERSION
            assert words in greeter.peers[0].words
            greeted.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await greeted

    run(loop_factory, scenario())


def test_one_host_that_says_nothing_does_not_keep_doctors_out(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with greeting() as (greeter, hand):
            place = hand.writer.get_extra_info("peername")
            silent = [
                socket.create_connection(place, source_address=("127.0.0.2", 0))
                for _ in range(HANDSHAKES_MAX + 4)
            ]
            await until(lambda: greeter.dropped["too many greetings"] == 5)
            late = Hand(*await asyncio.open_connection(*place))
            assert await late.greet() is FrameType.WELCOME
            assert greeter.dropped["displaced"] == 1
            late.writer.close()
            for end in silent:
                end.close()

    run(loop_factory, scenario())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def run(loop_factory: LoopFactory, scenario: Any) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario, DEADLINE_S))


def test_a_hello_of_a_doctor_is_one_that_any_node_can_read() -> None:
    assert Hello.model_validate(doctor_hello(5, "name").model_dump()).mode == "doctor"
