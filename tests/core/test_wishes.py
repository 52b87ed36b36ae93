"""What one node wants changed in the view: that it is seen at a glance when that is nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.frontier import Origin
from p2psgd.core.pending_changes import PendingChanges
from p2psgd.core.timing import Timing
from p2psgd.core.view import View

NODES = st.integers(1, 4)
LIVES = st.dictionaries(NODES, st.integers(1, 2))


def view_of(incarnations: dict[int, int], forbidden: set[int]) -> View:
    members = tuple(sorted(Origin(*life) for life in incarnations.items()))
    return View(3, members, frozenset(forbidden - incarnations.keys()), cluster_id=7)


@given(LIVES, LIVES, st.sets(NODES), st.booleans())
def test_wishes_that_are_fulfilled_ask_for_no_view(
    members: dict[int, int], here: dict[int, int], forbidden: set[int], ready: bool
) -> None:
    wishes, view = PendingChanges(Timing()), view_of(members, forbidden)
    wish = wishes.next_view(view, here, evict=set(), ready=ready, now=0.0)
    assert wish is None or not wishes.fulfilled(view, here)


@given(LIVES, st.sampled_from(["leaving", "evict_requests", "removed"]))
def test_an_open_wish_is_not_fulfilled(members: dict[int, int], what: str) -> None:
    wishes, view = PendingChanges(Timing()), view_of(members | {1: 1}, set())
    assert wishes.fulfilled(view, view.incarnations)
    if what == "leaving":
        wishes.leaving.add(1)
    elif what == "evict_requests":
        wishes.evict_requests[1] = "slow"
    else:
        wishes.remove(1, forbid=False, view=view)
    assert not wishes.fulfilled(view, view.incarnations)
