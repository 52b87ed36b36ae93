"""What the oracle watches: the one module of it that names classes and functions of p2psgd and its simulator.

It hooks into the simulator from outside, for the length of one run: other runs of the simulator do not know
it. When the code moves or is renamed, this module follows it, and the hashes stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from p2psgd.base.errors import ExitCode
from p2psgd.core.effects import (
    Alert,
    AnswerEvaluation,
    Deliver,
    Drop,
    Effect,
    LogEvent,
    OpenRound,
    Persist,
    ReadCheckpoint,
    RejectContribution,
    Reload,
    ReportDrained,
    SaveVotes,
    Send,
    SendFloats,
    Shutdown,
    WriteCheckpoint,
    Yield,
)
from p2psgd.core.events import Event
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from tests.oracle.canonical import text_of
from tests.oracle.trace import Line, Trace
from tests.sim.clock import Clock
from tests.sim.family import ASYNC, RING, Family
from tests.sim.mesh import Mesh
from tests.sim.outcome import QuorumLostError, Violation
from tests.sim.world import World, small_pieces

FAMILIES: Final[dict[str, Family]] = {"async": ASYNC, "ring": RING}
EXIT_CODES: Final = [(code.name, code.value) for code in ExitCode]


def trace_seed(family: str, seed: int) -> Trace:
    """Run a seed and return all that crossed a border in it."""
    trace = Trace()
    with small_pieces():
        world = World(FAMILIES[family].draw(seed))
        with _watched(trace, world.clock):
            end = _run(world)
    trace.add("wire", Line(world.now, "end", "", end))
    for daemon in world.living():
        for what in _final(daemon.replica):
            trace.add("wire", Line(world.now, _name(daemon.me), "state", what))
    return trace


def _run(world: World) -> str:
    try:
        world.run()
    except QuorumLostError:
        return "the quorum is lost"
    except Violation as violation:
        return f"violates {violation}"
    except Exception as error:
        return f"raised {error!r}"
    return "all are equal"


@contextmanager
def _watched(trace: Trace, clock: Clock) -> Iterator[None]:
    """Record what nodes give to their links, and what replicas order."""
    handle, send, send_floats = Replica.handle, Mesh.send, Mesh.send_floats

    def watched_handle(replica: Replica, event: Event, now: float) -> list[Effect]:
        effects = handle(replica, event, now)
        for effect in effects:
            _add_effect(trace, clock.now, _name(replica.me), effect)
        return effects

    def watched_send(mesh: Mesh, peer: Origin, frame: bytes) -> int:
        if mesh.link(peer) is not None:
            trace.add("wire", Line(clock.now, _name(mesh._me), _name(peer), text_of(frame)))
        return send(mesh, peer, frame)

    def watched_send_numbers(mesh: Mesh, peer: Origin, head: bytes, numbers: memoryview) -> int:
        if mesh.link(peer) is not None:
            frame = head + bytes(numbers)
            trace.add("wire", Line(clock.now, _name(mesh._me), _name(peer), text_of(frame)))
        return send_floats(mesh, peer, head, numbers)

    with (
        patch.object(Replica, "handle", watched_handle),
        patch.object(Mesh, "send", watched_send),
        patch.object(Mesh, "send_floats", watched_send_numbers),
    ):
        yield


def _add_effect(trace: Trace, now: float, node: str, effect: Effect) -> None:
    place, kind, value = _told(effect)
    line = Line(now, node, place, f"{kind} {text_of(value)}")
    trace.add("orders", line)
    if place in {"trainer", "updates", "votes", "checkpoints"}:
        trace.add("local", line)


def _told(effect: Effect) -> tuple[str, str, object]:  # noqa: PLR0911, PLR0912 (one case for each effect)
    """Return where an effect goes, what it is there, and its values; these stay when types change."""
    match effect:
        case Send():
            return _name(effect.peer), "frame", effect.frame
        case SendFloats():
            return _name(effect.peer), "frame", effect.head + bytes(effect.numbers)
        case ReportDrained():
            return _name(effect.peer), "report drained", ()
        case Drop():
            return _name(effect.peer), "drop", (effect.code.label, effect.details)
        case Deliver():
            return "trainer", "update", effect.body
        case Reload():
            return "trainer", "reload", ()
        case OpenRound():
            return "trainer", "open round", (effect.contributors, effect.sums)
        case RejectContribution():
            return "trainer", "refuse", effect.words
        case AnswerEvaluation():
            return "trainer", "answer", effect.answer
        case Persist():
            return "updates", "record", (effect.frame, True)
        case SaveVotes():
            return "votes", "save", (effect.revision, effect.votes)
        case WriteCheckpoint():
            rows = (effect.rows, effect.digest, effect.tail, effect.rounds)
            return "checkpoints", "write", (effect.coordinates, *rows)
        case ReadCheckpoint():
            return "checkpoints", "read", ()
        case Alert():
            return "people", "alarm", effect.words
        case LogEvent():
            return "people", "note", (effect.kind, effect.words, effect.node)
        case Shutdown():
            return "people", "halt", (effect.words, effect.again, effect.abandon)
        case Yield():
            return "loop", "turn", ()


def _final(replica: Replica) -> Iterator[str]:
    rows = sorted((origin, row) for origin, row in replica.frontier.items())
    yield f"frontier {text_of(rows)}"
    yield f"digest {replica.lattice.digest:016x} of {text_of(replica.lattice.coordinates)}"
    view = replica.membership.view
    yield f"view {text_of((view.number, view.members, view.forbidden, view.cluster_id, view.since))}"


def _name(origin: Origin) -> str:
    return f"{origin.node}.{origin.incarnation}"
