from __future__ import annotations

from pathlib import Path

from p2psgd.node.backpressure import Stall
from p2psgd.storage.event_log import EventLog


def test_its_beginning_and_end_are_events_and_what_lies_between_is_not(tmp_path: Path) -> None:
    events = EventLog(tmp_path)
    stall = Stall(events)
    for now, words in [(1.0, ""), (2.0, "the log is full"), (3.0, "the log is full"), (4.0, "no majority")]:
        stall.update(words, now)
    figures = stall.figures(5.0)
    assert figures is not None
    assert (figures.words, figures.since_s) == ("no majority", 3.0)
    stall.update("", 6.0)
    stall.update("", 7.0)
    assert stall.figures(8.0) is None
    assert [(event["kind"], event["words"], event.get("seconds")) for event in events.latest] == [
        ("stall", "the trainer is held up: the log is full", None),
        ("stall", "the trainer goes on after 4 s", 4.0),
    ]
