from __future__ import annotations

from typing import Any

import pytest

from p2psgd.cli.top_picture import Grade, NodeRow, Rates, node_rows, own_waits
from tests.observe.statuses import peer, ring, status, trainer

VIEW = {"number": 1, "members": [{"own": True, "ready": True}], "members_total": 2, "waits": ""}


def row_of(member: dict[str, Any] | None = None, founded: bool = True, **changes: Any) -> NodeRow:
    members = [] if member is None else [{"node": "node-1", "id": "id-1", "own": False, **member}]
    view = {**VIEW, "number": int(founded), "members": [*VIEW["members"], *members]}  # type: ignore[misc]
    told = status(peers=[peer("node-1", id="id-1", since_s=65.0, **changes)], view=view)
    _, row = node_rows(told, Rates(), "")
    return row


@pytest.mark.parametrize(
    ("changes", "grade", "state", "words"),
    [
        ({"member": {"ready": True}}, Grade.GOOD, "ready", ""),
        ({"member": {"ready": False}}, Grade.LATE, "joining", "replica is not complete yet"),
        ({}, Grade.LATE, "linked", "linked for 1 min 5 s, not a member of the run"),
        ({"founded": False}, Grade.LATE, "joining", "linked for 1 min 5 s"),
        ({"member": {}, "state": "suspect"}, Grade.BAD, "silent", "has said nothing for 1 min 5 s"),
        ({"member": {}, "state": "lost", "error": "no"}, Grade.BAD, "gone", "gone for 1 min 5 s: no"),
        ({"state": "lost"}, Grade.GONE, "gone", "gone for 1 min 5 s, no member any more"),
        (
            {"member": {}, "state": "dialling", "error": "no", "through": "node-2"},
            Grade.LATE,
            "indirect",
            "not reached directly (no), its updates come through node-2, for 1 min 5 s",
        ),
        ({"state": "stopped"}, Grade.GONE, "stopped", "stopped 1 min 5 s ago"),
        ({"state": "dialling", "error": "no"}, Grade.BAD, "dialling", "not reached for 1 min 5 s: no"),
    ],
)
def test_a_peer_is_said_to_be_what_its_link_shows(
    changes: dict[str, Any], grade: Grade, state: str, words: str
) -> None:
    row = row_of(**changes)
    assert (row.grade, row.state) == (grade, state)
    assert words in row.words


def test_a_member_that_others_reach_is_shown_with_what_they_tell() -> None:
    absent = {"node": "node-7", "id": "id-7", "own": False, "ready": False, "heard_s": 2.0, "lag": 5}
    told = status(peers=[], view={**VIEW, "members": [*VIEW["members"], absent]})  # type: ignore[misc]
    _, row = node_rows(told, Rates(), "")
    assert (row.name, row.state, row.lag) == ("node-7", "not linked", 5)
    assert row.words == "not linked with this node, heard of through others 2 s ago"


def test_a_peer_far_behind_or_too_slow_or_taking_a_snapshot_is_told() -> None:
    ready = {"node": "node-1", "id": "id-1", "own": False, "ready": True}
    told: dict[str, Any] = {
        "peers": [peer("node-1", id="id-1", lag=500)],
        "view": {**VIEW, "members": [ready]},
    }
    rates = Rates(updates={status().id: 50.0})

    def row(**changes: Any) -> NodeRow:
        return node_rows(status(**told, **changes), rates, "")[1]

    assert row().words == "is 10 s behind this node's updates"
    slow = row(slow_links=[{"node": "node-1", "id": "id-1", "available": 1e6, "needed": 2e6}])
    assert (slow.grade, slow.words[:56]) == (
        Grade.LATE,
        "takes 1.0 MB/s of updates, all nodes make 2.0 MB/s: it f",
    )
    snapshot = {"giving": True, "done_bytes": 3e6, "total_bytes": 6e6, "bytes_per_s": 1e6}
    snapshots = [{"node": "node-1", "id": "id-1", **snapshot}]
    assert row(snapshots=snapshots).words.startswith("giving to node-1: ")
    holders = [{"node": "node-1", "id": "id-1", "bytes": 9_000_000}]
    full = row(snapshots=snapshots, log={"pressure": 0.9, "holders": holders})
    assert full.words == "has yet to acknowledge 9.0 MB that fill the log"


def test_what_the_node_itself_waits_for_is_said_once_and_the_gravest_first() -> None:
    assert own_waits(status()) == ""
    words = "waiting to be admitted"
    assert own_waits(status(not_ready=words, waits=words, trainer=trainer(waits=words))) == words
    stall = {"words": "the log is full", "since_s": 125.0}
    told = status(stall=stall, not_ready="not ready", waits="the trainer waits")
    assert own_waits(told) == "the log is full (for 2 min 5 s); not ready"
    assert own_waits(status(ring=ring(waiting_for="node-2 is late", since_s=3.0))) == "node-2 is late"
    assert own_waits(status(ring=ring(waiting_for="node-2 is late", since_s=0.2))) == ""
    assert own_waits(status(trainer=trainer(attached=False, crash="it crashed"))) == "it crashed"
