"""A family of seeds: what each stands for, what must occur in a range of them, which bugs they must find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tests.sim.closure.mutants import CLOSURE_MUTANTS
from tests.sim.closure.scenario import draw_closure_scenario
from tests.sim.closure.sightings import MUST_OCCUR as CLOSURE_MUST_OCCUR
from tests.sim.liar.mutants import LIAR_MUTANTS
from tests.sim.liar.scenario import draw_liar_scenario
from tests.sim.liar.sightings import MUST_OCCUR as LIAR_MUST_OCCUR
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.owners.mutants import OWNERS_MUTANTS
from tests.sim.owners.scenario import draw_owners_scenario
from tests.sim.owners.sightings import MUST_OCCUR as OWNERS_MUST_OCCUR
from tests.sim.ring.mutants import RING_MUTANTS
from tests.sim.ring.scenario import draw_ring_scenario
from tests.sim.ring.sightings import MUST_OCCUR as RING_MUST_OCCUR
from tests.sim.scenario import Scenario, draw_scenario
from tests.sim.sightings import MUST_OCCUR


class Draw(Protocol):
    """The scenario of a seed; `nodes` overrules how many it has."""

    def __call__(self, seed: int, *, nodes: int | None = None) -> Scenario: ...


@dataclass(frozen=True, slots=True)
class Family:
    """`must_occur`: sightings."""

    draw: Draw
    must_occur: tuple[str, ...]
    mutants: Mapping[str, Mutant]


ASYNC: Final = Family(draw_scenario, MUST_OCCUR, MUTANTS)
RING: Final = Family(draw_ring_scenario, RING_MUST_OCCUR, RING_MUTANTS)
OWNERS: Final = Family(draw_owners_scenario, OWNERS_MUST_OCCUR, OWNERS_MUTANTS)
LIAR: Final = Family(draw_liar_scenario, LIAR_MUST_OCCUR, LIAR_MUTANTS)
CLOSURE: Final = Family(draw_closure_scenario, CLOSURE_MUST_OCCUR, CLOSURE_MUTANTS)
