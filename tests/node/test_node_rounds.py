"""What a node's shell does around rounds, on an adjustable clock and without a daemon."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.core.effects import Effect, OpenRound
from p2psgd.core.events import Event, FrameReceived, RingChunk, TimePassed
from p2psgd.core.frontier import Origin
from p2psgd.core.ring.reduce import NUMBERS_MIN
from p2psgd.core.run_spec import RunSpec
from p2psgd.ipc.layout import DENSE_NUMBERS_MIN
from p2psgd.ipc.segments import DenseSegments
from p2psgd.node.node_run import Stopwatch, known_mode, share_memory
from p2psgd.node.run import RoundCosts, Rounds
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.ring_messages import BucketContributed

PEER = Origin(1, 1)
CHUNK = FrameReceived(PEER, RingChunk(b""))


class Replica:
    """A replica that orders nothing, and a network that loses all; `seen` says what they were given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.seen.append(type(event).__name__)
        return []

    def send(self, peer: Origin, frame: bytes) -> None:
        self.seen.append("send")

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        self.seen.append("send_floats")

    def report_drained(self, peer: Origin) -> None:
        self.seen.append("report_drained")

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        self.seen.append("drop")


class Session:
    """As much of a trainer's session as rounds need."""

    def __init__(self) -> None:
        self.opened: list[dict[str, int]] = []
        self.replaced = 0
        self.dense: DenseSegments | None = None

    def open_round(self, _: int, **fields: int) -> None:
        self.opened.append(fields)

    def replica_replaced(self) -> None:
        self.replaced += 1


def spec(mode: str) -> RunSpec:
    return RunSpec((("w", (10,)),), -20, mode, "", hashlib.sha256().digest(), "stall")


def rounds_of(mode: str, costs: RoundCosts | None = None) -> tuple[Rounds, Session]:
    session = Session()
    dense = known_mode(spec(mode)).dense
    return Rounds(session, costs or RoundCosts(), dense=dense), session  # type: ignore[arg-type]


def test_adding_and_sending_are_counted_from_each_trainer_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("p2psgd.node.node_run.time.perf_counter", lambda: float(next(seconds)))
    replica = Replica()
    watch = Stopwatch(replica, replica)
    rounds, session = rounds_of("ring-sparse", watch)
    rounds.begin()
    watch.handle(CHUNK, 1.0)
    watch.handle(BucketContributed(0, 0, 1, "", ""), 1.0)
    watch.handle(TimePassed(), 1.0)
    watch.send(PEER, b"frame")
    watch.send_floats(PEER, b"head", memoryview(b"numbers"))
    watch.report_drained(PEER)
    watch.drop(PEER, RejectCode.SLOW, "details")
    assert replica.seen == [
        "FrameReceived",
        "BucketContributed",
        "TimePassed",
        "send",
        "send_floats",
        "report_drained",
        "drop",
    ]
    rounds.open(OpenRound(3, 0), done=1)
    assert session.opened == [{"contributors": 3, "sums": 0, "adding_us": 2_000_000, "sending_us": 2_000_000}]
    rounds.begin()
    rounds.open(OpenRound(0, 0), done=1)
    assert session.opened[-1] == {"contributors": 0, "sums": 0, "adding_us": 0, "sending_us": 0}


def test_a_dense_round_that_was_missed_has_the_trainer_take_the_weights_as_a_whole() -> None:
    rounds, session = rounds_of("ring-dense")
    rounds.begin()
    for done in (5, 6, 7):
        rounds.open(OpenRound(2, done % 2), done=done)
    assert session.replaced == 0
    rounds.open(OpenRound(2, 1), done=9)
    assert session.replaced == 1
    rounds.begin()  # another trainer, which got the replica as it is
    rounds.open(OpenRound(0, 0), done=11)
    assert session.replaced == 1


def test_a_sparse_round_that_was_missed_came_through_the_inbox() -> None:
    rounds, session = rounds_of("ring-sparse")
    rounds.begin()
    rounds.open(OpenRound(2, 0), done=5)
    rounds.open(OpenRound(2, 0), done=9)
    assert session.replaced == 0


def test_a_dense_ring_has_memory_that_daemon_and_trainers_share() -> None:
    session = Session()
    memory = share_memory(spec("ring-dense"), session)  # type: ignore[arg-type]
    assert session.dense is not None
    assert memory.shares is session.dense.contributions
    assert not memory.shares.flags.writeable
    assert (memory.shares.shape, memory.sums.shape) == ((NUMBERS_MIN,), (2, NUMBERS_MIN))
    assert NUMBERS_MIN == DENSE_NUMBERS_MIN  # the two sides of the memory
    session.dense.close()


def test_a_mode_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mode .ring-ternary. is not known; the modes are async"):
        known_mode(spec("ring-ternary"))
