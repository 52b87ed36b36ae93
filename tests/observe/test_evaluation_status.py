"""Evaluations in the status: how far they are, and who is slow."""

from __future__ import annotations

from p2psgd.core.read_model import EvaluationView
from p2psgd.observe.collect import evaluation_status
from p2psgd.observe.text import evaluation_lines
from tests.observe.replications import replica_view

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
)


def lines(view: EvaluationView | None) -> list[str]:
    return [line.words for line in evaluation_lines(evaluation_status(replica_view(evaluation=view)))]


def test_the_leader_shows_portions_and_who_is_slow() -> None:
    assert lines(VIEW) == [
        "12 evaluations complete, number 13 is under way, node-1 deals its portions",
        "40 of 64 portions done, 6 leased, 3 leased again since the start, node-2 has had one for 4 s",
    ]


def test_nothing_is_shown_in_another_mode() -> None:
    assert lines(None) == []
