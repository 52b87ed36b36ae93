from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from p2psgd.observe.status import NodeStatus
from p2psgd.observe.text import live_table
from tests.observe.statuses import bare, lost, peer, ring, status, trainer

NAMES = ["node-0", "node-1", "node-2", "node-3"]


def draw(statuses: Sequence[NodeStatus], width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(live_table(statuses, title="four nodes"))
    return console.export_text().splitlines()


def nodes(names: list[str] = NAMES) -> list[NodeStatus]:
    return [
        status(name, peers=[peer(other, lag=lag) for lag, other in enumerate(names) if other != name])
        for name in names
    ]


def row(lines: list[str], node: str) -> list[str]:
    return next(line for line in lines if line.startswith(node + " ")).split()


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 64])
def test_no_figure_is_cut_off(width: int, count: int) -> None:
    others = [f"node-{i}" for i in range(1, count)]
    large = status(
        updates={"sent": 99_999_999, "applied": 999_999_999, "indices_sent": 10**12, "bytes": 10**12},
        peers=[peer(other, lag=999) for other in others],
    )
    lines = draw([large, *nodes(["node-0", *others])[1:]], width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert "…" not in "".join(lines)


def test_eighty_columns_show_every_figure_in_brief() -> None:
    lines = draw(nodes(), 80)
    assert " ".join(lines[1].split()) == "node state steps epoch smp/s loss in out bits compr lag"
    cells = " ".join(row(lines, "node-2"))
    assert cells == "node-2 training 1000 1.23 6543 2.346 990 1000 12.0 2133x 3"


def test_the_last_row_is_of_all_nodes_together() -> None:
    lines = draw(nodes(), 80)
    assert row(lines, "all") == ["all", "4000", "26.2k", "2.346"]
    assert not [line for line in draw(nodes(["node-0"]), 80) if line.startswith("all ")]


def test_scripts_that_count_no_samples_have_their_steps_per_second() -> None:
    silent = trainer(samples=0, samples_per_s=None, epoch=None, steps_per_s=12.5)
    lines = draw([status(f"node-{place}", trainer=silent) for place in range(2)], 80)
    assert lines[1].split()[2:6] == ["steps", "epoch", "stp/s", "loss"]
    assert row(lines, "node-1")[2:5] == ["1000", "-", "12.5"]
    assert row(lines, "all")[2] == "25.0"
    assert "stp/s: steps a second" in " ".join(lines)


def test_the_title_says_how_much_of_a_training_is_done_and_when_the_last_node_has_the_rest() -> None:
    figures = [trainer(step=step, of=1_000, steps_per_s=rate) for step, rate in ((700, 10.0), (500, 5.0))]
    both = [status(f"node-{place}", trainer=each) for place, each in enumerate(figures)]
    assert draw(both, 80)[0].rstrip() == "four nodes, 60 % of 2,000 steps, 1 min 40 s left"
    silent = status("node-1", trainer=trainer(step=500, of=1_000, steps_per_s=0.0))
    assert draw([both[0], silent], 80)[0].rstrip() == "four nodes, 60 % of 2,000 steps"
    assert draw([both[0], status("node-1")], 80)[0].rstrip() == "four nodes"
    done = status("node-1", trainer=trainer(step=1_000, of=1_000, attached=False, finished=True))
    assert draw([both[0], done], 80)[0].rstrip() == "four nodes, 85 % of 2,000 steps, 30 s left"


def test_the_lag_is_that_of_the_slowest_peer() -> None:
    lines = draw(nodes([f"node-{i}" for i in range(8)]), 80)
    assert [row(lines, f"node-{i}")[-1] for i in (0, 7)] == ["7", "6"]
    assert "the slowest peer" in " ".join(lines).replace("  ", " ")


def test_nobody_lags_behind_on_a_lost_node() -> None:
    statuses = nodes()
    statuses[3] = lost("node-3")
    lines = draw(statuses, 80)
    assert [row(lines, name)[-1] for name in NAMES] == ["2", "2", "1", "-"]
    assert "node-3: lost (killed by signal 9)" in lines


def test_waits_are_said_below_in_plain_words() -> None:
    waiting = trainer(waits="its outbox is full: the daemon is behind")
    statuses = [status("node-0"), status("node-1", trainer=waiting)]
    assert "node-1: its outbox is full: the daemon is behind" in draw(statuses, 80)


def test_a_node_that_has_not_answered_yet_has_a_row() -> None:
    lines = draw([status("node-0"), bare("node-1")], 80)
    assert " ".join(row(lines, "node-1")) == "node-1 starting 0 - - - 0 0 - - -"


def test_square_brackets_are_no_markup() -> None:
    lines = draw([status("node-0", waits="for [bold]node-1[/bold]")], 80)
    assert "node-0: for [bold]node-1[/bold]" in lines


@pytest.mark.parametrize("width", [80, 140])
def test_in_a_ring_the_round_stands_in_the_place_of_the_lag(width: int) -> None:
    waits = {"waiting_for": "round 1233 has waited for 2.5 s for node-1", "since_s": 2.5}
    statuses = [
        status(name, ring=ring(round=1_230 + place, **(waits if place == 2 else {})))
        for place, name in enumerate(NAMES)
    ]
    lines = draw(statuses, width)
    assert lines[1].split()[-1] == "round"
    assert [row(lines, name)[-1].replace(",", "") for name in NAMES] == ["1230", "1231", "1232", "1233"]
    text = " ".join(" ".join(lines).split())
    assert (
        "round 1,233; ring node-0 > node-1 > node-2; node-2: round 1233 has waited for 2.5 s for node-1"
        in text
    )
    assert "lag" not in text
    assert "round: the last that is complete" in text


@pytest.mark.parametrize("width", [80, 140])
def test_a_dense_ring_shows_no_figures_of_updates(width: int) -> None:
    statuses = [status(name, ring=ring(payload="dense-float16")) for name in NAMES[:3]]
    lines = draw([*statuses, bare("node-3")], width)
    assert lines[1].split() == ["node", "state", "steps", "epoch", "smp/s", "loss", "round"]
    assert [cell.replace(",", "") for cell in row(lines, "node-0")] == (
        ["node-0", "training", "1000", "1.23", "6543", "2.346", "1234"]
    )
    assert row(lines, "node-3") == ["node-3", "starting", "0", "-", "-", "-", "-"]
    assert "update" not in " ".join(lines)
