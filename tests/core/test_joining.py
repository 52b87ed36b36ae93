"""The way to READY: admission, the barrier, and having all that members had applied when it was passed."""

from __future__ import annotations

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.frontier import RING, Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.core.readiness import JoinProgress
from p2psgd.core.timing import Timing
from p2psgd.core.view import View
from p2psgd.wire.messages import ConfirmedRow, FrontierRow
from tests.core.cluster import by_origin

ME, A, B, C = (Origin(node, 1) for node in (1, 2, 3, 4))
TIMING = Timing(5.0)


class Joiner:
    """A joining node in a view numbered 5, that took it in, and what it has heard."""

    def __init__(self, *members: Origin, admitted_in: int | None = 5) -> None:
        self.view = View(5, (ME, *members))
        self.admitted_in = admitted_in
        self.acks = Acknowledgements(ME)
        self.peers: dict[Origin, Peer] = {}
        self.frontier = Frontier()
        self.joining = JoinProgress(ME, TIMING, 0.0)

    def look(self, now: float = 1.0) -> JoinProgress:
        self.joining.look(
            self.view, self.admitted_in, acks=self.acks, peers=self.peers, frontier=self.frontier, now=now
        )
        return self.joining

    def on_message(
        self, peer: Origin, rows: list[FrontierRow], view: int, confirmed: list[ConfirmedRow] | None = None
    ) -> JoinProgress:
        """A STATUS; the peer is linked if it was not."""
        known = self.peers.setdefault(peer, Peer(peer, "peer", last_seen=0.0, last_progress=0.0, credit=1))
        known.status = known.ahead = by_origin(rows)
        known.view = view
        self.acks.on_status(peer, by_origin(rows), view, {row.node: row for row in confirmed or []}, 1.0)
        return self.look()

    def unlink(self, peer: Origin) -> JoinProgress:
        del self.peers[peer]
        self.acks.link_closed(peer)
        return self.look()

    def leave(self, *members: Origin) -> JoinProgress:
        """The next view lacks them."""
        rest = tuple(member for member in self.view.members if member not in members)
        self.view = View(self.view.number + 1, rest)
        self.acks.keep({*rest, *self.peers})
        return self.look()

    def apply(self, origin: Origin, count: int) -> JoinProgress:
        for _ in range(count):
            self.frontier.advance(origin, self.frontier.sequence(origin) + 1, 0, 1)
        return self.look()


def row(origin: Origin, sequence: int, *, trimmed_to: int = 0, least: int = 0) -> FrontierRow:
    return FrontierRow(*origin, sequence, 7, trimmed_to=trimmed_to, least=least)


def test_before_the_run_is_founded_a_node_is_ready_after_a_failure_timeout() -> None:
    joining = JoinProgress(ME, TIMING, 10.0)
    for now, ready in ((10.0, False), (14.9, False), (15.0, True)):
        joining.look(View(), None, acks=Acknowledgements(ME), peers={}, frontier=Frontier(), now=now)
        assert joining.ready is ready


def test_founding_members_pass_at_once() -> None:
    joiner = Joiner(A, B, admitted_in=1)
    assert joiner.look().ready
    assert joiner.joining.absent == []


def test_whom_no_view_holds_is_not_ready() -> None:
    joiner = Joiner(A, admitted_in=None)
    joiner.view = View(5, (A,))
    assert not joiner.on_message(A, [], 5).passed
    assert not joiner.joining.ready


def test_the_barrier_waits_for_a_member_that_is_not_linked_and_names_it() -> None:
    joiner = Joiner(A, B)
    assert joiner.on_message(A, [], 5).absent == [B]
    assert not joiner.joining.ready
    joiner.on_message(B, [], 4)
    assert joiner.joining.absent == [B]  # it does not know the view yet
    joiner.on_message(B, [], 6)
    assert joiner.joining.absent == []
    assert joiner.joining.ready


def test_a_member_known_through_another_counts() -> None:
    joiner = Joiner(A, B)
    assert not joiner.on_message(A, [], 5, [ConfirmedRow(*B, 4)]).passed
    assert joiner.on_message(A, [], 5, [ConfirmedRow(*B, 5)]).ready


def test_a_member_that_is_put_out_is_not_waited_for() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(A, [], 5)
    assert not joiner.leave(B).ready
    assert joiner.joining.absent == [A]
    assert joiner.on_message(A, [], 6).ready


def test_ready_is_who_has_all_that_members_had_when_the_barrier_was_passed() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(A, [row(A, 3)], 5)
    joiner.on_message(B, [row(B, 1), row(A, 2)], 5)
    joiner.on_message(A, [row(A, 9)], 5)  # what comes later is not waited for
    assert joiner.joining.passed
    joiner.apply(A, 2)
    joiner.apply(B, 1)
    assert not joiner.joining.ready
    assert joiner.apply(A, 1).ready


def test_a_floor_is_waited_for_even_if_it_rose_later() -> None:
    joiner = Joiner(A)
    joiner.on_message(A, [row(A, 3)], 5)
    joiner.on_message(A, [row(A, 9, trimmed_to=4)], 5)
    assert not joiner.apply(A, 3).ready
    assert joiner.apply(A, 1).ready


