"""Where a node stands in its view's ring, as the simulator looks at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from p2psgd.core.replica import Replica
from p2psgd.core.ring.rounds import Attempt


class AttemptId(NamedTuple):
    """One attempt of all."""

    view: int
    number: int


@dataclass(frozen=True, slots=True)
class Standing:
    """`attempt` is None while the node is idle; `done` is its last round."""

    attempt: Attempt | None
    done: int
    contributed: bool

    @property
    def id(self) -> AttemptId | None:
        """Of the attempt under way."""
        return None if self.attempt is None else AttemptId(self.attempt.view, self.attempt.number)


def standing_of(replica: Replica) -> Standing:
    """Now."""
    ring = replica.ring
    assert ring is not None
    return Standing(ring.attempt, ring.rounds.done, ring.rounds.contributed)
