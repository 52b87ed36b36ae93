"""A few seeds with liars by `make test`, more by `make test-all`, thousands by `make sim`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tests.sim.family import LIAR
from tests.sim.faults import Fault, Liar, Lie
from tests.sim.liar.lies import LIES
from tests.sim.liar.mutants import LIAR_MUTANTS
from tests.sim.mutants import mutated
from tests.sim.outcome import Outcome
from tests.sim.scenario import Scenario
from tests.sim.shrinking import shrink
from tests.sim.sweep import hunt, run_seed, sweep
from tests.sim.world import simulate

FEW_SEEDS, SEEDS = range(5), range(25)
QUICK_MUTANTS: Final = ("origin-of-the-ring-taken",)
FOR_EVER_S: Final = 1e9


def scenario_with(seed: int, what: str) -> Scenario:
    """That of the seed, with this as the only lie, told to all for ever."""
    drawn = LIAR.draw(seed)
    [liar] = [each for each in drawn.faults if isinstance(each, Liar)]
    everybody = tuple(place for place in range(1, drawn.nodes + 1) if place != liar.node)
    lie = Lie(liar.at + 1.0, liar.node, FOR_EVER_S, what, everybody)
    faults: list[Fault] = [each for each in drawn.faults if not isinstance(each, Lie)]
    return replace(drawn, faults=(*faults, lie))


def test_no_seed_violates_an_invariant() -> None:
    assert [outcome.violation for outcome in sweep(FEW_SEEDS, family=LIAR).failed] == []


@pytest.mark.long
def test_in_more_seeds_none_does_and_liars_are_named_by_the_nodes_that_hear_them() -> None:
    """In one test: several would run all seeds in each process that has one of them."""
    summary = sweep(SEEDS, family=LIAR)
    assert [outcome.violation for outcome in summary.failed] == []
    dropped = {what for what in summary.sightings if what.startswith("liar dropped: ")}
    assert {"liar dropped: view", "liar dropped: forbidden"} <= dropped


@pytest.mark.long
@pytest.mark.parametrize("name", LIES)
def test_every_lie_is_heard(name: str) -> None:
    """In the first of the seeds whose liar has an occasion for it."""
    outcomes: list[Outcome] = []
    for seed in range(20):
        outcomes.append(simulate(scenario_with(seed, name)))
        if outcomes[-1].sightings[f"lie: {name}"]:
            break
    assert [outcome.violation for outcome in outcomes if outcome.violation is not None] == []
    assert outcomes[-1].sightings[f"lie: {name}"] > 0


def test_two_runs_of_a_seed_leave_the_same_trace() -> None:
    one, other = (run_seed(1, draw=LIAR.draw, tracing=True).trace for _ in range(2))
    assert len(one) > 100
    assert "\n".join(one).encode() == "\n".join(other).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_mutant_dies(name: str) -> None:
    assert hunt(name, range(60), family=LIAR, deaths_max=1).first is not None


@pytest.mark.parametrize("name", LIAR_MUTANTS)
def test_a_mutant_fits_the_code(name: str) -> None:
    with mutated(LIAR_MUTANTS[name]):
        pass


@pytest.mark.long
def test_a_failing_scenario_keeps_its_liar_and_its_lie_when_it_is_shrunk() -> None:
    with mutated(LIAR_MUTANTS["other-members-of-the-known-view"]):
        scenario = scenario_with(7, "other news")
        outcome = simulate(scenario)
        assert outcome.violation is not None
        small, _ = shrink(scenario, outcome.name)
    assert {type(fault) for fault in small.faults} >= {Liar, Lie}
    assert len(small.faults) < len(scenario.faults)
