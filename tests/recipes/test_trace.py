"""A file that Perfetto reads: whole or not at all, and never without end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from p2psgd.errors import UsageError
from p2psgd.recipes.telemetry import DAEMON, TRAINER, Trace, check_place, choose_place


def test_spans_counters_and_names_are_events_in_microseconds(tmp_path: Path) -> None:
    trace = Trace(about=lambda: {"steps": 1})
    trace.span("round 1", "step", 5_000, 9_500)
    trace.count("daemon adding, % of the step", 5_000, 12.5)
    path = tmp_path / "trace.json"
    path.write_text("an older one")
    trace.write(path, node="node-0")
    written = json.loads(path.read_text(), parse_constant=pytest.fail)
    pid = os.getpid()
    assert written["traceEvents"][:3] == [
        {"ph": "M", "tid": TRAINER, "name": "process_name", "args": {"name": "node-0"}, "pid": pid},
        {"ph": "M", "tid": TRAINER, "name": "thread_name", "args": {"name": "trainer"}, "pid": pid},
        {"ph": "M", "tid": DAEMON, "name": "thread_name", "args": {"name": "its daemon"}, "pid": pid},
    ]
    span, count = written["traceEvents"][3:]
    assert (span["ph"], span["ts"], span["dur"], span["name"], span["cat"]) == (
        "X",
        5.0,
        4.5,
        "round 1",
        "step",
    )
    assert (count["ph"], count["ts"], count["args"]) == ("C", 5.0, {"value": 12.5})
    assert written["otherData"] == {"steps": 1, "events_left_out": 0}
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_what_comes_beyond_the_limit_is_counted_and_not_kept(tmp_path: Path) -> None:
    trace = Trace(events_max=3)
    for number in range(5):
        trace.span(f"round {number}", "step", number, number + 1)
    trace.write(tmp_path / "trace.json", node="node-0")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert [event["name"] for event in written["traceEvents"][3:]] == ["round 0", "round 1", "round 2"]
    assert written["otherData"]["events_left_out"] == 2


def test_a_later_life_writes_beside_what_the_earlier_ones_wrote(tmp_path: Path) -> None:
    path = tmp_path / "my.trace.json"
    assert choose_place(path, later_life=True) == path
    path.touch()
    assert choose_place(path, later_life=False) == path
    for life in [*range(2, 10), 9]:  # the last one is replaced
        place = choose_place(path, later_life=True)
        assert place == tmp_path / f"my.trace.{life}.json"
        place.touch()


def test_a_place_that_takes_no_file_is_refused_before_and_after(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a directory; give a file name"):
        check_place(tmp_path)
    with pytest.raises(UsageError, match=r"the trace cannot be written to .*: no such file or directory"):
        check_place(tmp_path / "absent" / "trace.json")
    with pytest.raises(UsageError, match="no such file or directory"):
        Trace().write(tmp_path / "absent" / "trace.json", node="node-0")
    check_place(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
