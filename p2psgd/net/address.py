"""Addresses of nodes: how people write them, what names stand for, and how names are resolved."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from p2psgd.base.aio import in_daemon_thread
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.wire.messages import plain_ip

# ----------------------------------------------------------------------------
# Questions to the system's resolver, each in a daemon thread: one for each name, and a few at a time.
#
# A question goes on when no caller waits for it any more, so questions to a resolver that does not answer
# would pile up. A caller that asks the same meanwhile waits for the same answer.


THREADS_MAX: Final = 8  # of one loop; other questions wait for their turn

_Infos = list[Any]


class _Questions:
    """The questions of one event loop that the system has been asked and has not answered yet."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], asyncio.Task[_Infos]] = {}
        self._turns = asyncio.Semaphore(THREADS_MAX)

    def ask(self, host: str, port: int) -> asyncio.Task[_Infos]:
        asked = self.open.get((host, port))
        if asked is None:
            asked = self.open[host, port] = asyncio.get_running_loop().create_task(self._ask(host, port))
            asked.add_done_callback(partial(self._answered, (host, port)))
        return asked

    async def _ask(self, host: str, port: int) -> _Infos:
        async with self._turns:
            question = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            return await in_daemon_thread("resolver", question)

    def _answered(self, question: tuple[str, int], asked: asyncio.Task[_Infos]) -> None:
        del self.open[question]
        if not asked.cancelled():
            asked.exception()  # has been seen, also if nobody waits for it


_by_loop: Final = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Questions]()


def questions() -> _Questions:
    """Return the questions of the running loop."""
    return _by_loop.setdefault(asyncio.get_running_loop(), _Questions())


def ask_infos(host: str, port: int) -> asyncio.Task[_Infos]:
    """Start the look-up of a host and port, or join the one under way. The task returns what
    socket.getaddrinfo returns for TCP, or raises OSError or UnicodeError. Other callers may wait for it too,
    so wait for it and do not cancel it.
    """
    return questions().ask(host, port)


# ----------------------------------------------------------------------------
# An address that can be dialled or listened on, as people write it: host, host:port or [ipv6]:port.


PORT_DEFAULT: Final = 7315
PORT_MAX: Final = 65535
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True, order=True)
class Address:
    """A host name or IP address and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def above(self, ports: int) -> Address:
        """Return the address this many ports above; port 0, which stands for any, stays. UsageError if that
        is above PORT_MAX.
        """
        if self.port + ports > PORT_MAX:
            words = f"{self} is the first of {ports + 1} ports, one for each part, and {PORT_MAX} is the last"
            raise UsageError(f"{words}: give a lower one")
        return Address(self.host, self.port + ports) if self.port else self


def parse_address(text: str, *, port_default: int | None = PORT_DEFAULT, to_listen: bool = False) -> Address:
    """Parse `host`, `host:port`, `[ipv6]` or `[ipv6]:port`; ValueError with a sentence otherwise.

    Only an address `to_listen` on may have port 0, any that is free.
    """
    match = re.fullmatch(
        r"\[(?P<v6>[^\]]*)\](?::(?P<port6>\d{1,5}))?|(?P<host>[^:\s\[\]]+)(?::(?P<port>\d{1,5}))?", text
    )
    if match is None:
        raise ValueError(f"{text!r:.80} is not host, host:port or [ipv6]:port")
    host = match["v6"] if match["v6"] is not None else match["host"]
    digits = match["port6"] or match["port"]
    if digits is None and port_default is None:
        raise ValueError(f"{text!r:.80} lacks a port")
    port = int(digits) if digits is not None else int(port_default or 0)
    if not 0 <= port <= PORT_MAX or (port == 0 and not to_listen):
        raise ValueError(f"port {port} in {text!r:.80} is not within 1 to {PORT_MAX}")
    if match["v6"] is not None:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r:.80} is not an IPv6 address") from None
    elif re.fullmatch(r"[\d.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{host!r:.80} is not an IPv4 address") from None
    elif len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.rstrip(".").split(".")):
        raise ValueError(f"{host!r:.80} is not a host name")
    return Address(host, port)


HOSTS_MAX: Final = 1023  # peers of one node; the frontier holds 1,024 origins


def parse_hosts(text: str, where: str) -> tuple[Address, ...]:
    """Parse one `host[:port]` a line, with `#` comments, in their order, duplicates merged.

    Raises UsageError that names `where` the text is from and the line.
    """
    addresses: dict[Address, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        try:
            addresses[parse_address(entry)] = None
        except ValueError as error:
            raise UsageError(f"{where} line {number}: {error}", ExitCode.CONFIGURATION) from None
        if len(addresses) > HOSTS_MAX:
            raise UsageError(f"{where} line {number}: more than {HOSTS_MAX} hosts", ExitCode.CONFIGURATION)
    return tuple(addresses)


# ----------------------------------------------------------------------------
# What a line of a list of hosts stands for: one host, by one address or several, or several hosts.
#
# A name with one IPv4 and one IPv6 address is one host. With more of a kind it is several, as the names of
# services without an address of their own are: then each address of the kind that has more is one host's.
# Which of them are this node itself is known by where it listens.


ADDRESSES_MAX: Final = 1023  # of one name; as many peers as a node can have

Host = tuple[Address, ...]  # all of its numeric addresses that are known, in the order in which to try them


class UnknownNameError(Exception):
    """A name does not resolve now; the message says why."""


def is_numeric(address: Address) -> bool:
    """Return whether the address's host is an IP address."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True


