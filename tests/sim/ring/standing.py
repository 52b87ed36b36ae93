"""Where a node stands in its view's ring, as the simulator looks at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from p2psgd.core.replica import Replica
from p2psgd.core.ring.rounds import Generation


class GenerationId(NamedTuple):
    """One generation of all."""

    view: int
    number: int


@dataclass(frozen=True, slots=True)
class Standing:
    """`generation` is None while the node is idle; `done` is its last round."""

    generation: Generation | None
    done: int
    contributed: bool

    @property
    def id(self) -> GenerationId | None:
        """Of the generation under way."""
        return None if self.generation is None else GenerationId(self.generation.view, self.generation.number)


def standing_of(replica: Replica) -> Standing:
    """Now."""
    ring = replica.ring
    assert ring is not None
    return Standing(ring.generation, ring.rounds.done, ring.rounds.contributed)
