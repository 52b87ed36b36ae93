"""A node's part in its run, from the moment when the run is known, whatever network and disk it has.

`Executor` gives events to the replica and carries out what it orders, in the order given. `Run` is the
replica with its executor, its checkpointer and the backpressure on its trainer. Both have no loop, clock,
socket or file of their own and decide nothing about replication: the daemon (node_run.py) and the simulator
(tests/sim/daemon.py) run the same class, the clusters of the core's tests the executor alone.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

from p2psgd.core.effects import (
    Alert,
    AnswerEvaluation,
    Deliver,
    Drop,
    Effect,
    LogEvent,
    OpenRound,
    Persist,
    ReadCheckpoint,
    RejectContribution,
    Reload,
    ReportDrained,
    SaveVotes,
    Send,
    SendFloats,
    Shutdown,
    WriteCheckpoint,
    Yield,
)
from p2psgd.core.events import (
    Event,
    FrameReceived,
    LinkClosed,
    LinkOpened,
    PeerMessage,
    PeerStatus,
    Resumed,
    TimePassed,
    TrainerChanged,
    UpdateBody,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.node.backpressure import Backpressure, Events, HeldTrainer
from p2psgd.node.checkpointer import Checkpointer, EventSink, Storage
from p2psgd.observe.text import unfounded_words
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import Goodbye
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import RejectCode

# ----------------------------------------------------------------------------
# The clock that a replica goes by.


class RunningClock:
    """A clock of the seconds in which this node's own process has run.

    Peers are judged by how long nothing came from them. A process that was not scheduled (an overcommitted
    host, a suspended VM, SIGSTOP) has read nothing meanwhile: that time is not a peer's silence. The event
    loop reads this clock many times between two STATUS, so a longer gap between two readings is such a pause,
    and `gap_s_max` of it are counted.
    """

    def __init__(self, monotonic: Callable[[], float], *, gap_s_max: float) -> None:
        """Start from `monotonic`, the clock that this one begins with."""
        self.paused_s = 0.0  # all pauses so far, beyond what was counted of them
        self._gap_s_max = gap_s_max
        self._monotonic = monotonic
        self._read = monotonic()

    def read(self) -> float:
        """Return the time in seconds; it never decreases."""
        now = self._monotonic()
        self.paused_s += max(0.0, now - self._read - self._gap_s_max)
        self._read = max(now, self._read)
        return self._read - self.paused_s


# ----------------------------------------------------------------------------
# The executor works on the small ports below: the daemon gives it its mesh, disk and trainer, the simulator
# and the clusters of the core's tests give the same class theirs.


Handle = Callable[[Event], object]


class Decider(Protocol):
    """The replica, or an object that watches it."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...


class Network(Protocol):
    """The links to peers. An order for a peer that is not linked (any more) has no effect."""

    def send(self, peer: Origin, frame: bytes) -> None: ...
    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None: ...
    def report_drained(self, peer: Origin) -> None: ...
    def drop(self, peer: Origin, code: RejectCode, details: str) -> None: ...


class Disk(Protocol):
    """The store that outlives the process; it answers by VotesSaved, CheckpointWritten and CheckpointRead."""

    def save_votes(self, effect: SaveVotes) -> None: ...
    def write(self, effect: WriteCheckpoint) -> None: ...
    def read(self) -> None: ...
    def add_own(self, frame: bytes) -> None: ...


class Trainer(Protocol):
    """The node's trainer, if one is attached."""

    def deliver(self, body: bytes | bytearray) -> None: ...
    def replica_replaced(self) -> None: ...
    def open_round(self, effect: OpenRound) -> None: ...
    def reject_contribution(self, words: str) -> None: ...
    def answer_evaluation(self, answer: EvaluationAnswered) -> None: ...


class Log(Protocol):
    """The port to people: takes what they read of the node, and what ends it."""

    def alert(self, words: str) -> None: ...
    def event(self, note: LogEvent) -> None: ...
    def shutdown(self, effect: Shutdown) -> None: ...


