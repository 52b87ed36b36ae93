"""Results are kept, found again, and summed up; none is taken for a case that has changed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.learn import page, results, tables
from benchmarks.learn.cases import CASES, TASKS, WAYS, Case, search
from benchmarks.learn.results import Result

TASK = "gpt-0.14M"


@pytest.fixture(autouse=True)
def three_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many the list has."""
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], rates=(2e-3, 4e-3, 8e-3)))


def made(case: Case, loss: float, *, rate: float | None = None, sent_bytes: float = 0.0) -> Result:
    used = rate or case.rate
    assert used is not None
    return Result(
        digest=case.digest(used),
        rate=used,
        loss=loss,
        accuracy=None,
        sent_bytes=sent_bytes,
        weights=137_216,
        steps=500,
        ran_s=30.0,
        load=0.5,
        at="2026-01-01",
        where="2 x a processor",
    )


NODES = 4


def searched(way: str, *losses: float, sent_bytes: float = 0.0) -> dict[Case, Result]:
    nodes = 1 if WAYS[way].alone else NODES
    return {
        case: made(case, loss, sent_bytes=sent_bytes)
        for case, loss in zip(search(TASK, way, nodes), losses, strict=True)
    }


def test_names_are_unique_and_every_task_and_way_is_searched() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert set(search(case.task, case.way, case.nodes)) <= set(CASES)


def test_the_batches_of_all_tasks_divide_among_the_nodes_of_all_cases() -> None:
    for case in CASES:
        assert TASKS[case.task].batches % case.nodes == 0, case.name


def test_a_result_is_found_again_until_its_case_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "learning.json", searched("ddp", 2.5, 2.4, 2.6)
    assert results.read(path) == {}
    for case, result in kept.items():
        results.keep(case, result, path)
    assert results.read(path) == kept
    again = next(iter(kept))
    results.keep(again, made(again, 2.1), path)
    assert results.read(path) == kept | {again: made(again, 2.1)}
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], batches=100))
    assert results.read(path) == {}


def test_more_rates_in_a_list_leave_the_results_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    case = search(TASK, "ddp", NODES)[0]
    before = case.digest(2e-3)
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], rates=(5e-4, *TASKS[TASK].rates)))
    assert case.digest(2e-3) == before


def test_the_rate_is_the_best_of_a_complete_search() -> None:
    found = searched("ddp", 2.5, 2.4, math.nan)
    assert results.best_rate(found, TASK, "ddp", NODES) == TASKS[TASK].rates[1]
    assert results.best_rate(dict(list(found.items())[1:]), TASK, "ddp", NODES) is None
    assert results.best_rate(searched("ddp", *[math.nan] * 3), TASK, "ddp", NODES) is None


def test_the_search_goes_on_while_the_best_rate_is_at_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, low, high = (searched("ddp", *losses) for losses in ((2.5, 2.4, 2.6), (1, 2, 3), (3, 2, 1)))
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], rates=(1e-3, 2e-3, 4e-3, 8e-3, 16e-3)))
    lower, higher = search(TASK, "ddp", NODES)[3:]
    assert (lower.rate, higher.rate) == (1e-3, 16e-3)
    for found, wanted in (({}, (False, False)), (inside, (False, False)), (low, (True, False))):
        assert (results.needed(found, lower), results.needed(found, higher)) == wanted
    assert results.needed(high, higher)
    assert results.best_rate(inside, TASK, "ddp", NODES) == 4e-3
    assert results.best_rate(low, TASK, "ddp", NODES) is None
    assert results.best_rate(low | {lower: made(lower, 1.5)}, TASK, "ddp", NODES) == 2e-3
    assert results.best_rate(low | {lower: made(lower, 0.5)}, TASK, "ddp", NODES) == 1e-3


def test_a_result_at_a_rate_that_is_best_no_more_does_not_count(tmp_path: Path) -> None:
    path, found = tmp_path / "learning.json", searched("ddp", 2.5, 2.4, 2.6)
    follower = Case(task=TASK, way="ddp", nodes=4, seed=2, rate=None)
    found[follower] = made(follower, 2.45, rate=TASKS[TASK].rates[1])
    for case, result in found.items():
        results.keep(case, result, path)
    assert follower in results.read(path)
    first = search(TASK, "ddp", NODES)[0]
    results.keep(first, made(first, 1.0), path)
    assert follower not in results.read(path)
    results.keep(first, made(first, 3.0), path)
    assert follower in results.read(path), "it is kept meanwhile"


def test_of_rates_that_are_as_good_the_lowest_is_taken() -> None:
    low, middle, _ = TASKS[TASK].rates
    assert results.best_rate(searched("ddp", 2.01, 2.0, 2.4), TASK, "ddp", NODES) == low
    assert results.best_rate(searched("ddp", 2.02, 2.0, 1.995), TASK, "ddp", NODES) == middle


def test_the_table_has_the_spread_over_seeds_and_the_distance_to_one_process_and_ddp() -> None:
    rates = TASKS[TASK].rates
    found = searched("one", 2.1, 2.0, 2.2) | searched("ddp", 2.5, 2.45, 2.4, sent_bytes=8e6)
    found |= searched("p2psgd", 2.3, 2.4, math.nan, sent_bytes=2e6)
    second = Case(task=TASK, way="p2psgd", nodes=4, seed=2, rate=None)
    found[second] = made(second, 2.2, rate=rates[0], sent_bytes=2e6)
    lines = tables.main_table(found, TASK)
    assert lines[2] == "| one process | 1 | 0.004 | 1 | 2.000 |  | 0 |  |  |"
    assert (
        lines[3]
        == "| DDP | 4 | 0.008 (highest tried) | 1 | 2.400 | +0.400 | 8,000 | 103x fewer | 1.0x fewer |"
    )
    ours = "2.250 (2.200 to 2.300) | +0.300 | 2,000 | 412x fewer | 4.0x fewer"
    assert lines[4] == f"| p2psgd | 4 | 0.002 (lowest tried) | 2 | {ours} |"
    assert tables.verdicts(found, TASK, NODES) == [
        "- p2psgd: ends **higher** than one process; ends lower than DDP."
    ]
    assert tables.search_table(found, TASK)[-1] == "| p2psgd | 4 | **2.300** | 2.400 | diverged |"


def test_the_page_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "learning.md"
    path.write_text(f"# Before\n\n{page.BEGIN}\n{page.END}\n\nAfter.\n")
    page.write({}, path)
    assert "Nothing has been measured yet." in path.read_text()
    page.write(searched("one", 2.1, 2.0, 2.2), path)
    text = path.read_text()
    assert text.startswith("# Before")
    assert text.endswith("After.\n")
    assert "Not measured yet, " in text
    assert "\n- gpt-3M, p2psgd plain: 3\n" in text


def test_the_search_goes_on_beside_each_rate_that_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], rates=(1e-3, 2e-3, 4e-3, 8e-3, 16e-3)))
    low, middle, high = (each for each in search(TASK, "ddp", NODES)[:3])
    found = {low: made(low, 2.0099), middle: made(middle, 2.004), high: made(high, 2.0)}
    others = [each for each in search(TASK, "ddp", NODES) if each not in found]
    assert [each.rate for each in others if results.needed(found, each)] == [1e-3, 16e-3]
