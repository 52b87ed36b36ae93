"""What must hold of rounds in mode `owners` (O7 and O8 of contributions.py)."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Effect, OpenRound
from p2psgd.core.events import Event, TimePassed
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.aggregator import Aggregator
from p2psgd.core.owners.owners import Owners
from p2psgd.core.owners.ranges import cut, owner_count, range_of
from p2psgd.core.peer import PeerState
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.view import View
from p2psgd.wire import codec
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.ledger import label
from tests.sim.network import Line
from tests.sim.outcome import Violation
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

PATIENCE_TIMEOUTS: Final = 25  # 12 after the first contribution, 5 for a silent link, 1 more; and again
CALM_TIMEOUTS: Final = 4  # without a fault: then nodes are linked again
KNOWN_TIMEOUTS: Final = 0.9  # of the patience with whoever is late
QUICK_BYTES_PER_S: Final = 1e5


class World(Protocol):
    """The part of the simulated world that is looked at."""

    scenario: Scenario
    training: bool
    lines: dict[tuple[int, int], Line]

    @property
    def now(self) -> float: ...
    def disturbed_at(self, place: int) -> float: ...
    def living(self) -> list[Daemon]: ...
    def see(self, what: str, times: int = 1) -> None: ...


class Reference:
    """The weights after each round, computed in one place from what the trainers gave to it."""

    def __init__(self, spec: RunSpec, initial: NDArray[np.int32], members: tuple[Origin, ...]) -> None:
        self.members = members
        self._quantum = np.float32(spec.quantum)
        self.after = [initial.copy()]  # by round
        self._given: dict[int, dict[Origin, tuple[OwnUpdateMade, ...]]] = defaultdict(dict)
        self._aggregators = [Aggregator(spec) for _ in range(owner_count(len(members), len(initial)))]
        for place, aggregator in enumerate(self._aggregators):
            aggregator.move(range_of(place, len(self._aggregators), len(initial)))

    def give(self, member: Origin, number: int, updates: tuple[OwnUpdateMade, ...]) -> None:
        """A member has given this to a round."""
        self._given[number][member] = updates
        if len(self._given[number]) == len(self.members) and number == len(self.after):
            self._complete(self._given.pop(number))

    def _complete(self, given: dict[Origin, tuple[OwnUpdateMade, ...]]) -> None:
        weights = self.after[-1].copy()
        for member in self.members:
            for made in given[member]:
                parts = cut(made.words, len(self._aggregators), len(weights))
                for aggregator, words in zip(self._aggregators, parts, strict=True):
                    aggregator.add(words, made.magnitude, made.rate)
        before = weights.astype(np.float32) * self._quantum
        for aggregator in self._aggregators:
            own = partial(np.copy, before[slice(*aggregator.range)])
            for magnitude, words in aggregator.take(
                len(self.members), alone=len(self.members) == 1, weights=own
            ):
                codec.apply_coordinates(weights, words, magnitude)
        self.after.append(weights)


class RoundRules:
    """The rules of all nodes of a run."""

    def __init__(self, world: World, initial: NDArray[np.int32], *, calm: bool) -> None:
        self._world = world
        self._initial = initial
        self._calm = calm
        self._reference: Reference | None = None
        self._given: dict[Origin, dict[Origin, int]] = {}  # the last contribution to each owner, by life
        self._left_out: dict[Origin, set[Origin]] = {}  # by owner
        self._views: dict[Origin, View] = {}
        self._viewed: dict[Origin, float] = {}  # when a life learned its view
        self._since: dict[Origin, float] = {}  # when a trainer gave, until its next round opens,
        self._late_s: dict[Origin, float] = {}  # and how long the late ones have with some owner

    def after_event(self, daemon: Daemon, owners: Owners, event: Event, effects: list[Effect]) -> None:
        """Check what an event has led to."""
        self._calm = self._calm and self._world.training
        if self._views.get(daemon.me) is not daemon.replica.view:
            self._views[daemon.me], self._viewed[daemon.me] = daemon.replica.view, self._world.now
        if isinstance(event, ContributionMade):
            self._since[daemon.me], self._late_s[daemon.me] = self._world.now, 0.0
            self._given[daemon.me] = {
                owner: max(
                    (each.number for each in channel.pending if each.made == self._world.now), default=0
                )
                for owner, channel in owners.channels.items()
            }
            if self._calm:
                self._give(daemon, owners, event)
        if any(isinstance(each, OpenRound) for each in effects):
            self._check_opened(daemon, owners)
        if isinstance(event, TimePassed):
            self._note(daemon, owners)
            self._check_patience(daemon, owners)

    def _give(self, daemon: Daemon, owners: Owners, event: ContributionMade) -> None:
        if self._reference is None:
            members = daemon.replica.view.members
            if len(members) < self._world.scenario.nodes:
                raise Violation("O7", f"{label(daemon.me)} gives to round 1, and not all nodes are members")
            self._reference = Reference(daemon.replica.spec, self._initial, members)
        self._reference.give(daemon.me, owners._given, event.updates)  # which may have ended that round

    def _check_opened(self, daemon: Daemon, owners: Owners) -> None:
        self._since.pop(daemon.me, None)
        replica = daemon.replica
        for owner, last in self._given.get(daemon.me, {}).items():
            peer = replica.peers.get(owner)
            usable = (
                peer is not None and peer.ready and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
            )
            if not (usable or owner == daemon.me) or owner not in replica.view:
                continue
            waits = [each for each in owners.channels[owner].pending if each.number <= last]
            if any(not each.redealt for each in waits):
                words = (
                    f"{label(daemon.me)} opens round {owners.round + 1}, and {label(owner)} has not covered"
                )
                raise Violation("O7", f"{words} what it was given")
        if self._calm and self._reference is not None:
            rounds = self._reference.after
            if owners.round >= len(rounds):
                raise Violation(
                    "O7", f"{label(daemon.me)} has completed round {owners.round} before all gave"
                )
            must = rounds[owners.round]
            if not np.array_equal(replica.lattice.coordinates, must):
                raise Violation("O7", f"{label(daemon.me)} has other weights after round {owners.round}")
            rule = " by a rule" * owners.rule.gradients
            self._world.see(f"owners: round{rule} as if computed in one place")

    def _note(self, daemon: Daemon, owners: Owners) -> None:
        barrier = owners.barrier
        assert barrier is not None
        left_out = barrier._left_out - self._left_out.get(daemon.me, set())
        self._left_out[daemon.me] = set(barrier._left_out)
        for member in left_out:
            self._world.see("owners: late member left out")
            self._check_late(daemon, member, barrier.published + 1)
        if barrier._overdue:
            self._world.see("owners: contribution to a round that was over")

    def _check_late(self, daemon: Daemon, member: Origin, number: int) -> None:
        """O8: whoever has contributed a while ago, and can be heard, is not late."""
        world, timeout_s = self._world, self._world.scenario.failure_timeout_s
        other = next((each for each in world.living() if each.me == member), None)
        if other is None or other.me not in daemon.replica.peers or daemon.me not in other.replica.peers:
            return
        owners = other.replica.owners
        assert owners is not None
        lines = [world.lines[other.place, daemon.place], world.lines[daemon.place, other.place]]
        calm_s = min(
            *(world.now - world.disturbed_at(each.place) for each in (daemon, other)),
            *(0.0 if line.impaired else world.now - line.impaired_at for line in lines),
        )
        known_s = world.now - max(owners._given_at, self._viewed[daemon.me], self._viewed[member])
        heard = calm_s > CALM_TIMEOUTS * timeout_s and known_s > KNOWN_TIMEOUTS * timeout_s
        quick = world.scenario.bytes_per_s >= QUICK_BYTES_PER_S
        if heard and quick and owners._given >= number:
            words = f"{label(daemon.me)} leaves {label(member)} out of round {number}"
            raise Violation("O8", f"{words}, {known_s:.1f} s after all that was to be known of it")

    def _check_patience(self, daemon: Daemon, owners: Owners) -> None:
        """O8."""
        barrier, since = owners.barrier, self._since.get(daemon.me)
        assert barrier is not None
        if since is None or not (barrier.active and daemon.replica.ready):
            self._since.pop(daemon.me, None)
            return
        others = self._world.living()
        if any(each.replica.retention.stalled or not each.replica.ready for each in others):
            self._since[daemon.me] = self._world.now
            return
        calm_since = max(since, *(self._world.disturbed_at(each.place) for each in others))
        # The late ones have as long with the owner that waits longest, and it may have published by now.
        late_s = self._late_s[daemon.me] = max(self._late_s[daemon.me], *map(_late_s, others))
        limit_s = PATIENCE_TIMEOUTS * self._world.scenario.failure_timeout_s + late_s
        if self._world.now - calm_since > limit_s:
            words = (
                f"{label(daemon.me)} has waited {self._world.now - since:.1f} s for round {owners.round + 1}"
            )
            raise Violation("O8", f"{words}: {owners.waiting_for(self._world.now)}")


def _late_s(daemon: Daemon) -> float:
    """Return how long after a round the first contribution to the next one came to an owner, if it has."""
    assert daemon.replica.owners is not None
    barrier = daemon.replica.owners.barrier
    assert barrier is not None
    return 0.0 if barrier._first is None else max(0.0, barrier._first - barrier.since)
