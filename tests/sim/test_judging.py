"""The simulator's own rules: what explains what, what is seen, and how long a convergence may take."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from p2psgd.core.effects import Effect, LogEvent, Reload
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.update_log import ENTRY_BYTES, UpdateLog
from p2psgd.core.view import View
from p2psgd.wire.reject import RejectCode
from tests.sim.agreement import Agreement
from tests.sim.convergence import _trims
from tests.sim.judging import Judge
from tests.sim.outcome import Violation
from tests.sim.sightings import note_replaced
from tests.sim.whole import check_all

DONOR, JOINER = Origin(1, 1), Origin(2, 1)


def daemon(me: Origin, flipped: tuple[int, int] | None = None) -> Any:
    return SimpleNamespace(
        me=me, place=me.node, book=SimpleNamespace(flipped=flipped, damaged=flipped is not None)
    )


@pytest.fixture
def judge() -> Judge:
    return Judge(cast(Any, SimpleNamespace(see=lambda what, times=1: None)))


def test_a_damaged_snapshot_explains_one_refusal(judge: Judge) -> None:
    judge.snapshot_given(daemon(DONOR, flipped=(0, 8)), JOINER.node)
    judge.refusal(daemon(JOINER), DONOR.node, RejectCode.SNAPSHOT, "its digest is wrong")
    with pytest.raises(Violation, match="its digest is wrong"):
        judge.refusal(daemon(JOINER), DONOR.node, RejectCode.SNAPSHOT, "its digest is wrong")


def test_a_damaged_snapshot_that_is_over_explains_no_later_refusal(judge: Judge) -> None:
    judge.snapshot_given(daemon(DONOR, flipped=(0, 8)), JOINER.node)
    judge.snapshot_over(daemon(JOINER), DONOR)
    judge.snapshot_given(daemon(DONOR), JOINER.node)
    with pytest.raises(Violation, match="its digest is wrong"):
        judge.refusal(daemon(JOINER), DONOR.node, RejectCode.SNAPSHOT, "its digest is wrong")


@pytest.mark.parametrize(
    ("kinds", "flipped", "seen"),
    [
        (["snapshot taken"], False, "snapshot after a gap"),
        (["mended", "snapshot taken"], True, "snapshot after a flip"),
        (["mended"], True, "mending after a flip"),
    ],
)
def test_what_replaced_the_weights_is_told_by_what_the_node_says(
    kinds: list[str], *, flipped: bool, seen: str
) -> None:
    sightings: Counter[str] = Counter()
    effects: list[Effect] = [*(LogEvent(kind, "") for kind in kinds), Reload()]
    note_replaced(lambda what: sightings.update([what]), effects, flipped=flipped)
    assert sightings == {seen: 1}


def test_whole_weights_are_not_made_anew() -> None:
    with pytest.raises(Violation, match="nothing had damaged"):
        note_replaced(lambda what: None, [LogEvent("mended", ""), Reload()], flipped=False)


@pytest.mark.parametrize(("ready_in", "owed"), [(None, False), (2, True), (3, True), (4, False)])
def test_a_log_owes_what_it_gave_up_to_none_who_became_ready_in_a_view_without_this_node(
    ready_in: int | None, *, owed: bool
) -> None:
    """View 2 admits the joiner, view 4 takes the donor out, which does not know of it."""
    agreement = Agreement(bootstrap_expect=2, two_nodes="stall")
    for number, members in enumerate([(DONOR,), (DONOR, JOINER), (DONOR, JOINER), (JOINER,)], 1):
        agreement._views[number] = View(number, members)
    log = UpdateLog(budget_bytes=1000)
    log.start(DONOR, 1)

    def life(me: Origin, view: int, ready_in: int | None) -> Any:
        membership = SimpleNamespace(view=agreement._views[view])
        fields = {"me": me, "log": log, "frontier": Frontier(), "membership": membership, "ready": True}
        replica = SimpleNamespace(**fields, lattice=SimpleNamespace(digest=0))
        return SimpleNamespace(
            me=me, replica=replica, book=SimpleNamespace(flipped=None), ready_in=ready_in, came_without={}
        )

    donor, joiner = life(DONOR, 2, 1), life(JOINER, 4, ready_in)
    donor.replica.frontier.advance(DONOR, 1, 0, 1)
    if owed:
        with pytest.raises(Violation, match="has given up node 1"):
            check_all([donor, joiner], {}, agreement, logs=True)
        donor.came_without = {JOINER: {DONOR: 1}}  # its snapshot had it no more, and the joiner was READY
    check_all([donor, joiner], {}, agreement, logs=True)


def test_only_what_a_log_has_no_room_for_waits_for_it_to_be_trimmed() -> None:
    log = UpdateLog(budget_bytes=100 * (100 + ENTRY_BYTES))
    assert _trims(log, [100] * 100) == 0.0
    assert _trims(log, [100] * 125) == pytest.approx(1.0)
