"""A file that Perfetto reads, never without end, and never in the place of another."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trace
from benchmarks.trace import DAEMON, TRAINER, TraceEvents, open_new
from tests import DEADLINE_S
from tests.daemons import P2PSGD


def written(events: TraceEvents) -> dict[str, Any]:
    file = io.StringIO()
    events.write(file)
    found: dict[str, Any] = json.loads(file.getvalue(), parse_constant=pytest.fail)
    return found


def test_spans_counters_and_names_are_events_in_microseconds() -> None:
    events = TraceEvents()
    events.span("round 1", "step", 5_000, 9_500)
    events.count("daemon adding, % of the step", 5_000, 12.5)
    found, pid = written(events), os.getpid()
    assert found["traceEvents"][:3] == [
        {"ph": "M", "tid": TRAINER, "name": "process_name", "args": {"name": f"process {pid}"}, "pid": pid},
        {"ph": "M", "tid": TRAINER, "name": "thread_name", "args": {"name": "trainer"}, "pid": pid},
        {"ph": "M", "tid": DAEMON, "name": "thread_name", "args": {"name": "its daemon"}, "pid": pid},
    ]
    span, count = found["traceEvents"][3:]
    assert [span[key] for key in ("ph", "ts", "dur", "name", "cat")] == ["X", 5.0, 4.5, "round 1", "step"]
    assert (count["ph"], count["ts"], count["args"]) == ("C", 5.0, {"value": 12.5})
    assert found["otherData"] == {"events_left_out": 0}


def test_what_comes_beyond_the_limit_is_counted_and_not_kept() -> None:
    events = TraceEvents(events_max=3)
    for number in range(5):
        events.span(f"round {number}", "step", number, number + 1)
    found = written(events)
    assert [event["name"] for event in found["traceEvents"][3:]] == ["round 0", "round 1", "round 2"]
    assert found["otherData"] == {"events_left_out": 2}


def test_no_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "FILES_MAX", 3)
    path = tmp_path / "my.trace.json"
    for name in ("my.trace.json", "my.trace.2.json", "my.trace.3.json"):
        with open_new(path) as file:
            assert file.name == str(tmp_path / name)
    with pytest.raises(FileExistsError, match=r"my\.trace\.json and 2 numbered files"):
        open_new(path)
    with pytest.raises(FileNotFoundError):
        open_new(tmp_path / "absent" / "trace.json")


@pytest.mark.long
def test_each_trainer_of_a_local_run_writes_what_it_did(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.trace", str(tmp_path / "trace.json"), "--recipe", "digits"]
    trainer = shlex.join([*words, "--mode", "ring", "--payload", "dense", "--steps", "30"])
    done = subprocess.run(
        [*P2PSGD, "local", "-n", "2", "--trainer", trainer],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout
    for name in ("trace.json", "trace.2.json"):
        names = {event["name"] for event in json.loads((tmp_path / name).read_text())["traceEvents"]}
        assert {
            "round 30",
            "begin layer1.weight",
            "wait for the round",
            "daemon adding, % of the step",
        } <= names
