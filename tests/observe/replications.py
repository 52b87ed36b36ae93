"""What a status says of views, log, checkpoint and repair, for tests: change what a test is about."""

from __future__ import annotations

from typing import Any

from p2psgd.core.context import Counters
from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.observe.model import CheckpointFigures, LogFigures, MemberFigures, Replication, ScrubFigures

ME, OTHER, THIRD = Origin(1, 10), Origin(2, 20), Origin(3, 30)


def replication(**changes: Any) -> Replication:
    """Return those of a node in a view of three, where all is well and one member is not linked."""
    values: dict[str, Any] = {
        "patience_s": 5.0,
        "ready": True,
        "waits": "",
        "me": ME,
        "view": View(6, (ME, OTHER, THIRD), founding=0xF0),
        "view_waits": "",
        "members": [
            MemberFigures(OTHER, "node-2", linked=True, ready=True, heard_s=0.4, lag=3),
            MemberFigures(THIRD, "node-3", linked=False, ready=False, heard_s=None, lag=None),
        ],
        "log": LogFigures(updates=30, bytes=75_000_000, budget_bytes=100_000_000, pressure=0.75),
        "checkpoint": CheckpointFigures(number=4, age_s=31.0, bytes=9_300_000, failures=0, trouble=""),
        "scrub": ScrubFigures(count=9, quarantines=0, running=False, clean=True, age_s=12.0),
        "snapshots": [],
        "stall": None,
        "slow_links": [],
        "counters": Counters(),
    }
    return Replication(**values | changes)
