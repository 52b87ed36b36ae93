"""A daemon's part in its run: sockets, disk and trainer of one `Run`, and what finds and judges peers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from p2psgd.base.errors import ExitCode, UsageError, cannot
from p2psgd.base.formatting import counted
from p2psgd.core.closure.sums import ClosureMemory
from p2psgd.core.effects import Effect
from p2psgd.core.events import (
    BootstrapExpectChanged,
    Event,
    FrameReceived,
    LinkDrained,
    LinkOpened,
    RingChunk,
    RingUpdate,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.timing import Timing
from p2psgd.ipc.segments import ClosureSegments, DenseSegments
from p2psgd.ipc.trainer_session import TrainerSession
from p2psgd.net.address import Address
from p2psgd.net.handshake import make_hello
from p2psgd.net.mesh import Mesh
from p2psgd.net.rejections import Rejections
from p2psgd.net.tls import Credentials
from p2psgd.node.backpressure import BusyLinks
from p2psgd.node.disk import NodeDisk
from p2psgd.node.options import NodeOptions
from p2psgd.node.peers import NodePeers, Ranks
from p2psgd.node.recovery import RecoveredRun
from p2psgd.node.run import Decider, Network, RoundCosts, Run
from p2psgd.observe.compression import OwnCompression
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.identity import Identity
from p2psgd.storage.spill_file import FrameFile
from p2psgd.wire.mode import Mode, parse_mode
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade

log = logging.getLogger("p2psgd.node")


def adds(event: Event) -> bool:
    """Return whether an event brings something that is added up in a round."""
    if isinstance(event, FrameReceived):
        return isinstance(event.message, RingChunk | RingUpdate)
    return isinstance(event, BucketContributed | ContributionMade)


class Stopwatch(RoundCosts):
    """A stopwatch between the executor and the replica and mesh of a ring: it measures the cost of rounds."""

    def __init__(self, replica: Decider, network: Network) -> None:
        super().__init__()
        self.report_drained, self.drop = network.report_drained, network.drop
        self._replica = replica
        self._network = network

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Count how long the replica takes if the event is about a round."""
        if not adds(event):
            return self._replica.handle(event, now)
        begun = time.perf_counter()
        try:
            return self._replica.handle(event, now)
        finally:
            self.adding_s += time.perf_counter() - begun

    def send(self, peer: Origin, frame: bytes) -> None:
        """Count how long the network takes a frame."""
        begun = time.perf_counter()
        self._network.send(peer, frame)
        self.sending_s += time.perf_counter() - begun

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        """Count how long the network takes a frame of numbers."""
        begun = time.perf_counter()
        self._network.send_floats(peer, head, numbers)
        self.sending_s += time.perf_counter() - begun


