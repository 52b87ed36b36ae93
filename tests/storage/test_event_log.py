from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from p2psgd.storage.event_log import EVENTS_KEPT, EventLog, EventReader, older_path


def counts(state: Path) -> list[int]:
    with EventReader(state) as reader:
        return [event["count"] for event in reader.kept()]


def test_an_event_is_one_line_with_time_count_kind_words_node_and_figures(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.names = {7: "node-7"}.get
    log.write("link", "linked", 7, bytes=3)
    log.write("start", "the node starts")
    first, second = map(json.loads, log.path.read_text().splitlines())
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first.pop("time"))).total_seconds()) < 60
    assert first == {
        "count": 1,
        "kind": "link",
        "words": "linked",
        "node": "node-7",
        "id": "0000000000000007",
        "bytes": 3,
    }
    assert list(second) == ["time", "count", "kind", "words"]


def test_counting_goes_on_after_a_restart(tmp_path: Path) -> None:
    for life in range(3):
        log = EventLog(tmp_path)
        log.write("start", f"life {life}")
        log.write("stop", f"life {life}")
        log.close()
    assert counts(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_two_files_of_bounded_size_hold_the_latest_without_a_hole(tmp_path: Path) -> None:
    log = EventLog(tmp_path, bytes_max=4096)
    for number in range(500):
        log.write("note", f"event {number}")
        assert log.path.stat().st_size <= 4096
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "events.jsonl.1"}
    assert older_path(log.path).stat().st_size <= 4096
    kept = counts(tmp_path)
    assert kept == list(range(kept[0], 501))
    assert len(kept) > 30
    assert [event["count"] for event in log.latest] == list(range(501 - EVENTS_KEPT, 501))


def test_words_are_bounded(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("alarm", "x" * 100_000)
    assert log.path.stat().st_size < 2_000


def test_a_line_cut_off_by_a_crash_is_skipped_and_the_next_is_whole(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("note", "one")
    log.write("note", "two")
    log.close()
    log.path.write_bytes(log.path.read_bytes()[:-10])
    again = EventLog(tmp_path)
    again.write("note", "three")
    with EventReader(tmp_path) as reader:
        assert [(event["count"], event["words"]) for event in reader.kept()] == [(1, "one"), (2, "three")]


def test_a_full_disk_is_counted_and_ends_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.path.symlink_to("/dev/full")
    log.write("alarm", "one")
    log.write("alarm", "two")
    assert log.status() == {
        "count": 2,
        "held_back": 0,
        "failures": 2,
        "trouble": f"{log.path} cannot be written: no space left on device",
    }
    assert [event["words"] for event in log.latest] == ["one", "two"]
    log.path.unlink()
    log.write("alarm", "three")
    assert log.failures == 2
    assert counts(tmp_path) == [3]


def test_a_directory_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "absent")
    log.write("start", "the node starts")
    assert (log.failures, "no such file or directory" in log.trouble) == (1, True)
