"""What can happen to a replica: past-tense facts, the only input of `Replica.handle`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import FrontierRow


@dataclass(frozen=True, slots=True)
class OwnUpdateMade:
    """The node's trainer made an update: `words` is what `payload` decodes to, already checked."""

    mini_batch: int
    step: int
    payload: bytes
    words: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A peer is linked: both sides accepted each other."""

    peer: Origin
    name: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The link to a peer is gone, for whatever reason."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class LinkDrained:
    """What was sent to a peer has left our memory: it may be given more."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """The body of an UPDATE frame, unchecked."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """A peer told what it has applied."""

    peer: Origin
    rows: list[FrontierRow]
    loop_lag_ms: int


@dataclass(frozen=True, slots=True)
class NeedReceived:
    """A peer asked for updates first..last of an origin."""

    peer: Origin
    origin: Origin
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class GapReceived:
    """A peer no longer holds an origin's updates up to `floor`."""

    peer: Origin
    origin: Origin
    floor: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened, but `now` has moved: several times a second."""


@dataclass(frozen=True, slots=True)
class NodeStopping:
    """This node is about to close its links for good."""


LinkEvent = LinkDrained | UpdateReceived | StatusReceived | NeedReceived | GapReceived
Event = OwnUpdateMade | LinkOpened | LinkClosed | LinkEvent | TimePassed | NodeStopping
