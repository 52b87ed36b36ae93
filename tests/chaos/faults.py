"""Faults as data: what goes wrong, how long after its round began, where and for how long.

What a fault does to processes, cables and disks is in chaos.py. Nodes are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KilledDaemon:
    """kill -9 of a daemon and its trainer, as a service manager kills a whole unit; then it starts again."""

    at: float
    node: int
    back_after_s: float


@dataclass(frozen=True, slots=True)
class KilledTrainer:
    """kill -9 of a trainer; its daemon starts it again."""

    at: float
    node: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """SIGSTOP, then SIGCONT of a daemon: its kernel goes on taking bytes, the daemon does nothing."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class CleanStop:
    """SIGTERM, and `back_after_s` after it has ended a new start."""

    at: float
    node: int
    back_after_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """No packet goes from `source` to `target`, nor, with `both`, the other way."""

    at: float
    source: int
    target: int
    for_s: float
    both: bool


@dataclass(frozen=True, slots=True)
class SlowCable:
    """A node's cable carries 1 Mbit/s each way."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class FullDisk:
    """Another file takes all that is left of the disk that holds a node's state."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class PowerCut:
    """kill -9 of everything at once; node i is back after `back_after_s[i]`."""

    at: float
    back_after_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FlippedBit:
    """A bit of the replica changes in a daemon's memory."""

    at: float
    node: int
    share: float  # of the way through the replica


Lasting = Stopped | Cut | SlowCable | FullDisk
Fault = KilledDaemon | KilledTrainer | CleanStop | PowerCut | FlippedBit | Lasting


KINDS: Final[Mapping[type, str]] = {
    KilledDaemon: "kill -9 of a daemon",
    KilledTrainer: "kill -9 of a trainer",
    Stopped: "daemon stopped for a while",
    CleanStop: "clean stop and start",
    SlowCable: "cable of 1 Mbit/s",
    FullDisk: "disk full",
    FlippedBit: "bit flipped in memory",
    PowerCut: "power cut of all",
}


def kind(fault: Fault) -> str:
    """What people call it."""
    if isinstance(fault, Cut):
        return "link cut" if fault.both else "one-way link"
    return KINDS[type(fault)]


def nodes_hit(fault: Fault) -> frozenset[int]:
    """The nodes whose own mini-batches may stand still because of it."""
    match fault:
        case Cut():
            return frozenset((fault.source, fault.target))
        case PowerCut():
            return frozenset(range(len(fault.back_after_s)))
        case _:
            return frozenset((fault.node,))
