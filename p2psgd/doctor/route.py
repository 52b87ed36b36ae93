"""Which way the kernel sends packets to an address: asked over rtnetlink [RFC 3549], as `ip route get`."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Final

_MESSAGE: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ROUTE: Final = struct.Struct(
    "=BBBBBBBBI"
)  # rtmsg; the second byte is the length of the destination's prefix
_ATTRIBUTE: Final = struct.Struct("=HH")
_GET_ROUTE, _NEW_ROUTE, _ERROR, _REQUEST = 26, 24, 2, 1
_TO, _INTERFACE, _GATEWAY, _SOURCE = 1, 4, 5, 7
_LOCAL: Final = 2  # RTN_LOCAL
_FIB_MATCH: Final = 0x2000  # the route as it stands in the table, Linux 4.13
ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Route:
    """`prefix_bits` of the destination are what the route is for: 0 is the default route. `gateway` is empty
    if the address is on the link itself; `local`: it is this machine's own.
    """

    interface: str
    source: str
    gateway: str
    prefix_bits: int
    local: bool

    def why(self, host: str) -> str:
        """The reason, in a few words."""
        if self.local:
            return "an address of this machine"
        if self.gateway:
            kind = "the default route" if self.prefix_bits == 0 else f"a route to /{self.prefix_bits}"
            return f"by {kind}, over {self.gateway}"
        return f"its network is on that interface, {_network(host, self.prefix_bits)}"


def find_route(host: str) -> Route:
    """The way to a numeric address; OSError if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    chosen = _ask(host, family, 0)
    table = _ask(host, family, _FIB_MATCH)
    source = chosen.attributes.get(_SOURCE)
    index = chosen.attributes.get(_INTERFACE, b"")
    return Route(
        interface=_name(index),
        source=_source(host, family) if source is None else socket.inet_ntop(family, source),
        gateway=socket.inet_ntop(family, chosen.attributes[_GATEWAY])
        if _GATEWAY in chosen.attributes
        else "",
        prefix_bits=table.prefix_bits,
        local=chosen.kind == _LOCAL,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """An RTM_NEWROUTE."""

    prefix_bits: int
    kind: int
    attributes: dict[int, bytes]


def _ask(host: str, family: int, flags: int) -> _Answer:
    address = socket.inet_pton(family, host.partition("%")[0])
    body = _ROUTE.pack(family, 8 * len(address), 0, 0, 0, 0, 0, 0, flags)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address), _TO) + address
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(1.0)
        netlink.send(_MESSAGE.pack(_MESSAGE.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body)
        return _parse(netlink.recv(ANSWER_BYTES_MAX))


def _parse(data: bytes) -> _Answer:
    length, kind, *_ = _MESSAGE.unpack_from(data)
    if kind == _ERROR:
        (code,) = struct.unpack_from("=i", data, _MESSAGE.size)
        raise OSError(-code, "no route")
    if kind != _NEW_ROUTE:
        raise OSError(f"an answer of type {kind}")
    fields = _ROUTE.unpack_from(data, _MESSAGE.size)
    attributes: dict[int, bytes] = {}
    place = _MESSAGE.size + _ROUTE.size
    while place + _ATTRIBUTE.size <= length:
        size, name = _ATTRIBUTE.unpack_from(data, place)
        if size < _ATTRIBUTE.size:
            break
        attributes[name] = data[place + _ATTRIBUTE.size : place + size]
        place += (size + 3) & ~3
    return _Answer(fields[1], fields[7], attributes)


def _name(index: bytes) -> str:
    try:
        return socket.if_indextoname(struct.unpack("=I", index)[0])
    except (OSError, struct.error):
        return "?"


def _source(host: str, family: int) -> str:
    """As a socket gets it."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _network(host: str, bits: int) -> str:
    return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{bits}", strict=False))
