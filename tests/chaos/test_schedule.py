from __future__ import annotations

import dataclasses
from itertools import islice, pairwise

import pytest

from tests.chaos.faults import CleanStop, Cut, Fault, KilledDaemon, PowerCut, Stopped, kind, nodes_hit
from tests.chaos.schedule import (
    BACK_AFTER_S_MAX,
    DECK,
    FAULTS,
    LASTS_S,
    POWER_CUT_EVERY_ROUNDS,
    ROUND_S,
    draw_rounds,
)

NODES = 6


def drawn(rounds: int, *, seed: int = 1, nodes: int = NODES) -> list[Fault]:
    return [fault for faults in islice(draw_rounds(seed, nodes), rounds) for fault in faults]


def test_the_same_seed_gives_the_same_rounds_and_another_seed_others() -> None:
    assert drawn(20) == drawn(20)
    assert drawn(20) != drawn(20, seed=2)


@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_every_fault_begins_and_ends_within_its_round_and_hits_nodes_that_there_are(nodes: int) -> None:
    for fault in drawn(100, nodes=nodes):
        assert 0 < fault.at < ROUND_S
        assert nodes_hit(fault) <= set(range(nodes))
        if "for_s" in {field.name for field in dataclasses.fields(fault)}:
            assert 0 < fault.for_s <= LASTS_S[1]  # type: ignore[union-attr]
            assert fault.at + fault.for_s <= ROUND_S + 0.01  # type: ignore[union-attr]
        if isinstance(fault, KilledDaemon | CleanStop):
            assert 0 <= fault.back_after_s <= BACK_AFTER_S_MAX
        if isinstance(fault, Cut):
            assert fault.source != fault.target


def test_a_round_has_some_faults_in_the_order_of_their_time_and_several_may_last_at_once() -> None:
    overlapping = 0
    for faults in islice(draw_rounds(1, NODES), 50):
        assert FAULTS[0] <= len([fault for fault in faults if not isinstance(fault, PowerCut)]) <= FAULTS[1]
        assert list(faults) == sorted(faults, key=lambda fault: fault.at)
        lasting = [fault for fault in faults if isinstance(fault, Cut | Stopped)]
        overlapping += any(first.at + first.for_s > second.at for first, second in pairwise(lasting))
    assert overlapping > 10


def test_every_kind_comes_before_the_deck_is_dealt_again() -> None:
    rounds_of_a_deck = -(-len(DECK) // FAULTS[0])
    for seed in range(20):
        faults = drawn(rounds_of_a_deck, seed=seed)
        kinds = {kind(fault) for fault in faults if not isinstance(fault, PowerCut)}
        assert len(kinds) == len(set(DECK))


def test_power_cuts_come_two_minutes_apart() -> None:
    rounds = list(islice(draw_rounds(1, NODES), 60))
    cut = [number for number, faults in enumerate(rounds) if any(isinstance(f, PowerCut) for f in faults)]
    assert len(cut) == 60 // POWER_CUT_EVERY_ROUNDS
    assert {later - earlier for earlier, later in pairwise(cut)} == {POWER_CUT_EVERY_ROUNDS}
    assert POWER_CUT_EVERY_ROUNDS * ROUND_S >= 120


def test_no_daemon_loses_its_memory_in_a_run_that_spares_them() -> None:
    faults = [fault for faults in islice(draw_rounds(1, NODES, spare=True), 60) for fault in faults]
    kinds = {kind(fault) for fault in faults}
    assert not kinds & {"kill -9 of a daemon", "bit flipped in memory", "power cut of all"}
    assert kinds == {kind(fault) for fault in drawn(60)} - {
        *("kill -9 of a daemon", "bit flipped in memory", "power cut of all")
    }
