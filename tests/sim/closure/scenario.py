"""The scenarios in mode `closure`: those of the first family, whose nodes evaluate and make no updates."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.sim.closure.work import ClosureWork
from tests.sim.scenario import Scenario, draw_scenario


def draw_closure_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many it has."""
    scenario = draw_scenario(seed, nodes=nodes)
    chance = Random(f"{seed} closure")
    step_s = 10.0 ** chance.uniform(-0.7, 0.5)
    work = ClosureWork(
        portions=chance.choice((1, 2, 5, 12, 24)),
        step_s=tuple(step_s * chance.choice((1.0, 1.0, 1.0, 4.0)) for _ in range(scenario.nodes)),
        piece_numbers=chance.choice((7, 30, 1000)),
        crash=chance.choice((0.0, 0.0, 0.01)),
    )
    return replace(scenario, shards=0, work_s=0.0, bytes_per_s=max(scenario.bytes_per_s, 1e5), closure=work)
