"""What a replica orders its shell to do: the only output of `Replica.handle`, carried out in the order
given.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2psgd.core.frontier import Origin


@dataclass(frozen=True, slots=True)
class Send:
    """Give these bytes, one whole frame, to a peer's link."""

    peer: Origin
    frame: bytes


@dataclass(frozen=True, slots=True)
class ReportDrained:
    """Say LinkDrained once what this peer was sent so far has left our memory."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class Record:
    """Write this UPDATE frame, just applied, to the recording; only where there is one."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass a peer's update, header and payload, to this node's trainer."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the link to a peer that broke the protocol, and count the reason."""

    peer: Origin
    reason: str
    words: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """Tell people, and keep it in the status."""

    words: str


@dataclass(frozen=True, slots=True)
class Halt:
    """This replica cannot go on; stop the node with these words."""

    words: str


Effect = Send | ReportDrained | Record | Deliver | Drop | Alarm | Halt
