"""Faults as data: what goes wrong, when, where and for how long.

A scenario is a tuple of these, drawn from the seed, so that a failing one can be shrunk by leaving some out.
All that last end by themselves; what a fault does is in chaos.py. Nodes are numbered from 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """kill -9; after `back_after_s` the daemon starts again, empty, as a new incarnation. None: never."""

    at: float
    node: int
    back_after_s: float | None


@dataclass(frozen=True, slots=True)
class CleanStop:
    """SIGTERM: the node waits for acknowledgements, says goodbye and ends; it may come back like a crash."""

    at: float
    node: int
    back_after_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, then SIGCONT: its kernel goes on taking bytes, the daemon does nothing."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """No packet goes from `source` to `target`, nor, with `both`, the other way."""

    at: float
    source: int
    target: int
    for_s: float
    both: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """No packet goes between the nodes of `side` and the others."""

    at: float
    side: tuple[int, ...]
    for_s: float


@dataclass(frozen=True, slots=True)
class SlowLink:
    """From `source` to `target` goes no more than this."""

    at: float
    source: int
    target: int
    for_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks in the middle of the next frame from `source` to `target`."""

    at: float
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class FlippedBit:
    """One bit of the next UPDATE frame is wrong when it arrives; `place` in [0, 1) says which."""

    at: float
    source: int
    target: int
    place: float


@dataclass(frozen=True, slots=True)
class Forged:
    """The next UPDATE frame arrives with another step, and a checksum that fits: bad memory, or a bug."""

    at: float
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Duplicated:
    """The next `frames` frames arrive twice."""

    at: float
    source: int
    target: int
    frames: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """The next UPDATE frame arrives after the frame that follows it."""

    at: float
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The next UPDATE frame never arrives, and all after it do: no TCP does that, a faulty relay might."""

    at: float
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SmallLog:
    """All lives of `node` have a log of `budget_bytes`; a laggard may be told GAP, and stop."""

    node: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """These two can never reach each other, also after all is healed: others must bridge them."""

    node: int
    other: int


Tampering = Reset | FlippedBit | Forged | Duplicated | Swapped | Lost
Condition = SmallLog | Unlinked  # holds from the beginning to the end
Timed = Crash | CleanStop | Pause | Cut | Partition | SlowLink | Tampering
Fault = Timed | Condition
