"""A small LAN in network namespaces: hosts with an address each, joined by a bridge, every cable shaped to a
rate. A cable can be cut or made slow, and the way from one host to another closed.

Needs root and iproute2. Everything lives in namespaces of its own names and goes when the context ends, but
for the kernel's limit of neighbours, which many hosts raise.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

# The bridge's own address: a packet that is sent there for another host's IP address goes no further.
NOWHERE = "02:70:32:70:00:01"

# All namespaces share one table of neighbours, whose limit is usually 1,024. The kernel drops what is beyond:
# most connections between 64 hosts were never answered.
NEIGHBOURS_MAX = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


def command(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"


class Lan:
    """`hosts` namespaces with the addresses 10.77.0.1, 10.77.0.2, ...; each link carries `rate` both ways,
    and up to `burst` bytes at once.
    """

    def __init__(self, hosts: int, *, rate: str, burst: str = "64kb") -> None:
        self._prefix = f"p2psgd{os.getpid()}"
        self._rate, self._burst = rate, burst
        self.hosts = [f"{self._prefix}h{number}" for number in range(hosts)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(hosts)]
        self._bridge = f"{self._prefix}br"
        self._shaped_apart: dict[int, set[int]] = {}  # by host, to whom its rate is one of their own

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def within(self, number: int) -> list[str]:
        """What to put before a command to run it on host `number`."""
        return ["ip", "netns", "exec", self.hosts[number]]

    def set_link(self, number: int, *, up: bool) -> None:
        """Cut or restore a host's cable."""
        command("ip", "-n", self._bridge, "link", "set", f"v{number}", "up" if up else "down")

    def set_way(self, source: int, target: int, *, open: bool) -> None:
        """Lose every packet from one host to another, or let them through again; not the way back."""
        neighbour = (self.addresses[target], "dev", "eth0")
        if open:
            command("ip", "-n", self.hosts[source], "neigh", "delete", *neighbour)
        else:
            wrong = ("lladdr", NOWHERE, "nud", "permanent")
            command("ip", "-n", self.hosts[source], "neigh", "replace", *neighbour, *wrong)

    def close_port(self, number: int, port: int) -> None:
        """Drop what comes to a TCP port of a host, as its firewall would; its own connections go on."""
        rule = ("ip", "-n", self.hosts[number], "rule")
        coming = ("iif", "eth0", "ipproto", "tcp", "dport", str(port))
        command(*rule, "add", "pref", "1", *coming, "blackhole")
        command(*rule, "add", "pref", "2", "lookup", "local")
        command(*rule, "delete", "pref", "0")  # which would come before

    def set_rate(self, number: int, rate: str) -> None:
        """What a host's cable carries from now on, each way, such as "1mbit"."""
        shape = ("root", "tbf", "rate", rate, "burst", self._burst, "latency", "50ms")
        for namespace, device in ((self._bridge, f"v{number}"), (self.hosts[number], "eth0")):
            command("tc", "-n", namespace, "qdisc", "replace", "dev", device, *shape)
        self._shaped_apart.pop(number, None)

    def set_pair(self, one: int, other: int, rate: str) -> None:
        """What passes between two hosts from now on, each way, until `set_rate` of them."""
        for here, there in ((one, other), (other, one)):
            tc, eth0 = ("tc", "-n", self.hosts[here]), ("dev", "eth0")
            rest = ("burst", self._burst, "quantum", "60000")
            if here not in self._shaped_apart:
                self._shaped_apart[here] = set()
                command(*tc, "qdisc", "replace", *eth0, "root", "handle", "1:", "htb", "default", "1")
                command(
                    *tc,
                    "class",
                    "add",
                    *eth0,
                    *("parent", "1:"),
                    *("classid", "1:1"),
                    "htb",
                    "rate",
                    self._rate,
                    *rest,
                )
            own = f"1:{there + 2}"
            command(
                *tc, "class", "replace", *eth0, "parent", "1:", "classid", own, "htb", "rate", rate, *rest
            )
            if there not in self._shaped_apart[here]:
                self._shaped_apart[here].add(there)
                match = ("u32", "match", "ip", "dst", f"{self.addresses[there]}/32", "flowid", own)
                command(*tc, "filter", "add", *eth0, "parent", "1:", "protocol", "ip", *match)

    def _build(self) -> None:
        neighbours = 2 * len(self.hosts) ** 2
        if int(NEIGHBOURS_MAX.read_text(encoding="ascii")) < neighbours:
            NEIGHBOURS_MAX.write_text(f"{neighbours}", encoding="ascii")
        for namespace in (self._bridge, *self.hosts):
            command("ip", "netns", "add", namespace)
        no_router = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        command("ip", "netns", "exec", self._bridge, "sh", "-c", no_router)
        command("ip", "-n", self._bridge, "link", "add", "br0", "address", NOWHERE, "type", "bridge")
        command("ip", "-n", self._bridge, "link", "set", "br0", "up")
        for number, (host, address) in enumerate(zip(self.hosts, self.addresses, strict=True)):
            port = f"v{number}"
            link = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            command("ip", "-n", self._bridge, *link)
            command("ip", "-n", self._bridge, "link", "set", port, "master", "br0", "up")
            command("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            command("ip", "-n", host, "link", "set", "lo", "up")
            command("ip", "-n", host, "link", "set", "eth0", "up")
            self.set_rate(number, self._rate)

    def _remove(self) -> None:
        for namespace in (*self.hosts, self._bridge):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
