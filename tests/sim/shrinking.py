"""From a failing scenario to a smaller one that fails in the same way: fewer faults, fewer nodes at work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from tests.sim.faults import Fault
from tests.sim.outcome import Outcome
from tests.sim.scenario import Scenario
from tests.sim.world import simulate

RUNS_MAX: Final = 300  # a minute or so


def shrink(
    scenario: Scenario, name: str, *, run: Callable[[Scenario], Outcome] = simulate
) -> tuple[Scenario, int]:
    """The smallest scenario found that still violates the invariant `name`, and how many were tried.

    Leaves out halves of the faults, then quarters, down to single ones, then stills one trainer after the
    other, and begins again as long as something helps.
    """
    tried = 0
    progress = True
    while progress and tried < RUNS_MAX:
        progress = False
        for smaller in _smaller(scenario):
            tried += 1
            if run(smaller).name == name:
                scenario, progress = smaller, True
                break
            if tried >= RUNS_MAX:
                break
    return scenario, tried


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.faults
    size = (len(faults) + 1) // 2
    while size:
        for start in range(0, len(faults), size):
            kept: tuple[Fault, ...] = faults[:start] + faults[start + size :]
            yield dataclasses.replace(scenario, faults=kept)
        size //= 2
    for place, rate in enumerate(scenario.rates):
        if rate > STILL:
            rates = (*scenario.rates[:place], STILL, *scenario.rates[place + 1 :])
            yield dataclasses.replace(scenario, rates=rates)


STILL: Final = 1e-6  # updates a second: practically none