class Executor:
    """The executor, which carries out what one replica orders, until it is `closed`."""

    def __init__(
        self,
        replica: Decider,
        *,
        network: Network,
        disk: Disk,
        trainer: Trainer,
        log: Log,
        now: Callable[[], float],
        call_soon: Callable[[Handle, Event], object],
    ) -> None:
        """Take `now`, the clock that the replica goes by; `call_soon` calls back in the loop's next turn."""
        self.closed = False
        self._replica = replica
        self._network = network
        self._disk = disk
        self._trainer = trainer
        self._log = log
        self._now = now
        self._call_soon = call_soon

    def handle(self, event: Event) -> list[Effect]:  # noqa: PLR0912 (one case an effect)
        """Give the replica an event, do what it orders, and return that."""
        if self.closed:
            return []  # a turn that was ordered before
        effects = self._replica.handle(event, self._now())
        drops: list[Drop] = []
        for effect in effects:
            match effect:
                case Send():
                    self._network.send(effect.peer, effect.frame)
                case SendFloats():
                    self._network.send_floats(effect.peer, effect.head, effect.numbers)
                case Persist():
                    self._disk.add_own(effect.frame)
                case Deliver():
                    self._trainer.deliver(effect.body)
                case ReportDrained():
                    self._network.report_drained(effect.peer)
                case Drop():
                    drops.append(effect)
                case Yield():
                    self._call_soon(self.handle, Resumed())
                case OpenRound():
                    self._trainer.open_round(effect)
                case RejectContribution():
                    self._trainer.reject_contribution(effect.words)
                case AnswerEvaluation():
                    self._trainer.answer_evaluation(effect.answer)
                case Reload():
                    self._trainer.replica_replaced()
                case SaveVotes():
                    self._disk.save_votes(effect)
                case WriteCheckpoint():
                    self._disk.write(effect)
                case ReadCheckpoint():
                    self._disk.read()
                case LogEvent():
                    self._log.event(effect)
                case Alert():
                    self._log.alert(effect.words)
                case Shutdown():
                    self._log.shutdown(effect)
        for drop in drops:  # each is another event at once, and what that sends must not come before the rest
            self._network.drop(drop.peer, drop.code, drop.details)
        return effects


# ----------------------------------------------------------------------------
# The parts around the replica and its executor in every run.


class Session(HeldTrainer, Protocol):
    """The node's trainer, if one is attached."""

    def deliver(self, body: bytes | bytearray) -> None: ...
    def replica_replaced(self) -> None: ...
    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None: ...
    def reject_contribution(self, words: str) -> None: ...
    def answer_evaluation(self, answer: EvaluationAnswered) -> None: ...
    def request_state(self) -> None: ...


@dataclass
class RoundCosts:
    """The costs of rounds to this node since its trainer attached, in seconds."""

    adding_s: float = 0.0
    sending_s: float = 0.0

    def reset(self) -> None:
        """Begin anew for a trainer that has attached."""
        self.adding_s = self.sending_s = 0.0


class Rounds:
    """The opener of rounds for the node's trainer; `active`: there is one that takes part."""

    def __init__(self, session: Session, costs: RoundCosts, *, dense: bool) -> None:
        self.active = False
        self._session = session
        self._costs = costs
        self._dense = dense
        self._opened_at: int | None = None  # the last completed round, when one was opened for it last

    def begin(self) -> None:
        """Begin anew for a trainer that has attached."""
        self._costs.reset()
        self._opened_at = None

    def open(self, effect: OpenRound, *, done: int) -> None:
        """Let the trainer give its next contribution, after round `done`, and send it the costs of rounds.

        In a dense ring it knows of the round that its last contribution went into. If there was another
        besides, which this node missed and was given later, it takes the weights as a whole.
        """
        if self._dense and self._opened_at is not None and done != self._opened_at + 1:
            self._session.replica_replaced()
        self._opened_at = done
        self._session.open_round(
            done + 1,
            contributors=effect.contributors,
            sums=effect.sums,
            adding_us=round(1e6 * self._costs.adding_s),
            sending_us=round(1e6 * self._costs.sending_s),
        )


