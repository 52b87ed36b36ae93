"""A few seeds of mode `owners` by `make test`, more by `make test-all`, thousands by `make sim`."""

from __future__ import annotations

import pytest

from p2psgd.core.owners import barrier, channel, owners, ranges
from p2psgd.core.owners.barrier import Barrier
from p2psgd.core.owners.channel import Channel
from p2psgd.core.owners.owners import Owners
from p2psgd.core.receive import Receiver
from tests.sim.family import OWNERS
from tests.sim.mutants import mutated
from tests.sim.owners.mutants import OWNERS_MUTANTS
from tests.sim.sweep import hunt, run_seed, sweep

FEW_SEEDS, SEEDS = range(5), range(25)
QUICK_MUTANTS = (
    "not-sent-again-on-a-new-link",
    "opposite-not-contributed",
    "redealt-seen-twice",
    "cover-in-the-last-update",
    "range-kept-at-the-end",
    "round-published-by-the-first",
    "threshold-follows-from-who-came-last",
)
RARE = {  # in so few seeds
    "all lost at once",
    "owners: cover by a snapshot",
    "owners: cover of a redealt one by a snapshot",
    "owners: snapshot of a contributor from a donor that took one",
    "owners: update that covers and changes nothing",
    "removal for good",
}


def test_no_seed_violates_an_invariant() -> None:
    assert [outcome.violation for outcome in sweep(FEW_SEEDS, family=OWNERS).failed] == []


@pytest.mark.long
def test_in_more_seeds_none_does_and_what_must_occur_does() -> None:
    """In one test: several would run all seeds in each process that has one of them."""
    summary = sweep(SEEDS, family=OWNERS)
    assert [outcome.violation for outcome in summary.failed] == []
    assert set(summary.unseen) <= RARE


FOUND = {
    16: "a judge that did not excuse floors which came with a snapshot",
    21: "a judge that counted a contribution as one to the next round, when it ended its own at once",
    485: "in a net of fewer weights than members an owner of none never ended a round",
    739: "an owner published until its log was many times its size, and nobody took its snapshot",
    557: "a node that was alone when it began to stop did not wait for a member that came",
    2697: "a judge that took two nodes for one run that had not met yet",
    3006: "a judge that did not see that an owner filled its log by an update of its own, after it had asked",
    792: "a judge that counted on a node which is cut off from all but one",
    10082: "an owner of weights that had owned none for a while left members out at once",
    10217: "a judge that counted on a node which a person had removed since it does not come back",
    11918: "a judge that did not ask how long another owner waits for its own trainer",
    11335: "a judge that did not see that a log still lets go of a snapshot which was broken off",
    11032: "a member that was not READY removed the one that it was to take the state from",
    20082: "a newcomer was READY before it heard that another had taken the snapshot of a member that left",
    20468: "a node waited for ever for a relay that was cut off from the owner, which it was linked with",
    1236: "an ambush that sprang before all was healed and killed an owner after that",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_holds(seed: int) -> None:
    assert run_seed(seed, draw=OWNERS.draw).violation is None, FOUND[seed]


def test_two_runs_of_a_seed_leave_the_same_trace() -> None:
    one, other = (run_seed(1, draw=OWNERS.draw, tracing=True).trace for _ in range(2))
    assert len(one) > 100
    assert "\n".join(one).encode() == "\n".join(other).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK_MUTANTS)
def test_a_mutant_dies(name: str) -> None:
    assert hunt(name, range(20), family=OWNERS, deaths_max=1).first is not None


@pytest.mark.parametrize("name", OWNERS_MUTANTS)
def test_a_mutant_fits_the_code_and_is_taken_back(name: str) -> None:
    places = (Owners, Barrier, Channel, Receiver, barrier, channel, owners, ranges)
    before = [dict(vars(place)) for place in places]
    with mutated(OWNERS_MUTANTS[name]):
        pass
    assert [dict(vars(place)) for place in places] == before
