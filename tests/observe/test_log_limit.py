from __future__ import annotations

import logging
from typing import Any

from p2psgd.observe.logs import PER_WINDOW, PLACES_MAX, WINDOW_S, WORDINGS_MAX, LogLimit


def record(words: str, *, level: int = logging.WARNING, line: int = 1, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("p2psgd.net", level, "mesh.py", line, "%s", (words,), None)
    made.__dict__.update(extra)
    return made


def said(limit: LogLimit, words: str, now: float, **changes: Any) -> list[str]:
    return [each.getMessage() for each in limit.take(record(words, **changes), now)]


def test_so_many_of_a_kind_pass_and_the_rest_is_told_when_the_minute_is_over() -> None:
    limit = LogLimit()
    for number in range(PER_WINDOW):
        assert said(limit, f"dropped peer {number}", 0.1 * number) == [f"dropped peer {number}"]
    for number in range(57):
        assert said(limit, f"dropped peer {PER_WINDOW + number}", 10.0) == []
    assert limit.settle(WINDOW_S - 0.1) == []
    (told,) = limit.settle(WINDOW_S)
    last = PER_WINDOW + 56
    assert told.getMessage() == f"57 more like this in the last minute, the last of them: dropped peer {last}"
    assert (told.levelno, told.name, told.__dict__["fields"]) == (
        logging.WARNING,
        "p2psgd.net",
        {"repeated": 57},
    )
    assert limit.settle(10 * WINDOW_S) == []
    assert said(limit, "dropped peer 0", 2 * WINDOW_S) == ["dropped peer 0"]


def test_any_later_message_brings_out_what_was_held_back() -> None:
    limit = LogLimit()
    for number in range(PER_WINDOW + 2):
        said(limit, f"dropped peer {number}", 0.0)
    words = said(limit, "something else", WINDOW_S, line=2)
    assert [each.split()[0] for each in words] == ["2", "something"]


def test_a_flood_hides_no_other_place_kind_or_level() -> None:
    limit = LogLimit()
    for _ in range(10 * PER_WINDOW):
        said(limit, "dropped peer 1", 0.0)
    assert said(limit, "dropped peer 1", 0.0) == []
    assert said(limit, "dropped peer 1", 0.0, line=2) == ["dropped peer 1"]
    assert said(limit, "dropped peer 1", 0.0, level=logging.ERROR) == ["dropped peer 1"]
    assert said(limit, "dropped peer 1", 0.0, fields={"kind": "view"}) == ["dropped peer 1"]


def test_the_first_instance_of_a_warning_is_never_held_back() -> None:
    limit = LogLimit()
    for number in range(10 * PER_WINDOW):
        said(limit, f"dropped 10.0.0.{number}: crc", 0.0)
    assert said(limit, "dropped 10.0.0.9: certificate", 0.0) == ["dropped 10.0.0.9: certificate"]
    assert said(limit, "dropped 10.0.0.8: certificate", 0.0) == []  # the same, numbers aside
    for number in range(10 * PER_WINDOW):
        said(limit, f"round {number}", 0.0, level=logging.INFO, line=2)
    assert said(limit, "another thing", 0.0, level=logging.INFO, line=2) == []


def test_wordings_that_peers_make_up_are_bounded() -> None:
    limit = LogLimit()
    passed = sum(len(said(limit, "closed: " + "x" * number, 0.0)) for number in range(190))
    assert PER_WINDOW < passed <= PER_WINDOW + WORDINGS_MAX


def test_places_are_bounded_and_what_they_held_back_is_told() -> None:
    limit = LogLimit()
    for _ in range(PER_WINDOW + 1):
        said(limit, "the first place", 0.0, line=1)
    for line in range(2, PLACES_MAX + 1):
        assert said(limit, "words", 1.0, line=line) == ["words"]
    words = said(limit, "words", 2.0, line=PLACES_MAX + 1)
    assert words == ["1 more like this in the last minute, the last of them: the first place", "words"]


def test_what_a_trainer_prints_passes_and_the_end_tells_the_rest() -> None:
    limit = LogLimit()
    for number in range(10 * PER_WINDOW):
        assert said(limit, f"loss {number}", 0.0, level=logging.INFO, output=True)
        said(limit, "dropped", 0.0)
    assert [each.getMessage() for each in limit.close()] == [
        f"{9 * PER_WINDOW} more like this in the last minute, the last of them: dropped"
    ]
    assert limit.close() == []
