"""hosts.txt: one `host[:port]` a line, `#` comments; the same file may be copied to every node.

A line that is this node's own address is recognised and skipped, and its place in the file tells the node's
share of the data. A bad line refuses the start by its number; a line that stands twice counts once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2psgd.errors import ExitCode, UsageError

PORT_DEFAULT: Final = 7315
HOSTS_MAX: Final = 1023  # peers of one node; the frontier holds 1,024 origins
FILE_BYTES_MAX: Final = 1024 * 1024
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")

log = logging.getLogger("p2psgd.discovery")


@dataclass(frozen=True, order=True)
class Address:
    """A host name or IP address and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Hosts:
    """What hosts.txt says: the peers to dial, and this node's (position, count) among all lines if it
    stands there itself.
    """

    peers: tuple[Address, ...]
    share: tuple[int, int] | None
    near_misses: tuple[
        Address, ...
    ] = ()  # this machine, but another port than the node's, if no line is its own


def parse_address(text: str, *, port_default: int | None = PORT_DEFAULT) -> Address:
    """`host`, `host:port`, `[ipv6]` or `[ipv6]:port`; ValueError with a sentence otherwise."""
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
    if not 0 <= port <= 65535 or (port == 0 and port_default is not None):
        raise ValueError(f"port {port} in {text!r:.80} is not within 1 to 65535")
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


def read_hosts(path: Path) -> tuple[Address, ...]:
    """The addresses in the file in its order, duplicates merged; UsageError that names the line otherwise."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a list of hosts?",
                ExitCode.CONFIGURATION,
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = (getattr(error, "strerror", None) or "it is not a text file").lower()
        raise UsageError(f"cannot read the list of hosts {path}: {words}", ExitCode.CONFIGURATION) from None
    addresses: dict[Address, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        try:
            addresses[parse_address(entry)] = None
        except ValueError as error:
            raise UsageError(f"{path} line {number}: {error}", ExitCode.CONFIGURATION) from None
        if len(addresses) > HOSTS_MAX:
            raise UsageError(f"{path} line {number}: more than {HOSTS_MAX} hosts", ExitCode.CONFIGURATION)
    return tuple(addresses)


async def find_hosts(path: Path, listening: Address, *, timeout_s: float) -> Hosts:
    """What the file says to the node that listens on `listening`, and says in the log about itself."""
    addresses = read_hosts(path)
    if not addresses:
        log.warning("%s names no host: this node dials nobody, and trains alone unless others dial it", path)
    hosts = await split_own(addresses, listening, timeout_s=timeout_s)
    if hosts.share is not None:
        log.info("%s names this node itself: that line is skipped", path)
    for address in hosts.near_misses:
        log.warning(
            "%s names this machine as %s, but this node listens on port %d: if that line is meant for it, "
            "start it with --listen HOST:%d",
            *(path, address, listening.port, address.port),
        )
    return hosts


async def split_own(addresses: tuple[Address, ...], listening: Address, *, timeout_s: float) -> Hosts:
    """Tell this node's own line (the first that leads to `listening`) from its peers'.

    Names are looked up together, for at most `timeout_s`; one that does not resolve is a peer that may
    resolve later.
    """
    here = await asyncio.gather(
        *(_leads_here(address, listening, timeout_s=timeout_s) for address in addresses)
    )
    own = [local and address.port == listening.port for address, local in zip(addresses, here, strict=True)]
    peers = tuple(address for address, ours in zip(addresses, own, strict=True) if not ours)
    if True not in own:
        return Hosts(
            peers, None, tuple(address for address, local in zip(addresses, here, strict=True) if local)
        )
    # Two lines may both be ours (a name and its address): the node counts once.
    return Hosts(peers, (own.index(True), len(peers) + 1))


async def _leads_here(address: Address, listening: Address, *, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return False
    return any(_is_local(str(info[4][0])) and _listens_on(str(info[4][0]), listening.host) for info in infos)


def _is_local(host: str) -> bool:
    """An address is this machine's if a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _listens_on(host: str, listen_host: str) -> bool:
    return ipaddress.ip_address(listen_host).is_unspecified or ipaddress.ip_address(
        host
    ) == ipaddress.ip_address(listen_host)
