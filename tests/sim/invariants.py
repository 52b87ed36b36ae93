"""What must hold after every event.

README.md lists the names I1 to I11 and says how each is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alert, Deliver, Effect, Reload, Send, Shutdown
from p2psgd.core.events import (
    CheckpointRead,
    Event,
    FrameReceived,
    PeerMessage,
    UpdateBody,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.view_change import VOTES_OVERDRAFT_BYTES
from p2psgd.wire.frames import FrameType
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.agreement import Agreement
from tests.sim.faults import Duplicated, Lie
from tests.sim.judging import Judge
from tests.sim.judging import World as JudgesWorld
from tests.sim.ledger import Book, Entry, Ledger, label
from tests.sim.liar.lies import LIES
from tests.sim.liar.naming import Naming
from tests.sim.outcome import Violation
from tests.sim.owners.contributions import Account
from tests.sim.owners.contributions import World as OwnersWorld
from tests.sim.reunion import find_trapped
from tests.sim.ring.dense_ledger import DenseBook, DenseLedger
from tests.sim.ring.rules import RingRules
from tests.sim.ring.rules import World as RulesWorld
from tests.sim.sightings import note_replaced
from tests.sim.whole import Grave, bury, check_all, check_one

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

COSTLY_EVERY: Final = 50  # events of the whole world
PARSED_MAX: Final = 512
DRAINED_SHARE: Final = 4  # a link has drained when a quarter of its credit, or less, is on its way
OVERSHOOT_BYTES: Final = 8 * 1024  # the frame that ends the credit, greeting, votes and farewell


class World(JudgesWorld, RulesWorld, OwnersWorld, Protocol):
    """What the inspector sees of the world."""

    lying: set[Origin]  # lives that are liars' now


class Inspector:
    """Checks one run."""

    def __init__(self, world: World, initial: NDArray[np.int32]) -> None:
        scenario = world.scenario
        self.agreement = Agreement(bootstrap_expect=scenario.nodes, two_nodes=scenario.two_nodes)
        self.ledger: Ledger | DenseLedger = Ledger(initial)
        self.rules: RingRules | None = None
        if scenario.ring is not None:
            dense = DenseLedger(initial, scenario.ring) if scenario.ring.mode.dense else None
            self.ledger = dense or self.ledger
            self.rules = RingRules(world, self.agreement, self.ledger)
        self.account: Account | None = None
        if scenario.owners is not None:
            assert isinstance(self.ledger, Ledger)
            self.account = Account(world, self.ledger)
        self.judge = Judge(world)
        self.unchecked = any(
            isinstance(each, Lie) and not LIES[each.what].covered for each in scenario.faults
        )
        self.naming = Naming(world, strict=not self.unchecked)
        self.events = 0
        self._world = world
        self._duplicating = any(isinstance(fault, Duplicated) for fault in scenario.faults)
        credit = scenario.credit_bytes
        self._under_way_max = credit + credit // DRAINED_SHARE + OVERSHOOT_BYTES
        self._parsed: dict[tuple[Origin, bytes], tuple[FrameType, PeerMessage | None]] = {}

    def open_book(self, replica: Replica) -> Book | DenseBook:
        """What a new life must hold."""
        if isinstance(self.ledger, DenseLedger):
            return DenseBook(self.ledger, replica)
        return Book(self.ledger, replica, checked=not self.unchecked)

    def parsed(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> PeerMessage | None:
        """What a control frame means; a node tells all its peers the same, so it is parsed once."""
        known = self._parsed.get((peer, body := bytes(body)))
        if known is not None and known[0] is frame_type:
            return known[1]
        if len(self._parsed) >= PARSED_MAX:
            self._parsed.clear()
        message = parse_peer_message(frame_type, body)
        self._parsed[peer, body] = frame_type, message
        return message

    def after_event(self, daemon: Daemon, event: Event, effects: list[Effect]) -> None:
        """Violation unless the node and what it orders are as they must be."""
        self.events += 1
        if self.unchecked:  # but for whether the core raises anything
            daemon.view = daemon.replica.membership.view
            self.agreement.believe(daemon.view)
        else:
            self._check_event(daemon, event, effects)

    def _check_event(self, daemon: Daemon, event: Event, effects: list[Effect]) -> None:
        replica = daemon.replica
        if self.account is not None:
            self.account.after_event(daemon, event, effects)
        elif isinstance(event, OwnUpdateMade | ContributionMade):
            self._record(replica, event)
        if isinstance(event, CheckpointRead):
            self.judge.checkpoint_read(daemon, event)
        rare = [effect for effect in effects if not isinstance(effect, Send)]
        delivered, replaced = self._look_at(daemon, event, rare) if rare else ([], False)
        if self.rules is not None:
            self.rules.after_event(daemon, event, effects)
        applied = daemon.book.follow(replica, event, replaced=replaced)
        daemon.trimming.follow(self._applied_by, replaced=replaced)
        if replaced:
            daemon.exchange.replaced(event)
            self._note_floors(daemon)
        if any(origin == replica.me for origin, _ in applied):
            daemon.exchange.published(event)
        update = event.message if isinstance(event, FrameReceived) else None
        if isinstance(update, UpdateBody):
            daemon.exchange.received(update, applied=bool(applied))
        self._follow_view(daemon)
        if (applied or delivered) and not replaced:
            if self.account is None:  # whose O4 is that
                self._check_deliveries(daemon, applied, delivered)
            if applied and isinstance(event, FrameReceived) and isinstance(update, UpdateBody):
                self._note_repair(replica.me, event.peer, applied[0][0])
        if self.events % COSTLY_EVERY == 0:
            self.check_whole(daemon)
            self.check_pairs()

    def _note_floors(self, daemon: Daemon) -> None:
        """A snapshot came without these updates, which members that were READY then may lack: its donor was
        admitted after them, when it had given these up.
        """
        floor_of = daemon.replica.log.trimmed_to
        floors = {origin: floor_of(origin) for origin in daemon.replica.frontier}
        for member in daemon.replica.membership.view.members:
            life = self.life(member)
            if life is not None and life.ready_in is not None:
                daemon.came_without[member] = floors

    def _follow_view(self, daemon: Daemon) -> None:
        replica = daemon.replica
        if replica.membership.view is not daemon.view:
            daemon.view = replica.membership.view
            self.agreement.taken_over(label(daemon.me), daemon.view)
            if (daemon.view.member_since(daemon.me) or 0) > (daemon.ready_in or 0):
                daemon.ready_in = None  # it was out in between, and may be READY again at once
        if not replica.ready:
            daemon.ready_in = None
        elif daemon.ready_in is None:
            daemon.ready_in = daemon.view.number

    def _look_at(self, daemon: Daemon, event: Event, effects: Sequence[Effect]) -> tuple[list[bytes], bool]:
        """What a node orders but for sending: the updates it gives its trainer, and whether its weights were
        replaced.
        """
        delivered, replaced = [], False
        for effect in effects:
            if isinstance(effect, Deliver):
                delivered.append(bytes(effect.body))
            elif isinstance(effect, Reload):
                replaced = True
                note_replaced(self._world.see, effects, flipped=daemon.book.damaged)
                if self.rules is not None:
                    self.rules.sightings.replaced(dense=isinstance(self.ledger, DenseLedger))
            elif isinstance(effect, Alert):
                self.judge.alarm(daemon, event, effect, effects)
            elif isinstance(effect, Shutdown):
                self.judge.halt(daemon, effect)
        return delivered, replaced

    def _record(self, replica: Replica, event: OwnUpdateMade | ContributionMade) -> None:
        """What a trainer has made."""
        ledger = self.ledger
        assert isinstance(ledger, Ledger)
        if isinstance(event, OwnUpdateMade):
            ledger.record(replica, self._change(event))
            return
        for made in event.updates:
            ledger.record_share(replica, made, self._change(made))

    def life(self, life: Origin) -> Grave | None:
        """As it is, or as it ended; None if it never began."""
        for daemon in self._world.living():
            if daemon.me == life:
                return bury(daemon)
        return self._world.graves.get(life)

    def _applied_by(self, life: Origin) -> Mapping[Origin, int] | None:
        known = None if life in self._world.lying else self.life(life)
        return None if known is None else known.rows

    def record_made_up(self, origin: Origin, made: OwnUpdateMade, key: int) -> None:
        """What a liar has made up, the same for all."""
        assert isinstance(self.ledger, Ledger)
        self.ledger.record_made_up(origin, made, self._change(made), key)

    def _change(self, event: OwnUpdateMade) -> NDArray[np.int32]:
        change = np.zeros(len(self.ledger.initial), np.int32)
        signs = 1 - 2 * (event.words & 1).astype(np.int32)
        change[event.words >> 1] = signs * event.magnitude
        return change

    def _check_deliveries(
        self, daemon: Daemon, applied: list[tuple[Origin, Entry]], delivered: list[bytes]
    ) -> None:
        """The trainer is given each peer's update exactly once, when the replica applies it; in a ring those
        of a round in the order of their nodes.
        """
        by_others = [(origin, entry.frame[5:]) for origin, entry in applied if origin != daemon.me]
        expected = [body for _, body in sorted(by_others, key=lambda each: each[0])]
        if delivered != expected:
            raise Violation(
                "trainer",
                f"{label(daemon.me)} applied {len(expected)} updates of peers in one event and gave its "
                f"trainer {len(delivered)}",
            )

    def _note_repair(self, me: Origin, source: Origin, origin: Origin) -> None:
        if source != origin:
            self._world.see("repair by a non-origin")
            if origin.node == me.node:
                self._world.see("old incarnation told to the restarted node")

    def check_whole(self, daemon: Daemon) -> None:
        """One node."""
        check_one(daemon, self.ledger if isinstance(self.ledger, Ledger) else None)
        if self.account is not None:
            self.account.check(daemon)

    def check_pairs(self) -> None:
        """Every two nodes."""
        if self.events % (10 * COSTLY_EVERY) == 0:
            self.check_reunion()
        graves, lying = self._world.graves, self._world.lying
        if lying:  # what it has or had is nothing to anybody
            graves = {life: grave for life, grave in graves.items() if life not in lying}
        check_all(self._world.living(), graves, self.agreement, logs=isinstance(self.ledger, Ledger))

    def check_reunion(self) -> None:
        """I5, for the nodes that can still be reached. A dense ring needs no check: it gives any state."""
        if isinstance(self.ledger, DenseLedger):
            return
        world, forbidden = self._world, self.agreement.latest.forbidden
        within_reach = world.within_reach()
        gone = [each for each in world.living() if each not in within_reach and each.me.node not in forbidden]
        graves = [*world.graves.values(), *map(bury, gone)]
        trapped = find_trapped([each.replica for each in within_reach], graves)
        if trapped is not None:
            raise Violation("I5", trapped)

    def check_sent(self, daemon: Daemon, peer: Origin, frame: bytes, undelivered: int) -> None:
        """I7: on its way through a link is no more than a credit, and what of the one before was left. And
        no update leaves a node whose memory is known to be damaged.
        """
        if self.unchecked:
            return
        under_way_max = self._under_way_max
        if peer in self._world.lying:  # it asks for views and votes all the time
            under_way_max += VOTES_OVERDRAFT_BYTES
        if undelivered > under_way_max and not self._duplicating:
            words = f"{label(daemon.me)} has {undelivered} bytes on their way to {label(peer)}"
            raise Violation("I7", f"{words}, with a credit of {self._world.scenario.credit_bytes}")
        if daemon.replica.node.quarantined and frame[4] == FrameType.UPDATE:
            raise Violation("quarantine", f"{label(daemon.me)} sends updates while it is quarantined")
