"""The addresses of a node's peers, and peers that train the same part of the data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from p2psgd.base.aio import raise_failure
from p2psgd.base.errors import words_of
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.net.address import Address
from p2psgd.net.mesh import Mesh
from p2psgd.net.peer_exchange import NAME, AddressHints, PeerExchange, pack_known_peers, read_known_peers
from p2psgd.node.options import NodeOptions
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.files import replacing
from p2psgd.wire.frames import Body

if TYPE_CHECKING:
    from p2psgd.net.mdns import Sighting


# ----------------------------------------------------------------------------
# Addresses of a node's peers, beside those of its list: reported by peers, seen on the local network, known
# from before. All of it hints, which are dialled; see net/peer_exchange.py.


OTHER_RUNS_MAX: Final = 16  # nodes of other runs on the network that are told of

log = logging.getLogger("p2psgd.node")


class NodePeers:
    """The address hints of one node: those reported, seen and kept."""

    def __init__(
        self, replica: Replica, mesh: Mesh, *, options: NodeOptions, listen: Address, node_log: NodeLog
    ) -> None:
        self._replica = replica
        self._mesh = mesh
        self._options = options
        self._listen = listen
        self._node_log = node_log
        self._hints = AddressHints()
        read_known_peers(options.state, self._hints)
        self.exchange = PeerExchange(
            mesh,
            self._hints,
            me=replica.me.node,
            port=listen.port,
            advertised=options.advertise,
            timing=replica.timing,
            now=mesh.now,
        )
        self._followed: tuple[int, int] | None = None
        self._written = self._hints.changed
        self._writing: asyncio.Task[None] | None = None
        self._write_due = 0.0
        self._other_runs: set[int] = set()
        self._network: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Announce and look for nodes on the local network, if that is asked for."""
        if not self._options.zeroconf:
            return
        from p2psgd.net.mdns import LocalNetwork

        replica = self._replica
        network = LocalNetwork(
            replica.me.node,
            replica.spec.fingerprint,
            self._listen,
            advertised=self._options.advertise,
            look_s=replica.timing.gone_s,
            seen=self._see,
            trouble=self._tell_trouble,
            count=self._mesh.dropped.count,
        )
        self._network = asyncio.get_running_loop().create_task(network.run(), name="zeroconf")
        self._network.add_done_callback(raise_failure)

    async def close(self) -> None:
        for task in (self._network, self._writing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def hear(self, peer: Origin, body: Body) -> None:
        """Process a PEERS message; PeerError if it is not one."""
        self.exchange.hear(peer, body, self._replica.view.incarnations)

    def tick(self) -> None:
        """Report, dial and keep what has become known."""
        replica, view = self._replica, self._replica.view
        self.exchange.tick(view.incarnations, replica.has_reported_view)
        if view.number:
            self._hints.keep(view.incarnations.keys() | self._mesh.links.keys())
        known = self._hints.version, view.number
        if known != self._followed:
            self._followed = known
            self._mesh.dialer.follow_hints(self._hints.wanted(view.incarnations, replica.me.node))
            # not of what the local network announces: that may be anybody
            self._mesh.known_hosts.told = [address.host for _, address in self._hints.told()]
        now = self._mesh.now()
        if self._hints.changed != self._written and now >= self._write_due and self._writing is None:
            self._written, self._write_due = self._hints.changed, now + replica.timing.failure_timeout_s
            content = pack_known_peers(self._hints.told())
            self._writing = asyncio.get_running_loop().create_task(self._write(content))

    async def _write(self, content: bytes) -> None:
        try:
            await asyncio.to_thread(self._replace, content)
        except OSError as error:
            log.warning("what is known of peers' addresses is not on disk: %s", words_of(error))
        finally:
            self._writing = None

    def _replace(self, content: bytes) -> None:
        with replacing(self._options.state / NAME) as file:
            file.write(content)

    def _see(self, sighting: Sighting) -> None:
        if sighting.run == self._replica.spec.fingerprint:
            if not self._hints.see(sighting.node, sighting.host):
                self._mesh.dropped.count("too many announcements")
            return
        self._hints.see(sighting.node, ())
        if sighting.host and sighting.node not in self._other_runs:
            self._mesh.dropped.count("announcement of another run")
            if len(self._other_runs) < OTHER_RUNS_MAX:
                self._other_runs.add(sighting.node)
                mine, theirs = self._replica.spec.fingerprint.hex()[:16], sighting.run.hex()[:16]
                words = (
                    f"a node at {sighting.host[0]} announces another run, {theirs}, not {mine}: not dialed"
                )
                self._node_log.note("refused", words, sighting.node)

    def _tell_trouble(self, words: str) -> None:
        if not words:
            self._node_log.note("zeroconf", "announced on the local network")
        elif self._options.peers is None:
            self._node_log.alarm(f"{words}; without it and without --peers this node finds nobody")
        else:
            self._node_log.note("zeroconf", words)


# ----------------------------------------------------------------------------
# Two nodes that take the same part of the data: their replicas stay alike, so nothing else would show it.


class Ranks:
    """The ranks of one node and those it is linked with; "" stands for one that is not known."""

    def __init__(self, own: str, node_log: NodeLog) -> None:
        self._own, self._node_log = own, node_log
        self._same: dict[int, str] = {}  # names of the linked nodes that have the same rank
        self._alarm = ""  # names the first of them: with a wrong list there may be hundreds

    def link_opened(self, node: int, name: str, rank: str) -> None:
        """Raise an alarm if that node has this one's rank."""
        if rank and rank == self._own:
            self._same[node] = name
            if not self._alarm:
                self._raise_alarm()

    def link_closed(self, node: int) -> None:
        """Clear the alarm about a node."""
        first = next(iter(self._same), None)
        if self._same.pop(node, None) is not None and node == first:
            self._node_log.settle(self._alarm)
            self._alarm = ""
            if self._same:
                self._raise_alarm()

    def _raise_alarm(self) -> None:
        node, name = next(iter(self._same.items()))
        self._alarm = (
            f"{name} has rank {self._own}, and so has this node: both train on the same samples;"
            " give all nodes their list of peers in the same order, or each its own --rank"
        )
        self._node_log.alarm(self._alarm, node)
