"""What a dense ring must come to: every share that a trainer gave, every state that any node ever had.

Kept apart from the replicas. A state is known by the sequence of the RING row; the same sequence stands for
the same bits at every node ever. Each was made from the one before by the shares of one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.events import Event
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.wire.ring_messages import ARRAY, BucketContributed
from tests.sim.ledger import Entry, label
from tests.sim.outcome import Violation
from tests.sim.ring.sums import Numbers, ring_sum, step_weights
from tests.sim.ring.work import RingWork

RING = Origin(0, 0)


@dataclass(slots=True, eq=False)
class Share:
    """What a life gives to one round, bucket by bucket."""

    life: Origin
    array: bool
    buckets: dict[int, Numbers] = field(default_factory=dict)  # by offset
    names: list[tuple[int, int, str, str]] = field(default_factory=list)
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What a round came to, and who gave to it."""

    shares: frozenset[Share]
    array: bool
    numbers: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The weights, and how they came about."""

    coordinates: bytes
    before: int  # the sequence of the state that it was made of
    shares: frozenset[Share] = frozenset()


class DenseLedger:
    """Of one run."""

    def __init__(self, initial: NDArray[np.int32], work: RingWork) -> None:
        self.initial = initial
        self.entries: dict[Origin, list[Entry]] = {}  # none: there are no updates
        self.spread: dict[Origin, int] = {}
        self.updates = 0
        self.states = {0: State(initial.tobytes(), 0)}
        self.pending: dict[Origin, Share] = {}
        self._work = work

    def give(self, life: Origin, bucket: BucketContributed, shares: Numbers) -> None:
        """A life's trainer gives a bucket, which lies in its memory; in a dense ring."""
        share = self.pending.get(life)
        if share is None or share.whole:
            share = self.pending[life] = Share(life, bucket.kind == ARRAY)
        share.buckets[bucket.offset] = shares[bucket.offset : bucket.offset + bucket.count].copy()
        share.names.append((bucket.offset, bucket.count, bucket.name, bucket.shape))
        given = sum(map(len, share.buckets.values()))
        share.whole = share.array or given == len(self.initial)
        self.updates += share.whole

    def sum_up(self, order: Sequence[Origin], given: Mapping[Origin, Share]) -> Sums:
        """What the shares add up to that the members of a ring have given to one round of one generation."""
        shares = [given.get(life) for life in order]
        first = next((share for share in shares if share is not None), None)
        if first is None:
            raise Violation("R7", f"a round of {order} was completed, and nobody gave anything to it")
        if any(share is not None and share.names != first.names for share in shares):
            raise Violation("R7", "a round was completed of shares that do not fit each other")
        sums = np.zeros(max(offset + len(each) for offset, each in first.buckets.items()), np.float32)
        for offset, numbers in first.buckets.items():
            parts = [None if share is None else share.buckets[offset] for share in shares]
            sums[offset : offset + len(numbers)] = ring_sum(parts, half=self._work.mode.half)
        return Sums(frozenset(share for share in shares if share is not None), first.array, sums)

    def is_applied(self, share: Share, sequence: int) -> bool:
        """The share is in that state, or one that it was made of."""
        while sequence:
            state = self.states[sequence]
            if share in state.shares:
                return True
            sequence = state.before
        return False

    def step(self, who: str, before: int, sequence: int, sums: Sums, coordinates: NDArray[np.int32]) -> None:
        """A node made state `sequence` of state `before`: right if it is moved by the mean of the shares."""
        for share in sums.shares:
            if self.is_applied(share, before):
                raise Violation("R5", f"{who} applies the share of {label(share.life)} a second time")
        weights = np.frombuffer(self.states[before].coordinates, np.float32)
        expected = step_weights(weights, sums.numbers, len(sums.shares))
        if not np.array_equal(expected, coordinates.view(np.float32)):
            wrong = int(np.flatnonzero(expected != coordinates.view(np.float32))[0])
            raise Violation(
                "R7",
                f"weight {wrong} of {who} is {coordinates.view(np.float32)[wrong]!r} after a round, but the "
                f"shares of {sorted(share.life for share in sums.shares)} make it {expected[wrong]!r}",
            )
        self.states[sequence] = State(coordinates.tobytes(), before, sums.shares)


class DenseBook:
    """What one life of a node must hold: the state that its RING row stands for."""

    def __init__(self, ledger: DenseLedger, replica: Replica) -> None:
        """A new life, whatever it was restored to."""
        self.flipped: tuple[int, int] | None = None
        self._flipped_in: NDArray[np.int32] | None = None  # these weights
        self._ledger = ledger
        self.sequence = self.row(replica)
        self._check(replica)

    @property
    def damaged(self) -> bool:
        """As in Book. After a round has replaced the flipped weights, the scrub may still report them, until
        it has read them; then until its report is dealt with.
        """
        return self.flipped is not None or self._flipped_in is not None

    @staticmethod
    def row(replica: Replica) -> int:
        """The sequence of the RING row."""
        return replica.frontier.sequence(RING)

    def flip(self, replica: Replica, index: int, difference: int) -> None:
        """Memory has changed by itself."""
        self.flipped, self._flipped_in = (index, difference), replica.lattice.coordinates
        replica.lattice.coordinates[index] += difference

    def follow(self, replica: Replica, event: Event, *, replaced: bool) -> list[tuple[Origin, Entry]]:
        """As Book's; nothing is applied by updates."""
        if replaced and self.damaged:  # by what a donor has, be it of an earlier round
            self.flipped, self._flipped_in, self.sequence = None, None, 0
        self._check(replica)
        left_behind = self._flipped_in if self.flipped is None else None
        if left_behind is not None and not (
            replica.node.quarantined or replica.state.is_reading(left_behind)
        ):
            self._flipped_in = None
        return []

    def _check(self, replica: Replica) -> None:
        """R3: the sequence says which bits these are."""
        me, sequence = label(replica.me), replica.frontier.sequence(RING)
        if sequence < self.sequence:
            raise Violation("I2", f"{me} went from state {self.sequence:x} back to {sequence:x}")
        state = self._ledger.states.get(sequence)
        if state is None:
            raise Violation("R3", f"{me} is in state {sequence:x}, which no round made")
        expected = state.coordinates
        if self.flipped is not None and sequence > self.sequence:
            self.flipped = None  # after the weight had gone into the next ones: those are right
        if self.flipped is not None:
            index, difference = self.flipped
            coordinates = np.frombuffer(expected, np.int32).copy()
            coordinates[index] += difference
            expected = coordinates.tobytes()
        if replica.lattice.coordinates.tobytes() != expected:
            raise Violation("R3", f"{me} has other weights in state {sequence:x} than whoever made it")
        self.sequence = sequence
