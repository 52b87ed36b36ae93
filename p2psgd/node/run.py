"""A node's part in its run: carries out the replica's effects, and opens rounds for the trainer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from p2psgd.core.effects import Effect, Halt, Note, OpenRound
from p2psgd.core.events import (
    BootstrapExpectChanged,
    Event,
    FrameReceived,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    PeerStatus,
    RingChunk,
    RingUpdate,
    TimePassed,
    TrainerChanged,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.timing import Timing
from p2psgd.errors import ExitCode, UsageError, cannot
from p2psgd.formatting import counted
from p2psgd.ipc.run_proposal import count_weights, own_tensors
from p2psgd.ipc.segments import DenseSegments
from p2psgd.ipc.trainer_session import TrainerSession
from p2psgd.net.address import Address
from p2psgd.net.handshake import make_greeting
from p2psgd.net.mesh import Mesh
from p2psgd.net.probe import Probing
from p2psgd.net.rejections import Refusals
from p2psgd.net.tls import Credentials
from p2psgd.node.backpressure import Regulation
from p2psgd.node.checkpointer import Keeper
from p2psgd.node.executor import Decider, Executor, Network
from p2psgd.node.options import NodeOptions
from p2psgd.node.peers import NodePeers, Shares
from p2psgd.node.recovery import Opened
from p2psgd.observe.compression import Accounts
from p2psgd.observe.text import unfounded_words
from p2psgd.storage.event_log import Journal
from p2psgd.storage.identity import Identity
from p2psgd.storage.spill_file import FrameFile
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import Goodbye
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.ring_messages import BucketShared, RoundShared

# ----------------------------------------------------------------------------
# What a node does around the rounds of a ring: it opens them for its trainer, and measures what they cost.
#
# The memory of a dense ring is made here, once the run is known.


def adds(event: Event) -> bool:
    """Whether an event brings something that is added up in a round."""
    if isinstance(event, FrameReceived):
        return isinstance(event.message, RingChunk | RingUpdate)
    return isinstance(event, BucketShared | RoundShared)


class Stopwatch:
    """Stands between the executor and the replica and mesh of a ring, and measures what rounds cost them, in
    seconds since the trainer attached.
    """

    def __init__(self, replica: Decider, network: Network) -> None:
        self.adding_s = self.sending_s = 0.0
        self.report_drained, self.drop = network.report_drained, network.drop
        self._replica = replica
        self._network = network

    def reset(self) -> None:
        """A trainer has attached."""
        self.adding_s = self.sending_s = 0.0

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

    def send_numbers(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        """Count how long the network takes a frame of numbers."""
        begun = time.perf_counter()
        self._network.send_numbers(peer, head, numbers)
        self.sending_s += time.perf_counter() - begun


class NodeRounds:
    """One node's. `active`: it has a trainer that takes part."""

    def __init__(self, spec: RunSpec, session: TrainerSession) -> None:
        """UsageError if this version does not know the run's mode."""
        try:
            self.mode = parse_mode(spec.mode)
        except ValueError as error:
            raise UsageError(str(error), ExitCode.CONFIGURATION) from None
        self.active = False
        self.memory: DenseMemory | None = None
        self._session = session
        self._opened_at: int | None = None  # the last completed round, when one was opened for it last
        if self.mode.dense:
            segments = DenseSegments(spec.weights)
            session.dense = segments
            self.memory = DenseMemory(segments.shares, segments.arrays, segments.sums)

    def begin(self) -> None:
        """A trainer has attached."""
        self._opened_at = None

    def open(self, effect: OpenRound, *, done: int, watch: Stopwatch) -> None:
        """Let the trainer give its next share, after round `done`; tell it what `watch` has measured.

        In a dense ring it knows of the round that its last share went into. If there was another besides,
        which this node missed and was given later, it takes the weights as a whole.
        """
        if self.mode.dense and self._opened_at is not None and done != self._opened_at + 1:
            self._session.replica_replaced()
        self._opened_at = done
        self._session.open_round(
            done + 1,
            contributors=effect.contributors,
            sums=effect.sums,
            adding_us=round(1e6 * watch.adding_s),
            sending_us=round(1e6 * watch.sending_s),
        )


# ----------------------------------------------------------------------------
# A node's part in its run, from the moment when the run is known.
#
# Holds the pure replica, the mesh of links and what is kept on disk together; an executor carries out what
# the replica orders. Decides nothing about replication itself.


log = logging.getLogger("p2psgd.node")


