"""What can happen to a replica: past-tense facts, the only input of `Replica.handle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.restored import Restored
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    ConfirmedRow,
    FrontierRow,
    Prepare,
    Promise,
    ViewNews,
)

Vote = Prepare | Promise | Accept | Accepted | ViewNews


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
    rows: Mapping[Origin, FrontierRow]
    view: int
    founding: int
    ready: bool
    confirmed: list[ConfirmedRow]
    unwanted: list[int]
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
class VoteReceived:
    """A peer's word in the deciding of a view."""

    peer: Origin
    message: Vote


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """A peer stops for good: it is to leave the view."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class SnapshotAsked:
    """A peer wants a whole replica."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class SnapshotBegun:
    """A peer begins to send its replica: `rows` and `digest` are those of the snapshot."""

    peer: Origin
    rows: list[FrontierRow]
    digest: int


@dataclass(frozen=True, slots=True)
class SnapshotChunkReceived:
    """The next coordinates, little-endian int32."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotTailReceived:
    """The body of an UPDATE frame from the sender's log, unchecked."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot is whole, with `tail` frames of the sender's log, or `words` say why there is none."""

    peer: Origin
    words: str
    tail: int


@dataclass(frozen=True, slots=True)
class VotesSaved:
    """SaveVotes of this revision has reached the disk."""

    revision: int


@dataclass(frozen=True, slots=True)
class RemovalAsked:
    """A person wants a node out of the view; `forbid`: never to be admitted again."""

    node: int
    forbid: bool


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """The node's state is to be written to disk: take a consistent copy."""


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The last copy ordered by WriteCheckpoint is on disk; False: it could not be written."""

    written: bool


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """What ReadCheckpoint found: nobody else has its coordinates, and `own` is empty. None: nothing whole."""

    found: Restored | None


@dataclass(frozen=True, slots=True)
class TurnPassed:
    """The turn of the loop that NextTurn asked for."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened, but `now` has moved: several times a second."""


@dataclass(frozen=True, slots=True)
class NodeStopping:
    """This node is about to close its links for good."""


LinkEvent = (
    LinkDrained
    | UpdateReceived
    | StatusReceived
    | NeedReceived
    | GapReceived
    | VoteReceived
    | GoodbyeReceived
    | SnapshotAsked
    | SnapshotBegun
    | SnapshotChunkReceived
    | SnapshotTailReceived
    | SnapshotEnded
)
Event = (
    OwnUpdateMade
    | LinkOpened
    | LinkClosed
    | LinkEvent
    | VotesSaved
    | RemovalAsked
    | CheckpointDue
    | CheckpointWritten
    | CheckpointRead
    | TurnPassed
    | TimePassed
    | NodeStopping
)
