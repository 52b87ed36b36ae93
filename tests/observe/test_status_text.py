from __future__ import annotations

from typing import Any

import pytest

from p2psgd.observe.status import NodeState, NodeStatus
from p2psgd.observe.text import Grade, render_status, status_lines
from tests.observe.statuses import fields, peer, ring, split, status, trainer


def line(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(label + " "))


def test_a_training_node_in_full() -> None:
    assert render_status(status()).splitlines() == [
        "node-0: id 00112233aabbccdd, pid 4711, p2psgd 0.1.0, up 1 h 2 min",
        "state       training",
        "run         speech: async, 80,000 weights in 8 tensors, quantum 2^-20",
        "fingerprint " + "ab" * 16,
        "listens     127.0.0.1:7000; plaintext: whoever reaches this port can read and join",
        "trainer     attached (pid 4712), step 1,000, loss 2.346, epoch 1.23, 6,543 samples/s",
        "updates     1,000 sent, 990 applied, 2 duplicates dropped, 12.00 bits per index, compression 2133x",
        "traffic     9.0 MB sent, 8.0 MB received; loop lag 0.3 ms",
        "log         30 updates kept, 88.0 kB of at most 256.0 MB",
        "replica     digest 0123456789abcdef; largest coordinate 123,456 of at most 16,777,216",
        "peers       1 connected",
        "peer        node-1 (00000000000000ff) at 127.0.0.1:7001: connected for 1 min 40 s, "
        "lacks 0 updates of ours, 30.0 kB sent, 3.0 MB received",
    ]


def test_data_in_shards_are_told_beside_the_weights() -> None:
    run = {**fields()["run"], "shards": 1}
    told = line(render_status(status(run=run)), "run")
    assert "80,000 weights in 8 tensors, data in 1 shard, quantum 2^-20" in told


def test_plaintext_on_purpose_is_told_as_such_and_tls_with_its_run_and_end() -> None:
    text = render_status(status(insecure_plaintext=True))
    assert "7000; plaintext (--insecure-plaintext): whoever reaches this port" in line(text, "listens")
    tls = {"run": "speech-7", "expires": "2027-11-22T12:00:00+00:00", "expires_s": 1, "trouble": ""}
    text = render_status(status(plaintext=False, tls=tls))
    assert line(text, "listens") == "listens     127.0.0.1:7000"
    assert line(text, "tls") == "tls         run speech-7, until 2027-11-22"
    text = render_status(status(plaintext=False, tls={**tls, "trouble": "it expires soon"}))
    assert line(text, "tls").endswith("2027-11-22; it expires soon")


def test_waits_and_alarms_are_notes_in_plain_words() -> None:
    text = render_status(status(waits="for node-1 to come back", alarms=["coordinate 7 passed 2^23"]))
    assert "note        for node-1 to come back\nnote        coordinate 7 passed 2^23" in text


def test_what_the_node_waits_for_is_no_note_if_it_has_a_line_of_its_own() -> None:
    words = "waiting to be admitted"
    told = status(ready=False, not_ready=words, waits=words, trainer=trainer(waits=words))
    assert render_status(told).count(words) == 1
    stall = {"words": "the log is full", "since_s": 125.0}
    text = render_status(status(stall=stall, trainer=trainer(waits="the log is full")))
    assert text.count("the log is full") == 1
    assert line(text, "stalled") == "stalled     for 2 min 5 s: the log is full"


def test_a_crash_is_told_while_there_is_no_other_trainer() -> None:
    assert "it crashed" in render_status(status(trainer=trainer(attached=False, crash="it crashed")))
    assert "it crashed" not in render_status(status(trainer=trainer(crash="it crashed")))


def test_dropped_frames_are_counted_by_reason() -> None:
    text = render_status(status(dropped={"payload": 1, "crc": 1_200, "digest": 0}))
    assert line(text, "dropped") == "dropped     1,200 x crc, 1 x payload"


def test_frames_of_a_node_that_was_removed_for_good_are_told_with_its_name() -> None:
    view = {"number": 7, "members_total": 2, "member": True, "forbidden": ["00000000000000ff", "f" * 16]}
    text = render_status(status(view=view, dropped={"forbidden": 68, "crc": 1}))
    assert line(text, "dropped") == f"dropped     1 x crc, 68 x forbidden (node-1, {'f' * 16})"
    assert line(text, "view") == f"view        7, 2 members, 2 forbidden (node-1, {'f' * 16})"


def test_visits_of_doctors_are_no_drops() -> None:
    assert line(render_status(status(doctors=3)), "looked at") == "looked at   by p2psgd doctor, 3 times"


def test_a_restarted_trainer_shows_what_happened() -> None:
    text = render_status(status(trainer=trainer(restarts=1, reloads=3, refused_requests=1)))
    assert line(text, "trainer").endswith("1 restart, 3 reloads, 1 refused request")


def test_a_script_that_reports_no_samples_shows_its_mini_batches_per_second() -> None:
    figures = {"samples": 0, "samples_per_s": 0.0, "epoch": 0.0, "loss": None}
    text = render_status(status(trainer=trainer(steps=801, steps_per_s=81.25, **figures)))
    assert line(text, "trainer") == "trainer     attached (pid 4712), step 801, 81.2 steps/s"


def test_the_pace_of_all_nodes_stands_behind_that_of_this_one() -> None:
    text = render_status(status(pace={"nodes": 3, "steps_per_s": 121.34}))
    assert line(text, "trainer").endswith("6,543 samples/s, 121.3 steps/s by 3 nodes")


