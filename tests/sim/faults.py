"""Faults as data: what goes wrong, when, where and for how long.

A scenario is a tuple of these, drawn from the seed, so that a failing one can be shrunk by leaving some out.
All that last end by themselves; what a fault does is in chaos.py. Nodes are numbered from 1; a number is a
place, where a fresh disk makes another node.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """kill -9; after `back_after_s` the daemon starts again from its disk, as a new incarnation. `damaged`:
    the newer of two checkpoints cannot be read then.
    """

    at: float
    node: int
    back_after_s: float
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class FreshDisk:
    """The machine burns; a new one in its place has an empty disk and so another node id."""

    at: float
    node: int
    back_after_s: float


@dataclass(frozen=True, slots=True)
class PowerCut:
    """All nodes crash at once; each is back a little later than the one before."""

    at: float
    back_after_s: float


@dataclass(frozen=True, slots=True)
class CrashInSnapshot:
    """The first snapshot to begin after `at` that `node` gives or takes: it crashes `delay_s` later."""

    at: float
    node: int
    delay_s: float
    back_after_s: float


@dataclass(frozen=True, slots=True)
class CleanStop:
    """SIGTERM: the node waits for acknowledgements, says goodbye, leaves the view, writes a checkpoint and
    ends; it comes back later.
    """

    at: float
    node: int
    back_after_s: float


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Nothing can be written: votes, checkpoints, own updates, the log's store."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class FlippedCoordinate:
    """One bit of a weight in memory changes; `place` in [0, 1) says which weight."""

    at: float
    node: int
    place: float
    bit: int


@dataclass(frozen=True, slots=True)
class Removal:
    """A person asks node `asked` to have `node` removed from the view, with `forbid` for good."""

    at: float
    asked: int
    node: int
    forbid: bool = False


@dataclass(frozen=True, slots=True)
class Deaf:
    """Nothing but a trickle reaches this node; it sends as always."""

    at: float
    node: int
    for_s: float


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
    """All lives of `node` have a log of `budget_bytes`, and a store of `store_bytes` beyond it."""

    node: int
    budget_bytes: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """These two can never reach each other, also after all is healed: others must bridge them."""

    node: int
    other: int


@dataclass(frozen=True, slots=True)
class LateStart:
    """The node starts only then."""

    node: int
    at: float


@dataclass(frozen=True, slots=True)
class Outcast:
    """What a node that is not of the core is from the end of the first phase on: "dead", "deaf", "paused", or
    reached only by `friend` ("apart").
    """

    node: int
    fate: str
    friend: int


@dataclass(frozen=True, slots=True)
class TrainerAway:
    """In ring mode: the node's trainer leaves, in the middle of its step, and comes back."""

    at: float
    node: int
    for_s: float


@dataclass(frozen=True, slots=True)
class TrainerSlow:
    """In ring mode: the node's trainer takes `step_s` for each share."""

    at: float
    node: int
    for_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Mismatched:
    """In a dense ring: the node's trainer gives a bucket of another shape to the next round, once."""

    at: float
    node: int


@dataclass(frozen=True, slots=True)
class BeginAmbush:
    """In ring mode: the head that begins the first generation after `at` crashes ("crash"), stops for a while
    ("pause") or loses a connection ("reset") `delay_s` later.
    """

    at: float
    what: str
    delay_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class PublishAmbush:
    """In mode `owners`: the first update after `at` that `node` publishes reaches only the node at `witness`.
    Then `node` crashes, and starts again `back_after_s` later; nobody reaches the witness for `hidden_s`.
    """

    at: float
    node: int
    witness: int
    hidden_s: float
    back_after_s: float


@dataclass(frozen=True, slots=True)
class Liar:
    """From `at` on, or as soon as it can be, the node at `node` tells lies (liar/lies.py). At a place of the
    run a member turns liar and goes on as the same life; at any other a stranger comes.

    `kept_out`: it never shows that it hears anybody, so nobody admits it. `votes`: it votes as it should.
    `ends`: in the second phase it is "gone", or it lies on and a person has it "removed" for good, or it
    "stays" as it is.
    """

    at: float
    node: int
    kept_out: bool
    votes: bool
    ends: str


@dataclass(frozen=True, slots=True)
class Lie:
    """The liar at `node` tells the lie `what` of liar/lies.py to the nodes at the places `to`."""

    at: float
    node: int
    for_s: float
    what: str
    to: tuple[int, ...]


Tampering = Reset | FlippedBit | Forged | Duplicated | Swapped | Lost
Condition = SmallLog | Unlinked | LateStart | Outcast  # known from the beginning
Ending = Crash | FreshDisk | PowerCut | CrashInSnapshot | CleanStop
Lasting = Pause | Cut | Partition | SlowLink | DiskFull | Deaf
OfTrainer = TrainerAway | TrainerSlow | Mismatched
OfLiars = Liar | Lie
Ambush = BeginAmbush | PublishAmbush
Timed = Ending | Lasting | Tampering | FlippedCoordinate | Removal | OfTrainer | Ambush | OfLiars
Fault = Timed | Condition
