"""Dialer, greeting and one link for each pair: what net.mesh does, on the virtual network.

The rules (who may be linked, which of two connections stays) are the real ones of net.handshake, as are the
frames. Made up: addresses (everybody knows everybody's place), and sockets. Links are kept by place.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from random import Random
from typing import Final, Protocol

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec
from p2psgd.net.handshake import check_hello, make_hello, newer_stays
from p2psgd.wire.frames import FrameType, link_limits
from p2psgd.wire.messages import TEXT_MAX, Hello, Reject, Welcome, pack_message, parse_message
from p2psgd.wire.reject import PeerError, RejectCode
from tests.sim.clock import Clock
from tests.sim.network import Endpoint, Line, connect
from tests.sim.places import place_of

HANDSHAKE_TIMEOUT_S: Final = 10.0
SYN_AGAIN_S: Final = (1.0, 2.0, 4.0)  # a kernel's pauses before it tries once more; then 3 s to the timeout
FIRST_DELAY_S: Final = 0.1  # of the dialler's back-off


class MeshHost(Protocol):
    """The daemon whose links these are."""

    paused: bool
    alive: bool

    def bytes_received(self, endpoint: Endpoint) -> None: ...
    def connection_lost(self, endpoint: Endpoint, words: str) -> None: ...
    def connection_drained(self, endpoint: Endpoint) -> None: ...
    def when_running(self, action: Callable[..., object], *arguments: object) -> None: ...
    def link_opened(self, peer: Origin, name: str) -> None: ...
    def link_closed(self, peer: Origin, words: str) -> None: ...
    def frame_received(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> None: ...
    def refused(self, number: int, error: PeerError) -> None: ...


class Surroundings(Protocol):
    """What a mesh sees of the world."""

    clock: Clock
    lines: dict[tuple[int, int], Line]

    def mesh(self, number: int) -> Mesh | None: ...
    def see(self, what: str, times: int = 1) -> None: ...


class Mesh:
    """One life's connections."""

    def __init__(
        self,
        world: Surroundings,
        host: MeshHost,
        spec: RunSpec,
        me: Origin,
        *,
        others: list[int],
        failure_timeout_s: float,
        chance: Random,
    ) -> None:
        self.links: dict[int, Endpoint] = {}
        self._world = world
        self._host = host
        self._me = me
        self._place = place_of(me.node)
        self._failure_timeout_s = failure_timeout_s
        self._chance = chance
        self._greeting = make_hello(spec, me, f"node-{me.node}")
        self._limits = link_limits(spec.coordinates)
        self._peers: dict[Endpoint, Origin] = {}  # of those that are linked
        self._greetings: set[Endpoint] = set()
        self._newest: dict[int, int] = {}  # highest incarnation known of each node
        self._answered: dict[int, int] = {}  # by place: the node that was linked there last
        self._delays = dict.fromkeys(others, FIRST_DELAY_S)
        self._linked_at: dict[int, float] = {}
        self._idle: set[int] = set()  # nodes whose link a dialler waits to see closed

    def start(self) -> None:
        """Dial everybody."""
        for number in self._delays:
            self._dial_again(number)

    @property
    def known(self) -> Set[int]:
        """Nodes that were linked once."""
        return self._newest.keys()

    def expects(self, stopped: Set[int]) -> bool:
        """Somebody may be linked who is not one of these nodes."""
        return any(self._answered.get(number) not in stopped for number in self._delays)

    def peer(self, endpoint: Endpoint) -> Origin | None:
        """Who is linked there."""
        return self._peers.get(endpoint)

    def send(self, peer: Origin, frame: bytes) -> int:
        """Send a frame on the peer's link, without a link drop it; returns the bytes on their way there."""
        endpoint = self.link(peer)
        if endpoint is None or endpoint.out is None:
            return 0
        endpoint.send(frame)
        return endpoint.out.undelivered

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> int:
        """The same for a frame whose numbers stay in this node's memory."""
        endpoint = self.link(peer)
        if endpoint is None or endpoint.out is None:
            return 0
        endpoint.send_floats(head, numbers)
        return endpoint.out.undelivered

    def link(self, peer: Origin) -> Endpoint | None:
        """The link to exactly this life of a peer."""
        endpoint = self.links.get(place_of(peer.node))
        return endpoint if endpoint is not None and self._peers[endpoint] == peer else None

    def finish(self) -> None:
        """Send no more on any link; connections that are no links yet are closed."""
        for endpoint in [*self.links.values()]:
            endpoint.finish()
        for endpoint in sorted(self._greetings, key=lambda each: each.number):
            endpoint.close()
        self._greetings.clear()

    def die(self) -> None:
        """The process is gone."""
        for endpoint in sorted(
            {*self._greetings, *self._peers}, key=lambda each: (each.number, each.dialled)
        ):
            endpoint.die()

    # -- dialling

    def _dial_again(self, number: int) -> None:
        delay_s = self._delays[number]
        self._delays[number] = min(2 * delay_s, self._failure_timeout_s)
        self._world.clock.after(delay_s * self._chance.uniform(0.5, 1.0), self._dial, number)

    def _dial(self, number: int, attempt: int = 0) -> None:
        if not self._host.alive:
            return
        if self._host.paused:
            self._host.when_running(self._dial, number, attempt)
            return
        if number in self.links:
            self._idle.add(number)
            return
        clock, lines = self._world.clock, self._world.lines
        forth, back = lines[self._place, number], lines[number, self._place]
        if forth.cuts or back.cuts:
            if attempt < len(SYN_AGAIN_S):
                clock.after(SYN_AGAIN_S[attempt], self._dial, number, attempt + 1)
            else:
                clock.after(HANDSHAKE_TIMEOUT_S - sum(SYN_AGAIN_S), self._dial_again, number)
        else:
            clock.after(forth.latency_s + back.latency_s, self._dialled, number)

    def _dialled(self, number: int) -> None:
        other = self._world.mesh(number)
        if not self._host.alive:
            return
        if other is None:  # connection refused
            self._dial_again(number)
            return
        lines = self._world.lines
        mine = Endpoint(self._host, number=number, dialled=True)
        theirs = Endpoint(other._host, number=self._place, dialled=False)
        forth, back = lines[self._place, number], lines[number, self._place]
        connect(forth, back, mine, theirs, failure_timeout_s=self._failure_timeout_s)
        other._await_greeting(theirs)
        self._await_greeting(mine)
        mine.send(pack_message(self._greeting))

    # -- greetings

    def _await_greeting(self, endpoint: Endpoint) -> None:
        self._greetings.add(endpoint)
        self._world.clock.after(HANDSHAKE_TIMEOUT_S, self._greeting_overdue, endpoint)

    def _greeting_overdue(self, endpoint: Endpoint) -> None:
        if not self._host.alive:
            return
        if self._host.paused:
            self._host.when_running(self._greeting_overdue, endpoint)
        elif endpoint in self._greetings:
            self._world.see("greeting overdue")
            endpoint.die()
            self.forget(endpoint, "no greeting")

    def frame_received(self, endpoint: Endpoint, frame_type: FrameType, body: bytes | bytearray) -> None:
        """A whole frame came; PeerError if it must not come here."""
        peer = self._peers.get(endpoint)
        if peer is not None:
            if frame_type is FrameType.REJECT:
                self._rejected(endpoint)
            else:
                self._host.frame_received(peer, frame_type, body)
            return
        message = parse_message(frame_type, body)
        match message:
            case Welcome() if endpoint.dialled:
                self._greeted(endpoint, message)
            case Hello() if not endpoint.dialled and not isinstance(message, Welcome):
                self._greeted(endpoint, message)
            case Reject() if endpoint.dialled:
                self._rejected(endpoint)
            case _:
                raise PeerError(RejectCode.FRAME_ORDER, f"a {frame_type.name} is not what comes first here")

    def report_drained(self, peer: Origin, below: int) -> None:
        """Tell the host when no more than so much is on its way to a peer."""
        endpoint = self.link(peer)
        if endpoint is not None:
            endpoint.report_drained(below)

    def drop(self, peer: Origin, error: PeerError) -> None:
        """As if its last frame had been wrong."""
        endpoint = self.link(peer)
        if endpoint is not None:
            self.failed(endpoint, error)

    def failed(self, endpoint: Endpoint, error: PeerError) -> None:
        """The peer broke the protocol: tell it, and close."""
        self._host.refused(endpoint.number, error)
        self._send_reject(endpoint, error)
        endpoint.close()
        self.forget(endpoint, str(error))

    def _send_reject(self, endpoint: Endpoint, error: PeerError) -> None:
        details = error.details[:TEXT_MAX]
        reject = Reject(node=self._me.node, code=error.code, details=details, incarnation=0)
        endpoint.send(pack_message(reject))

    def _greeted(self, endpoint: Endpoint, theirs: Hello) -> None:
        held = self.links.get(endpoint.number)
        peer = None if held is None else self._peers[held]
        linked = peer.incarnation if peer is not None and peer.node == theirs.node else 0
        newest = self._newest.get(theirs.node, 0)
        check_hello(self._greeting, theirs, newest, linked_incarnation=linked)
        if held is not None:
            if self._peers[held] == (theirs.node, theirs.incarnation) and not newer_stays(
                ours=self._me.node,
                theirs=theirs.node,
                held_dialled=held.dialled,
                new_dialled=endpoint.dialled,
            ):
                self._world.see("second connection refused")
                self._send_reject(endpoint, PeerError(RejectCode.DUPLICATE))
                endpoint.close()
                self.forget(endpoint, "one is enough")
                return
            held.close()
            self.forget(held, "one is enough")
        self._link_up(endpoint, theirs)

    def _link_up(self, endpoint: Endpoint, theirs: Hello) -> None:
        if not endpoint.dialled:
            endpoint.send(pack_message(Welcome(**self._greeting.model_dump())))
        endpoint.reader.open(self._limits)
        self._greetings.discard(endpoint)
        peer = Origin(theirs.node, theirs.incarnation)
        self.links[endpoint.number] = endpoint
        self._peers[endpoint] = peer
        self._newest[theirs.node] = theirs.incarnation
        self._answered[endpoint.number] = theirs.node
        self._linked_at[endpoint.number] = self._world.clock.now
        if endpoint.dialled:
            self._idle.add(endpoint.number)
        self._host.link_opened(peer, theirs.name)

    def _rejected(self, endpoint: Endpoint) -> None:
        endpoint.close()
        self.forget(endpoint, "rejected")

    def forget(self, endpoint: Endpoint, words: str) -> None:
        """The connection is no more."""
        number = endpoint.number
        if endpoint in self._greetings:
            self._greetings.discard(endpoint)
            if endpoint.dialled:
                self._dial_again(number)
        peer = self._peers.pop(endpoint, None)
        if peer is not None and self.links.get(number) is endpoint:
            del self.links[number]
            if self._world.clock.now - self._linked_at[number] > self._failure_timeout_s:
                self._delays[number] = FIRST_DELAY_S
            if number in self._idle:
                self._idle.discard(number)
                self._dial_again(number)
            self._host.link_closed(peer, words)
