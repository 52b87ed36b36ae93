"""The model of a status: what it accepts, and the figures that are made of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.observe.page import load_page
from p2psgd.observe.status import NodeStatus, TrainerStatus, bits_per_index, compression_ratio, read_status
from p2psgd.observe.text import notes, render_status, state_word
from tests.observe.statuses import bare, fields, lost, peer, status, trainer


def test_a_status_is_read_as_it_was_sent_and_what_was_not_set_stays_away() -> None:
    sent = fields()
    read = read_status(json.loads(json.dumps(sent)))
    assert read.model_dump(exclude_unset=True) == read_status(sent).model_dump(exclude_unset=True) == sent
    assert "view" not in read.model_dump(exclude_unset=True)


def test_keys_of_a_later_version_are_passed_over() -> None:
    later = fields(comet={"x": 1}, trainer=trainer(tail=2))
    assert read_status(later) == status()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "flying"}, "state: Input should be"),
        ({"log": {"bytes": "many"}}, "log.bytes: Input should be a valid integer"),
        ({"peers": [peer("\x1b[2J", lag=[])]}, "peers.0.lag: "),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="the daemon's status does not fit this p2psgd") as error:
        read_status(fields(**changes) | {"version": "9.9.9"})
    assert words in str(error.value)
    assert "it is version 9.9.9" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_status_at_all_is_a_sentence_too() -> None:
    for nothing in cast(list[object], [None, [], "x", {}]):
        with pytest.raises(UsageError, match="does not fit"):
            read_status(nothing)


def test_the_ratio_compares_float32_gradients_with_bytes_sent_to_one_peer() -> None:
    figures = status()
    assert figures.compression_ratio == pytest.approx(32 * 80_000 * 1_000 / (8 * 150_000))
    assert figures.bits_per_index == pytest.approx(12)


def test_after_a_restart_only_the_steps_count_whose_updates_do() -> None:
    began_anew = status(compression={"total": {"updates": 90, "steps": 100}})
    assert began_anew.trainer.steps == 1_000
    assert began_anew.compression_ratio == pytest.approx(32 * 80_000 * 100 / (8 * 150_000))


def test_totals_weigh_the_nodes_by_what_they_sent() -> None:
    updates = {"sent": 10, "applied": 0, "duplicates": 0, "indices_sent": 300_000, "bytes": 300_000}
    nodes = [status(), status("node-1", updates=updates)]
    assert bits_per_index(nodes) == pytest.approx(8 * 450_000 / 400_000)
    assert compression_ratio(nodes) == pytest.approx(32 * 80_000 * 2_000 / (8 * 450_000))


def test_a_node_that_has_said_nothing_yet_has_figures_too() -> None:
    figures = bare("node-1")
    assert (state_word(figures), notes(figures), figures.trainer.steps) == ("starting", [], 0)
    assert figures.compression_ratio is None
    assert figures.bits_per_index is None
    assert compression_ratio([figures]) is None


def test_a_daemon_without_a_run_yet_reads_as_unknown() -> None:
    figures = status(run=None, trainer=trainer(loss=None, epoch=None))
    assert (figures.run, figures.trainer.loss, figures.compression_ratio) == (None, None, 0.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, "1.0", True])
def test_what_is_no_finite_number_is_not_shown(loss: object) -> None:
    assert status(trainer=trainer(loss=loss)).trainer.loss is None


def test_notes_hold_every_reason_once() -> None:
    waiting = status(
        waits="for node-3 to read", trainer=trainer(waits="for node-3 to read"), alarms=["disk full"]
    )
    assert notes(waiting) == ["for node-3 to read", "disk full"]


def test_a_crashed_trainer_is_named_until_the_next_one_is_there() -> None:
    crashed = trainer(crash="the trainer crashed (killed by signal 9)", attached=False)
    assert notes(status(trainer=crashed)) == ["the trainer crashed (killed by signal 9)"]
    assert notes(status(trainer=crashed | {"attached": True})) == []


def test_waiting_for_a_trainer_is_said_even_without_a_reason() -> None:
    figures = status(state="waiting for a trainer", trainer=trainer(attached=False))
    assert (state_word(figures), notes(figures)) == ("waiting", ["waiting for a trainer"])


def test_a_finished_node_waits_for_nothing() -> None:
    ended = trainer(attached=False, finished=True)
    figures = status(state="waiting for a trainer", waits="x", trainer=ended)
    assert (state_word(figures), notes(figures)) == ("finished", [])


def test_a_lost_node_says_only_what_became_of_it() -> None:
    figures = lost("node-0", alarms=["x"])
    assert (state_word(figures), notes(figures)) == ("lost", ["lost (killed by signal 9)"])


def test_nothing_that_a_peer_wrote_reaches_the_terminal_raw() -> None:
    text = render_status(status(peers=[{"node": "\x1b]0;title\x07", "state": "connected"}]))
    assert "\\x1b]0;title\\x07: connected" in text
    assert "\x1b" not in text


def test_a_crash_that_a_wait_tells_of_is_told_once() -> None:
    crash = "the trainer crashed (exit code 1): ValueError: no"
    crashed = trainer(crash=crash, attached=False)
    waits = f"the trainer is starting; {crash}"
    assert notes(status(waits=waits, trainer=crashed)) == [waits]


def test_the_page_reads_what_the_model_has() -> None:
    page = load_page()[0].decode()
    assert {"loss"} < set(re.findall(r"status\.trainer\.(\w+)", page)) <= TrainerStatus.model_fields.keys()
    assert {"lines"} < set(re.findall(r"status\.(?!json)(\w+)", page)) <= NodeStatus.model_fields.keys()
