"""Admission of connections before their HELLO: limits, which connection gives way, and expected hosts."""

from __future__ import annotations

import asyncio
import collections
import enum
import functools
import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from p2psgd.base.aio import TokenBuckets
from p2psgd.net.connection import Connection
from p2psgd.net.rejections import DropCounters
from p2psgd.wire.messages import plain_ip
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# Hosts that this node has reason to expect, judged by their address before their greeting.
#
# An IPv6 /64 is one host, because a machine with one address of it mostly has all 2^64 (RFC 6177); an IPv4
# address is one, and may stand for many nodes behind a NAT. Nothing is trusted for its address: the address
# only decides which connections may greet when not all can.


LINKED_MAX: Final = 1024  # addresses that are remembered; a node has at most 1,023 links
REFRESH_S: Final = 1.0  # the list and what peers tell may name thousands of addresses


class Standing(enum.IntEnum):
    """The degrees to which this node expects a connection, the least expected first."""

    STRANGER = 0
    NEIGHBOUR = 1  # in the same /64 as one that is known
    KNOWN = 2  # of the list, told by peers, or linked before
    CERTIFIED = 3  # its handshake has shown a certificate of the run


class KnownHosts:
    """The hosts that this node expects, and their standing. `listed` reads the addresses that the list names
    now; `told` are those of members, as peers report them.
    """

    def __init__(self, listed: Callable[[], Iterable[str]] = tuple) -> None:
        self.told: Collection[str] = ()
        self._listed = listed
        self._linked: dict[str, None] = {}  # the latest last
        self._addresses: frozenset[str] = frozenset()
        self._hosts: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    def linked(self, ip: str) -> None:
        """Remember that a peer at this address has been accepted."""
        ip = unscoped(ip)
        self._linked.pop(ip, None)
        self._linked[ip] = None
        if len(self._linked) > LINKED_MAX:
            del self._linked[next(iter(self._linked))]

    def standing(self, ip: str, now: float) -> Standing:
        """Return the standing of a connection from this address; what has changed counts within REFRESH_S."""
        ip = unscoped(ip)
        if now - self._read_at >= REFRESH_S:
            self._read_at = now
            self._addresses = frozenset(map(unscoped, (*self._listed(), *self.told)))
            self._hosts = frozenset(map(host_of, (*self._addresses, *self._linked)))
        if ip in self._linked or ip in self._addresses:
            return Standing.KNOWN
        return Standing.NEIGHBOUR if host_of(ip) in self._hosts else Standing.STRANGER


@functools.lru_cache(maxsize=8192)
def host_of(ip: str) -> str:
    """Return the IPv4 address, also of one that is mapped into IPv6, or the /64 of any other IPv6 address."""
    ip = unscoped(ip)
    if ":" not in ip:
        return ip
    prefix = int(ipaddress.IPv6Address(ip)) >> 64 << 64
    return f"{ipaddress.IPv6Address(prefix)}/64"


@functools.lru_cache(maxsize=8192)
def unscoped(ip: str) -> str:
    """Format an IP address as it is written shortest, without a scope; any other text stays as it is."""
    try:
        return str(plain_ip(ip.partition("%")[0]))
    except ValueError:
        return ip


# ----------------------------------------------------------------------------
# Which connection gives way when all places for connections that have not said HELLO yet are taken.
#
# One host that connects again and again, and says nothing, would else keep all others out, and so would many
# hosts of one attacker. A node says HELLO within a round trip, so a connection that has had time for that
# gives way to a host that has no place. A node that gave way dials again.


