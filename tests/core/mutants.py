"""Bugs put into the core on purpose that its tests must find: `python -m tests.core.mutants [NAME ...]`

Each is an edit of the source, as in tests/sim/mutants.py, and stands beside the test that holds what it
breaks: that must pass without the bug, and fail with it by an assertion, not by an error of the edit's own.
Here are those that the simulator cannot find, since they break no invariant, and those that it finds by one
rule alone, or in few seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from p2psgd.core import (
    checkpoint,
    membership,
    paxos,
    readiness,
    receive,
    replica,
    send,
    snapshot_serve,
    state,
)
from p2psgd.node import run as node_run
from tests.core import (
    test_bad_updates,
    test_barring,
    test_checkpoints,
    test_consensus,
    test_dense_state,
    test_eviction,
    test_joining,
    test_receiving,
    test_repair,
    test_snapshot_giving,
    test_snapshots,
    test_timing,
    test_unbacked_views,
)
from tests.sim.mutants import MUTANTS, Edit, Mutant, mutated

Test = Callable[..., None]

TAIL: Final = test_snapshot_giving.test_it_has_what_any_other_member_lacks_linked_or_not
SAVED: Final = test_checkpoints.test_it_keeps_what_any_other_member_has_on_no_disk_linked_or_not
UNASKED: Final = test_repair.test_a_gap_of_a_holder_that_was_not_asked_counts_for_nobody
AGAIN: Final = test_receiving.test_what_was_held_back_is_not_sent_again_before_there_is_room
FROM_ANYBODY: Final = Edit(send, "Repair.note_trimmed", "or peer not in (origin, search.asked)", "")

BY_SIMULATOR_TOO: Final[dict[str, Test]] = {
    "trimmed-before-ready": test_receiving.test_who_is_not_ready_lets_go_of_nothing_to_take_an_update,
    "snapshot-without-own-updates": TAIL,
    "snapshot-without-what-the-unlinked-lack": TAIL,
    "snapshot-without-what-past-incarnations-made": TAIL,
    "snapshot-with-what-all-have": TAIL,
    "snapshot-before-the-barrier": (
        test_snapshots.test_nobody_asks_for_one_before_all_members_know_that_it_is_a_member
    ),
    "asked-while-the-log-is-full": AGAIN,
    "asked-until-the-log-is-full-to-the-byte": AGAIN,
}
CORE_MUTANTS: Final[dict[str, tuple[Mutant, Test]]] = {
    **{name: (MUTANTS[name], test) for name, test in BY_SIMULATOR_TOO.items()},
    "checkpoint-without-own-updates": (
        (
            Edit(
                checkpoint,
                "Checkpoints._saved_by_others",
                "return min(",
                "return 2**64 if origin == self._cluster.me else min(",
            ),
        ),
        SAVED,
    ),
    "checkpoint-without-what-the-unlinked-lack": (
        (
            Edit(
                checkpoint,
                "Checkpoints._saved_by_others",
                "for member in others",
                "for member in others if member in self._cluster.peers",
            ),
        ),
        SAVED,
    ),
    "gap-believed-from-anybody": ((FROM_ANYBODY,), UNASKED),
    "gap-counted-for-who-was-asked": (
        (
            FROM_ANYBODY,
            Edit(send, "Repair.note_trimmed", "search.trimmed[peer]", "search.trimmed[search.asked or peer]"),
        ),
        UNASKED,
    ),
    "made-up-origins-take-all-room": (
        (Edit(send, "Repair.missing", "and not self._give_one_up(now)", ""),),
        test_repair.test_origins_that_a_peer_made_up_take_all_room_for_a_failure_timeout_at_most,
    ),
    "removed-node-heard": (
        (Edit(replica, "Replica._hear", "if peer.state is PeerState.BARRED:", "if False:"),),
        test_barring.test_nothing_of_its_status_counts_whatever_view_it_claims,
    ),
    "removed-node-stays-linked": (
        (Edit(replica, "Replica._pass_time", "self._barring.tick(now)", "pass"),),
        test_barring.test_its_link_ends_after_a_failure_timeout_without_a_new_view,
    ),
    "what-a-removed-node-told-is-kept": (
        (Edit(replica, "Replica._bar", "self.acks.forget_hearsay()", "pass"),),
        test_barring.test_who_is_linked_when_it_is_removed_is_out_at_once,
    ),
    "strangers-believed-about-members": (
        (
            Edit(
                receive,
                "Receiver.status",
                "confirming if believed else {}",
                "confirming",
            ),
        ),
        test_barring.test_of_others_only_members_are_believed,
    ),
    "snapshots-for-anybody": (
        (
            Edit(
                snapshot_serve,
                "SnapshotServer.give",
                "peer.origin not in self._cluster.membership.view",
                "False",
            ),
        ),
        test_barring.test_snapshots_are_for_members,
    ),
    "wishers-keep-the-majority": (
        (Edit(membership, "Membership._wanted", "if requesters and not", "if False and not"),),
        test_eviction.test_one_members_word_does_not_leave_it_the_majority,
    ),
    "mutual-wishes-unheeded": (
        (Edit(membership, "Membership._wanted", "self._at_odds(now) if", "set() if"),),
        test_eviction.test_of_members_that_all_wish_each_other_out_one_stays,
    ),
    "mutual-wishes-of-three": (
        (Edit(membership, "Membership._wanted", "if len(view.members) > 3", "if view.members"),),
        test_eviction.test_of_three_the_one_in_the_middle_does_not_choose,
    ),
    "at-odds-with-who-goes-anyway": (
        (Edit(membership, "Membership._at_odds", "if node not in going", "if going is not None"),),
        test_eviction.test_who_goes_anyway_is_at_odds_with_nobody,
    ),
    "at-odds-in-any-order": (
        (Edit(membership, "Membership._at_odds", "(len(odds[node]), node)", "node"),),
        test_eviction.test_who_is_at_odds_with_several_goes_and_they_stay,
    ),
    "claims-waited-for-without-end": (
        (
            Edit(
                membership,
                "Membership._wanted",
                "now - self._claimed <= self._timing.failure_timeout_s",
                "True",
            ),
        ),
        test_unbacked_views.test_whoever_comes_back_with_the_same_claim_is_not_waited_for_again,
    ),
    "claims-waited-for-anew": (
        (
            Edit(
                membership,
                "Membership.on_status",
                "now if self._claimed is None else self._claimed",
                "now if peer.node not in self._ahead or self._ahead[peer.node] == now else self._claimed",
            ),
        ),
        test_unbacked_views.test_no_pattern_of_claims_holds_up_changes_for_longer,
    ),
    "removed-origin-waited-for": (
        (Edit(receive, "Receiver._expected_unasked", "peer.barred", "False"),),
        test_barring.test_its_updates_are_asked_for_of_others_while_it_is_linked,
    ),
    "claims-of-any-number": (
        (Edit(receive, "Receiver.status", "self._cluster.membership.check_number(status.view)", "pass"),),
        test_unbacked_views.test_its_link_ends_with_the_reason,
    ),
    "node-0-taken": (
        (Edit(receive, "Receiver._parse", "header.node == RING.node", "False"),),
        test_bad_updates.test_no_origin_is_of_node_0_but_the_one_row_of_a_dense_ring,
    ),
    "any-rows-in-a-dense-ring": (
        (Edit(state, "State.check_origins", "rows.keys() <= {RING}", "True"),),
        test_dense_state.test_a_dense_ring_has_no_origin_but_the_one_of_its_rounds,
    ),
    "votes-of-strangers-counted": (
        (Edit(paxos, "Consensus.on_message", "view.number and peer.node not in view.incarnations", "False"),),
        test_consensus.test_what_a_stranger_says_it_accepted_is_not_proposed,
    ),
    "forbidden-node-freed": (
        (
            Edit(
                paxos,
                "Consensus.check_successor",
                "not known.forbidden <= view.forbidden",
                "False",
            ),
        ),
        test_barring.test_a_view_that_admits_it_again_is_refused,
    ),
    "pauses-counted-as-silence": (
        (Edit(node_run, "RunningClock.read", "now - self._read - self._gap_s_max", "0.0"),),
        test_timing.test_of_a_pause_no_more_than_the_gap_is_counted,
    ),
    "ready-by-what-was-told-before-its-first-view": (
        (
            Edit(
                readiness, "JoinProgress.look", "view.members, view.number", "view.members, admitted_in or 0"
            ),
        ),
        test_joining.test_a_member_that_left_before_this_node_heard_of_its_admission_counts_as_one_that_leaves,
    ),
    "ready-without-what-a-leaver-gave-away": (
        (Edit(readiness, "JoinProgress._note_leavers", "if not met:", "if False:"),),
        test_joining.test_what_a_member_had_is_waited_for_if_another_took_its_snapshot_before_it_was_out,
    ),
}


class _Watch:
    """What the tests that a pytest runs end with."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        assert call.excinfo is not None
        self.errors.append(call.excinfo.typename)


