"""A few seeds by `make test`, more by `make test-all`, thousands by `make sim`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2psgd.core import replica
from p2psgd.core.frontier import Frontier
from p2psgd.core.replica import Replica
from tests.sim.faults import Outcast, Pause, Removal
from tests.sim.mutants import MUTANTS, mutated
from tests.sim.scenario import draw_scenario
from tests.sim.shrinking import shrink
from tests.sim.sweep import hunt, run_seed, sweep
from tests.sim.world import simulate

FEW_SEEDS, SEEDS = range(8), range(40)
QUICK_MUTANTS = (
    "duplicates-applied",
    "need-ignored",
    "trimmed-early",
    "trimmed-before-ready",
    "snapshot-with-what-all-have",
    "snapshot-before-the-barrier",
    "asked-while-the-log-is-full",
    "promise-not-held-back",
    "never-mends",
)


def test_no_seed_violates_an_invariant() -> None:
    assert [outcome.violation for outcome in sweep(FEW_SEEDS).failed] == []


@pytest.mark.long
def test_in_more_seeds_none_does_and_what_must_occur_does() -> None:
    """In one test: several would run all seeds in each process that has one of them."""
    summary = sweep(SEEDS)
    assert [outcome.violation for outcome in summary.failed] == []
    assert summary.unseen == []


@pytest.mark.parametrize("seed", [3, 24])
def test_two_runs_of_a_seed_leave_the_same_trace(seed: int) -> None:
    one, other = (run_seed(seed, tracing=True).trace for _ in range(2))
    assert len(one) > 100
    assert "\n".join(one).encode() == "\n".join(other).encode()


def test_tracing_changes_nothing() -> None:
    traced, silent = run_seed(5, tracing=True), run_seed(5)
    assert (traced.events, traced.virtual_s, traced.sightings) == (
        silent.events,
        silent.virtual_s,
        silent.sightings,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_mutant_dies(name: str) -> None:
    assert hunt(name, range(20), deaths_max=1).first is not None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_code_and_is_taken_back(name: str) -> None:
    before = [dict(vars(owner)) for owner in (Replica, Frontier, replica)]
    with mutated(MUTANTS[name]):
        pass
    assert [dict(vars(owner)) for owner in (Replica, Frontier, replica)] == before


@pytest.mark.long
def test_a_failing_scenario_shrinks_to_one_that_still_fails() -> None:
    with mutated(MUTANTS["trimmed-early"]):
        scenario = draw_scenario(13)  # which is short
        outcome = simulate(scenario)
        assert outcome.violation is not None
        small, _ = shrink(scenario, outcome.name)
        assert len(small.faults) < len(scenario.faults)
        assert simulate(small).name == outcome.name


def test_a_removal_that_a_dead_member_holds_up_is_done_when_a_person_has_that_removed_too() -> None:
    drawn = replace(draw_scenario(0, nodes=3), two_nodes="stall")
    silent = Pause(drawn.chaos_s - 2 * drawn.failure_timeout_s, node=2, for_s=2 * drawn.failure_timeout_s)
    dead = Outcast(2, "dead", friend=1)
    removal = Removal(drawn.chaos_s - 1.0, asked=1, node=3, forbid=True)
    outcome = simulate(replace(drawn, faults=(dead, silent, removal)))
    assert outcome.violation is None
    assert outcome.sightings["removed by a person"] > 0