def test_what_a_member_had_is_not_waited_for_once_it_is_out() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(A, [row(A, 3)], 5)
    joiner.on_message(B, [], 5)
    joiner.unlink(A)
    assert not joiner.joining.ready
    assert not joiner.leave(A).ready
    assert joiner.on_message(B, [], 6).ready


def test_what_a_member_had_is_waited_for_if_another_took_its_snapshot_before_it_was_out() -> None:
    """The other tells that it knows the view without the giver only after the snapshot has taken effect."""
    joiner = Joiner(A, B)
    joiner.on_message(A, [row(A, 3, trimmed_to=3)], 5)
    joiner.on_message(B, [], 5)
    assert not joiner.leave(A).ready
    assert not joiner.on_message(B, [row(A, 3, trimmed_to=3)], 6).ready
    assert joiner.apply(A, 3).ready


def test_what_a_member_may_have_had_before_it_told_is_asked_of_those_that_stay() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(B, [], 5)
    assert not joiner.leave(A).ready
    assert not joiner.on_message(B, [row(A, 3, trimmed_to=3)], 6).ready
    assert joiner.apply(A, 3).ready


def test_a_member_that_left_before_this_node_heard_of_its_admission_counts_as_one_that_leaves() -> None:
    joiner = Joiner(B)  # A was in views 5 and 6, and B has taken its snapshot since
    joiner.view = View(7, (ME, B))
    assert not joiner.on_message(B, [], 6).passed
    assert not joiner.on_message(B, [row(A, 3, trimmed_to=3)], 7).ready
    assert joiner.apply(A, 3).ready


def test_who_has_all_of_a_member_that_leaves_asks_nobody_anew() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(A, [row(A, 1)], 5)
    joiner.on_message(B, [row(B, 1)], 5)
    joiner.apply(A, 1)
    joiner.unlink(A)
    assert joiner.leave(A).passed
    assert joiner.apply(B, 1).ready


def test_a_member_that_starts_again_meanwhile_is_asked_anew_what_it_has() -> None:
    joiner = Joiner(A)
    joiner.on_message(A, [row(A, 3)], 5)
    joiner.unlink(A)
    again = Origin(A.node, 2)
    joiner.view = View(6, (ME, again))
    joiner.acks.keep({ME, again})
    assert not joiner.look().ready
    assert joiner.joining.absent == [again]
    assert not joiner.on_message(again, [row(A, 3)], 6).ready
    assert joiner.apply(A, 3).ready


def test_a_member_that_told_what_it_has_and_is_not_linked_any_more_is_waited_for_all_the_same() -> None:
    joiner = Joiner(A, B)
    joiner.on_message(A, [row(A, 3)], 5)
    joiner.unlink(A)
    joiner.on_message(B, [], 5)  # a newcomer as well: it has nothing
    assert joiner.joining.passed
    assert not joiner.joining.ready
    assert joiner.apply(A, 3).ready


def test_who_vouched_for_a_member_is_waited_for_until_another_vouches_for_it() -> None:
    """A member's floors are known to be covered by the frontier of whoever told of it."""
    joiner = Joiner(A, B, C)
    joiner.on_message(A, [row(A, 3)], 5, [ConfirmedRow(*B, 5)])
    assert joiner.on_message(C, [], 5).passed
    assert not joiner.joining.ready
    joiner.unlink(A)
    assert not joiner.leave(A).passed
    assert joiner.joining.absent == [B, C]
    joiner.on_message(C, [], 6)
    assert joiner.joining.absent == [B]
    assert joiner.on_message(B, [row(A, 2)], 6).passed
    assert not joiner.joining.ready
    assert joiner.apply(A, 2).ready


def test_ready_is_lost_by_eviction_and_the_way_begins_anew() -> None:
    joiner = Joiner(A)
    assert joiner.on_message(A, [], 5).ready
    joiner.view, joiner.admitted_in = View(6, (A,)), None
    assert not joiner.look().ready
    joiner.view, joiner.admitted_in = View(7, (ME, A)), 7
    assert joiner.look().absent == [A]
    assert joiner.on_message(A, [row(A, 2)], 7).passed
    assert not joiner.joining.ready
    assert joiner.apply(A, 2).ready


def test_an_eviction_that_was_never_heard_of_counts_as_well() -> None:
    joiner = Joiner(A)
    assert joiner.on_message(A, [], 5).ready
    joiner.view, joiner.admitted_in = View(8, (ME, A)), 8
    assert not joiner.look().ready


def test_nobody_waits_for_rounds_that_a_damaged_member_of_a_dense_ring_has_given_up() -> None:
    joiner = Joiner(A)
    joiner.frontier.jump(3, 0, 3)
    assert not joiner.on_message(A, [FrontierRow(*RING, 7, 0, steps=7)], 5).ready
    assert joiner.on_message(A, [FrontierRow(*RING, 3, 0, steps=3)], 5).ready
