"""Replicas of a ring in one process, and the trainers' part: shares, when a round is opened.

After every event the invariants of a ring must hold: `check` says which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Effect, OpenRound
from p2psgd.core.events import Event, TrainerChanged
from p2psgd.core.replica import Replica
from p2psgd.core.ring.reduce import DenseMemory, make_dense_memory
from p2psgd.core.ring.ring import Ring
from p2psgd.wire.frames import FrameType
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.ring_messages import CHANGES, BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.core.cluster import WEIGHTS, Cluster, own_update


class RingCluster(Cluster):
    """Nodes by number, from 0. `open`: nodes whose trainer was let give a share and has not given it."""

    def __init__(self, size: int, *, mode: str = "ring-sparse", two_nodes: str = "stall") -> None:
        self.open: set[int] = set()
        self.opened: list[list[OpenRound]] = [[] for _ in range(size)]
        self.refused: list[tuple[int, str]] = []
        self.steps = [0] * size
        self.memories: dict[int, DenseMemory] = {}
        self.digests: dict[tuple[int, int], int] = {}
        super().__init__(size, two_nodes=two_nodes, mode=mode)

    def boot(self, number: int, *, from_disk: bool = False) -> Replica:
        self.open.discard(number)
        return super().boot(number, from_disk=from_disk)

    def ring(self, number: int) -> Ring:
        ring = self.replica(number).ring
        assert ring is not None
        return ring

    def give(self, number: int, event: Event) -> list[Effect]:
        if isinstance(event, TrainerChanged) and not event.active:
            self.open.discard(number)
        effects = super().give(number, event)
        self.check(number)
        return effects

    def round_opened(self, number: int, effect: OpenRound) -> None:
        assert number not in self.open, "a round was opened twice"
        assert not self.ring(number).rounds.contributed
        self.open.add(number)
        self.opened[number].append(effect)

    def share_refused(self, number: int, words: str) -> None:
        self.refused.append((number, words))

    def check(self, number: int) -> None:
        """While it runs, a replica at a round is the one of all members at that round."""
        replica, ring = self.replica(number), self.ring(number)
        if not ring.running:
            return
        where = replica.membership.view.number, ring.rounds.done
        assert self.digests.setdefault(where, replica.lattice.digest) == replica.lattice.digest, where

    # -- trainers

    def attach(self, *nodes: int) -> None:
        for number in nodes or range(len(self.replicas)):
            self.give(number, TrainerChanged(active=True))
        self.settle()

    def detach(self, *nodes: int) -> None:
        for number in nodes or range(len(self.replicas)):
            self.give(number, TrainerChanged(active=False))
        self.settle()

    def share(self, *nodes: int, updates: int = 1) -> None:
        """Each gives what its trainer makes in its next step; not yet passed on."""
        for number in nodes:
            self.open.remove(number)
            self.steps[number] += 1
            if number in self.memories:
                self.share_numbers(number)
                continue
            made = [self.update(number, part) for part in range(updates)]
            self.give(number, ContributionMade(self.steps[number], tuple(made)))

    def initial(self) -> NDArray[np.int32]:
        if not parse_mode(self.spec.mode).dense:
            return super().initial()
        return np.linspace(-1.0, 1.0, WEIGHTS, dtype=np.float32).view(np.int32)

    def memory(self, number: int) -> DenseMemory | None:
        if not parse_mode(self.spec.mode).dense:
            return None
        self.memories[number] = make_dense_memory(WEIGHTS)
        return self.memories[number]

    def share_numbers(self, number: int) -> None:
        """In two buckets, the later weights first."""
        shares = self.memories[number].shares
        for start, end in ((3000, WEIGHTS), (0, 3000)):
            shares[start:end] = np.sin(np.arange(start, end) + number + 7 * self.steps[number])
            self.give(
                number, BucketContributed(CHANGES, start, end - start, f"from {start}", f"({end - start},)")
            )

    def update(self, number: int, part: int = 0) -> OwnUpdateMade:
        magnitude = self.steps[number]
        indices = [(7 * magnitude + 3 * part + number) % 3000, 3000 + 40 * part + number]
        return own_update(indices, magnitude=part + 1, steps=magnitude)

    def run(self, rounds: int = 1, *, nodes: set[int] | None = None) -> None:
        """All trainers that may, or of these nodes, give a share and so on."""
        for _ in range(rounds):
            waiting = self.open if nodes is None else self.open & nodes
            assert waiting, [self.replica(number).waiting_for() for number in range(len(self.replicas))]
            self.share(*sorted(waiting))
            self.settle()

    # -- what is seen

    def start(self) -> None:
        """Found the run, with a trainer at every node."""
        self.link_all()
        self.attach()
        self.tick(5.0)
        assert self.running() == set(range(len(self.replicas))), self.waits()

    def running(self) -> set[int]:
        return {
            number for number, replica in enumerate(self.replicas) if replica and self.ring(number).running
        }

    def rounds(self) -> list[int]:
        return [self.ring(number).rounds.done for number, replica in enumerate(self.replicas) if replica]

    def waits(self) -> list[str]:
        return [
            self.ring(number).waiting_for(self.now) for number, replica in enumerate(self.replicas) if replica
        ]

    def on_its_way(self, source: int, target: int) -> list[FrameType]:
        return [FrameType(frame[4]) for frame in self.queues[source, target]]

    def deliver_until(self, source: int, target: int, frame_type: FrameType) -> None:
        """That frame, and what goes before it on this link."""
        while True:
            found = self.on_its_way(source, target)[0] == frame_type
            self.deliver(source, target)
            if found:
                return

    def assert_all_at(self, done: int) -> None:
        self.assert_converged()
        assert self.rounds() == [done] * len(self.rounds()), self.waits()
        assert not self.drops, self.drops
        assert not self.alarms, self.alarms
