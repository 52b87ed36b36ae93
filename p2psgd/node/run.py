"""A node's part in its run, from the moment when the run is known, whatever network and disk it has.

`Run` holds the replica, the executor of its effects, the checkpointer and the backpressure on its trainer.
It decides nothing about replication itself, and has no loop, clock, socket or file: the daemon (node_run.py)
and the simulator (tests/sim/daemon.py) run the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from p2psgd.core.effects import LogEvent, OpenRound, Shutdown
from p2psgd.core.events import (
    Event,
    FrameReceived,
    LinkClosed,
    LinkOpened,
    PeerMessage,
    PeerStatus,
    TimePassed,
    TrainerChanged,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.node.backpressure import Backpressure, Events, HeldTrainer
from p2psgd.node.checkpointer import Checkpointer, Storage
from p2psgd.node.executor import Decider, Executor, Handle, Network
from p2psgd.observe.text import unfounded_words
from p2psgd.wire.messages import Goodbye
from p2psgd.wire.mode import parse_mode


class Session(HeldTrainer, Protocol):
    """The node's trainer, if one is attached."""

    def deliver(self, body: bytes | bytearray) -> None: ...
    def replica_replaced(self) -> None: ...
    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None: ...
    def reject_contribution(self, words: str) -> None: ...
    def request_state(self) -> None: ...


class NodeLog(Protocol):
    """Takes what people read of the node; `node` is the one that it is about."""

    def alarm(self, words: str, node: int | None = None) -> None: ...
    def note(self, kind: str, words: str, node: int | None = None) -> None: ...


@dataclass
class RoundCosts:
    """Counts what rounds have cost this node since its trainer attached, in seconds."""

    adding_s: float = 0.0
    sending_s: float = 0.0

    def reset(self) -> None:
        """Begin anew for a trainer that has attached."""
        self.adding_s = self.sending_s = 0.0


class Rounds:
    """Opens the rounds of a ring for the node's trainer; `active`: there is one that takes part."""

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
        """Let the trainer give its next share, after round `done`; tell it what rounds cost.

        In a dense ring it knows of the round that its last share went into. If there was another besides,
        which this node missed and was given later, it takes the weights as a whole.
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
    """One node's replica and what gives it events and carries out its orders. Implements the executor's ports
    to the trainer and to people, and what the checkpointer asks of its host.

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
        node_log: NodeLog,
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
            journal: Notes and alarms for people.
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
        self.checkpointer = Checkpointer(self, storage, replica.timing, now=disk_now)
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
        self._in_ring = mode.ring
        self._session = session
        self._attached = attached
        self._node_log = node_log
        self._shutdown = shutdown
        self._sender: int | None = None  # of the frame that is being handled

    # -- time

    def pass_time(self, loop_lag_s: float) -> None:
        """Let the replica and all around it look at the clock."""
        self.handle(TimePassed(int(loop_lag_s * 1000)))
        self.checkpointer.pass_time(
            bytes_applied=self.replica.bytes_applied, log_capacity=self.replica.log_capacity
        )
        self.backpressure.look_at_links()
        self.look_at_network()
        self.backpressure.regulate()

    def look_at_network(self) -> None:
        """Do what is due beside the links themselves."""

    # -- the trainer

    def outbox_taken(self) -> None:
        """Regulate the trainer after its updates; in a ring it waits for the round anyway."""
        if not self._in_ring:
            self.backpressure.regulate()

    def trainer_changed(self, *, active: bool) -> None:
        """Let the trainer take part in the rounds of a ring from now on, or not."""
        if self._in_ring and active != self.rounds.active:
            self.rounds.active = active
            if active:
                self.rounds.begin()
            self.handle(TrainerChanged(active))

    # -- the executor's Trainer

    def open_round(self, effect: OpenRound) -> None:
        assert self.replica.ring is not None
        self.rounds.open(effect, done=self.replica.ring.done)

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
        """Of a node that is ready before the run is founded, more than the replica says."""
        if note.kind != "ready" or self.replica.view.number:
            return note.words
        return f"{note.words}, {unfounded_words(self.replica.view_waits, ring=self._in_ring)}"

    # -- the checkpointer's Host

    def alarm(self, words: str) -> None:
        self._node_log.alarm(words)

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        self._node_log.note(kind, words, node)

    def request_trainer_state(self) -> None:
        """Not of a trainer that is held up: giving its state would empty its outbox into a full log."""
        held_up = self.backpressure.held_up and self._attached()
        if not held_up or self.backpressure.draining:
            self._session.request_state()

    def sequence(self) -> int:
        return self.replica.sequence

    def damaged(self) -> bool:
        """Return whether the weights are wrong and checkpoint and log cannot repair them."""
        return self.replica.damaged

    def names(self) -> Mapping[int, str]:
        return self.replica.names

    # -- the network

    def link_opened(self, peer: Origin, name: str) -> None:
        """Report a linked peer to the replica."""
        self.stopped_nodes.discard(peer.node)
        self.handle(LinkOpened(peer, name))

    def link_closed(self, peer: Origin, words: str) -> None:
        """Note why the link to a peer is gone, and report it to the replica."""
        self.note("lost", f"lost the link to {self.replica.name_of(peer)}: {words}", peer.node)
        self.handle(LinkClosed(peer))
        self.backpressure.regulate()

    def peer_told(self, peer: Origin, message: PeerMessage, *, known: Set[int]) -> None:
        """Handle a peer's message. Of nodes that have stopped, the `known` ones are remembered."""
        self._sender = peer.node
        try:
            self.handle(FrameReceived(peer, message))
        finally:
            self._sender = None
        if isinstance(message, PeerStatus):
            self.backpressure.regulate()
        elif isinstance(message, Goodbye):
            self.stopped_nodes.add(peer.node)
            self.stopped_nodes &= known  # which is bounded
