"""What one node gives to a sparse round: updates, made or checked whole, that are not applied yet.

They are made once, when the trainer gives them, and stay the same over attempts and views: whoever has
applied the share of a round that this node did not see completed has applied these very bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import PeerError
from p2psgd.core.frontier import Origin
from p2psgd.core.state import U64_MODULUS, State, next_header
from p2psgd.wire import codec
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update

PARTS_MAX: Final = 4096  # of one share: one for each step size, so no more than a model has tensors


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One update; `body` is that of its UPDATE frame, `words` uint32 (count,) its changes."""

    header: UpdateHeader
    words: NDArray[np.uint32]
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """This node's own, from its trainer until all members have it; `round` was the next one then."""

    round: int
    parts: tuple[Part, ...]

    @property
    def last(self) -> int:
        """The sequence number of its last update; 0 if it has none."""
        return self.parts[-1].header.sequence if self.parts else 0

    def part(self, sequence: int) -> Part | None:
        """The update with that sequence number."""
        first = self.parts[0].header.sequence if self.parts else 0
        inside = self.parts and first <= sequence <= self.last
        return self.parts[sequence - first] if inside else None

    def agrees(self, sequence: int, digest: int) -> bool:
        """Applied up to there, this node's running digest would be that."""
        part = self.part(sequence)
        return part is not None and part.header.digest == digest

    def is_taken(self, state: State, first: int) -> bool:
        """A round before `first` was completed with it."""
        if self.parts:
            return state.frontier.sequence(state.me) >= self.last
        return self.round < first

    def left(self, state: State) -> tuple[Part, ...]:
        """What of it is not applied here; all of it, but for repair that got stuck in its midst."""
        applied = state.frontier.sequence(state.me)
        return tuple(part for part in self.parts if part.header.sequence > applied)


class Given:
    """What this node gave to a round that is not known to be complete."""

    def __init__(self) -> None:
        self.share: Share | None = None

    def part(self, sequence: int) -> Part | None:
        """The update of it with that sequence number."""
        return None if self.share is None else self.share.part(sequence)

    def agrees(self, sequence: int, digest: int) -> bool:
        """Applied up to there, this node's running digest would be that."""
        return self.share is not None and self.share.agrees(sequence, digest)

    def made(self, state: State) -> int:
        """Number of own updates, with those that a round may have taken elsewhere."""
        sequence = state.frontier.sequence(state.me)
        return sequence if self.share is None else max(sequence, self.share.last)


def make_share(state: State, event: ContributionMade, number: int) -> Share:
    """What this node's trainer gives to round `number`."""
    before = state.frontier.at(state.me)
    parts = []
    for made in event.updates:
        header = next_header(state, made, before)
        parts.append(Part(header, made.words, pack_update(header, made.payload)))
        before = header.sequence, header.digest
    return Share(number, tuple(parts))


def check_part(state: State, member: Origin, before: list[Part], body: memoryview) -> Part:
    """The part of `member`'s share that comes after those `before`; PeerError unless all of it is right."""
    header, payload = parse_update(body, state.spec.coordinates)
    if Origin(header.node, header.incarnation) != member:
        who = f"{header.node:016x}"
        raise PeerError("ring", f"an update of {who} came as part of {member.node:016x}'s share")
    last = before[-1].header if before else None
    sequence, digest = state.frontier.at(member) if last is None else (last.sequence, last.digest)
    if header.sequence != sequence + 1:
        words = f"a share's update has sequence {header.sequence}, the next one is {sequence + 1}"
        raise PeerError("sequence", words)
    counted = sum(part.header.count for part in before) + header.count
    if counted > state.spec.coordinates:
        raise PeerError("count", f"a share changes {counted} weights, the run has fewer")
    if member not in state.frontier and len(state.frontier) >= ORIGINS_MAX:
        raise PeerError("origins", f"a run has at most {ORIGINS_MAX} origins, this would be one more")
    changes = codec.decode(payload, header.count, state.spec.coordinates)
    if (digest + state.contribution(changes, header.step)) % U64_MODULUS != header.digest:
        raise PeerError("digest", f"update {header.sequence} of {member.node:016x} does not fit its digest")
    return Part(header, changes, bytes(body))
