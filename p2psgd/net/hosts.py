"""hosts.txt: one `host[:port]` a line, `#` comments; the same file may be copied to every node.

A line that is this node's own address is recognised and skipped, and its place in the file gives the node's
rank, unless a line stands for several hosts: their order is unknown. A bad line refuses the file by its
number; a line that stands twice counts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import (
    Address,
    Host,
    UnknownNameError,
    hosts_of,
    is_here,
    is_loopback,
    is_numeric,
    is_own,
    look_up,
    parse_address,
)

HOSTS_MAX: Final = 1023  # peers of one node; the frontier holds 1,024 origins
FILE_BYTES_MAX: Final = 1024 * 1024
NAMED_MAX: Final = 8  # in one sentence

log = logging.getLogger("p2psgd.discovery")


@dataclass(frozen=True)
class Hosts:
    """The content of hosts.txt: the lines to dial, and this node's (position, count) among all if one is its
    own.

    `near_misses`: if no line is its own, those of this machine with another port, but for loopback ones,
    which are other nodes of it. `counts`: of each line that could be resolved, the hosts other than this node
    that it stands for; `several`: lines that stand for more than one, this node perhaps among them;
    `own_names`: names that stand for this node alone, so far.
    """

    peers: tuple[Address, ...]
    rank: tuple[int, int] | None
    near_misses: tuple[Address, ...] = ()
    counts: Mapping[Address, int] = field(default_factory=dict, compare=False)
    several: tuple[Address, ...] = ()
    own_names: tuple[Address, ...] = field(default=(), compare=False)

    @property
    def lines(self) -> tuple[Address, ...]:
        """Return all lines to dial or resolve again: the peers', and names of this node."""
        return self.peers + self.own_names

    @property
    def others(self) -> int:
        """Return how many other hosts the file names, as far as is known; a name that does not resolve is
        one.
        """
        return sum(self.counts.get(each, 1) for each in self.peers)


def read_hosts(path: Path) -> tuple[Address, ...]:
    """Read the addresses in the file in its order, duplicates merged; UsageError that names the line
    otherwise.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{path} is larger than {FILE_BYTES_MAX} bytes: is it a list of hosts?",
                ExitCode.CONFIGURATION,
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = (getattr(error, "strerror", None) or "it is not a text file").lower()
        sentence = f"cannot read the list of hosts {path.absolute()}: {words}"
        raise UsageError(sentence, ExitCode.CONFIGURATION) from None
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


async def find_hosts(
    path: Path, listening: Address, *, timeout_s: float, advertised: Address | None = None
) -> Hosts:
    """Read the file for the node that listens on `listening`, and log what it says about that node.

    `advertised`: where others dial it instead. UsageError if the file cannot be used.
    """
    addresses = read_hosts(path)
    if not addresses:
        log.warning("%s names no host: this node dials nobody, and trains alone unless others dial it", path)
    own = (listening,) if advertised is None else (listening, advertised)
    hosts = await split_own(addresses, *own, timeout_s=timeout_s)
    if hosts.rank is not None and not set(own) & set(addresses):  # by another name than its options have
        log.info("%s names this node itself: that line is skipped", path)
    for address in hosts.several:
        log.info("%s: %s stands for %s", path, address, f"{hosts.counts.get(address, 0)} other hosts")
    for address in hosts.near_misses:
        log.warning(
            "%s names this machine as %s, but this node listens on port %d: if that line is meant for it, "
            "start it with --listen HOST:%d",
            *(path, address, listening.port, address.port),
        )
    return hosts


def describe_change(before: Sequence[Address], after: Sequence[Address]) -> str:
    """Describe how the second list of lines to dial differs from the first; their order means nothing."""
    more, fewer = sorted(set(after) - set(before)), sorted(set(before) - set(after))
    words = [
        f"{what} {', '.join(map(str, some[:NAMED_MAX]))}{' and others' if len(some) > NAMED_MAX else ''}"
        for what, some in (("dials", more), ("no longer dials", fewer))
        if some
    ]
    return "; ".join(words) or "it names the same hosts"


async def split_own(addresses: tuple[Address, ...], *own: Address, timeout_s: float) -> Hosts:
    """Separate this node's own line (the first that leads to `own`, of which it listens on the first) from
    its peers'.

    Names are looked up together, for at most `timeout_s`; one that does not resolve is a peer that may
    resolve later.
    """
    found = await asyncio.gather(*(_look_up(address, timeout_s=timeout_s) for address in addresses))
    lines = [_Line.of(address, each, own) for address, each in zip(addresses, found, strict=True)]
    peers = tuple(line.address for line in lines if not line.own)
    several = tuple(line.address for line in lines if line.several)
    counts = {line.address: line.others for line in lines if line.others is not None}
    own_names = tuple(line.address for line in lines if line.own and not is_numeric(line.address))
    owned = [line.own for line in lines]
    if True not in owned:
        near = tuple(line.address for line in lines if line.here and not is_loopback(line.address))
        return Hosts(peers, None, () if several else near, counts, several, own_names)
    # Two lines may both be ours (a name and its address): the node counts once.
    rank = None if several else (owned.index(True), len(peers) + 1)
    return Hosts(peers, rank, (), counts, several, own_names)


@dataclass(frozen=True)
class _Line:
    """A line, and the hosts that it stands for; `others` None: not known yet."""

    address: Address
    own: bool = False  # this node and nobody else
    here: bool = False  # this machine, whatever the port
    several: bool = False
    others: int | None = None

    @classmethod
    def of(cls, address: Address, found: Host, own: Sequence[Address]) -> _Line:
        if not found:
            return cls(address, own=address in own)
        hosts = hosts_of(found)
        others = [host for host in hosts if not any(is_own(each, own) for each in host)]
        here = any(is_here(each, own[0]) for each in found)
        return cls(address, not others, here, len(hosts) > 1, len(others))


async def _look_up(address: Address, *, timeout_s: float) -> Host:
    try:
        return await look_up(address, timeout_s=timeout_s)
    except UnknownNameError:
        return ()
