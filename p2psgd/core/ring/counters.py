"""How often the ring of a replica did what; for people, and for tests that must have seen it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# What ends an attempt here: another view, a neighbour's link, another member's word, this node's replica
# that is not complete, or not the same, a share that cannot be, GOODBYE, a later attempt, a frame that was
# lost, the last round that can be numbered.
ENDINGS: Final = ("view", "link", "told", "unready", "unlike", "refused", "leaving", "later", "stuck", "last")


@dataclass(slots=True)
class RingCounters:
    """Since this life of the node began; every one only grows."""

    rounds: int = 0  # completed with this node
    attempts: int = 0  # that it took part in
    stops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))  # of them, by ending
