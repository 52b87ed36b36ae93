from __future__ import annotations

import json

import msgpack

from p2psgd.core.frontier import Origin
from p2psgd.core.metrics import Counters
from p2psgd.core.read_model import HOLDERS_MAX, LogView, MemberView, SnapshotView
from p2psgd.core.view import View
from p2psgd.ipc.protocol import ANSWER_BYTES_MAX
from p2psgd.net.handshake import STRANGERS_MAX
from p2psgd.observe.collect import ERROR_MAX, PLACE_MAX, view_status
from p2psgd.observe.status import ROWS_MAX, CheckpointStatus, NodeStatus, SlowLinkStatus, StallStatus
from p2psgd.observe.text import log_words, render_status, replication_lines
from tests.observe.replications import ME, OTHER, THIRD, replica_view, replication
from tests.observe.statuses import peer, status


def lines(told: NodeStatus) -> list[tuple[str, str]]:
    return [(line.label, line.words) for line in replication_lines(told) if line.words]


def test_every_member_of_the_view_is_listed_this_node_too() -> None:
    view = view_status(replica_view())
    assert [(row.node, row.own, row.ready, row.heard_s, row.lag) for row in view.members] == [
        ("node-1", True, True, 0.0, 0),
        ("node-2", False, True, 0.4, 3),
        ("node-3", False, False, None, None),
    ]
    assert (view.number, view.member, view.members_total) == (6, True, 3)


def test_another_life_of_a_member_is_not_that_member() -> None:
    told = MemberView(Origin(2, 21), "node-2", linked=True, ready=True, heard_s=0.1, lag=0)
    view = view_status(replica_view(members=(told,)))
    assert [row.heard_s for row in view.members if row.id.endswith("2")] == [None]


def test_a_node_where_all_is_well_says_little() -> None:
    assert lines(status(**replication())) == [
        ("view", "6, 3 members"),
        ("checkpoint", "4, 9.3 MB, 31 s ago"),
        ("scrub", "clean 12 s ago, 9 in all"),
    ]


def test_a_node_in_trouble_says_all_of_it() -> None:
    state = replication(
        ready=False,
        waits="it takes a snapshot from node-2",
        view=View(7, (OTHER, THIRD), frozenset({9}), cluster_id=1),
        view_waits="2 of 5 members are reachable, 3 are needed",
        log=LogView(5, 90, 100, 45, 50, 0.9, holders=[(3, "node-3", 90_000)]),
        checkpoint=CheckpointStatus(failures=2, trouble="no space left on device"),
        snapshots=[SnapshotView(2, "node-2", False, 1_000_000, 4_000_000, 500_000.0)],
        stall=StallStatus(words="the log is full", since_s=65.0),
        slow_links=[SlowLinkStatus(node="node-3", id="3", needed=2e6, available=5e5)],
        counters=Counters(snapshots_taken=1, evictions_seen=1, lost_updates=2, reapplied=7),
    )
    told = status(**state, events={"failures": 1, "trouble": "disk full"})
    assert json.loads(told.model_dump_json()) == json.loads(json.dumps(told.model_dump()))
    assert lines(told) == [
        ("not ready", "it takes a snapshot from node-2"),
        ("view", "7, 2 members, this node is not one of them, 1 forbidden (0000000000000009)"),
        ("view", "2 of 5 members are reachable, 3 are needed"),
        ("stalled", "for 1 min 5 s: the log is full"),
        ("holds log", "node-3: 90.0 kB"),
        ("checkpoint", "none yet since this start; 2 failures; no space left on device"),
        ("scrub", "clean 12 s ago, 9 in all"),
        ("snapshot", "taking from node-2: 1.0 MB of 4.0 MB, 500.0 kB/s"),
        ("snapshots", "0 given, 1 taken"),
        (
            "slow link",
            "node-3 takes 500.0 kB/s of updates, all nodes make 2.0 MB/s: it falls behind, and has to leave "
            "the run when the log is full",
        ),
        (
            "since start",
            "1 eviction, 7 own updates applied again after a snapshot, 2 UPDATES LOST",
        ),
        ("events", "1 event could not be written: disk full"),
    ]
    assert log_words(told.log) == (
        "5 updates kept, 90 B of at most 100 B in memory, 45 B of at most 50 B on disk; 90.00 % full"
    )


def test_before_the_bootstrap_there_is_no_view() -> None:
    told = dict(lines(status(**replication(view=View(), members=()))))
    assert told["view"] == "none yet: the cluster has not formed, and nothing leaves any log"


def test_what_peers_said_is_escaped() -> None:
    evil = "\x1b[2J"
    state = replication(
        waits=evil,
        ready=False,
        view_waits=evil,
        members=[MemberView(OTHER, evil, linked=True, ready=True, heard_s=1.0, lag=0)],
        log=LogView(1, 1, 1, pressure=1.0, holders=[(2, evil, 1)]),
        snapshots=[SnapshotView(2, evil, True, 1, 2, 3.0)],
        stall=StallStatus(words=evil, since_s=1.0),
        slow_links=[SlowLinkStatus(node=evil, needed=2.0, available=1.0)],
    )
    assert "\x1b" not in render_status(status(**state))


def test_the_largest_status_fits_into_one_datagram() -> None:
    origins = [Origin(2**64 - 1 - number, 2**64 - 1) for number in range(1024)]
    name, most = "n" * 64, 2**63 - 1
    state = replication(
        me=ME,
        view=View(most, tuple(sorted(origins)), frozenset(range(1024)), cluster_id=most),
        members=[
            MemberView(origin, name, linked=True, ready=True, heard_s=1e6, lag=most) for origin in origins
        ],
        log=LogView(most, most, most, most, most, 0.9, [(2, name, most)] * HOLDERS_MAX),
    )
    rows = [
        {"node": name, "id": "f" * 16, "incarnation": most, "sequence": most, "digest": "f" * 16}
    ] * ROWS_MAX
    peers = [
        peer("n" * PLACE_MAX, address="f" * PLACE_MAX, error="e" * ERROR_MAX, lag=most, through=name)
        for _ in range(ROWS_MAX)
    ]
    stranger = {"node": name, "id": "f" * 16, "since_s": 1e6, "words": "w" * ERROR_MAX}
    whole = status(
        **state | {"frontier": rows},
        peers=peers,
        alarms=["a" * 500] * 20,
        strangers=[stranger] * STRANGERS_MAX,
    )
    assert len(msgpack.packb(whole.model_dump(exclude_unset=True))) < ANSWER_BYTES_MAX - 10_000


def test_a_node_that_is_ready_before_the_run_is_founded_says_that_it_trains_alone() -> None:
    waits = "the cluster has not formed: 1 of 3 nodes are here, 2 are needed"
    state = replication(view=View(), view_waits=waits, members=())
    alone = f"but {waits}; until then it trains alone, and what it makes counts when the others come"
    told = lines(status(**state))
    assert told[:2] == [
        ("ready", alone),
        ("view", "none yet: the cluster has not formed, and nothing leaves any log"),
    ]
    assert ("view", waits) not in told
    in_a_ring = lines(status(**state, ring={"round": 0}))
    assert in_a_ring[0] == ("ready", f"but {waits}; until then it waits")
    assert ("view", waits) in lines(status(**state | {"ready": False}))
