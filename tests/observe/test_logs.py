from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from p2psgd.observe.logs import (
    JournalFormatter,
    JsonFormatter,
    LogFormat,
    LogHandler,
    TextFormatter,
    choose_formatter,
    leads_to_journal,
)

EVIL = "node-1\n2026-01-01 00:00:00Z ERROR forged \x1b[2J\u202e"


def record(words: str, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("p2psgd.net", level, "mesh.py", 1, "linked with %s", (words,), None)
    made.created = 1_795_348_984.5678
    made.__dict__.update(extra)
    return made


def bug() -> logging.LogRecord:
    try:
        raise ZeroDivisionError("no\nway")
    except ZeroDivisionError as error:
        made = record("x", logging.CRITICAL)
        made.exc_info = (type(error), error, error.__traceback__)
        return made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TextIO]:
    with (tmp_path / "log").open("w") as opened:
        yield opened


def journal(file: TextIO) -> dict[str, str]:
    there = os.fstat(file.fileno())
    return {"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"}


def test_text_is_a_line_with_the_time_and_a_level_that_stands_out() -> None:
    assert TextFormatter().format(record("node-1")) == "2026-11-22 12:03:04Z linked with node-1"
    words = TextFormatter().format(record("node-1", logging.WARNING))
    assert words == "2026-11-22 12:03:04Z WARNING linked with node-1"


def test_what_peers_write_stays_one_line_and_moves_no_terminal() -> None:
    text = TextFormatter().format(record(EVIL))
    assert text.isprintable()
    assert "\\n2026" in text
    line = JsonFormatter().format(record(EVIL))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"linked with {EVIL}"


def test_json_says_when_how_grave_who_what_and_about_whom() -> None:
    fields = {"kind": "link", "node": "node-1", "id": "00000000000000ff"}
    assert json.loads(JsonFormatter().format(record("node-1", fields=fields))) == {
        "time": "2026-11-22T12:03:04.567+00:00",
        "level": "info",
        "logger": "p2psgd.net",
        "message": "linked with node-1",
        **fields,
    }
    assert "ZeroDivisionError: no\nway" in json.loads(JsonFormatter().format(bug()))["traceback"]


def test_each_line_in_the_journal_has_its_priority() -> None:
    formatter = JournalFormatter(TextFormatter(timed=False))
    assert formatter.format(record("node-1")) == "<6>linked with node-1"
    assert formatter.format(record("node-1", logging.WARNING)) == "<4>WARNING linked with node-1"
    assert formatter.format(record("node-1", logging.ERROR)) == "<3>ERROR linked with node-1"
    lines = formatter.format(bug()).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<2>") for line in lines)
    assert formatter.format(record("node-1", logging.DEBUG)).startswith("<7>")


def test_a_file_gets_what_is_asked_for_and_the_journal_priorities_as_well(file: TextIO) -> None:
    assert isinstance(choose_formatter(LogFormat.JSON, file, {}), JsonFormatter)
    assert isinstance(choose_formatter(LogFormat.TEXT, file, {}), TextFormatter)
    there = journal(file)
    in_journal = choose_formatter(LogFormat.TEXT, file, there)
    assert in_journal.format(record("node-1")) == "<6>linked with node-1"
    as_json = choose_formatter(LogFormat.JSON, file, there).format(record("node-1"))
    assert json.loads(as_json.removeprefix("<6>"))["message"] == "linked with node-1"


@pytest.mark.parametrize("words", ["", "1:2", ":", "8", "a:b"])
def test_a_journal_that_this_stream_does_not_lead_to_is_none(file: TextIO, words: str) -> None:
    assert leads_to_journal(file, journal(file))
    assert not leads_to_journal(file, {"JOURNAL_STREAM": words})
    assert not leads_to_journal(io.StringIO(), journal(file))


def test_the_handler_tells_what_it_held_back_at_the_latest_when_it_is_closed() -> None:
    stream = io.StringIO()
    handler = LogHandler(stream, TextFormatter(timed=False))
    for number in range(100):
        handler.handle(record(str(number)))
    handler.settle()
    assert len(stream.getvalue().splitlines()) == 30
    handler.close()
    last = stream.getvalue().splitlines()[-1]
    assert last == "70 more like this in the last minute, the last of them: linked with 99"


def test_before_its_last_line_the_log_tells_all_that_it_held_back() -> None:
    stream = io.StringIO()
    handler = LogHandler(stream, TextFormatter(timed=False))
    for number in range(40):
        handler.handle(record(str(number)))
    handler.settle(whole=True)
    assert stream.getvalue().splitlines()[-1].startswith("10 more like this in the last minute")
    handler.close()
    assert len(stream.getvalue().splitlines()) == 31


def test_a_message_that_cannot_be_made_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    handler = LogHandler(stream, TextFormatter())
    for words in ("%d nodes", "%s nodes"):
        handler.handle(logging.LogRecord("a library", logging.WARNING, "x.py", 1, words, ("two",), None))
    assert stream.getvalue().endswith("WARNING two nodes\n")
    assert "%d nodes" in capsys.readouterr().err
