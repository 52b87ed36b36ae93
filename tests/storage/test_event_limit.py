"""Events that peers cause at will leave room for all others."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from p2psgd.storage.event_log import (
    ALARMS_MAX,
    INTERVAL_S,
    KIND_BURST,
    KINDS,
    OF_PEERS,
    PEER_ALARMS_MAX,
    PEER_BURST,
    EventLimit,
    EventLog,
    EventReader,
    NodeLog,
)

IMPORTANT = ("start", "view", "checkpoint", "alarm", "evicted")


def kept(state: Path) -> list[str]:
    with EventReader(state) as reader:
        return [event["kind"] for event in reader.kept()]


def test_every_kind_that_is_limited_is_one_that_is_written() -> None:
    assert OF_PEERS < KINDS


@pytest.mark.parametrize("peers", [1, 10_000], ids=["one peer", "ever new ones"])
def test_a_flood_of_links_that_come_and_go_pushes_out_no_view_alarm_or_checkpoint(
    tmp_path: Path, peers: int
) -> None:
    clock = itertools.count(0.0, 1 / 64)  # as often as a known host may connect
    events = EventLog(tmp_path, bytes_max=64 * 1024, now=lambda: next(clock))
    for kind in IMPORTANT:
        events.write(kind, "x" * 100)
    for number in range(10_000):
        events.write("link", "linked with " + "x" * 500, number % peers)
        events.write("lost", "lost the link to " + "x" * 500, number % peers)
    assert kept(tmp_path)[: len(IMPORTANT)] == list(IMPORTANT)
    assert [event["kind"] for event in events.latest][: len(IMPORTANT)] == list(IMPORTANT)
    assert events.status()["held_back"] > 19_000


def test_what_was_held_back_is_told_with_the_next_that_passes(tmp_path: Path) -> None:
    now = 0.0
    events = EventLog(tmp_path, now=lambda: now)
    for _ in range(PEER_BURST + 5):
        events.write("link", "linked with node-7", 7)
    events.write("lost", "lost the link to node-7", 7)
    now = INTERVAL_S
    events.write("link", "linked with node-7", 7)
    now = 2 * INTERVAL_S
    events.write("link", "linked with node-7", 7)
    *_, lost, more, last = events.latest
    assert "held_back" not in lost
    assert more["words"] == "linked with node-7 (before it 5 more of this kind were counted and not kept)"
    assert more["held_back"] == 5
    assert last["words"] == "linked with node-7"
    assert [event["count"] for event in events.latest] == list(range(1, PEER_BURST + 4))
    assert events.status()["held_back"] == 5


def test_one_peer_takes_nothing_from_another_and_all_together_have_a_limit_too() -> None:
    limit = EventLimit()
    assert [limit.pass_on("link", 1, 0.0) for _ in range(PEER_BURST + 1)] == [*[0] * PEER_BURST, None]
    passed = [limit.pass_on("link", node, 0.0) for node in range(2, 200)]
    assert [each is not None for each in passed].count(True) == KIND_BURST - PEER_BURST
    assert limit.pass_on("lost", 1, 0.0) == 0


def test_what_no_peer_causes_has_no_limit() -> None:
    limit = EventLimit()
    assert {limit.pass_on("alarm", None, 0.0) for _ in range(1000)} == {0}
    assert {limit.pass_on("view", 7, 0.0) for _ in range(1000)} == {0}
    assert limit.held_back == 0


def test_alarms_that_peers_cause_leave_this_nodes_own_in_the_status(tmp_path: Path) -> None:
    node_log = NodeLog(tmp_path)
    own = [f"the disk is full, {number}" for number in range(ALARMS_MAX - PEER_ALARMS_MAX)]
    for words in own:
        node_log.alarm(words)
    for number in range(1000):
        node_log.alarm(f"a lie, {number}", number)
    assert node_log.alarms == [*own, *(f"a lie, {number}" for number in range(1000 - PEER_ALARMS_MAX, 1000))]
    node_log.settle("a lie, 999")
    node_log.settle(own[0])
    assert len(node_log.alarms) == ALARMS_MAX - 2
    for number in range(ALARMS_MAX):
        node_log.alarm(f"another, {number}")
    assert node_log.alarms == [f"another, {number}" for number in range(ALARMS_MAX)]
    node_log.events.close()