def run(test: Test) -> list[str]:
    """Run a test, all its parameters; the names of the exceptions by which it failed."""
    watch, name = _Watch(), f"{sys.modules[test.__module__].__file__}::{test.__name__}"
    code = pytest.main(
        ["-o", "addopts=", "-p", "no:terminal", "-p", "no:cacheprovider", name], plugins=[watch]
    )
    if code != (pytest.ExitCode.TESTS_FAILED if watch.errors else pytest.ExitCode.OK):
        raise RuntimeError(f"pytest ended with {code!r} for {name}")
    return watch.errors


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.core.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CORE_MUTANTS)}; all if none")
    names = parser.parse_args().names or list(CORE_MUTANTS)
    if unknown := {*names} - CORE_MUTANTS.keys():
        parser.error(f"mutant {unknown.pop()!r} is not known; there are {', '.join(CORE_MUTANTS)}")
    good = True
    for name in names:
        mutant, test = CORE_MUTANTS[name]
        before = run(test)
        with mutated(mutant):
            errors = run(test)
        died = not before and "AssertionError" in errors
        good &= died
        outcome = f"fails without it by {before[0]}" if before else "died" if died else f"LIVES {errors}"
        print(f"{name:<41} {outcome:<4} {test.__module__}.{test.__name__}", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
