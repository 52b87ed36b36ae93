"""A few seeds of the ring family by `make test`, more by `make test-all`, thousands by `make sim`."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.core.ring import formation, ring, sparse
from p2psgd.core.ring.ring import Ring
from p2psgd.core.ring.sparse import SparseRounds
from tests.sim.family import RING
from tests.sim.mutants import mutated
from tests.sim.ring.mutants import RING_MUTANTS
from tests.sim.ring.sums import ring_sum
from tests.sim.sweep import hunt, run_seed, sweep

FEW_SEEDS, SEEDS = range(5), range(20)
FOUND = (1418, 1560, 2198, 6611, 7320, 8464, 8782, 9148)  # of 10,000, what the core or the judge had wrong
QUICK_MUTANTS = ("goes-on-after-a-link-was-lost", "completed-without-one-share", "all-members-counted")
RARE = {  # in so few seeds
    "ring: head died between RING_BEGIN and the first share",
    "ring: mismatch refused",
    "removal for good",
}


def test_no_seed_violates_an_invariant() -> None:
    assert [outcome.violation for outcome in sweep(FEW_SEEDS, family=RING).failed] == []


@pytest.mark.long
def test_in_more_seeds_none_does_and_what_must_occur_does() -> None:
    """In one test: several would run all seeds in each process that has one of them."""
    summary = sweep(SEEDS, family=RING)
    assert [outcome.violation for outcome in summary.failed] == []
    assert set(summary.unseen) <= RARE


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_violated_one_holds(seed: int) -> None:
    assert run_seed(seed, draw=RING.draw).violation is None


@pytest.mark.parametrize("payload", ["sparse", "dense"])
def test_two_runs_of_a_seed_leave_the_same_trace(payload: str) -> None:
    seed = next(seed for seed in SEEDS if payload in RING.draw(seed).ring.word)  # type: ignore[union-attr]
    one, other = (run_seed(seed, draw=RING.draw, tracing=True).trace for _ in range(2))
    assert len(one) > 100
    assert "\n".join(one).encode() == "\n".join(other).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_mutant_dies(name: str) -> None:
    assert hunt(name, range(20), family=RING, deaths_max=1).first is not None


@pytest.mark.parametrize("name", RING_MUTANTS)
def test_a_mutant_fits_the_code_and_is_taken_back(name: str) -> None:
    owners = (Ring, SparseRounds, formation, ring, sparse)
    before = [dict(vars(owner)) for owner in owners]
    with mutated(RING_MUTANTS[name]):
        pass
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_sum_is_made_in_the_order_of_the_ring() -> None:
    large, small = 2.0**24, 1.0  # large + small is large: so it shows where a chunk begins
    shares = [np.full(3, each, np.float32) for each in (large, small, small)]
    assert ring_sum(shares, half=False).tolist() == [large, large + 2, large]


def test_a_sum_is_rounded_to_what_travels() -> None:
    shares = [np.full(2, each, np.float32) for each in (1.0, 2.0**-12)]
    assert ring_sum([*shares, None], half=False).tolist() == [1 + 2.0**-12] * 2
    assert ring_sum([*shares, None], half=True).tolist() == [1.0] * 2
