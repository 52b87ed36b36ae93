"""The tables' arithmetic, and one case that really runs; the cases themselves are run by `make paper`."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import __main__ as bench
from benchmarks.paper import figures, section, tables
from benchmarks.paper.cases import CASES, PAPER, Case
from benchmarks.paper.figures import Figures
from benchmarks.paper.plain import train_plainly
from examples.strom2015.pretrain import Pretraining
from p2psgd.base.errors import UsageError
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.recipe import built_in_recipe_text


def made(accuracy: float, ratio: float | None = None, *, nodes: int = 4, weights: int = 800_000) -> Figures:
    return Figures(
        digest="",
        weights=weights,
        accuracy=accuracy,
        curve=[(1.0, accuracy / 2), (2.0, accuracy)],
        training_s=10.0,
        samples=20_000,
        steps=100,
        ratio=ratio,
        weights_per_index=ratio and 0.4 * ratio,
        socket_ratio=0.9 * ratio if ratio and nodes > 1 else None,
        bits_per_index=10.0,
        load=0.1,
        where="2 x a processor",
    )


def test_a_loss_is_against_plain_sgd_of_the_same_seed_and_net() -> None:
    wide = Case(nodes=4, hidden=(512,) * 5)
    measured = {
        Case(nodes=0): made(0.50),
        Case(nodes=0, seed=2): made(0.52),
        Case(nodes=4): made(0.498, 600.0),
        Case(nodes=4, seed=2): made(0.516, 640.0),
        Case(nodes=4, seed=3): made(0.9, 700.0),  # nothing to compare it with
        wide: made(0.55, 800.0, weights=1_300_000),
        replace(wide, nodes=0): made(0.56, weights=1_300_000),
    }
    assert tables.losses(measured, Case(nodes=4)) == pytest.approx([0.2, 0.4])
    assert tables.loss_words(measured, Case(nodes=4)) == "0.30 (0.20 to 0.40)"
    assert tables.losses(measured, wide) == pytest.approx([1.0])
    elsewhere = {case: replace(row, start=f"{case.nodes}") for case, row in measured.items()}
    assert tables.losses(elsewhere, Case(nodes=4)) == []
    assert tables.losses(elsewhere | {Case(nodes=0): made(0.5)}, Case(nodes=4)) == pytest.approx([0.2])
    enough, much, own, larger = tables.verdicts(measured)
    assert enough.endswith("met, 0.30 (0.20 to 0.40) lost at tau 2 and 647 (600 to 700), by 2 of 3 seeds.")
    assert much.endswith(": not measured.")
    assert own.endswith(": not measured.")
    assert larger.endswith("yes (647 of 0.80 M weights, 800 of 1.30 M weights).")
    much = tables.verdicts(measured | {Case(nodes=4, sum_tau=3): made(0.47, 1200.0)})[1]
    assert much.endswith(": **missed**, 3.00 lost at tau 3 and 1,200, by 1 of 3 seeds.")


def test_the_own_residual_stands_beside_the_same_case_without_it() -> None:
    without, own = (Case(nodes=4, sum_tau=3, own_residual=own) for own in (False, True))
    measured = {
        Case(nodes=0): made(0.5),
        Case(nodes=0, seed=2): made(0.52),
        without: made(0.49, 1400.0),
        replace(without, seed=2): made(0.515, 1500.0),
        own: made(0.499, 1600.0),
        replace(own, seed=2): made(0.521, 1700.0),
        replace(own, seed=3): made(0.9, 1800.0),  # nothing to compare it with
    }
    assert tables.losses(measured, without) == pytest.approx([1.0, 0.5])
    assert tables.losses(measured, own) == pytest.approx([0.1, -0.1])
    assert tables.gains(measured, own) == pytest.approx([0.9, 0.6])
    row = next(line for line in tables.table_of_own_residuals(measured).splitlines() if "1,450" in line)
    assert row == (
        "| 4 | 3 | 2 | 1,450 (1,400 to 1,500) | 50.25 (49.00 to 51.50) | 0.75 (0.50 to 1.00) "
        "| 3 | 1,700 (1,600 to 1,800) | 64.00 (49.90 to 90.00) | 0.00 (-0.10 to 0.10) | 0.75 (0.60 to 0.90) |"
    )
    verdict = next(line for line in tables.verdicts(measured) if "own residual" in line)
    assert verdict == (
        "Four nodes, compression at least 1,000, own residual: at most 0.1 points lost against plain SGD: "
        "met, 0.00 (-0.10 to 0.10) lost at tau 3 and 1,700 (1,600 to 1,800), by 2 of 3 seeds."
    )
    best_by_one = measured | {replace(own, sum_tau=2): made(0.6, 1100.0)}  # of fewer seeds, so not chosen
    assert tables.verdicts(best_by_one)[2] == verdict
    elsewhere = measured | {own: replace(measured[own], start="a")} | {without: replace(made(0.4), start="b")}
    assert tables.gains(elsewhere, own) == pytest.approx([0.6])


def test_the_section_has_every_row_of_the_paper_and_a_blank_where_nothing_was_measured() -> None:
    text = section.make({Case(nodes=0): made(0.5), Case(nodes=4): made(0.49, 600.0)})
    assert "| 4 | 1 | 49.00 | 1.00 | 600 | 2,000 | 20 | 171,000 | 17 | 1.6 % |" in text
    assert "| 8 |  |  |  |  |  | 40 | 331,000 | 33 | 1.6 % |" in text
    assert "|  |  |  |  |  |  | 80 | 547,000 | 54 | 1.8 % |" in text
    assert "| 4.5 |  |  |  |  |  |  |  |  | 9 | 15 | 3,893 | 0.2 % |" in text
    assert "Not measured yet: " in text
    assert "nodes-8-tau-2-5x384-seed-1" in text


def test_the_cases_are_the_recipe_with_what_a_table_is_about_changed() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    changed = Case(nodes=4, sum_tau=12, hidden=(512,) * 5, seed=3).recipe
    assert (changed.tau, changed.hidden, changed.seed) == (12 / PAPER.batch, (512,) * 5, 3)
    assert Case(nodes=4, sum_tau=12).start == Case(nodes=0).start != Case(nodes=0, seed=2).start
    assert Case(nodes=4, sum_tau=12).digest != Case(nodes=4).digest


def test_the_own_residual_is_said_in_the_recipe_and_makes_another_case_from_the_same_start() -> None:
    own = Case(nodes=4, own_residual=True)
    plain = replace(own, own_residual=False)
    assert (own.name, plain.name) == ("nodes-4-tau-2-5x384-seed-1-own", "nodes-4-tau-2-5x384-seed-1")
    assert (own.recipe.own_residual, plain.recipe.own_residual) == (True, False)
    assert "own_residual = false" in plain.recipe_text
    assert own.digest != plain.digest == own.plain_sgd.digest
    assert own.start == plain.start
    assert own.plain_sgd == Case(nodes=0)


def test_every_kept_figure_is_of_a_case_as_it_is_now() -> None:
    """A key that is new or has another name makes figures stale, which would silently leave the page."""
    kept = json.loads((Path(__file__).parents[2] / figures.DATA).read_text(encoding="utf-8"))
    now = {case.name: case.digest for case in CASES}
    assert {name: row["digest"] for name, row in kept.items()} == {name: now.get(name) for name in kept}


def test_plain_sgd_that_diverges_has_no_figures() -> None:
    recipe = Digits(nodes=0).recipe.model_copy(update={"epochs": 1})
    dataset = load_data_of(recipe)
    weights = np.full(net_shape(recipe, dataset).weights, np.nan, np.float32)
    with pytest.raises(UsageError, match="training diverged: the loss is nan after 0 steps"):
        train_plainly(recipe, dataset, weights)


def test_only_what_no_bench_writes_makes_a_checkout_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/explanation").mkdir(parents=True)
    for name in ("docs/explanation/results.json", "code.py"):
        (tmp_path / name).write_text("first")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "First")):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "docs/explanation/results.json").write_text("second")
    assert re.search(r"commit [0-9a-f]+$", figures.surroundings())
    (tmp_path / "code.py").write_text("second")
    assert re.search(r"commit [0-9a-f]+-dirty$", figures.surroundings())


class Digits(Case):
    """A case of seconds instead of minutes."""

    @property
    def recipe_text(self) -> str:
        return built_in_recipe_text("digits").replace('"relu"', '"sigmoid"')

    @property
    def pretraining(self) -> Pretraining:
        return Pretraining(part=0.5, epochs=5, learning_rate=0.3)


@pytest.mark.long
def test_a_small_case_runs_on_two_nodes_and_plainly_from_the_same_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "STARTS", tmp_path / "starts")
    clustered, plain = cases = list[Case]([Digits(nodes=2), Digits(nodes=0)])
    monkeypatch.setattr(figures, "CASES", cases)
    found = {case: bench.run(case) for case in cases}
    assert len(list((tmp_path / "starts").glob("*.npz"))) == 1
    for case, row in found.items():
        figures.keep(case, row, tmp_path / "results.json")
        epochs = [epoch for epoch, _ in row.curve]
        assert epochs == sorted(epochs)
        assert (epochs[-1], row.curve[-1][1]) == (case.recipe.epochs, row.accuracy)
        assert row.samples == case.recipe.epochs * len(load_data_of(case.recipe).train.labels)
    assert figures.read(tmp_path / "results.json") == found
    assert found[plain].start == found[clustered].start is not None
    assert min(row.accuracy for row in found.values()) > 0.8
    assert abs(tables.losses(found, clustered)[0]) < 10  # points
    assert len(found[plain].curve) == plain.recipe.epochs
    ours = found[clustered]
    assert ours.ratio is not None
    assert ours.socket_ratio is not None
    assert 0 < ours.socket_ratio < ours.ratio  # sockets carry more than updates
