"""The list of hosts: does it name this machine, and what follows from its place in it?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.hosts import Hosts
from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.ops import numerals

CHECK: Final = "hosts"


def check_hosts(path: Path, addresses: Sequence[Address], hosts: Hosts, listen: Address) -> Finding:
    """`hosts` is what `addresses` say to the node that listens on `listen`."""
    if not addresses:
        return problem(CHECK, f"{path} names no host", f"echo HOST[:PORT] >> {path}, a line for each machine")
    lines = numerals.counted(len(addresses), "line")
    if hosts.share is not None:
        own, count = hosts.share
        words = (
            f"{path}: {lines}, {own_line(addresses, hosts)} is this machine: share {own}/{count} of the data"
        )
        return ok(CHECK, words)
    if hosts.several:
        names = numerals.listed([str(each.host) for each in hosts.several])
        words = f"{path}: {lines}; {names} stands for several hosts, so no line tells a share of the data"
        return note(CHECK, words, "give each trainer its --share i/n")
    if hosts.near_misses:
        near = hosts.near_misses[0]
        words = f"{path} names this machine as {near}, but the node is to listen on port {listen.port}"
        return problem(
            CHECK, words, f"--listen {listen.host}:{near.port}, or port {listen.port} in that line"
        )
    words = f"{path}: {lines}, none of them is this node: its trainer will not know its share of the data"
    return note(CHECK, words, "add this machine's line on all machines, or give its trainer --share i/n")


def own_line(addresses: Sequence[Address], hosts: Hosts) -> Address | None:
    """This node's own address in the list."""
    others = set(hosts.peers)
    return next((each for each in addresses if each not in others), None) if hosts.share else None