def test_a_finished_trainer_is_not_missed() -> None:
    text = render_status(
        status(state="serving", trainer=trainer(attached=False, finished=True, test_accuracy=0.5234))
    )
    assert line(text, "trainer").startswith("trainer     finished, step 1,000")
    assert "test accuracy 52.34 %" in text


def test_a_peer_that_is_away_says_why() -> None:
    away = peer("node-1", state="lost", lag=None, error="connection refused", bytes_sent=0, bytes_received=0)
    assert line(render_status(status(peers=[away])), "peer") == (
        "peer        node-1 (00000000000000ff) at 127.0.0.1:7001: lost for 1 min 40 s, connection refused"
    )


VIEW: dict[str, Any] = {"members": [{"own": True, "ready": True}], "members_total": 2, "waits": ""}


@pytest.mark.parametrize(
    ("changes", "grade", "words"),
    [
        ({"member": {"ready": True}}, Grade.GOOD, "connected for 1 min 5 s, ready"),
        ({"member": {"ready": False}}, Grade.WARN, "connected for 1 min 5 s, not ready"),
        ({}, Grade.WARN, "connected for 1 min 5 s, not a member"),
        ({"founded": False}, Grade.WARN, "connected for 1 min 5 s, lacks"),
        (
            {"member": {"heard_s": 2.0}, "state": "suspect"},
            Grade.BAD,
            "suspect for 1 min 5 s, heard of 2 s ago",
        ),
        ({"member": {}, "state": "lost", "error": "no"}, Grade.BAD, "lost for 1 min 5 s, never heard"),
        ({"state": "lost"}, Grade.IDLE, "lost for 1 min 5 s, not a member"),
        (
            {"member": {}, "state": "dialling", "error": "no", "through": "node-2"},
            Grade.WARN,
            "not reached directly (no), its updates come through node-2",
        ),
        ({"member": {}, "state": "stopped"}, Grade.IDLE, "stopped for 1 min 5 s"),
        ({"state": "dialling", "error": "no"}, Grade.BAD, "dialling for 1 min 5 s"),
        ({"member": {"lag": 7}, "state": "dialling", "lag": None}, Grade.BAD, "lacks 7 updates of ours"),
    ],
)
def test_a_peer_is_said_to_be_what_its_link_and_the_view_show(
    changes: dict[str, Any], grade: Grade, words: str
) -> None:
    told = {"member": None, "founded": True, **changes}
    member, founded = told.pop("member"), told.pop("founded")
    members = [] if member is None else [{"node": "node-1", "id": "id-1", "own": False, **member}]
    view = {**VIEW, "number": int(founded), "members": [*VIEW["members"], *members]}
    shown = status(peers=[peer("node-1", id="id-1", since_s=65.0, **told)], view=view)
    (found,) = (line for line in status_lines(shown) if line.label == "peer")
    assert found.grade is grade
    assert words in found.words


def test_those_who_need_a_person_come_first_and_peers_that_are_not_listed_are_counted() -> None:
    away = peer("node-2", id="id-2", state="lost", lag=None, error="connection refused")
    text = render_status(status(peers=[peer("node-1"), away], peers_total=7))
    assert line(text, "peers") == "peers       1 connected, 1 lost, 5 more are not listed"
    assert text.index("node-2") < text.index("node-1")


def test_a_fresh_daemon_says_what_it_lacks() -> None:
    text = render_status(NodeStatus(node="node-0", state=NodeState.WAITING))
    assert text.splitlines() == [
        "node-0",
        "state       waiting for a trainer",
        "note        waiting for a trainer",
        "run         none yet: the first trainer brings it, and this node neither dials nor answers before",
        "trainer     none attached",
        "updates     0 sent, 0 applied",
        "peers       none",
    ]


def test_control_characters_are_escaped() -> None:
    text = render_status(status(peers=[peer("\x1b[31mnode", error="a\nb")], alarms=["\x07"]))
    assert "\x1b" not in text
    assert "a\\nb" in text


def test_a_ring_and_the_parts_of_a_step_have_lines_of_their_own() -> None:
    text = render_status(status(ring=ring(), trainer=trainer(**split())))
    assert line(text, "steps") == (
        "steps       1,000, each 10 ms: computing 60 %, waiting 30 %, adding 3 %, sending 7 %"
    )
    assert (
        line(text, "ring")
        == "ring        sparse, round 1,234 is complete, generation 2 of this view is under way"
    )


def test_a_dense_ring_has_no_updates_to_tell_of() -> None:
    text = render_status(status(ring=ring(payload="dense")))
    assert not [label for label in ("updates ", "log ") if f"\n{label}" in text]
    assert "of ours" not in text
    assert "of ours" in render_status(status(ring=ring(payload="sparse")))


def test_nodes_of_other_runs_are_named_with_what_differs() -> None:
    strangers = [{"node": "bert", "id": "ff", "since_s": 65.0, "words": "bert in mode async, anna in a ring"}]
    text = render_status(status(strangers=strangers))
    assert line(text, "refused") == "refused     1 min 5 s ago: bert in mode async, anna in a ring"


def test_where_a_node_shows_itself_is_told() -> None:
    text = render_status(status(http={"address": "127.0.0.1:9400", "answered": {}, "cut": {}}))
    assert line(text, "shown at") == "shown at    http://127.0.0.1:9400"
