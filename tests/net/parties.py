"""Meshes over real sockets on loopback, each with a host that writes down what it is told."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from p2psgd.core.frontier import Origin
from p2psgd.net.address import Address
from p2psgd.net.dialer import AddressDialer
from p2psgd.net.mesh import Mesh
from p2psgd.net.tls import Credentials
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello
from p2psgd.wire.reject import RejectCode
from tests import DEADLINE_S
from tests.conftest import LoopFactory

FAILURE_TIMEOUT_S = 0.5


class Host:
    """Writes down what the mesh says, and checks that opened and closed alternate."""

    def __init__(self) -> None:
        self.open: dict[int, Origin] = {}
        self.opened = 0
        self.replaced = 0
        self.closed: list[str] = []
        self.frames: list[tuple[Origin, FrameType, bytes]] = []
        self.drained = 0
        self.rejections: list[tuple[RejectCode, str]] = []
        self.newest: list[int] = []  # incarnation told with each refusal
        self.listed: list[bool] = []  # whether each came from where the list says
        self.members: dict[int, int] = {}  # incarnation by node, of the view
        self.strangers: list[tuple[int, str]] = []
        self.alarms: list[str] = []

    def link_opened(self, peer: Origin, name: str) -> None:
        assert peer.node not in self.open
        self.open[peer.node] = peer
        self.opened += 1

    def link_replaced(self, peer: Origin, name: str) -> None:
        assert self.open[peer.node] == peer
        self.replaced += 1

    def link_closed(self, peer: Origin, words: str) -> None:
        assert self.open.pop(peer.node) == peer
        self.closed.append(words)

    def link_drained(self, peer: Origin) -> None:
        self.drained += 1

    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None:
        self.frames.append((peer, frame_type, bytes(body)))

    def peers_received(self, peer: Origin, body: Body) -> None:
        self.frames.append((peer, FrameType.PEERS, bytes(body)))

    def refused_by_peer(self, code: RejectCode, words: str, newest: int, *, listed: bool) -> None:
        self.rejections.append((code, words))
        self.newest.append(newest)
        self.listed.append(listed)

    def member_incarnation(self, node: int) -> int | None:
        return self.members.get(node)

    def alarm(self, words: str) -> None:
        self.alarms.append(words)

    def stranger_met(self, node: int, words: str) -> None:
        self.strangers.append((node, words))


class Party:
    """One mesh with its host and its listening socket."""

    def __init__(
        self,
        node: int,
        *,
        incarnation: int = 1,
        run: bytes = b"r" * 32,
        port: int = 0,
        credentials: Credentials | None = None,
    ) -> None:
        self.host = Host()
        self.listening = socket.socket()
        self.listening.setblocking(False)
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.address = Address("127.0.0.1", self.listening.getsockname()[1])
        self.origin = Origin(node, incarnation)
        greeting = Hello(
            protocol=PROTOCOL_VERSION,
            node=node,
            incarnation=incarnation,
            name=f"node-{node}",
            run=run,
            weights=1000,
            quantum_log2=-20,
            mode="async",
            label="",
            rank="",
        )
        self.mesh = Mesh(
            self.host, greeting, greeting.weights, FAILURE_TIMEOUT_S, time.monotonic, credentials
        )

    async def start(self, *peers: Address) -> None:
        await self.mesh.start(self.listening, peers)


async def until(condition: Callable[[], bool], *, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def agree(one: Party, other: Party) -> bool:
    """Both sides hold the two ends of one connection as their link to each other."""
    here, there = one.mesh.links.get(other.origin.node), other.mesh.links.get(one.origin.node)
    if here is None or there is None:
        return False
    ends = [link.connection._transport for link in (here, there)]
    names = [
        (end.get_extra_info("sockname"), end.get_extra_info("peername")) for end in ends if end is not None
    ]
    return len(names) == 2 and names[0] == names[1][::-1]


def settled(parties: Sequence[Party]) -> bool:
    """All are linked, and every dial has led somewhere: no link will give way to a second connection any
    more, which loses what was sent on it.
    """
    dialers = [dialler for party in parties for dialler in party.mesh.dialer.dialers]
    return (
        all(agree(one, other) for one, other in itertools.combinations(parties, 2))
        and all(isinstance(dialler, AddressDialer) and dialler.node is not None for dialler in dialers)
        and not any(list(party.mesh._handshakes) for party in parties)
    )


@asynccontextmanager
async def linked_parties() -> AsyncIterator[tuple[Party, Party]]:
    """Nodes 1 and 2, each with its end of one connection as its link to the other; closed at the end."""
    one, other = Party(1), Party(2)
    await one.start(other.address)
    await other.start()
    await until(lambda: agree(one, other))
    try:
        yield one, other
    finally:
        await one.mesh.close()
        await other.mesh.close()


async def see_a_life_superseded(hub: Party, old: Party, new: Party) -> None:
    """`old` and `new` are lives of node 2, of which the hub knows the new one when the old one dials it."""
    await hub.start()
    await new.start(hub.address)
    await until(lambda: 2 in hub.host.open)
    await old.start(hub.address)
    await until(lambda: bool(old.host.rejections))
    assert old.host.rejections[0][0] == RejectCode.SUPERSEDED
    for party in (hub, old, new):
        await party.mesh.close()


def stall(party: Party, node: int) -> asyncio.Transport:
    """It reads no more from that node until reading is resumed."""
    transport = party.mesh.links[node].connection._transport
    assert transport is not None
    transport.pause_reading()
    return transport


def run(loop_factory: LoopFactory, scenario: Callable[[], Awaitable[None]]) -> None:
    """Until it is through; what fails on the loop beside it, which would end a daemon, fails it too."""

    async def body() -> None:
        failures: list[dict[str, Any]] = []

        def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            failures.append(context)
            loop.default_exception_handler(context)  # which is all there is if the scenario fails of it

        asyncio.get_running_loop().set_exception_handler(note)
        await scenario()
        assert not failures, failures

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(body())
