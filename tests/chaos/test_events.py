from __future__ import annotations

from pathlib import Path

from p2psgd.storage.event_log import EventLog
from tests.chaos.events import Event, counts, read, ready_after


def test_events_come_back_with_their_time(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("ready", "this node is ready")
    log.write("link", "linked with node-1")
    log.close()
    ready, link = read(tmp_path)
    assert (ready.kind, link.words) == ("ready", "linked with node-1")
    assert abs(ready.at - tmp_path.stat().st_mtime) < 5
    assert counts([ready, link, ready]) == {"ready": 2}
    assert read(tmp_path / "nothing") == []


def test_a_life_was_ready_when_it_said_so_first() -> None:
    events = [
        Event(at, kind, "") for at, kind in ((1.0, "ready"), (5.0, "view"), (7.0, "ready"), (9.0, "ready"))
    ]
    assert ready_after(events, 4.0, 10.0) == 3.0
    assert ready_after(events, 4.0, 6.0) is None
