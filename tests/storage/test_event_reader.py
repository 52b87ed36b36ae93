from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import p2psgd
from p2psgd.base.errors import UsageError
from p2psgd.cli.events import render_event
from p2psgd.storage.event_log import KINDS, EventLog, EventReader, follow, select_events


def test_nothing_to_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --state the directory of a node that has run"):
        EventReader(tmp_path)


def test_rubbish_in_the_file_is_skipped(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("note", "one")
    log.close()
    with log.path.open("ab") as file:
        file.write(b'\xff\xfe\n[]\n{"time": 1}\n\n' + b"[" * 100_000 + b"\n")
    EventLog(tmp_path).write("note", "two")
    with EventReader(tmp_path) as reader:
        assert [event["words"] for event in reader.kept()] == ["one", "two"]


def test_following_tells_every_event_once_while_files_are_replaced(tmp_path: Path) -> None:
    log = EventLog(tmp_path, bytes_max=65_536)
    log.write("note", "0")
    written = 1_000

    def write() -> None:
        for number in range(1, written):
            log.write("note", str(number))

    with EventReader(tmp_path) as reader:
        seen = [event["words"] for event in reader.kept()]
        writer = threading.Thread(target=write)
        writer.start()
        for _, event in follow([reader]):
            seen.append(event["words"])
            if event["words"] == str(written - 1):
                break
        writer.join()
    assert seen == sorted(set(seen), key=int)
    assert seen[-1] == str(written - 1)


def test_following_takes_up_a_log_that_is_begun_later_with_all_its_events(tmp_path: Path) -> None:
    late = tmp_path / "two"
    for folder in (tmp_path / "one", late):
        folder.mkdir()
    first = EventLog(tmp_path / "one")
    first.write("note", "0")
    arrived: list[EventReader] = []

    def arrivals() -> list[EventReader]:
        if not arrived and (late / "events.jsonl").exists():
            arrived.append(EventReader(late))
            return arrived
        return []

    seen = []
    with EventReader(tmp_path / "one") as reader:
        reader.kept()
        first.write("note", "1")
        for source, event in follow([reader], arrivals):
            seen.append((source.state.name, event["words"]))
            if event["words"] == "1":
                EventLog(late).write("note", "a")
            if event["words"] == "a":
                EventLog(late).write("note", "b")
            if event["words"] == "b":
                break
    arrived[0].__exit__(None, None, None)
    assert seen == [("one", "1"), ("two", "a"), ("two", "b")]


def test_the_last_so_many_of_a_kind_are_chosen(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for number in range(6):
        log.write("view" if number % 2 else "link", str(number))
    events = list(log.latest)
    assert [event["words"] for event in select_events(events, kind="view", last=2)] == ["3", "5"]
    assert [event["words"] for event in select_events(events, kind=None, last=3)] == ["3", "4", "5"]
    assert select_events(events, kind="alarm", last=None) == []
    for kept in (events, []):
        with pytest.raises(UsageError, match=r"no event is of kind 'viwe'; there are: abandoned, .*, view"):
            select_events(kept, kind="viwe", last=None)


def test_all_kinds_that_are_written_are_known() -> None:
    written = {
        kind
        for path in Path(p2psgd.__file__).parent.rglob("*.py")
        for kind in re.findall(r'(?:\bLogEvent|\._?note|\bevents\.write)\(\s*"([^"]+)"', path.read_text())
    }
    assert {"view", "alarm"} <= written <= KINDS


def test_a_line_says_when_what_and_about_whom_and_obeys_nobody(tmp_path: Path) -> None:
    event = {
        "time": "2025-11-21T18:55:01.123+00:00",
        "count": 1,
        "kind": "link",
        "words": "lost\x1b[2J",
        "node": "a\nb",
        "id": "00" * 8,
    }
    assert render_event(event | {"node": "lost"}) == "2025-11-21 18:55:01Z  link            lost\\x1b[2J"
    assert render_event(event) == "2025-11-21 18:55:01Z  link            a\\nb: lost\\x1b[2J"