class NodeRun(Run):
    """A node's part in the run, with the mesh of its links and all that finds and judges peers. Implements
    what the mesh asks of its host.
    """

    def __init__(
        self,
        opened: RecoveredRun,
        *,
        options: NodeOptions,
        identity: Identity,
        others: int,
        rank: tuple[int, int] | None,
        listen: Address,
        node_log: NodeLog,
        compression: OwnCompression,
        session: TrainerSession,
        credentials: Credentials | None,
        now: Callable[[], float],
        fail: Callable[[str, ExitCode], None],
        begin_again: Callable[[int, str], None],
        incarnations_left: int,
    ) -> None:
        """Make the replica, the mesh and the disk. `others`: nodes beside this one that its list names;
        `rank`: (i, n), if it is known; `now`: seconds in which this process has run;
        `begin_again`, `incarnations_left`: see `Rejections`. UsageError if the state directory cannot be
        written to, or this version does not know the run's mode.
        """
        self._options = options
        self._events = node_log.events
        self._bootstrap_expect = options.bootstrap_expect_of(others)
        spec, me, timing = opened.spec, identity.origin, Timing(options.failure_timeout_s)
        mode = known_mode(spec)
        store = _make_store(options)
        if opened.trainer is not None:
            session.restore(opened.trainer)
        self.disk = NodeDisk(options.state, me, timing, opened, alarm=node_log.alarm)
        replica = Replica(
            spec,
            me=me,
            coordinates=opened.coordinates,
            now=now(),
            timing=timing,
            bootstrap_expect=self._bootstrap_expect,
            votes=opened.votes,
            restored=opened.restored,
            log_budget_bytes=options.log_budget_bytes,
            store=store,
            store_budget_bytes=options.store_budget_bytes,
            dense=share_memory(spec, session) if mode.dense else None,
            memory=share_sums(spec, session) if mode.closure else None,
            names={**opened.names, me.node: identity.name},
        )
        node_log.events.names = replica.names.get
        greeting = make_hello(spec, me, identity.name, rank)
        self.mesh = Mesh(self, greeting, spec.coordinates, options.failure_timeout_s, now, credentials)
        watch = Stopwatch(replica, self.mesh)
        super().__init__(
            replica,
            decider=watch if mode.ring else replica,
            network=watch if mode.ring else self.mesh,
            storage=self.disk,
            session=session,
            attached=lambda: session.attachment is not None,
            costs=watch,
            node_log=node_log,
            known_nodes=self.mesh.news.keys(),
            events=node_log.events,
            shutdown=lambda effect: fail(
                effect.words, ExitCode.TEMPORARY if effect.again else ExitCode.FAILED
            ),
            now=now,
            disk_now=time.monotonic,
            call_soon=asyncio.get_running_loop().call_soon,
        )
        self._busy_links = BusyLinks(
            replica,
            session,
            unsent_bytes=self.mesh.unsent_bytes,
            call_later=asyncio.get_running_loop().call_later,
            now=asyncio.get_running_loop().time,
        )
        session.handle = self.handle
        self.peers = NodePeers(replica, self.mesh, options=options, listen=listen, node_log=node_log)
        self._ranks = Ranks(greeting.rank, node_log)
        self.rejections = Rejections(
            options.failure_timeout_s,
            incarnation=me.incarnation,
            incarnations_left=incarnations_left,
            linked_now=lambda: bool(self.mesh.links),
            fail=fail,
            begin_again=begin_again,
        )
        self.alarm, self.refused_by_peer = node_log.alarm, self.rejections.refused
        self.peers_received = self.peers.hear
        self._incarnations = replica.view  # of which no former life is linked
        steps = 0 if opened.trainer is None else opened.trainer.steps
        compression.begin(spec.tensors, shards=spec.shards, steps=steps)
        weights = counted(spec.weights, "weight")
        log.info("run %s: %s, quantum 2^%d", spec.fingerprint.hex()[:16], weights, spec.quantum_log2)

    def tick(self, loss: float | None = None) -> None:
        """Check incarnations, known peers, and the list, then do what is due in the run itself."""
        self._look_at_lives()
        self.peers.tick()
        if (nodes := self._options.bootstrap_expect_of(self.mesh.dialer.others)) != self._bootstrap_expect:
            self._bootstrap_expect = nodes
            self.handle(BootstrapExpectChanged(nodes))
        super().tick(loss)

    def outbox_taken(self) -> None:
        super().outbox_taken()
        if not self._in_rounds:
            self._busy_links.update_made()

    def _look_at_lives(self) -> None:
        """Note whether this incarnation is a member, and close links to incarnations older than
        the view's.
        """
        if self.replica.admitted:
            self.rejections.admitted()
        if self.replica.view is not self._incarnations:
            self._incarnations = self.replica.view
            self.mesh.drop_former_incarnations(self._incarnations.incarnations)

    def expects_peers(self) -> bool:
        """Return whether a peer that is not linked may come back: it is dialled, and has not stopped."""
        members = self.replica.view.incarnations
        return any(
            each.node not in self.stopped_nodes and (each.hinted is None or each.node in members)
            for each in self.mesh.dialer.dialers
        )

    # -- MeshHost

    def link_opened(self, peer: Origin, name: str) -> None:
        self.rejections.linked()
        super().link_opened(peer, name)
        self.peers.exchange.link_opened(peer)
        self._ranks.link_opened(peer.node, name, self.mesh.links[peer.node].rank)
        address = self.mesh.news[peer.node].address
        self._node_log.note("link", f"linked with {name} at {address}", peer.node)  # whose name is known now

    def link_replaced(self, peer: Origin, name: str) -> None:
        self.handle(LinkOpened(peer, name))
        self.peers.exchange.link_opened(peer)

    def link_closed(self, peer: Origin, words: str) -> None:
        self._ranks.link_closed(peer.node)
        self.peers.exchange.link_closed(peer)
        super().link_closed(peer, words)

    def link_drained(self, peer: Origin) -> None:
        self.handle(LinkDrained(peer))

    def member_incarnation(self, node: int) -> int | None:
        return self.replica.view.incarnations.get(node)

    def stranger_met(self, node: int, words: str) -> None:
        self._events.write("refused", words, node)


def known_mode(spec: RunSpec) -> Mode:
    """Return the run's mode; UsageError if this version does not know it."""
    try:
        return parse_mode(spec.mode)
    except ValueError as error:
        raise UsageError(str(error), ExitCode.CONFIGURATION) from None


def share_memory(spec: RunSpec, session: TrainerSession) -> DenseMemory:
    """Make the memory of a dense ring, which all trainers of the node share."""
    segments = DenseSegments(spec.weights)
    session.dense = segments
    return DenseMemory(segments.contributions, segments.arrays, segments.sums)


def share_sums(spec: RunSpec, session: TrainerSession) -> ClosureMemory:
    """Make the memory of mode `closure`, which all trainers of the node share."""
    session.closure = segments = ClosureSegments(spec.weights)
    return ClosureMemory(segments.parts, segments.totals)


def _make_store(options: NodeOptions) -> FrameFile:
    """Make the file where the log goes on beyond its budget in RAM."""
    try:
        return FrameFile(options.state, budget_bytes=options.store_budget_bytes)
    except OSError as error:
        raise cannot(f"make a file in {options.state}", error) from None