def is_loopback(address: Address) -> bool:
    """Return whether the address's host is written as a loopback address, or as localhost."""
    return address.host == "localhost" or (is_numeric(address) and plain_ip(address.host).is_loopback)


async def look_up(address: Address, *, timeout_s: float) -> Host:
    """Resolve an address to its present numeric addresses, in the order in which the system would try them
    (RFC 6724); UnknownNameError if there is none within `timeout_s`.
    """
    asked = ask_infos(address.host, 0)
    await asyncio.wait([asked], timeout=timeout_s)
    if not asked.done():
        raise UnknownNameError(f"the name was not resolved within {timeout_s:.0f} s")
    try:
        infos = asked.result()
    except (OSError, UnicodeError):
        raise UnknownNameError("the name does not resolve") from None
    found = dict.fromkeys(
        Address(_numeric(info[4]), address.port)
        for info in infos
        if info[0] in (socket.AF_INET, socket.AF_INET6)
    )
    if not found:
        raise UnknownNameError("the name has no address")
    return tuple(found)[:ADDRESSES_MAX]


def hosts_of(found: Host) -> list[Host]:
    """Group the addresses of one name into hosts; several hosts come in ascending order."""
    six = tuple(each for each in found if ":" in each.host)
    four = tuple(each for each in found if ":" not in each.host)
    preferred, other = (six, four) if found[:1] == six[:1] else (four, six)
    most = other if len(other) > len(preferred) else preferred
    return [found] if len(most) == 1 else [(each,) for each in sorted(most)]


def is_here(address: Address, listening: Address) -> bool:
    """Return whether the address belongs to this machine and a socket that listens on `listening` accepts
    connections to it; the port is not compared.
    """
    try:
        ip, listens = plain_ip(address.host), plain_ip(listening.host)
    except ValueError:
        return False
    return (listens.is_unspecified or ip == listens) and _is_local(address.host)


def is_own(address: Address, own: Sequence[Address]) -> bool:
    """Return whether the address leads to this node, which listens on the first of `own` and is known to
    others by the rest.
    """
    return address in own[1:] or (address.port == own[0].port and is_here(address, own[0]))


def _is_local(host: str) -> bool:
    """Return whether a socket can be bound to the address, which makes it this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(socket.getaddrinfo(host, 0, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0][4])
    except OSError:
        return False
    return True


def _numeric(sockaddr: tuple[object, ...]) -> str:
    """Format a socket address, with its scope if it needs one; an IPv4 address mapped into IPv6
    becomes IPv4.
    """
    host = str(sockaddr[0])
    if len(sockaddr) == 4 and sockaddr[3] and "%" not in host:
        host = f"{host}%{sockaddr[3]}"
    return str(plain_ip(host))
