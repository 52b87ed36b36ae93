"""The account of contributions in mode `owners`: each counts once, whatever fails.

Kept by the simulator. Of each life it knows what went in (what its trainer made, and the contributions that
it took as an owner) and what came out (its updates, and its contributions to owners).

| | |
|---|---|
| O1 | * what went into a life is what came out, and its second residual, but for what others were given; \
not where a rule makes other numbers of it |
| O2 | at the end: a contribution of the core counts if, and only if, an update that all have covers it |
| O3 | an owner takes each contribution once, in order, and all but those given up; what it passes on, by an \
update or to another owner, comes from contributions that its updates cover, which cover no others |
| O4 | a trainer has the replica and, without rounds, what it has contributed that no update covers, by \
what it was given; at the end the replica |
| O5 | a node that stops in order hands over all that it has added up, and does not go before what its \
trainer has contributed is covered and all else is sent, or three failure timeouts have passed |
| O7 | nodes of one view agree on who owns what; at the end each is sent each owner's updates by one node, \
and the two agree on that |
| O6 | a trainer makes nothing while too much waits for covers, as it did at the last tick; * what others \
were given keeps to its limit |
| O8 | in rounds, a trainer's next round opens when updates that are here cover all that it has given, but \
for what others were given; in a calm run the weights after each round are those of a computation in one \
place (rounds.py) |
| O9 | in rounds, a trainer does not wait for ever while its node and all others are READY, and no owner \
takes a member for late that has contributed |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Deliver, Effect, LogEvent, Reload, Send
from p2psgd.core.events import (
    ContributionBody,
    Event,
    FrameReceived,
    HandOver,
    LinkOpened,
    NodeStopping,
    TimePassed,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.channel import Channel
from p2psgd.core.owners.covers import Covers
from p2psgd.core.owners.owners import Owners
from p2psgd.core.owners.ranges import Range
from p2psgd.core.peer import Peer
from p2psgd.wire import codec
from p2psgd.wire.contribution import parse_contribution
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import OwnUpdateMade, decode_update, parse_update
from tests.sim.ledger import Ledger, label
from tests.sim.network import Line
from tests.sim.outcome import Violation
from tests.sim.owners.rounds import RoundRules
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

Vector = NDArray[np.int64]

COVER_TIMEOUTS: Final = 3  # so long a node that stops waits at most until all is covered


class World(Protocol):
    """The part of the simulated world that the account looks at."""

    scenario: Scenario

    @property
    def now(self) -> float: ...

    training: bool
    lines: dict[tuple[int, int], Line]

    def disturbed_at(self, place: int) -> float: ...
    def living(self) -> list[Daemon]: ...
    def see(self, what: str, times: int = 1) -> None: ...
    def published(self, owner: Daemon) -> None: ...


@dataclass(slots=True)
class _Bundle:
    change: Vector
    given_up: bool = False
    after: int = 0  # the updates of its life that cover where it came from


@dataclass(slots=True)
class _Life:
    balance: Vector  # what went in less what came out
    bundles: dict[Origin, list[_Bundle]] = field(default_factory=lambda: defaultdict(list))
    received: dict[Origin, int] = field(default_factory=dict)
    # Numbers, after the event before:
    pending: dict[Origin, set[int]] = field(default_factory=dict)
    told: dict[Origin, int] = field(default_factory=dict)  # the last own update sent on each link
    redealt: dict[Origin, set[int]] = field(default_factory=dict)
    sent: dict[Origin, int] = field(default_factory=dict)
    range: Range = (0, 0)
    residual: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    outside: bool = False  # it has added up values of other ranges
    updates: int = 0
    covering: int = 0  # the last of them that covers anything
    looked_at: int = 0  # the updates when it last measured its log
    handed_over_at: float = 0.0
    full: bool = False  # since the last tick, or before
    covers: Covers = field(default_factory=Covers)  # of this life as an owner
    trainer: NDArray[np.int32] | None = None  # its weights, by what it made and was given since it attached


class Account:
    """The account of all lives of a run."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        assert world.scenario.owners is not None
        self._world = world
        self._work = world.scenario.owners
        mode = None if self._work.rounds is None else self._work.rounds.mode
        self._gradients = mode is not None and mode.rule.gradients
        self._see = world.see
        self._ledger = ledger
        rounds = self._work.rounds is not None
        self._rounds = RoundRules(world, ledger.initial, calm=self._work.calm) if rounds else None
        self._by_snapshot: set[int] = set()  # nodes that have taken one
        self._size = len(ledger.initial)
        self._lives: dict[Origin, _Life] = {}
        self._covers: dict[Origin, list[dict[Origin, int]]] = defaultdict(list)  # by update

    def after_event(self, daemon: Daemon, event: Event, effects: list[Effect]) -> None:
        """Book what an event has moved."""
        life = self._life(daemon.me)
        for made in made_by(event):
            self._book(life.balance, made.words, made.magnitude)
        owners = owners_of(daemon)
        if isinstance(event, LinkOpened):
            life.told.pop(event.peer, None)
        self._follow_limit(daemon, life, owners, event)
        if any(isinstance(each, LogEvent) and each.kind == "contributions" for each in effects):
            self._see("owners: contributions given up")
            self._note_given_up(life, owners)
        else:
            self._note_covered(daemon, life, owners, effects)
        self._book_trainer(daemon, life, event, effects)
        self._book_taken(daemon, life, owners, event)
        given = defaultdict(int, {owner: len(bundles) for owner, bundles in life.bundles.items()})
        self._book_given(daemon, life, owners)
        self._book_published(daemon, life, owners, event)
        self._follow_range(daemon, life, owners, event, given)
        self._note_sent(daemon, life, effects)
        if self._rounds is not None:
            self._rounds.after_event(daemon, owners, event, effects)

    def died(self, daemon: Daemon) -> None:
        """A life is over."""
        if not daemon.stopping and owners_of(daemon).aggregator.residual.any():
            self._see("owners: second residual lost with a killed owner")

    def _book_trainer(self, daemon: Daemon, life: _Life, event: Event, effects: list[Effect]) -> None:
        if life.trainer is None or any(isinstance(each, Reload) for each in effects):
            life.trainer = daemon.replica.trainer_weights()
            return
        all_made = made_by(event)
        for made in all_made:
            if self._work.rounds is None:  # in which trainers have the replica
                codec.apply_coordinates(life.trainer, made.words, made.magnitude)
        given = [each.body for each in effects if isinstance(each, Deliver)]
        for body in given:
            header, payload = parse_update(body, self._size)
            words = decode_update(header, payload, self._size)
            codec.apply_coordinates(life.trainer, words, header.magnitude)
        if (given or all_made) and not daemon.book.damaged:
            must, digest = daemon.replica.trainer_weights(), daemon.replica.trainer_digest
            if not np.array_equal(life.trainer, must):
                index = int(np.flatnonzero(life.trainer != must)[0])
                words_ = f"{label(daemon.me)}'s trainer has {life.trainer[index]} at weight {index}"
                raise Violation("O4", f"{words_} instead of {must[index]}")
            if digest != codec.digest_coordinates(must, daemon.replica.spec.key):
                raise Violation("O4", f"{label(daemon.me)}: the digest of its trainer's weights is wrong")

    def _life(self, me: Origin) -> _Life:
        life = self._lives.get(me)
        if life is None:
            life = self._lives[me] = _Life(np.zeros(self._size, np.int64))
        return life

    @staticmethod
    def _book(vector: Vector, words: NDArray[np.uint32], magnitude: int) -> None:
        vector[words >> 1] += magnitude * (1 - 2 * (words & 1).astype(np.int64))

    def _change(self, body: bytes | bytearray) -> Vector:
        header, words = parse_contribution(body, self._size, gradients=self._gradients)
        change = np.zeros(self._size, np.int64)
        self._book(change, words, header.magnitude)
        return change

    def _book_taken(self, daemon: Daemon, life: _Life, owners: Owners, event: Event) -> None:
        message = event.message if isinstance(event, FrameReceived) else None
        if not isinstance(message, ContributionBody) or not isinstance(event, FrameReceived):
            return
        number, before = owners.received.get(event.peer, 0), life.received.get(event.peer, 0)
        if number == before:
            header, _ = parse_contribution(message.body, self._size, gradients=self._gradients)
            if header.number <= before:
                self._see("owners: contribution came twice")
            return
        bundles = self._life(event.peer).bundles[daemon.me]
        if number < before or not all(each.given_up for each in bundles[before : number - 1]):
            words = f"{label(daemon.me)} takes contribution {number} of {label(event.peer)} after {before}"
            raise Violation("O3", words)
        life.received[event.peer] = number
        life.balance += self._change(message.body)

    def _book_given(self, daemon: Daemon, life: _Life, owners: Owners) -> None:
        for owner, channel in others(owners):
            bundles = life.bundles[owner]
            for each in channel.pending:
                if each.number > len(bundles):
                    bundles.append(_Bundle(self._change(each.body)))
                    life.balance -= bundles[-1].change
            life.pending[owner] = {each.number for each in channel.pending}
            redealt = {each.number for each in channel.pending if each.redealt}
            if redealt - life.redealt.get(owner, set()):
                self._see("owners: contribution redealt")
            life.redealt[owner] = redealt

    def _note_covered(self, daemon: Daemon, life: _Life, owners: Owners, effects: list[Effect]) -> None:
        donors = [
            each.node for each in effects if isinstance(each, LogEvent) and each.kind == "snapshot taken"
        ]
        waiting = False
        for owner, channel in others(owners):
            before = life.pending.get(owner, set())
            covered = before - {each.number for each in channel.pending}
            redealt = covered & life.redealt.get(owner, set())
            waiting |= bool(before)
            if redealt:
                self._see("owners: opposite of a redealt one contributed")
            if covered and donors:
                self._see("owners: cover by a snapshot")
            if redealt and donors:
                self._see("owners: cover of a redealt one by a snapshot")
        for donor in donors:
            if waiting and donor in self._by_snapshot:
                self._see("owners: snapshot of a contributor from a donor that took one")
            self._by_snapshot.add(daemon.me.node)

    def _note_sent(self, daemon: Daemon, life: _Life, effects: list[Effect]) -> None:
        for each in effects:
            if isinstance(each, Send) and each.frame[4] == FrameType.UPDATE:
                header, _ = parse_update(each.frame[PREFIX.size :], self._size)
                if (header.node, header.incarnation) == daemon.me:
                    life.told[each.peer] = header.sequence
            if isinstance(each, Send) and each.frame[4] == FrameType.CONTRIBUTION:
                number = int.from_bytes(each.frame[PREFIX.size : PREFIX.size + 8], "little")
                has = max(life.told.get(each.peer, 0), daemon.replica.peers[each.peer].has(daemon.me))
                if has < life.bundles[each.peer][number - 1].after:
                    words = f"{label(daemon.me)} gives {label(each.peer)} what it had added up"
                    raise Violation("O3", f"{words} before its update that covers where it came from")
                if number <= life.sent.get(each.peer, 0):
                    self._see("owners: contribution sent again on a new link")
                life.sent[each.peer] = max(number, life.sent.get(each.peer, 0))

    @staticmethod
    def _note_given_up(life: _Life, owners: Owners) -> None:
        for owner, channel in others(owners):
            for number in life.pending.get(owner, set()) - {each.number for each in channel.pending}:
                bundle = life.bundles[owner][number - 1]
                bundle.given_up = True
                life.balance += bundle.change  # others were given it, perhaps in this event

    def _book_published(self, daemon: Daemon, life: _Life, owners: Owners, event: Event) -> None:
        replica, before = daemon.replica, life.updates
        if isinstance(event, TimePassed):
            life.looked_at = before
        while life.updates < replica.sequence:
            life.updates += 1
            frame = replica.log.frame(daemon.me, life.updates)
            assert frame is not None
            change = np.zeros(self._size, np.int32)
            header, _ = parse_update(frame[PREFIX.size :], self._size)
            if header.count:
                words = next(replica.state.held(daemon.me, life.updates - 1, life.updates))[1]
                change[words >> 1] = header.magnitude * (1 - 2 * (words & 1).astype(np.int32))
            self._ledger.record_published(replica, life.updates, header.digest, change)
            life.balance -= change
            covers = life.covers
            covers.check(daemon.me, header.cover or ())
            covers.note(daemon.me, header.cover or ())
            if header.cover:
                life.covering = life.updates
            for origin, number in covers.numbers(daemon.me).items():
                if number > life.received.get(origin, 0):
                    words_ = f"{label(daemon.me)} covers contribution {number} of {label(origin)}"
                    raise Violation("O3", f"{words_}, and has taken {life.received.get(origin, 0)}")
            self._covers[daemon.me].append(dict(covers.numbers(daemon.me)))
            if header.count:
                self._check_covered(daemon, life, f"update {life.updates} holds")
            elif header.cover:
                self._see("owners: update that covers and changes nothing")
        daemon.burst_updates = max(daemon.burst_updates, life.updates - life.looked_at)
        if life.updates > before:
            if life.updates > before + 1:
                self._see("owners: publication of several updates")
            if life.outside:
                self._see("owners: outside values passed on")
            self._world.published(daemon)
        life.outside = bool(owners.aggregator._outside)

    @staticmethod
    def _check_covered(daemon: Daemon, life: _Life, what: str) -> None:
        covered = life.covers.numbers(daemon.me)
        for origin, number in life.received.items():
            if covered.get(origin, 0) < number:
                words = f"{what} contribution {number} of {label(origin)}, which no update covers"
                raise Violation("O3", f"{label(daemon.me)}: {words}")

    def _follow_limit(self, daemon: Daemon, life: _Life, owners: Owners, event: Event) -> None:
        if life.full and isinstance(event, OwnUpdateMade):
            words = "takes an update of its trainer, though too much waits for covers"
            raise Violation("O6", f"{label(daemon.me)} {words}")
        pending = [channel.pending for channel in owners.channels.values()]
        full = any(sum(not each.redealt for each in of) > self._work.pending_max for of in pending)
        full |= sum(each.bytes for of in pending for each in of) >= self._work.pending_bytes_max
        life.full = full and (life.full or isinstance(event, TimePassed))

    def _follow_range(
        self, daemon: Daemon, life: _Life, owners: Owners, event: Event, given: Mapping[Origin, int]
    ) -> None:
        """`given`: how many contributions each owner was given before this event."""
        aggregator, (begin, _), (first, last) = owners.aggregator, life.range, owners.aggregator.range
        if aggregator.range != life.range:
            if life.residual.size and aggregator.residual.size:
                self._see("owners: range moved to another owner")
            indices = np.flatnonzero(life.residual) + begin
            if ((indices < first) | (indices >= last)).any():
                self._check_covered(daemon, life, "what another owner is given holds")
                for owner, channel in others(owners):
                    for each in channel.pending:
                        made = each.number > given[owner] and each.made == self._world.now  # not redealt
                        if made and len(each.words):  # and no end of a round
                            life.bundles[owner][each.number - 1].after = life.covering
                self._see("owners: what was added up given to another owner")
                if isinstance(event, HandOver):
                    self._see("owners: what was added up handed over at an orderly stop")
        life.range, life.residual = aggregator.range, aggregator.residual.copy()
        if isinstance(event, HandOver):
            life.handed_over_at = self._world.now
            alone = len(daemon.replica.membership.view.members) < 2
            able = daemon.replica.ready and not daemon.replica.retention.full
            if able and not alone and aggregator.residual.any():
                raise Violation("O5", f"{label(daemon.me)} keeps what it has added up, though it stops")
        elif isinstance(event, NodeStopping):
            waits = any(
                not each.redealt and (each.seen or each.number > channel.sent)
                for _, channel in others(owners)
                for each in channel.pending
            )
            limit_s = COVER_TIMEOUTS * self._world.scenario.failure_timeout_s
            if waits and self._world.now < life.handed_over_at + limit_s:
                raise Violation("O5", f"{label(daemon.me)} goes before what it has contributed is covered")

    def check(self, daemon: Daemon) -> None:
        """O1 and O6 of one node."""
        life, owners = self._life(daemon.me), owners_of(daemon)
        has = np.zeros(self._size, np.int64)
        begin, end = owners.aggregator.range
        has[begin:end] = owners.aggregator.residual
        for index, value in owners.aggregator._outside.items():
            has[index] += value
        for owner, channel in others(owners):
            for each in channel.pending:
                if each.redealt:
                    has -= life.bundles[owner][each.number - 1].change
        wrong = np.flatnonzero(has != life.balance)
        if len(wrong) and not self._gradients:
            index = int(wrong[0])
            words = f"{label(daemon.me)} has {has[index]} of weight {index} that it has not passed on"
            raise Violation("O1", f"{words}, but should have {life.balance[index]}")
        pending = [each for _, channel in others(owners) for each in channel.pending]
        redealt_bytes = sum(each.bytes for each in pending if each.redealt)
        if redealt_bytes > self._work.redealt_bytes_max:
            words = f"{label(daemon.me)} keeps {redealt_bytes} bytes that others were given"
            raise Violation("O6", f"{words}, more than {self._work.redealt_bytes_max}")

    def pending(self, daemon: Daemon) -> str | None:
        """Say what keeps the node's contributions from counting; None if all do."""
        for owner, channel in owners_of(daemon).channels.items():
            waits = sum(not each.redealt for each in channel.pending)
            if waits:
                return f"{waits} contributions of {label(daemon.me)} to {label(owner)} are not covered"
        return None

    @staticmethod
    def check_routes(core: Sequence[Daemon]) -> None:
        """O7 of the core, if all of it knows one view, and is linked, and there are no other members."""
        if len({daemon.view.number for daemon in core}) > 1:
            return
        all_owners = {owners_of(daemon)._owners for daemon in core}
        if len(all_owners) > 1:
            raise Violation("O7", f"two nodes of one view see different owners: {all_owners}")
        lives = {daemon.me for daemon in core}
        if any(lives ^ {daemon.me, *daemon.replica.peers} for daemon in core) or lives ^ {
            *core[0].view.members
        }:
            return
        for daemon in core:
            for owner in owners_of(daemon)._owners:
                sources = [
                    other.me
                    for other in core
                    if other is not daemon and follows(other.replica.peers[daemon.me], owner)
                ]
                wanted = daemon.replica.log_sender.routes.source(owner)
                if sources != ([] if wanted is None else [wanted]):
                    words = f"is sent the updates of {label(owner)} by {sources} and not by {wanted}"
                    raise Violation("O7", f"{label(daemon.me)} {words}")

    def check_end(self, daemon: Daemon) -> None:
        """O2 and O4 of a node of the core, which has what all have."""
        life, owners = self._life(daemon.me), owners_of(daemon)
        if not np.array_equal(daemon.replica.trainer_weights(), daemon.replica.lattice.coordinates):
            raise Violation("O4", f"{label(daemon.me)}: all is covered, and its trainer has not the replica")
        for owner, bundles in life.bundles.items():
            sequence = daemon.replica.frontier.sequence(owner)
            covers = self._covers[owner][sequence - 1] if sequence else {}
            covered = covers.get(daemon.me, 0)
            channel = owners.channels[owner]
            redealt = {each.number for each in channel.pending if each.redealt}
            for number, bundle in enumerate(bundles, 1):
                counts = number not in redealt
                if not bundle.given_up and counts != (number <= covered):
                    what = "does not count" if counts else "counts twice"
                    raise Violation(
                        "O2", f"contribution {number} of {label(daemon.me)} to {label(owner)} {what}"
                    )


def made_by(event: Event) -> tuple[OwnUpdateMade, ...]:
    """Return the updates that a trainer has made with this event."""
    if isinstance(event, OwnUpdateMade):
        return (event,)
    return event.updates if isinstance(event, ContributionMade) else ()


def owners_of(daemon: Daemon) -> Owners:
    """Return its part in mode `owners`."""
    assert daemon.replica.owners is not None
    return daemon.replica.owners


def follows(peer: Peer, origin: Origin) -> bool:
    """Return whether this peer is sent the updates of an origin unasked."""
    cursor = peer.cursors.get(origin)
    return cursor is not None and cursor.last is None


def others(owners: Owners) -> list[tuple[Origin, Channel]]:
    """Return the channels to other nodes."""
    return [(owner, channel) for owner, channel in owners.channels.items() if owner != owners.me]