class NodeRun:
    """One node's replica and all that it needs to be one of the run's. Implements what the mesh and the
    keeper ask of their host, and the executor's ports to the trainer and to people.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        options: NodeOptions,
        identity: Identity,
        others: int,
        share: tuple[int, int] | None,
        listen: Address,
        journal: Journal,
        accounts: Accounts,
        session: TrainerSession,
        credentials: Credentials | None,
        now: Callable[[], float],
        fail: Callable[[str, ExitCode], None],
        begin_again: Callable[[int, str], None],
        lives_left: int,
    ) -> None:
        """`others`: nodes beside this one that its list names; `share`: (i, n) of the data, if it is known;
        `now`: seconds in which this process has run; `begin_again`, `lives_left`: see `Refusals`.
        UsageError if the state directory cannot be written to.
        """
        self.stopped_nodes: set[int] = set()
        self._sender: int | None = None  # of the frame that is being handled
        self._options = options
        self._journal = journal
        self._accounts = accounts
        self._session = session
        self._now = now
        self._fail = fail
        self._founders = options.founders_of(others)
        spec, me, timing = opened.spec, identity.origin, Timing(options.patience_s)
        self.rounds = NodeRounds(spec, session)
        store = _make_store(options)
        if opened.trainer is not None:
            session.restore(opened.trainer)
        self.keeper = Keeper(self, options.state, me, timing, opened, accounts=accounts)
        self.replica = Replica(
            spec,
            me=me,
            coordinates=opened.coordinates,
            now=now(),
            timing=timing,
            founders=self._founders,
            votes=opened.votes,
            restored=opened.restored,
            log_budget_bytes=options.log_budget_bytes,
            store=store,
            store_budget_bytes=options.store_budget_bytes,
            dense=self.rounds.memory,
            names={**opened.names, me.node: identity.name},
        )
        journal.events.names = self.replica.names.get
        self.regulation = Regulation(self.replica, session, journal.events, now=now)
        greeting = make_greeting(spec, me, identity.name, share)
        self.mesh = Mesh(self, greeting, options.patience_s, now, credentials)
        self._watch = Stopwatch(self.replica, self.mesh)
        ring = self.rounds.mode.ring
        self.executor = Executor(
            self._watch if ring else self.replica,
            network=self._watch if ring else self.mesh,
            disk=self.keeper,
            trainer=self,
            log=self,
            now=now,
            call_soon=asyncio.get_running_loop().call_soon,
        )
        self.handle = session.handle = self.executor.handle
        self.deliver, self.refuse_share = session.deliver, session.refuse_share
        measured = self.rounds.mode.order == "measured"
        self.probing = Probing(self.mesh, self.handle, timing=timing, now=now, wanted=measured)
        self.peers = NodePeers(self.replica, self.mesh, options=options, listen=listen, journal=journal)
        self._shares = Shares(greeting.share, journal)
        self.refusals = Refusals(
            options.patience_s,
            incarnation=me.incarnation,
            lives_left=lives_left,
            linked_now=lambda: bool(self.mesh.links),
            fail=fail,
            begin_again=begin_again,
        )
        self._lives = self.replica.view  # of which no former life is linked
        accounts.begin(spec, me, mini_batches=0 if opened.trainer is None else opened.trainer.mini_batches)
        weights = counted(count_weights(own_tensors(spec.tensors)), "weight")
        log.info("run %s: %s, quantum 2^%d", spec.fingerprint.hex()[:16], weights, spec.quantum_log2)

    # -- time

    def pass_time(self, loop_lag_s: float) -> None:
        """Let the replica and all around it look at the clock."""
        self.handle(TimePassed(int(loop_lag_s * 1000)))
        self.keeper.pass_time(
            time.monotonic(),
            bytes_applied=self.replica.bytes_applied,
            log_capacity=self.replica.log_capacity,
        )
        self.regulation.look_at_links()
        self._look_at_lives()
        self.peers.pass_time()
        self.probing.pass_time(idle=self.rounds.mode.ring and not self.replica.round_runs)
        if (nodes := self._options.founders_of(self.mesh.dialling.others)) != self._founders:
            self._founders = nodes
            self.handle(BootstrapExpectChanged(nodes))
        self.regulation.regulate()

    def _look_at_lives(self) -> None:
        """Whether this life is a member, and that nobody is linked in a life before that of the view."""
        if self.replica.admitted:
            self.refusals.admitted()
        if self.replica.view is not self._lives:
            self._lives = self.replica.view
            self.mesh.drop_former_lives(self._lives.lives)

    # -- the executor's Trainer

    def trainer_changed(self, *, active: bool) -> None:
        """In ring mode: whether this node's trainer takes part in rounds from now on."""
        if self.rounds.mode.ring and active != self.rounds.active:
            self.rounds.active = active
            if active:
                self.rounds.begin()
                self._watch.reset()
            self.handle(TrainerChanged(active))

    def open_round(self, effect: OpenRound) -> None:
        assert self.replica.ring is not None
        self.rounds.open(effect, done=self.replica.ring.done, watch=self._watch)

    def replica_replaced(self) -> None:
        self._session.replica_replaced()
        self.regulation.replica_replaced()

    # -- the executor's Log

    def alert(self, words: str) -> None:
        self._journal.alarm(words, self._sender)

    def event(self, note: Note) -> None:
        self.note(note.kind, self._words_of(note), note.node)

    def shutdown(self, effect: Halt) -> None:
        self._fail(effect.words, ExitCode.TEMPORARY if effect.again else ExitCode.FAILED)
        self.keeper.abandoning |= effect.abandon

    def _words_of(self, note: Note) -> str:
        """Of a node that is ready before the run is founded, more than the replica says."""
        if note.kind != "ready" or self.replica.view.number:
            return note.words
        return f"{note.words}, {unfounded_words(self.replica.view_waits, ring=self.rounds.mode.ring)}"

    # -- KeeperHost

    def alarm(self, words: str) -> None:
        self._journal.alarm(words)

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        self._journal.note(kind, words, node)

    def request_trainer_state(self) -> None:
        """Not of a trainer that is held up: giving its state would empty its outbox into a full log."""
        held_up = self.regulation.held_up and self._session.attachment is not None
        if not held_up or self.regulation.draining:
            self._session.request_state()

    def sequence(self) -> int:
        return self.replica.sequence

    def damaged(self) -> bool:
        """The weights are wrong, and cannot be made anew from checkpoint and log."""
        return self.replica.damaged

    def names(self) -> Mapping[int, str]:
        return self.replica.names

    # -- MeshHost

    def link_opened(self, peer: Origin, name: str) -> None:
        self.refusals.linked()
        self.stopped_nodes.discard(peer.node)
        self.handle(LinkOpened(peer, name))
        self.probing.link_opened(peer)
        self.peers.link_opened(peer)
        self._shares.link_opened(peer.node, name, self.mesh.links[peer.node].share)
        address = self.mesh.news[peer.node].address
        self.note("link", f"linked with {name} at {address}", peer.node)  # whose name is known now

    def link_replaced(self, peer: Origin, name: str) -> None:
        self.handle(LinkOpened(peer, name))
        self.probing.link_opened(peer)
        self.peers.link_opened(peer)

    def link_closed(self, peer: Origin, words: str) -> None:
        self.note("lost", f"lost the link to {self.replica.name_of(peer)}: {words}", peer.node)
        self._shares.link_closed(peer.node)
        self.probing.link_closed(peer)
        self.peers.link_closed(peer)
        self.handle(LinkClosed(peer))
        self.regulation.regulate()

    def link_drained(self, peer: Origin) -> None:
        self.handle(LinkDrained(peer))

    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None:
        message = parse_peer_message(frame_type, body)
        if message is None:
            if frame_type is FrameType.PROBE:
                self.probing.hear(peer, body)
            elif frame_type is FrameType.PEERS:
                self.peers.hear(peer, body)
            return
        self._sender = peer.node
        try:
            self.handle(FrameReceived(peer, message))
        finally:
            self._sender = None
        if isinstance(message, PeerStatus):
            self.regulation.regulate()
        elif isinstance(message, Goodbye):
            self.stopped_nodes.add(peer.node)
            self.stopped_nodes &= self.mesh.news.keys()  # which forgets nodes when they are too many

    def refused_by_peer(self, code: str, words: str, newest: int, *, listed: bool) -> None:
        self.refusals.refused(code, words, newest, listed=listed)

    def member_incarnation(self, node: int) -> int | None:
        return self.replica.view.lives.get(node)

    def stranger_met(self, node: int, words: str) -> None:
        self._journal.events.write("refused", words, node)


def _make_store(options: NodeOptions) -> FrameFile:
    """Where the log goes on beyond its budget in RAM."""
    try:
        return FrameFile(options.state, budget_bytes=options.store_budget_bytes)
    except OSError as error:
        raise cannot(f"make a file in {options.state}", error) from None