# Longer than a round trip on nearly all links, so that a crowd of honest newcomers does not displace itself
# for ever. Not longer: an attacker that renews its connections at this age, 15 times a minute for each host
# (see Handshakes), needs 256 hosts to hold all places.
UNDISTURBED_S: Final = 0.5

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a handshake, taken by a host, or by a node if that is certain; `since` in seconds,
    monotonic.
    """

    host: str
    standing: Standing
    since: float


def whom_to_displace(waiting: Mapping[Key, Place], newcomer: Place) -> Key | None:
    """Return the waiting connection that gives way; None: the newcomer has to go. `waiting` is ordered, the
    oldest first.

    Connections of the lowest standing give way to a newcomer of higher standing: of these the oldest of the
    host that has most places. It is the same among those of the newcomer's own standing, if that host has
    more than one more than the newcomer's; or if the newcomer's host has none, and the oldest was left
    UNDISTURBED_S. A host of higher standing is one of these if it has more than half of all places.
    """
    held = collections.Counter(place.host for place in waiting.values())
    lowest = min((place.standing for place in waiting.values()), default=newcomer.standing)
    weaker = lowest < newcomer.standing
    rivals = {
        key: place
        for key, place in waiting.items()
        if place.standing == (lowest if weaker else newcomer.standing)
        or (not weaker and 2 * held[place.host] > len(waiting))
    }
    if not rivals:
        return None
    most = max(held[place.host] for place in rivals.values())
    oldest, place = next((key, place) for key, place in rivals.items() if held[place.host] == most)
    if weaker or most > held[newcomer.host] + 1:
        return oldest
    disturbed = held[newcomer.host] == 0 and newcomer.since - place.since >= UNDISTURBED_S
    return oldest if disturbed else None


# ----------------------------------------------------------------------------
# Connections that have not been greeted yet: how many come in, how often, for how long, and who gives way.
#
# Each connection has one greeting, so a limit on connections is one on HELLOs. A connection beyond it is
# closed at once, and counted. What a greeting says, and what follows from it, is its owner's business.


HANDSHAKE_TIMEOUT_S: Final = 10.0
HANDSHAKES_MAX: Final = 32  # inbound connections that have not said HELLO yet

# Connections of one host, let in or not: a burst, then one an interval. 64 nodes may stand behind
# one address. As strangers all of them can dial at once; with the first link their host is known, and each
# may dial once a second. A stranger that is refused dials 16 times a minute: it gets the reason often enough.
UNKNOWN_BURST: Final = 64
UNKNOWN_INTERVAL_S: Final = 4.0
KNOWN_BURST: Final = 1024
KNOWN_INTERVAL_S: Final = 1 / 64

Awaited = TypeVar("Awaited")


@dataclass(slots=True)
class _Handshake(Generic[Awaited]):
    timer: asyncio.TimerHandle
    awaited: Awaited
    since: float


class Handshakes(Generic[Awaited]):
    """The connections that have not been greeted yet, with what is awaited of each; those that this node
    dialled need no room.

    A connection that is given up is counted in `dropped` and aborted; then `given_up` is called, which must
    `end` it.
    """

    def __init__(
        self,
        dropped: DropCounters,
        known_hosts: KnownHosts,
        given_up: Callable[[Connection, PeerError], None],
    ) -> None:
        self._dropped, self._known_hosts, self._given_up = dropped, known_hosts, given_up
        self._strangers = TokenBuckets(burst=UNKNOWN_BURST, interval_s=UNKNOWN_INTERVAL_S)
        self._known = TokenBuckets(burst=KNOWN_BURST, interval_s=KNOWN_INTERVAL_S)
        self._places: dict[Connection, _Handshake[Awaited]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over the present connections, the oldest first."""
        return iter([*self._places])

    def get(self, connection: Connection) -> Awaited | None:
        """Return what is awaited of a connection; None: it has been greeted, or given up."""
        place = self._places.get(connection)
        return None if place is None else place.awaited

    def begin(self, connection: Connection, awaited: Awaited) -> None:
        """Give a connection HANDSHAKE_TIMEOUT_S to greet; one that came in too often or finds no room is
        aborted at once, and counted.
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
        timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self._overdue, connection)
        self._places[connection] = _Handshake(timer, awaited, now)

    def end(self, connection: Connection) -> Awaited | None:
        """Forget a connection, which has been greeted or is gone, and return what was awaited of it, None if
        nothing was.
        """
        place = self._places.pop(connection, None)
        if place is None:
            return None
        place.timer.cancel()
        return place.awaited

    def close(self) -> None:
        """Admit no more connections."""
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
        if len(self._waiting()) < HANDSHAKES_MAX:
            return True
        return self._displace(self._place(newcomer, now, now), now)

    def displace(self, ip: str) -> bool:
        """Give up a connection that gives way to one of this address; False if none does."""
        now = asyncio.get_running_loop().time()
        return self._displace(self._place_of_host(ip, now, now), now)

    def _displace(self, newcomer: Place, now: float) -> bool:
        places = {each: self._place(each, place.since, now) for each, place in self._waiting().items()}
        displaced = whom_to_displace(places, newcomer)
        if displaced is None:
            return False
        words = "another host needs its place for a greeting"
        self._give_up(displaced, PeerError(RejectCode.LINKS, words, label="displaced"))
        return True

    def _place(self, connection: Connection, since: float, now: float) -> Place:
        if connection.certified is not None:
            return Place(f"node {connection.certified.node:016x}", Standing.CERTIFIED, since)
        return self._place_of_host(connection.host, since, now)

    def _place_of_host(self, ip: str, since: float, now: float) -> Place:
        return Place(host_of(ip), self._known_hosts.standing(ip, now), since)

    def _waiting(self) -> dict[Connection, _Handshake[Awaited]]:
        """Return the inbound connections, the oldest first."""
        return {each: place for each, place in self._places.items() if not each.dialled}

    def _overdue(self, connection: Connection) -> None:
        code, what = RejectCode.SILENT, "greeting"
        if connection.shaking_hands:
            code, what = RejectCode.TLS, "handshake"
        words = f"no {what} within {HANDSHAKE_TIMEOUT_S:.0f} s"
        self._give_up(connection, PeerError(code, words, label=f"no {what}"))

    def _give_up(self, connection: Connection, error: PeerError) -> None:
        self._dropped.count(error.label)
        connection.abort(str(error))
        self._given_up(connection, error)
