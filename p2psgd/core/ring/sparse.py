"""Sparse rounds: every member's coded updates go once around the ring, and all apply them as one (RINGS.md,
27).

Each part is checked whole before it is passed on, so a bad one gets no further than one link. Nothing of a
round is applied before all of it is here; what a round adds to the weights does not depend on the order in
which its parts came.

What this node gave stays in `OwnContribution` until a round completes with it, here or, as its frontier row
then shows, elsewhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Alert
from p2psgd.core.events import RingUpdate, RoundMessage
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.receive import Applier
from p2psgd.core.ring.contribution import OwnContribution, Part, check_part
from p2psgd.core.ring.rounds import Completed, Generation, OnComplete
from p2psgd.core.send import Outbound
from p2psgd.core.state import State
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import (
    PARTS_MAX,
    ROUND_MAX,
    BucketContributed,
    ContributionMade,
    RingUpdateHeader,
    pack_ring_update,
    parse_ring_update,
)

EMPTY_ROUNDS_MAX: Final = 1 << 16  # of those restored: built-in trainers take 20 minutes for so many


@dataclass(slots=True)
class _Given:
    """The parts of a member's contribution so far, in order."""

    expected: int
    parts: list[Part] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return len(self.parts) == self.expected


class SparseRounds:
    """The rounds of a sparse ring. At most what two rounds hold waits to be sent: the right neighbour has no
    share of a round before it has the whole of the one before.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        own: OwnContribution,
        applier: Applier,
        out: Outbound,
        on_complete: OnComplete,
    ) -> None:
        self.request_stop = ""  # never: a share fits whatever others give
        state.rounds = _bound_rounds(state)
        self._cluster = cluster
        self._state = state
        self._own = own
        self._applier = applier
        self._out = out
        self._on_complete = on_complete
        self._generation: Generation | None = None
        self._active = False
        self._followed = False  # an empty share was given, for want of a trainer
        self._given: dict[Origin, _Given] = {}  # by member, of the round under way
        self._waiting: deque[tuple[RingUpdateHeader, bytes]] = deque()  # for credit

    @property
    def done(self) -> int:
        return self._state.rounds

    @property
    def contributed(self) -> bool:
        return self._own.round > 0 or self._followed

    @property
    def missing(self) -> list[Origin]:
        if self._generation is None:
            return []
        return [member for member in sorted(self._generation.order) if not self._has_share_of(member)]

    def _has_share_of(self, member: Origin) -> bool:
        given = self._given.get(member)
        return given is not None and given.whole

    def fits(self, first: int) -> bool:
        return self.done < first

    def begin(self, generation: Generation, first: int, now: float) -> None:
        self._generation, self._state.rounds = generation, first - 1
        self.settle(first)
        if self._own.round:
            self._give(self._own.left(self._state), now)

    def settle(self, first: int) -> None:
        """Drop what this node gave if it is in the replica: round `first` is the next, and all before it are
        there.
        """
        if self._own.round and self._own.is_taken(self._state, first):
            self._own.drop()

    def stop(self) -> None:
        self._generation, self._followed = None, False
        self._given.clear()
        self._waiting.clear()

    def activate(self, active: bool, now: float) -> None:
        self._active = active
        self._follow(now)

    def share(self, event: ContributionMade | BucketContributed, now: float) -> None:
        assert isinstance(event, ContributionMade), event
        self._own.give(self._state, event, self.done + 1)
        if self._generation is not None:
            self._give(list(self._own.parts), now)

    def drained(self, peer: Peer, now: float) -> None:
        self._push()

    def tick(self, now: float) -> None:
        """Do nothing: nothing is ever due."""

    def give_result(self, peer: Peer, now: float) -> None:
        """Do nothing: the peer lacks updates, and asks for them."""

    # -- giving

    def _follow(self, now: float) -> None:
        """Give an empty share if this node has no trainer and others gave: they must not wait for it."""
        if self._generation is not None and self._given and not self._active and not self.contributed:
            self._followed = True
            self._give([], now)

    def _give(self, parts: list[Part], now: float) -> None:
        me = self._cluster.me
        self._given[me] = _Given(len(parts), parts)
        for index, part in enumerate(parts):
            self._enqueue(me, index, len(parts), part.body)
        if not parts:
            self._enqueue(me, 0, 0, b"")
        self._push()
        self._try_to_complete(now)

    def _enqueue(self, member: Origin, part: int, parts: int, body: bytes) -> None:
        generation = self._generation
        assert generation is not None
        if member != generation.right:
            number = self.done + 1
            header = RingUpdateHeader(generation.view, generation.number, number, member.node, part, parts)
            self._waiting.append((header, body))

    def _push(self) -> None:
        right = None if self._generation is None else self._cluster.peers.get(self._generation.right)
        while right is not None and right.credit > 0 and self._waiting:
            header, body = self._waiting.popleft()
            frame = pack_frame(FrameType.RING_UPDATE, pack_ring_update(header, body))
            self._out.send(right, frame)

    # -- taking

    def on_message(self, peer: Peer, message: RoundMessage, now: float) -> None:
        if not isinstance(message, RingUpdate):
            raise PeerError(RejectCode.RING, "numbers of a dense ring came in a sparse one")
        header, body = parse_ring_update(message.body)
        generation = self._generation
        if generation is None or (header.view, header.generation) != (generation.view, generation.number):
            return
        if peer.origin != generation.left:
            return
        if header.round != self.done + 1:
            words = f"a share of round {header.round} came while round {self.done + 1} is under way"
            raise PeerError(RejectCode.RING, words)
        member = next((each for each in generation.order if each.node == header.node), None)
        if member is None or member == self._cluster.me:
            words = f"{header.node:016x} cannot be whose share of round {header.round} came"
            raise PeerError(RejectCode.RING, words)
        self._take(member, header, body)
        self._follow(now)
        self._try_to_complete(now)

    def _take(self, member: Origin, header: RingUpdateHeader, body: memoryview) -> None:
        """Check all of one part, keep it, and pass it on."""
        known = self._given.get(member)
        given = _Given(header.parts) if known is None else known
        next_part = len(given.parts)
        wrong = known is not None and known.whole
        if wrong or header.parts != given.expected or header.part != next_part or header.parts > PARTS_MAX:
            words = f"part {header.part} of {header.parts} of a share of round {header.round} came"
            raise PeerError(RejectCode.RING, f"{words} after {next_part} of {given.expected}")
        if header.parts:
            try:
                part = check_part(self._state, member, given.parts, body)
            except PeerError as error:
                if error.code is RejectCode.DIGEST:
                    self._out.emit(Alert(str(error)))
                raise
            given.parts.append(part)
        self._given[member] = given
        self._enqueue(member, header.part, header.parts, bytes(body) if not header.parts else part.body)
        self._push()

    def _try_to_complete(self, now: float) -> None:
        generation = self._generation
        if generation is None or not all(self._has_share_of(member) for member in generation.order):
            return
        round_given, self._given = self._given, {}
        own = self._own.round > 0
        others = sum(
            bool(given.expected) for member, given in round_given.items() if member != self._cluster.me
        )
        for member in sorted(generation.order):
            for part in round_given[member].parts:
                self._applier.apply(member, part.header, part.words, part.body)
        self._own.drop()
        self._followed = False
        self._state.rounds += 1
        self._on_complete(Completed(self.done, contributors=others + own, own=own), now)


def _bound_rounds(state: State) -> int:
    """Return how many rounds are complete by what was restored, if that can be: each mini-batch of a node is
    one round's, so there were at least as many as any node has mini-batches, and at most as many as all have
    together and those to which nobody gave. A number that a member had wrong is not kept for ever.
    """
    counts = state.frontier.steps().values()
    most = min(ROUND_MAX - 1, sum(counts) + EMPTY_ROUNDS_MAX)
    return min(most, max(state.rounds, max(counts, default=0)))
