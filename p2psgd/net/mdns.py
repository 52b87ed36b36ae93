"""Nodes on the same local network, by multicast DNS (zeroconf): this one is announced, others are seen.

Anybody on the network can announce anything, so an announcement is a hint: the run it claims, and where its
node may be dialled. What does not look like a node's announcement is passed over and counted. Imported only
when it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import ifaddr
import zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from p2psgd.net.address import Address, Host
from p2psgd.net.peer_exchange import TOLD_MAX
from p2psgd.wire.messages import IPAddress, plain_ip

SERVICE: Final = "_p2psgd._tcp.local."
ASKED_MS: Final = 3000  # for the rest of an announcement
ASKING_MAX: Final = 32  # announcements that are looked into at once
SEEN_MAX: Final = 1024  # announcements whose names are kept
FAREWELL_S: Final = 2.0
IGNORED: Final = "announcement that is no node's"

log = logging.getLogger("p2psgd.discovery")


@dataclass(frozen=True, slots=True)
class Sighting:
    """An announcement: a node, the fingerprint of its run, and where it may be; nowhere: it is gone."""

    node: int
    run: bytes
    host: Host


class LocalNetwork:
    """The mDNS side of a node, which announces it and calls `seen` with what others announce."""

    def __init__(
        self,
        node: int,
        run: bytes,
        listen: Address,
        *,
        advertised: Address | None,
        look_s: float,
        seen: Callable[[Sighting], None],
        trouble: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        """Configure the announcement. `listen` is numeric. `look_s`: between two looks at this machine's own
        addresses, or two attempts. `trouble` gets, once in a row, the reason why it does not work; "": it
        does. `count` gets the reason why an announcement is passed over.
        """
        self._node = node
        self._run = run
        self._listen = listen
        self._advertised = advertised
        self._look_s = look_s
        self._seen = seen
        self._trouble = trouble
        self._count = count
        self._asking: set[asyncio.Task[None]] = set()
        self._names: dict[str, Sighting] = {}
        self._words = ""

    async def run(self) -> None:
        """Announce and browse until cancelled; begin anew when this machine's addresses have changed, or it
        did not work.
        """
        while True:
            try:
                places = self._own_places()
                async with self._announced(places):
                    self._say("")
                    await self._stay(places)
            except (OSError, RuntimeError, zeroconf.Error) as error:
                self._say(f"zeroconf does not work here: {_words_of(error)}")
                await asyncio.sleep(self._look_s)

    async def _stay(self, places: list[str]) -> None:
        """Wait until this machine has other addresses."""
        while True:
            await asyncio.sleep(self._look_s)
            if self._own_places() != places:
                return

    def _say(self, words: str) -> None:
        if words != self._words:
            self._words = words
            self._trouble(words)

    @contextlib.asynccontextmanager
    async def _announced(self, places: list[str]) -> AsyncIterator[None]:
        six = any(":" in place for place in places)
        if not places:
            raise OSError("this machine has no address that others can reach")
        version = zeroconf.IPVersion.All if six else zeroconf.IPVersion.V4Only
        port = self._listen.port if self._advertised is None else self._advertised.port
        info = AsyncServiceInfo(
            SERVICE,
            f"{self._node:016x}.{SERVICE}",
            port=port,
            properties={"id": f"{self._node:016x}", "run": self._run.hex()},
            server=f"p2psgd-{self._node:016x}.local.",
            parsed_addresses=places,
        )
        network = AsyncZeroconf(ip_version=version)
        try:
            await network.zeroconf.async_wait_for_start()
            browser = AsyncServiceBrowser(network.zeroconf, SERVICE, handlers=[self._noticed])
            await (await network.async_register_service(info))
            yield
            await browser.async_cancel()
        finally:
            for task in self._asking:
                task.cancel()
            with contextlib.suppress(TimeoutError, OSError, zeroconf.Error):
                async with asyncio.timeout(FAREWELL_S):
                    await network.async_close()

    def _own_places(self) -> list[str]:
        """Return the addresses where others on the network can dial this node."""
        if self._advertised is not None:
            return [self._advertised.host]
        if not plain_ip(self._listen.host).is_unspecified:
            return [self._listen.host]
        found = [
            plain_ip(each.ip if isinstance(each.ip, str) else each.ip[0])
            for adapter in ifaddr.get_adapters()
            for each in adapter.ips
            if each.is_IPv4 or ":" in self._listen.host
        ]
        return sorted({str(ip) for ip in found if not (ip.is_loopback or ip.is_link_local)})

    # -- what others announce

    def _noticed(self, zeroconf: zeroconf.Zeroconf, service_type: str, name: str, state_change: Any) -> None:
        """Process an announcement that is new, changed or gone: the library's callback, on the loop."""
        if state_change.name == "Removed":
            sighting = self._names.pop(name, None)
            if sighting is not None:
                self._seen(Sighting(sighting.node, sighting.run, ()))
        elif len(self._asking) >= ASKING_MAX or (name not in self._names and len(self._names) >= SEEN_MAX):
            self._count("too many announcements")
        else:
            task = asyncio.get_running_loop().create_task(self._look_into(zeroconf, service_type, name))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _look_into(self, network: zeroconf.Zeroconf, service_type: str, name: str) -> None:
        try:
            info = AsyncServiceInfo(service_type, name)
            if not await info.async_request(network, ASKED_MS):
                return
            places = info.parsed_scoped_addresses()
            sighting = read_announcement(info.properties, places, info.port, here=self._listen)
        except Exception as error:  # whatever strangers send, and the library makes of it
            log.debug("an announcement cannot be read: %r", error)
            self._count(IGNORED)
            return
        if sighting.node != self._node:
            self._names[name] = sighting
            self._seen(sighting)


def read_announcement(
    properties: dict[bytes, bytes | None], places: list[str], port: int | None, *, here: Address
) -> Sighting:
    """Parse a TXT record and addresses into a sighting; ValueError if they are not a node's. Addresses that
    cannot be dialled from a node that listens on `here` are left out.
    """
    node, run = (_hex(properties.get(key), digits) for key, digits in ((b"id", 16), (b"run", 64)))
    if port is None or not 1 <= port <= 65535:
        raise ValueError("it has no port")
    on_loopback = plain_ip(here.host).is_loopback
    found = [plain_ip(text) for text in places[: 4 * TOLD_MAX]]
    usable = [ip for ip in found if _is_usable(ip) and (on_loopback or not ip.is_loopback)]
    if not usable:
        raise ValueError("it has no address that can be dialled")
    usable.sort(key=lambda ip: ip.is_link_local)
    return Sighting(
        int(node, 16), bytes.fromhex(run), tuple(Address(str(ip), port) for ip in usable[:TOLD_MAX])
    )


def _hex(value: bytes | None, digits: int) -> str:
    text = "" if value is None else value.decode("ascii")
    if re.fullmatch(f"[0-9a-f]{{{digits}}}", text) is None:
        raise ValueError(f"not {digits} hexadecimal digits")
    return text


def _is_usable(ip: IPAddress) -> bool:
    if ip.is_link_local and isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is None:
        return False
    return not (ip.is_unspecified or ip.is_multicast)


def _words_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
