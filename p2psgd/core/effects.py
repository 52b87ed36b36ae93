"""Effects: what a replica orders its shell to do, the only output of `Replica.handle`, carried out in the
order given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import Tail
from p2psgd.core.view import Votes
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import RejectCode


@dataclass(frozen=True, slots=True)
class Send:
    """Give these bytes, one whole frame, to a peer's link."""

    peer: Origin
    frame: bytes


@dataclass(frozen=True, slots=True)
class SendFloats:
    """Give one whole frame to a peer's link: `head`, its prefix and all up to its numbers, and `numbers`,
    whose memory stays as it is until the peer must have read them, or does not want them any more.
    """

    peer: Origin
    head: bytes
    numbers: memoryview


@dataclass(frozen=True, slots=True)
class ReportDrained:
    """Say LinkDrained once what this peer was sent so far has left our memory."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this UPDATE frame, an own update just applied, to the log of own updates."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Pass a peer's update, header and payload, to this node's trainer."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the link to a peer that broke the protocol, and count the code."""

    peer: Origin
    code: RejectCode
    details: str


@dataclass(frozen=True, slots=True)
class Alert:
    """Tell people, and keep it in the status."""

    words: str


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something worth keeping in the event log: `kind` for machines, `words` for people, `node` if it is
    about a peer (its node id).
    """

    kind: str
    words: str
    node: int | None = None


@dataclass(frozen=True, slots=True)
class SaveVotes:
    """Write the votes to disk, synchronised, and say VotesSaved(revision); a later order replaces an earlier
    one.
    """

    revision: int
    votes: Votes


@dataclass(frozen=True, slots=True)
class Reload:
    """The coordinates were replaced as a whole: this node's trainer must take them anew."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    """The trainer may give its next share: all rounds that it had a share in are complete and delivered.

    `contributors`: how many nodes' shares were in the one before (0: there was none since it came); `sums`
    which half of `DenseMemory.sums` has that round's sums (0 in a sparse ring).
    """

    contributors: int
    sums: int


@dataclass(frozen=True, slots=True)
class RejectContribution:
    """End the trainer with these words: its contribution to a round does not fit those of the others."""

    words: str


@dataclass(frozen=True, slots=True)
class AnswerEvaluation:
    """Give the trainer this answer, which it waits for."""

    answer: EvaluationAnswered


@dataclass(frozen=True, slots=True)
class Yield:
    """Say Resumed in the next turn of the loop: sliced work goes on."""


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write this state to disk and say CheckpointWritten.

    `coordinates` int32 (P,) is a copy that nobody changes until then; `rows` its frontier; `tail` the UPDATE
    frames that not every member has in a checkpoint; `rounds` how many of a sparse ring were complete;
    `covers` the packed Covers of owners, `rule_states` bodies of RULE_STATE frames: of this owner's rule.
    """

    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: Tail
    rounds: int = 0
    covers: list[bytes] = field(default_factory=list)
    rule_states: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Read the newest whole checkpoint from disk and say CheckpointRead."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """This replica cannot go on; stop the node with these words.

    `again`: started again, it can. `abandon`: what it has on disk must not be used again.
    """

    words: str
    again: bool = False
    abandon: bool = False


# What is ordered with most events, and what is rare.
LinkEffect = Send | SendFloats | ReportDrained | Drop
RareEffect = (
    Alert
    | LogEvent
    | SaveVotes
    | Reload
    | OpenRound
    | RejectContribution
    | AnswerEvaluation
    | Yield
    | WriteCheckpoint
    | ReadCheckpoint
    | Shutdown
)
Effect = LinkEffect | Persist | Deliver | RareEffect
