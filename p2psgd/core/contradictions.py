"""Does a snapshot agree with what this node knows? Looked at before anything of it is adopted.

A snapshot is proven by its digest, which is a sum: two origins' rows whose errors cancel would pass, and the
taker would differ from everybody from then on. But each origin's digest is known here for every update that
is in the log or is the last one applied, and every frame leads from one digest to the next. So one update of
which both tell the digest holds all the others of its origin. Of an origin of which this node lacks what the
frames of neither begin with, nothing can be said.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2psgd.core.frontier import Origin
from p2psgd.core.snapshot_intake import SnapshotIntake
from p2psgd.core.state import State
from p2psgd.wire.messages import FrontierRow

Place = tuple[Origin, int]  # an origin and the sequence number of an update


def contradicted_by_rows(state: State, rows: Iterable[FrontierRow]) -> Place | None:
    """The first update of whose digest a snapshot's frontier says something else than this node."""
    for row in rows:
        origin = Origin(row.node, row.incarnation)
        if state.digest_at(origin, row.sequence) not in (None, row.digest):
            return origin, row.sequence
    return None


def contradicted_by(state: State, intake: SnapshotIntake) -> Place | None:
    """The same of a whole snapshot: of its frontier, and of its frames where they begin and where they come
    by what is applied here.
    """
    place = contradicted_by_rows(state, intake.rows)
    if place is not None:
        return place
    for origin, lane in intake.lanes.items():
        for sequence in (lane.floor, state.frontier.sequence(origin)):
            told = intake.digest_at(origin, sequence)
            if told is not None and state.digest_at(origin, sequence) not in (None, told):
                return origin, sequence
    return None
