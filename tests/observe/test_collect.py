"""What the daemon makes a status of, where several facts bear on one figure."""

from __future__ import annotations

from pathlib import Path

from p2psgd.core.read_model import MemberView, SnapshotView
from p2psgd.core.view import View
from p2psgd.observe.collect import collect_status
from p2psgd.observe.status import NodeState, NodeStatus, StallStatus, TrainerStatus
from p2psgd.observe.text import render_status
from p2psgd.storage.identity import claim_identity
from tests.observe.replications import OTHER, THIRD, replica_view, vitals


def collect(folder: Path, **changes: object) -> NodeStatus:
    identity = claim_identity(folder, name="node-1")
    try:
        return collect_status(identity, vitals(**changes), None)
    finally:
        identity.release()


def test_before_the_run_is_known_nothing_is_made_up(tmp_path: Path) -> None:
    told = collect(tmp_path, state=NodeState.WAITING)
    assert told.waits == "no trainer is attached; start one with P2PSGD_CONTROL=/run/p2psgd/control.sock"
    part = collect(tmp_path, state=NodeState.WAITING, is_part=True)
    assert part.waits == "no rank of the group has attached yet"
    assert told.model_fields_set.isdisjoint({"view", "ready", "counters", "scrub"})
    assert told.model_dump(exclude_unset=True)["run"] is None


def test_a_supervised_trainer_is_waited_for_with_its_crash(tmp_path: Path) -> None:
    trainer = TrainerStatus(supervised=True, crash="it crashed", restart_in_s=3.2)
    told = collect(tmp_path, state=NodeState.WAITING, trainer=trainer)
    assert told.waits == "the trainer is started again in 4 s; it crashed"


def test_a_node_that_was_removed_for_good_says_that_and_nothing_else(tmp_path: Path) -> None:
    view = replica_view(
        ready=False,
        waits="waiting to be admitted to the run: node-1 is not admitted again",
        view=View(7, (OTHER, THIRD), frozenset({1}), cluster_id=1),
        view_waits="node-1 is not admitted again",
        members=(MemberView(OTHER, "node-2", False, False, 0.1, 5, through="node-3"),),
        snapshots=(SnapshotView(2, "node-2", False, 1, 2, 3.0),),
    )
    stall = StallStatus(words="waiting to be admitted to the run", since_s=9.0)
    told = collect(tmp_path, replica=view, stall=stall, state=NodeState.TRAINING)
    why = "this node was removed for good by view 7: it ends once the others know"
    assert (told.state, told.waits, told.not_ready, told.stall) == (NodeState.DRAINING, why, why, None)
    text = render_status(told)
    assert "admitted" not in text
    assert "come through" not in text
