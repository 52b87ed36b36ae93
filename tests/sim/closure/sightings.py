"""Events that a range of seeds must contain: without them it proves nothing about evaluations."""

from __future__ import annotations

from typing import Final

from p2psgd.core.closure.closure import Closure
from tests.sim.sightings import See

MUST_OCCUR: Final = (
    "closure: evaluation",
    "closure: answer that came second dropped",
    "closure: trainer started again",
    "closure: portion leased again",
    "closure: second table of an attempt",
    "closure: attempt at other limits",
    "closure: result fetched from a peer",
    "closure: sum begun anew",
    "all lost at once",
    "eviction",
    "restart from checkpoint",
    "left the view",
    "credit exhausted",
)


def note_closure(see: See, closure: Closure) -> None:
    """Count what this node has done since it was asked last."""
    for what, times in closure.counts.take().items():
        if times:
            see(f"closure: {what}")
