"""A few seeds of mode `closure` by `make test`, more by `make test-all`, thousands by `make sim`."""

from __future__ import annotations

import pytest

from p2psgd.core.closure import closure, portions, results, scales, sums
from p2psgd.core.closure.closure import Closure
from p2psgd.core.closure.portions import Dealer
from p2psgd.core.closure.results import ResultLog
from p2psgd.core.closure.sums import Pull, TableSums
from tests.sim.closure.mutants import CLOSURE_MUTANTS
from tests.sim.family import CLOSURE
from tests.sim.mutants import mutated
from tests.sim.sweep import hunt, run_seed, sweep

FEW_SEEDS, SEEDS = (4, 5, 9, 11), range(16)  # few, and short ones
QUICK_MUTANTS = {
    "second-answer-granted-too": 32,
    "piece-added-twice": 34,
    "empty-sum-given": 6,
}  # a seed of each
RARE = {  # in so few seeds
    "all lost at once",
    "closure: second table of an attempt",
    "closure: sum begun anew",
    "left the view",
}


def test_no_seed_violates_an_invariant() -> None:
    assert [outcome.violation for outcome in sweep(FEW_SEEDS, family=CLOSURE).failed] == []


@pytest.mark.long
def test_in_more_seeds_none_does_and_what_must_occur_does() -> None:
    """In one test: several would run all seeds in each process that has one of them."""
    summary = sweep(SEEDS, family=CLOSURE)
    assert [outcome.violation for outcome in summary.failed] == []
    assert set(summary.unseen) <= RARE


def test_two_runs_of_a_seed_leave_the_same_trace() -> None:
    one, other = (run_seed(9, draw=CLOSURE.draw, tracing=True).trace for _ in range(2))
    assert len(one) > 100
    assert "\n".join(one).encode() == "\n".join(other).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_mutant_dies(name: str) -> None:
    seed = QUICK_MUTANTS[name]
    assert hunt(name, range(seed, seed + 20), family=CLOSURE, deaths_max=1).first is not None


@pytest.mark.parametrize("name", CLOSURE_MUTANTS)
def test_a_mutant_fits_the_code_and_is_taken_back(name: str) -> None:
    places = (Closure, Dealer, Pull, ResultLog, TableSums, closure, portions, results, scales, sums)
    before = [dict(vars(place)) for place in places]
    with mutated(CLOSURE_MUTANTS[name]):
        pass
    assert [dict(vars(place)) for place in places] == before
