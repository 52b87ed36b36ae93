"""Evaluations in the status: how far they are, and who is slow."""

from __future__ import annotations

from dataclasses import replace

from p2psgd.core.read_model import EvaluationView
from p2psgd.observe.collect import evaluation_status
from p2psgd.observe.text import evaluation_lines, status_lines
from tests.observe.replications import replica_view
from tests.observe.statuses import status, trainer

VIEW = EvaluationView(
    number=13,
    waits=True,
    first=1,
    last=12,
    leader="node-1",
    portions=64,
    done=40,
    leased=6,
    again=3,
    slowest="node-2",
    slowest_s=4.1,
    fewest="node-2",
    fewest_done=4,
)


def lines(view: EvaluationView | None) -> list[str]:
    return [line.words for line in evaluation_lines(evaluation_status(replica_view(evaluation=view)))]


def test_the_leader_shows_portions_and_who_is_slow() -> None:
    assert lines(VIEW) == [
        "12 evaluations complete, number 13 is under way, node-1 deals its portions",
        "40 of 64 portions done, 6 leased, 3 leased again since the start, node-2 has had one for 4 s,"
        " node-2 has done the fewest, 4",
    ]


def test_the_first_portions_say_little_about_who_is_slow() -> None:
    assert lines(replace(VIEW, done=31, slowest=""))[1:] == [
        "31 of 64 portions done, 6 leased, 3 leased again since the start"
    ]


def test_top_and_the_page_have_the_iteration_and_the_portions() -> None:
    """Both draw the lines of the status."""
    figures = trainer(iteration=7, loss=0.25, gradient_norm=0.0123, step_length=1.0)
    evaluation = evaluation_status(replica_view(evaluation=VIEW))
    found = {line.label: line.words for line in status_lines(status(trainer=figures, evaluation=evaluation))}
    assert "iteration 7, loss 0.250, gradient 0.012, step length 1" in found["trainer"]
    assert found["portions"].startswith("40 of 64 portions done")


def test_nothing_is_shown_in_another_mode() -> None:
    assert lines(None) == []
