"""A doctor in this process, and peers that are made by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from p2psgd.cli.doctor.intended import Intended
from p2psgd.cli.doctor.meeting import Meeting
from p2psgd.cli.doctor.messages import BULK, Done, Echo, Facts, Turn, Yours, pack
from p2psgd.cli.doctor.session import MESSAGES_MAX
from p2psgd.net.address import Address
from p2psgd.net.admission import GREETINGS_MAX
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import Hello, pack_message
from tests.conftest import LoopFactory

FACTS = Facts(version="1", python="3", numpy="2", port=1, line="", hosts=bytes(32))
NODE = 2**64 - 1  # above the doctor's own, which asks such a one for its turn


class Hand:
    """A peer's connection to the doctor that is tested."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def greet(self, **changes: Any) -> FrameType:
        hello = Intended().greeting(NODE, "evil\x1b[2J").model_copy(update=changes)
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
async def a_meeting() -> AsyncIterator[tuple[Meeting, Hand]]:
    """A doctor that waits for one peer, and a connection to it that shall be that peer's."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    absent = socket.create_server(("127.0.0.1", 0))  # takes connections and says nothing
    peer = Address("127.0.0.1", absent.getsockname()[1])
    hello = Intended().greeting(1, "doctor")
    meeting = Meeting([peer], [peer], line=None, hello=hello, credentials=None)
    holding = asyncio.create_task(meeting.hold(listening, wait_s=60))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield meeting, Hand(reader, writer)
        assert not holding.done(), holding.result()
    finally:
        writer.close()
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding
        absent.close()
        listening.close()


def as_the_peer(meeting: Meeting) -> Facts:
    """What makes a session the peer's."""
    return FACTS.model_copy(update={"line": str(meeting.peers[0].address)})


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([pack(Echo())], "frame order"),
        ([pack(FACTS), pack(FACTS)], "frame order"),
        ([pack(FACTS), pack(Yours())], "frame order"),
        ([pack(FACTS), BULK], "bulk"),
        ([pack(FACTS), pack(Echo()) * (MESSAGES_MAX + 1)], "messages"),
        ([pack(FACTS), pack_frame(FrameType.DOCTOR, b"\xff\x80")], "message"),
        ([pack(FACTS), pack_frame(FrameType.STATUS, b"\x80")], "frame order"),
        ([pack(FACTS), PREFIX.pack(2**32 - 1, FrameType.DOCTOR)], "frame length"),
    ],
)
def test_a_doctor_that_breaks_a_rule_is_dropped_and_counted(
    loop_factory: LoopFactory, frames: list[bytes], reason: str
) -> None:
    async def scenario() -> None:
        async with a_meeting() as (meeting, hand):
            assert await hand.greet() is FrameType.WELCOME
            hand.writer.write(b"".join(frames))
            await hand.closed()
            assert meeting.reception.dropped[reason] == 1

    run(loop_factory, scenario())


def test_only_who_is_named_in_the_list_is_granted_a_turn(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        for known in (False, True):
            async with a_meeting() as (meeting, hand):
                assert await hand.greet() is FrameType.WELCOME
                hand.writer.write(pack(as_the_peer(meeting) if known else FACTS) + pack(Turn()))
                granted = b""
                while b"granted" not in granted:
                    granted = (await hand.read())[1]
                assert (b"granted\xc3" in granted) is known  # MessagePack's true
                # with a turn of its own, it may not send more than that is for
                hand.writer.write(BULK * 2000)
                await hand.closed()
                assert meeting.reception.dropped["bulk"] == 1
                assert list(meeting.visitors) == ([] if known else ["127.0.0.1"])

    run(loop_factory, scenario())


def test_another_protocol_and_a_node_are_answered_with_a_reason(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        for changes, code in (
            ({"protocol": 2}, b"protocol"),
            ({"mode": "async"}, b"doctor"),
            ({"mode": "async", "protocol": 2}, b"doctor"),  # after "protocol" a node would end
            ({"node": 1}, b"self"),
        ):
            async with a_meeting() as (meeting, hand):
                hello = Intended().greeting(NODE, "b").model_copy(update=changes)
                hand.writer.write(pack_message(hello))
                kind, body = await hand.read()
                assert kind is FrameType.REJECT
                assert b"code" + bytes([0xA0 + len(code)]) + code in body
                await hand.closed()
                assert meeting.reception.dropped[code.decode()] == 1

    run(loop_factory, scenario())


def test_one_host_that_says_nothing_does_not_keep_doctors_out(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with a_meeting() as (meeting, hand):
            place = hand.writer.get_extra_info("peername")
            silent = [
                socket.create_connection(place, source_address=("127.0.0.2", 0))
                for _ in range(GREETINGS_MAX + 4)
            ]
            await until(lambda: meeting.reception.dropped["too many greetings"] == 5)
            late = Hand(*await asyncio.open_connection(*place))
            assert await late.greet() is FrameType.WELCOME
            assert meeting.reception.dropped["displaced"] == 1
            late.writer.close()
            for end in silent:
                end.close()

    run(loop_factory, scenario())


def test_a_doctor_that_leaves_too_early_may_come_back(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with a_meeting() as (meeting, hand):
            peer = meeting.peers[0]
            assert await hand.greet() is FrameType.WELCOME
            hand.writer.write(pack(as_the_peer(meeting)))
            await until(lambda: peer.present)
            assert peer.reaches_us
            hand.writer.close()
            await until(lambda: not peer.present)
            assert (peer.settled, peer.satisfied) == (False, False)
            again = Hand(*await asyncio.open_connection("127.0.0.1", meeting.facts.port))
            assert await again.greet(node=NODE - 1) is FrameType.WELCOME  # it has drawn another id
            again.writer.write(pack(as_the_peer(meeting)) + pack(Done()))
            await until(lambda: peer.released and peer.present)
            assert peer.node == NODE - 1
            again.writer.close()

    run(loop_factory, scenario())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def run(loop_factory: LoopFactory, scenario: Any) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario, 60))


def test_a_hello_of_a_doctor_is_one_that_any_node_can_read() -> None:
    assert Hello.model_validate(Intended().greeting(5, "name").model_dump()).mode == "doctor"
