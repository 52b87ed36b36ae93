"""Does a snapshot agree with what this node knows? Looked at before anything of it is adopted.

A snapshot is proven by its digest, which is a sum: two origins' rows whose errors cancel would pass, and the
taker would differ from everybody from then on. But each origin's digest is known here for every update that
is in the log or is the last one applied, and every frame leads from one digest to the next. So one update of
which both tell the digest holds all the others of its origin. Of an origin of which this node lacks what the
frames of neither begin with, nothing can be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from p2psgd.core.frontier import Origin
from p2psgd.core.snapshot_intake import SnapshotIntake
from p2psgd.core.state import State
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import parse_update

Place = tuple[Origin, int]  # an origin and the sequence number of an update


def contradicted_by_rows(state: State, rows: Iterable[FrontierRow]) -> Place | None:
    """The first update of whose digest a snapshot's frontier says something else than this node."""
    return _first(state, ((Origin(row.node, row.incarnation), row.sequence, row.digest) for row in rows))


def contradicted_by(state: State, intake: SnapshotIntake) -> Place | None:
    """The same of a whole snapshot: of its frontier, its frames, and what is to be applied again to it.

    LookupError if it is this node's own log that is wrong.
    """
    rows = ((origin, sequence, digest) for origin, (sequence, digest) in intake.frontier.items())
    return (
        _first(state, rows) or _first(state, _told_by_tail(state, intake)) or _broken(state, intake.frontier)
    )


def _first(state: State, told: Iterable[tuple[Origin, int, int]]) -> Place | None:
    for origin, sequence, digest in told:
        if state.digest_at(origin, sequence) not in (None, digest):
            return origin, sequence
    return None


def _told_by_tail(state: State, intake: SnapshotIntake) -> Iterator[tuple[Origin, int, int]]:
    """Where the frames begin, and what they tell of the last update applied here: they are a chain."""
    yield from ((origin, *place) for origin, place in intake.began.items())
    for origin, sequence, frame in intake.frames:
        if sequence == state.frontier.sequence(origin):
            header, _ = parse_update(memoryview(frame)[PREFIX.size :], state.spec.weights)
            yield origin, sequence, header.digest


def _broken(state: State, frontier: Mapping[Origin, tuple[int, int]]) -> Place | None:
    """Where this node's updates beyond a snapshot's frontier do not go on from it."""
    for origin, last in state.exclusives(frontier).items():
        digest = frontier.get(origin, (0, 0))[1]
        for header, words in state.held(origin, last, state.frontier.sequence(origin)):
            after = (digest + state.contribution(words, header.step)) % 2**64
            if after != header.digest and header.sequence == last + 1:
                return origin, last
            if after != header.digest:
                raise LookupError(f"update {header.sequence} of {origin.node:016x} does not fit its digest")
            digest = after
        if digest != state.frontier.digest(origin):
            raise LookupError(f"the updates of {origin.node:016x} in the log do not lead to its digest")
    return None
