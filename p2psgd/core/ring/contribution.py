"""A node's contribution to a sparse round: updates, made or checked whole, that are not applied yet.

They are made once, when the trainer gives them, and stay the same over generations and views: any node that
has applied the contribution to a round that this node did not see completed has applied these very bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.state import U64_MODULUS, State, next_header
from p2psgd.wire import codec
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An update of a contribution; `body` is that of its UPDATE frame, `words` uint32 (count,) its
    changes.
    """

    header: UpdateHeader
    words: NDArray[np.uint32]
    body: bytes


class OwnContribution:
    """This node's contribution to a round that is not known to be complete: its trainer's updates, until all
    members have them. `round` was the next one when it was given; 0: nothing is given.
    """

    def __init__(self) -> None:
        self.round = 0
        self.parts: tuple[Part, ...] = ()

    def give(self, state: State, event: ContributionMade, number: int) -> None:
        """Take what this node's trainer gives to round `number`."""
        before = state.frontier.at(state.me)
        parts = []
        for made in event.updates:
            header = next_header(state, made, before)
            parts.append(Part(header, made.words, pack_update(header, made.payload)))
            before = header.sequence, header.digest
        self.round, self.parts = number, tuple(parts)

    def drop(self) -> None:
        """Forget the contribution: a round is complete with it, or it is given up."""
        self.round, self.parts = 0, ()

    @property
    def _last(self) -> int:
        """The sequence number of its last update; 0 if it has none."""
        return self.parts[-1].header.sequence if self.parts else 0

    def part(self, sequence: int) -> Part | None:
        """Return the update with that sequence number."""
        first = self.parts[0].header.sequence if self.parts else 0
        inside = self.parts and first <= sequence <= self._last
        return self.parts[sequence - first] if inside else None

    def agrees(self, sequence: int, digest: int) -> bool:
        """Return whether this node's running digest would be that if it were applied up to there."""
        part = self.part(sequence)
        return part is not None and part.header.digest == digest

    def made(self, state: State) -> int:
        """Return the number of own updates, with those that a round may have taken elsewhere."""
        return max(state.frontier.sequence(state.me), self._last)

    def is_taken(self, state: State, first: int) -> bool:
        """Return whether a round before `first` was completed with this contribution."""
        if self.parts:
            return state.frontier.sequence(state.me) >= self._last
        return self.round < first

    def left(self, state: State) -> list[Part]:
        """Return the part that is not applied here; all of it, but for repair that got stuck in its midst."""
        applied = state.frontier.sequence(state.me)
        return [part for part in self.parts if part.header.sequence > applied]


def check_part(state: State, member: Origin, before: list[Part], body: memoryview) -> Part:
    """Return the part of `member`'s share that comes after those `before`; PeerError unless all of it is
    right.
    """
    header, payload = parse_update(body, state.spec.coordinates, owners=False)
    if Origin(header.node, header.incarnation) != member:
        who = f"{header.node:016x}"
        raise PeerError(RejectCode.RING, f"an update of {who} came as part of {member.node:016x}'s share")
    last = before[-1].header if before else None
    sequence, digest = state.frontier.at(member) if last is None else (last.sequence, last.digest)
    if header.sequence != sequence + 1:
        words = f"a share's update has sequence {header.sequence}, the next one is {sequence + 1}"
        raise PeerError(RejectCode.SEQUENCE, words)
    counted = sum(part.header.count for part in before) + header.count
    if counted > state.spec.coordinates:
        raise PeerError(RejectCode.COUNT, f"a share changes {counted} weights, the run has fewer")
    if member not in state.frontier and len(state.frontier) >= ORIGINS_MAX:
        raise PeerError(
            RejectCode.ORIGINS, f"a run has at most {ORIGINS_MAX} origins, this would be one more"
        )
    changes = codec.decode(payload, header.count, state.spec.coordinates)
    if (digest + state.contribution(changes, header.magnitude)) % U64_MODULUS != header.digest:
        raise PeerError(
            RejectCode.DIGEST, f"update {header.sequence} of {member.node:016x} does not fit its digest"
        )
    return Part(header, changes, bytes(body))
