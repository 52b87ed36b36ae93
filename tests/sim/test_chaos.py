"""What lies in wait strikes while anything may fail, and not any more once all is healed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.faults import BeginAmbush, CrashInSnapshot, PublishAmbush, Timed
from tests.sim.scenario import draw_scenario
from tests.sim.world import World

HIT, OTHER, WAIT_S, DOWN_S, BEGIN_S = 1, 2, 0.2, 50.0, 1.0
AMBUSHES: dict[str, tuple[Timed, Callable[[World], None]]] = {
    "snapshot": (
        CrashInSnapshot(BEGIN_S, HIT, WAIT_S, DOWN_S),
        lambda world: world.chaos.snapshot_begun(HIT, OTHER),
    ),
    "generation": (
        BeginAmbush(BEGIN_S, "crash", WAIT_S, DOWN_S),
        lambda world: world.chaos.generation_begun(world.daemons[HIT]),
    ),
    "publication": (
        PublishAmbush(BEGIN_S, HIT, OTHER, DOWN_S, DOWN_S),
        lambda world: world.published(world.daemons[HIT]),
    ),
}


@pytest.mark.parametrize("name", AMBUSHES)
@pytest.mark.parametrize("healed", [False, True], ids=["chaos", "healed"])
def test_an_ambush_that_has_sprung_kills_nobody_once_all_is_healed(name: str, *, healed: bool) -> None:
    fault, spring = AMBUSHES[name]
    world = World(replace(draw_scenario(1, nodes=3), faults=(fault,)))
    world.clock.run_until(2 * BEGIN_S)
    before = dict(world.daemons)
    spring(world)
    if healed:
        world.chaos.calm()
        assert not any(line.cuts for line in world.lines.values())
    world.clock.run_until(world.clock.now + 1.0)
    assert (world.daemons == before) == healed
