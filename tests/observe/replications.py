"""What a status says of views, log, checkpoint and repair, for tests: change what a test is about."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.core.metrics import Counters, Tally
from p2psgd.core.read_model import LogView, MemberView, ReplicaView, ScrubView
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.view import View
from p2psgd.observe.collect import Vitals, replica_parts
from p2psgd.observe.status import CheckpointStatus, NodeState, TrainerStatus

ME, OTHER, THIRD = Origin(1, 10), Origin(2, 20), Origin(3, 30)
OF_NODE: Final = ("checkpoint", "stall", "slow_links")
WEIGHTS: Final = 1000


def replica_view(**changes: Any) -> ReplicaView:
    """Return that of a node in a view of three, where all is well and one member is not linked."""
    spec = RunSpec(
        (("w", (WEIGHTS,)),), -20, "async", "", hash_coordinates(np.zeros(WEIGHTS, np.int32)), "stall"
    )
    values: dict[str, Any] = {
        "spec": spec,
        "me": ME,
        "names": {ME.node: "node-1", OTHER.node: "node-2", THIRD.node: "node-3"},
        "failure_timeout_s": 5.0,
        "ready": True,
        "waits": "",
        "sequence": 0,
        "digest": 0,
        "magnitude_max": 0,
        "frontier": (),
        "bootstrap_expect": 3,
        "view": View(6, (ME, OTHER, THIRD), cluster_id=0xF0),
        "view_waits": "",
        "members": (
            MemberView(OTHER, "node-2", linked=True, ready=True, heard_s=0.4, lag=3),
            MemberView(THIRD, "node-3", linked=False, ready=False, heard_s=None, lag=None),
        ),
        "peers": {},
        "log": LogView(updates=30, bytes=75_000_000, budget_bytes=100_000_000, pressure=0.75),
        "scrub": ScrubView(count=9, quarantines=0, running=False, clean=True, age_s=12.0),
        "snapshots": (),
        "ring": None,
        "owners": None,
        "evaluation": None,
        "counters": Counters(),
        "tally": Tally(),
    }
    return ReplicaView(**values | changes)


def vitals(**changes: Any) -> Vitals:
    """Return what that node tells beside its replica."""
    values: dict[str, Any] = {
        "state": NodeState.TRAINING,
        "started": 0.0,
        "now": 100.0,
        "listen": "127.0.0.1:7000",
        "control": "/run/p2psgd/control.sock",
        "loop_lag_ms": 0.1,
        "trainer": TrainerStatus(),
        "checkpoint": CheckpointStatus(number=4, age_s=31.0, bytes=9_300_000, failures=0, trouble=""),
    }
    return Vitals(**values | changes)


def replication(**changes: Any) -> dict[str, Any]:
    """Return the fields of that node's status that its replica makes up."""
    of_node = {key: changes.pop(key) for key in OF_NODE if key in changes}
    return dict(replica_parts(replica_view(**changes), vitals(**of_node)))
