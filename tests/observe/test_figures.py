from __future__ import annotations

import math

import pytest

from p2psgd.observe.figures import node_figures, printable, total_bits_per_index, total_compression_ratio
from tests.observe.statuses import status, trainer


def test_the_ratio_compares_float32_gradients_with_bytes_sent_to_one_peer() -> None:
    figures = node_figures(status())
    assert figures.compression_ratio == pytest.approx(32 * 80_000 * 1_000 / (8 * 150_000))
    assert figures.bits_per_index == pytest.approx(12)


def test_totals_weigh_the_nodes_by_what_they_sent() -> None:
    updates = {"sent": 10, "applied": 0, "duplicates": 0, "indices_sent": 300_000, "bytes": 300_000}
    nodes = [node_figures(status()), node_figures(status("node-1", updates=updates))]
    assert total_bits_per_index(nodes) == pytest.approx(8 * 450_000 / 400_000)
    assert total_compression_ratio(nodes) == pytest.approx(32 * 80_000 * 2_000 / (8 * 450_000))


def test_a_node_that_has_said_nothing_yet_has_figures_too() -> None:
    figures = node_figures({"node": "node-1"})
    assert (figures.state, figures.notes, figures.mini_batches) == ("starting", (), 0)
    assert figures.compression_ratio is None
    assert figures.bits_per_index is None
    assert total_compression_ratio([figures]) is None


def test_a_daemon_without_a_run_yet_reads_as_unknown() -> None:
    figures = node_figures(status(run=None, trainer=trainer(loss=None, epoch=None)))
    assert (figures.weights, figures.loss, figures.epoch) == (0, None, None)


@pytest.mark.parametrize("loss", [math.nan, math.inf, "1.0", True])
def test_what_is_no_finite_number_is_not_shown(loss: object) -> None:
    assert node_figures(status(trainer=trainer(loss=loss))).loss is None


def test_notes_hold_every_reason_once() -> None:
    waiting = status(
        waits="for node-3 to read", trainer=trainer(waits="for node-3 to read"), alarms=["disk full"]
    )
    assert node_figures(waiting).notes == ("for node-3 to read", "disk full")


def test_a_crashed_trainer_is_named_until_the_next_one_is_there() -> None:
    crashed = trainer(crash="the trainer crashed (killed by signal 9)", attached=False)
    assert node_figures(status(trainer=crashed)).notes == ("the trainer crashed (killed by signal 9)",)
    assert node_figures(status(trainer=crashed | {"attached": True})).notes == ()


def test_waiting_for_a_trainer_is_said_even_without_a_reason() -> None:
    figures = node_figures(status(state="waiting for a trainer", trainer=trainer(attached=False)))
    assert (figures.state, figures.notes) == ("waiting", ("waiting for a trainer",))


def test_a_finished_node_waits_for_nothing() -> None:
    figures = node_figures(
        status(state="waiting for a trainer", waits="x", trainer=trainer(attached=False, finished=True))
    )
    assert (figures.state, figures.notes) == ("finished", ())


def test_a_lost_node_says_only_what_became_of_it() -> None:
    figures = node_figures(status(state="lost (killed by signal 9)", waits="x"))
    assert (figures.state, figures.notes) == ("lost", ("lost (killed by signal 9)",))


def test_nothing_that_a_peer_wrote_reaches_the_terminal_raw() -> None:
    assert printable("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"
    hostile = status(peers=[{"node": "\x1b]0;title\x07", "state": "connected"}])
    assert node_figures(hostile).peers[0].node == "\\x1b]0;title\\x07"


def test_a_crash_that_a_wait_tells_of_is_told_once() -> None:
    crash = "the trainer crashed (exit code 1): ValueError: no"
    crashed = trainer(crash=crash, attached=False)
    waits = f"the trainer is starting; {crash}"
    assert node_figures(status(waits=waits, trainer=crashed)).notes == (waits,)
