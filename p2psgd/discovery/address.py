"""An address that can be dialled or listened on, as people write it: host, host:port or [ipv6]:port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

PORT_DEFAULT: Final = 7315
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True, order=True)
class Address:
    """A host name or IP address and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