class Run:
    """The replica of one node, with the parts that give it events and carry out its orders. Implements the
    executor's ports to the trainer and to people, and what the checkpointer asks of its host.

    Attributes:
        handle: Gives the replica an event, and carries out what it orders.
        stopped_nodes: Nodes that have said goodbye, and are not linked again.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        decider: Decider,
        network: Network,
        storage: Storage,
        session: Session,
        attached: Callable[[], bool],
        costs: RoundCosts,
        node_log: EventSink,
        known_nodes: Set[int],
        events: Events,
        shutdown: Callable[[Shutdown], None],
        now: Callable[[], float],
        disk_now: Callable[[], float],
        call_soon: Callable[[Handle, Event], object],
    ) -> None:
        """Begin.

        Args:
            replica: What decides.
            decider: The replica, or what stands before it and watches it.
            network: The links to peers.
            storage: The node's disk.
            session: The node's trainer.
            attached: Whether a trainer is.
            costs: What rounds cost, as far as somebody measures it.
            node_log: Gets events and alarms for people.
            known_nodes: The nodes that the network remembers now: no others are kept in `stopped_nodes`.
            events: Where the trainer's stalls are noted.
            shutdown: Ends the node.
            now: Seconds in which this process has run: the clock that the replica goes by.
            disk_now: The monotonic clock, in seconds, that the disk's work goes by.
            call_soon: Calls back in the loop's next turn.
        """
        mode = parse_mode(replica.spec.mode)
        self.replica = replica
        self.stopped_nodes: set[int] = set()
        self.rounds = Rounds(session, costs, dense=mode.dense)
        self.checkpointer = Checkpointer(self, replica, storage, node_log, now=disk_now)
        self.backpressure = Backpressure(replica, session, events, now=now)
        self.executor = Executor(
            decider,
            network=network,
            disk=self.checkpointer,
            trainer=self,
            log=self,
            now=now,
            call_soon=call_soon,
        )
        self.handle = self.executor.handle
        self.deliver, self.reject_contribution = session.deliver, session.reject_contribution
        self.answer_evaluation = session.answer_evaluation
        self._in_rounds, self._has_owners, self._evaluates = mode.rounds, mode.owners, mode.closure
        self._session = session
        self._attached = attached
        self._node_log = node_log
        self._known_nodes = known_nodes
        self._shutdown = shutdown
        self._sender: int | None = None  # of the frame that is being handled

    # -- time

    def tick(self, loss: float | None = None) -> None:
        """Let the replica and all around it look at the clock. `loss`: of the node's trainer."""
        self.handle(TimePassed(loss))
        self.checkpointer.tick(
            bytes_applied=self.replica.tally.bytes_applied, log_capacity=self.replica.log.capacity
        )
        self.backpressure.look_at_links()
        self.backpressure.regulate()

    # -- the trainer

    def outbox_taken(self) -> None:
        """Regulate the trainer after its updates; in rounds it waits for the round anyway."""
        if not self._in_rounds:
            self.backpressure.regulate()

    def trainer_changed(self, *, active: bool) -> None:
        """Let the trainer take part in rounds or evaluations from now on, or not."""
        if (self._in_rounds or self._evaluates) and active != self.rounds.active:
            self.rounds.active = active
            if active:
                self.rounds.begin()
            self.handle(TrainerChanged(active))

    # -- the executor's Trainer

    def open_round(self, effect: OpenRound) -> None:
        self.rounds.open(effect, done=self.replica.rounds_done)

    def replica_replaced(self) -> None:
        self._session.replica_replaced()
        self.backpressure.replica_replaced()

    # -- the executor's Log

    def alert(self, words: str) -> None:
        self._node_log.alarm(words, self._sender)

    def event(self, note: LogEvent) -> None:
        self._node_log.note(note.kind, self._words_of(note), note.node)

    def shutdown(self, effect: Shutdown) -> None:
        self._shutdown(effect)
        self.checkpointer.abandoning |= effect.abandon

    def _words_of(self, note: LogEvent) -> str:
        """Return an event's words, for a node that is ready before the cluster has formed with more than the
        replica says.
        """
        if note.kind != "ready" or self.replica.view.number:
            return note.words
        return f"{note.words}, {unfounded_words(self.replica.membership.explain(), ring=self._in_rounds)}"

    # -- the checkpointer's Host

    def request_trainer_state(self) -> None:
        """Ask the trainer for its state, but not one that is held up: that would empty its outbox into a full
        log.
        """
        held_up = self.backpressure.held_up and self._attached()
        if not held_up or self.backpressure.draining:
            self._session.request_state()

    # -- the network

    def link_opened(self, peer: Origin, name: str) -> None:
        """Report a linked peer to the replica."""
        self.stopped_nodes.discard(peer.node)
        self.handle(LinkOpened(peer, name))

    def link_closed(self, peer: Origin, words: str) -> None:
        """Note why the link to a peer is gone, and report it to the replica."""
        self._node_log.note(
            "lost", f"lost the link to {self.replica.cluster.name_of(peer)}: {words}", peer.node
        )
        self.handle(LinkClosed(peer))
        self.backpressure.regulate()

    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None:
        """Handle a frame of a linked peer."""
        message = parse_peer_message(frame_type, body)
        if message is not None:
            self.message_received(peer, message)

    def message_received(self, peer: Origin, message: PeerMessage) -> None:
        """Handle what a linked peer sent."""
        self._sender = peer.node
        try:
            self.handle(FrameReceived(peer, message))
        finally:
            self._sender = None
        if isinstance(message, PeerStatus) or (self._has_owners and isinstance(message, UpdateBody)):
            self.backpressure.regulate()
        elif isinstance(message, Goodbye):
            self.stopped_nodes.add(peer.node)
            self.stopped_nodes &= self._known_nodes  # which are bounded
