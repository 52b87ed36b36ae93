"""A list of hosts: what its addresses mean to one node, whichever source gave them (see peer_sources).

An address that is this node's own is recognised and skipped. Its place gives the node's rank if all nodes get
the same list, unless an address stands for several hosts: their order is unknown. An address that stands
twice counts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from p2psgd.base.errors import UsageError
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
)
from p2psgd.net.peer_sources.source import PeerSource

NAMED_MAX: Final = 8  # in one sentence

log = logging.getLogger("p2psgd.discovery")


@dataclass(frozen=True)
class Hosts:
    """The content of a list of hosts: the lines to dial, and this node's (position, count) among all if one
    is its own.

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


async def find_hosts(
    source: PeerSource,
    listening: Address,
    *,
    timeout_s: float,
    advertised: Address | None = None,
    ports_above: int = 0,
    quiet: bool = False,
    may_be_empty: bool = True,
) -> Hosts:
    """Ask the source for the node that listens on `listening`, and log what the answer says about that node
    unless `quiet`.

    `advertised`: where others dial it instead; `ports_above`: how much higher all ports are than those in the
    list. UsageError if the source gives no list, or an empty one unless that `may_be_empty`.
    """
    addresses = tuple(each.above(ports_above) for each in await source.addresses())
    if not (addresses or may_be_empty):
        raise UsageError(f"{source} names no host any more")
    own = (listening,) if advertised is None else (listening, advertised)
    hosts = await split_own(addresses, *own, timeout_s=timeout_s)
    if not source.ordered:
        hosts = replace(hosts, rank=None)
    if not quiet:
        _log_hosts(source, addresses, hosts, own)
    return hosts


def _log_hosts(
    source: PeerSource, addresses: Sequence[Address], hosts: Hosts, own: Sequence[Address]
) -> None:
    if not addresses:
        log.warning(
            "%s names no host: this node dials nobody, and trains alone unless others dial it", source
        )
    if hosts.rank is not None and not set(own) & set(addresses):  # by another name than its options have
        log.info("%s names this node itself: that line is skipped", source)
    for address in hosts.several:
        log.info("%s: %s stands for %s", source, address, f"{hosts.counts.get(address, 0)} other hosts")
    for address in hosts.near_misses:
        log.warning(
            "%s names this machine as %s, but this node listens on port %d: if that line is meant for it, "
            "start it with --listen HOST:%d",
            *(source, address, own[0].port, address.port),
        )


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
