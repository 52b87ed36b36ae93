"""What came of a run: a violation or none, what was seen, how long it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class Violation(Exception):
    """An invariant does not hold; `name` is its number in README.md, or what else it is called."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(f"{name}: {words}")
        self.name = name


class QuorumLostError(Exception):
    """With a disk that burnt a quorum was lost that no rule could have kept: nothing more can be asked."""


@dataclass(slots=True)
class Outcome:
    """One run. `sightings` counts the events worth knowing; `healing_s` is how long convergence took;
    `cpu_s` the run itself.
    """

    seed: int
    violation: str | None = None
    name: str = ""  # of the invariant that was violated
    virtual_s: float = 0.0
    healing_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    updates: int = 0
    sightings: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
