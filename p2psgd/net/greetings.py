"""Connections that have not been greeted yet: how many come in, how often, for how long, and who gives way.

Each connection has one greeting, so a limit on connections is one on HELLOs. A connection beyond it is closed
at once, and counted. What a greeting says, and what follows from it, is its owner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from p2psgd.errors import PeerError
from p2psgd.net.connection import Connection
from p2psgd.net.crowding import Place, whom_to_displace
from p2psgd.net.known_hosts import KnownHosts, Standing, host_of
from p2psgd.net.reasons import Reasons
from p2psgd.net.token_buckets import TokenBuckets

GREETING_TIMEOUT_S: Final = 10.0
GREETINGS_MAX: Final = 32  # inbound connections that have not said HELLO yet

# Connections of one host, let in or not: a burst, then one each so many seconds. 64 nodes may stand behind
# one address. As strangers all of them can dial at once; with the first link their host is known, and each
# may dial once a second. A stranger that is refused dials 16 times a minute: it is told why often enough.
STRANGERS_BURST: Final = 64
STRANGERS_INTERVAL_S: Final = 4.0
KNOWN_BURST: Final = 1024
KNOWN_INTERVAL_S: Final = 1 / 64

Awaited = TypeVar("Awaited")


@dataclass(slots=True)
class _Greeting(Generic[Awaited]):
    timer: asyncio.TimerHandle
    awaited: Awaited
    since: float


class Greetings(Generic[Awaited]):
    """What is awaited of each connection; those that this node dialled need no room.

    Whoever is given up is counted in `dropped` and aborted; then `given_up` is called, which is to `end` it.
    """

    def __init__(
        self, dropped: Reasons, known_hosts: KnownHosts, given_up: Callable[[Connection, PeerError], None]
    ) -> None:
        self._dropped, self._known_hosts, self._given_up = dropped, known_hosts, given_up
        self._strangers = TokenBuckets(burst=STRANGERS_BURST, interval_s=STRANGERS_INTERVAL_S)
        self._known = TokenBuckets(burst=KNOWN_BURST, interval_s=KNOWN_INTERVAL_S)
        self._places: dict[Connection, _Greeting[Awaited]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Connection]:
        """As they are now, the oldest first."""
        return iter([*self._places])

    def get(self, connection: Connection) -> Awaited | None:
        """None: it has been greeted, or given up."""
        place = self._places.get(connection)
        return None if place is None else place.awaited

    def begin(self, connection: Connection, awaited: Awaited) -> None:
        """Give it GREETING_TIMEOUT_S; one that came in too often or finds no room is aborted at once, and
        counted.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not connection.dialled:
            if not self._is_in_time(connection.host, now):
                self._dropped.count("greeting rate")
                connection.abort("too many connections of its host in a short time")
                return
            if not self._make_room(connection, now):
                self._dropped.count("too many greetings")
                connection.abort("too many connections that have not said hello")
                return
        timer = loop.call_later(GREETING_TIMEOUT_S, self._overdue, connection)
        self._places[connection] = _Greeting(timer, awaited, now)

    def end(self, connection: Connection) -> Awaited | None:
        """It has been greeted, or is gone; what was awaited of it, None if nothing was."""
        place = self._places.pop(connection, None)
        if place is None:
            return None
        place.timer.cancel()
        return place.awaited

    def close(self) -> None:
        """From now on nobody is let in."""
        self._closed = True

    def _is_in_time(self, ip: str, now: float) -> bool:
        match self._known_hosts.standing(ip, now):
            case Standing.STRANGER:
                return self._strangers.take(host_of(ip), now)
            case Standing.NEIGHBOUR:
                return self._known.take(host_of(ip), now)
            case _:
                return self._known.take(ip, now)

    def _make_room(self, newcomer: Connection, now: float) -> bool:
        if self._closed:
            return False
        if len(self._waiting()) < GREETINGS_MAX:
            return True
        return self._displace(self._place(newcomer, now, now), now)

    def displace(self, ip: str) -> bool:
        """Give up one that gives way to a connection of this address; False if none does."""
        now = asyncio.get_running_loop().time()
        return self._displace(self._place_of_host(ip, now, now), now)

    def _displace(self, newcomer: Place, now: float) -> bool:
        places = {each: self._place(each, place.since, now) for each, place in self._waiting().items()}
        displaced = whom_to_displace(places, newcomer)
        if displaced is None:
            return False
        self._give_up(displaced, "displaced", "another host needs its place for a greeting")
        return True

    def _place(self, connection: Connection, since: float, now: float) -> Place:
        if connection.certified is not None:
            return Place(f"node {connection.certified.node:016x}", Standing.CERTIFIED, since)
        return self._place_of_host(connection.host, since, now)

    def _place_of_host(self, ip: str, since: float, now: float) -> Place:
        return Place(host_of(ip), self._known_hosts.standing(ip, now), since)

    def _waiting(self) -> dict[Connection, _Greeting[Awaited]]:
        """Those that came in, the oldest first."""
        return {each: place for each, place in self._places.items() if not each.dialled}

    def _overdue(self, connection: Connection) -> None:
        what = "handshake" if connection.shaking_hands else "greeting"
        self._give_up(connection, f"no {what}", f"no {what} within {GREETING_TIMEOUT_S:.0f} s")

    def _give_up(self, connection: Connection, reason: str, words: str) -> None:
        self._dropped.count(reason)
        connection.abort(words)
        self._given_up(connection, PeerError(reason, words))
