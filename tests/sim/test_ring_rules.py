"""The simulator's rules of rings: what they object to, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from p2psgd.core.effects import OpenRound
from p2psgd.core.events import TimePassed
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.ring.rounds import Generation
from p2psgd.core.view import View
from tests.sim.agreement import Agreement
from tests.sim.outcome import Violation
from tests.sim.ring.dense_ledger import DenseBook, DenseLedger, Share
from tests.sim.ring.liveness import ROUNDS, Liveness
from tests.sim.ring.openings import Openings
from tests.sim.ring.rules import RingRules, _Course
from tests.sim.ring.standing import GenerationId, Standing
from tests.sim.ring.work import RingWork

HEAD, OTHER, JOINER = Origin(1, 1), Origin(2, 1), Origin(3, 1)


def daemon(me: Origin, *, view: int, done: int) -> Any:
    membership = SimpleNamespace(view=SimpleNamespace(number=view))
    standing = SimpleNamespace(done=done)
    return SimpleNamespace(me=me, replica=SimpleNamespace(membership=membership), standing=lambda: standing)


def begin(first: int, *, other_done: int, other_view: int) -> None:
    """The head begins, in view 1, a generation with that round."""
    head, other = daemon(HEAD, view=1, done=first - 1), daemon(OTHER, view=other_view, done=other_done)
    world = SimpleNamespace(living=lambda: [head, other], see=lambda what, times=1: None)
    rules = RingRules(cast(Any, world), cast(Any, None), cast(Any, None))
    rules._check_members(head, _Course((HEAD, OTHER), first))


def test_no_generation_begins_with_a_round_that_a_member_has_completed() -> None:
    begin(23, other_done=22, other_view=1)
    with pytest.raises(Violation, match="begins round 23, which node 2"):
        begin(23, other_done=23, other_view=1)


def test_who_is_in_a_later_view_takes_no_part_in_what_begins_in_this_one() -> None:
    begin(23, other_done=24, other_view=2)


class Rows(dict[Origin, int]):
    """A frontier."""

    def sequence(self, origin: Origin) -> int:
        return self.get(origin, 0)


BEFORE = Rows({HEAD: 3, OTHER: 4})


class Basis:
    """The head's trainer computes its share of round 11 in view 1, on weights of digest 7."""

    def __init__(self, *later: tuple[Origin, ...]) -> None:
        agreement = Agreement(bootstrap_expect=1, two_nodes="stall")
        for number, members in enumerate([(HEAD, OTHER), *later], 1):
            agreement._views[number] = View(number, members)
        world = SimpleNamespace(living=list, see=lambda what, times=1: None)
        self.openings, self.views = Openings(cast(Any, world), agreement, {}), 1 + len(later)
        head = daemon(HEAD, view=1, done=10)
        head.memory, head.replica.ready, head.replica.lattice = None, True, SimpleNamespace(digest=7)
        head.replica.frontier = BEFORE
        opened = OpenRound(2, 0)
        self.openings.check(head, opened, [opened], Standing(cast(Any, object()), 10, contributed=False))

    def complete(self, digest: int, number: int = 11, rows: Rows = BEFORE) -> None:
        rows = rows if digest == 7 else Rows({**rows, OTHER: 5})
        self.openings.check_basis(GenerationId(self.views, 1), (HEAD, OTHER), number, digest, rows)

    def completed_by(self, life: Origin, rows: Rows) -> None:
        """A round, with which it has those."""
        self.openings.complete(cast(Any, SimpleNamespace(me=life, replica=SimpleNamespace(frontier=rows))))


def test_a_share_is_computed_on_the_weights_that_its_round_begins_with() -> None:
    basis = Basis((HEAD, OTHER))
    basis.complete(digest=7)
    basis.complete(digest=8, number=12)
    with pytest.raises(Violation, match="gives round 11 what was computed on other weights"):
        basis.complete(digest=8)


def test_a_share_is_kept_over_a_joiner_that_has_gone_again() -> None:
    Basis((HEAD, OTHER, JOINER), (HEAD, OTHER)).complete(digest=8)


def test_a_share_is_kept_over_what_only_a_node_out_of_the_ring_had_completed() -> None:
    basis = Basis()
    whole = Rows({HEAD: 3, OTHER: 6, JOINER: 1})
    basis.completed_by(JOINER, whole)
    basis.complete(digest=8)  # a part of that round, all that repair could bring
    with pytest.raises(Violation, match="gives round 11 what was computed on other weights"):
        basis.complete(digest=8, rows=Rows({HEAD: 3, JOINER: 2}))  # that it has not completed
    basis = Basis()
    basis.completed_by(OTHER, whole)
    with pytest.raises(Violation, match="gives round 11 what was computed on other weights"):
        basis.complete(digest=8)


def test_a_share_that_is_in_the_replica_does_not_matter_to_a_later_round_of_that_number() -> None:
    basis = Basis()
    basis.openings.forget(HEAD)
    basis.complete(digest=8)


class Giver:
    """A node that was out of the ring with round 20 done, 3 of its 5 updates in its replica, and its
    frontier.
    """

    def __init__(self) -> None:
        self.standing, self.applied = SimpleNamespace(done=20), 3
        replica = SimpleNamespace(
            frontier=self,
            lattice=SimpleNamespace(digest=0),
            waiting_for=str,
        )
        trainer = SimpleNamespace(recover=lambda: None, wanted=True)
        self.daemon: Any = SimpleNamespace(
            me=JOINER, replica=replica, standing=lambda: self.standing, ring_trainer=trainer
        )
        self.ledger: Any = SimpleNamespace(entries={JOINER: [object()] * 5})

    def sequence(self, origin: Origin) -> int:
        return self.applied

    def __iter__(self) -> Iterator[Origin]:
        return iter([JOINER])


def test_a_round_that_a_node_completes_has_all_that_it_has_given() -> None:
    giver, world = Giver(), SimpleNamespace(living=list, see=lambda what, times=1: None)
    rules = RingRules(cast(Any, world), cast(Any, None), giver.ledger)
    of = GenerationId(1, 1)
    rules._courses[of] = _Course((HEAD, JOINER), 31, rows={30: {}})
    giver.applied = 5
    rules._complete(giver.daemon, of, 31)
    giver.applied = 4
    with pytest.raises(Violation, match="has given 5 updates to rounds, and completes round 32 with 4"):
        rules._complete(giver.daemon, of, 32)


def test_who_joins_a_generation_is_waited_for_until_what_it_had_given_is_in_a_round() -> None:
    giver, other = Giver(), Giver()
    other.daemon.me, other.standing.done = HEAD, 20 + ROUNDS
    inspector = SimpleNamespace(ledger=giver.ledger)
    world: Any = SimpleNamespace(scenario=SimpleNamespace(faults=()), inspector=inspector)
    liveness = Liveness(world, lambda: [other.daemon, giver.daemon], cast(Any, None))
    liveness._from = 20
    assert "has completed round 20 of 20 + 10" in str(liveness.behind())
    giver.standing.done = 20 + ROUNDS  # by RING_BEGIN: the rounds that were completed without it
    assert "has 3 of the 5 updates that it had given" in str(liveness.behind())
    giver.applied = 5
    assert liveness.behind() is None


def test_a_flip_explains_an_alarm_while_the_scrub_reads_the_weights_that_a_round_has_left_behind() -> None:
    work = RingWork("ring-dense", (1.0,), frozenset(), (), 0, rests=True)
    ledger = DenseLedger(np.zeros(2, np.int32), work)
    ledger.states[1] = ledger.states[0]
    read: list[Any] = []
    state = SimpleNamespace(is_reading=lambda weights: any(weights is each for each in read))
    replica: Any = SimpleNamespace(me=HEAD, state=state, node=SimpleNamespace(quarantined=False))
    replica.frontier, replica.lattice = Rows(), SimpleNamespace(coordinates=np.zeros(2, np.int32))
    book = DenseBook(ledger, replica)
    book.flip(replica, 1, 8)
    read.append(replica.lattice.coordinates)
    replica.frontier[RING], replica.lattice.coordinates = 1, np.zeros(2, np.int32)
    book.follow(replica, TimePassed(), replaced=False)
    assert book.flipped is None
    assert book.damaged
    read.clear()
    replica.node.quarantined = True  # by that scrub
    book.follow(replica, TimePassed(), replaced=False)
    assert book.damaged
    replica.node.quarantined = False
    book.follow(replica, TimePassed(), replaced=False)
    assert not book.damaged


class Dense:
    """The head and another, which have given their shares of round 11 to the first generation of view 1."""

    def __init__(self) -> None:
        work = RingWork("ring-dense", (1.0, 1.0), frozenset(), ((0, 2),), 0, rests=True)
        self.ledger = DenseLedger(np.zeros(2, np.int32), work)
        world = SimpleNamespace(see=lambda what, times=1: None)
        self.rules = RingRules(cast(Any, world), cast(Any, None), self.ledger)
        self.course = self.rules._courses[GenerationId(1, 1)] = _Course((HEAD, OTHER), 11)
        for place, life in enumerate(self.course.order):
            numbers = {0: np.full(2, 1.0 + place, np.float32)}
            self.ledger.pending[life] = Share(life, True, numbers, [(0, 2, "loss", "(2,)")], whole=True)
            standing = Standing(Generation(1, 1, self.course.order, place), 10, contributed=True)
            self.rules._note_share(life, standing)


def test_who_completes_a_round_late_has_the_sums_of_those_who_gave_to_it_then() -> None:
    dense = Dense()
    del dense.ledger.pending[HEAD]  # it went on without the other, into a round 11 of another generation
    sums = dense.ledger.sum_up(dense.course.order, dense.course.given[11])
    assert (len(sums.shares), sums.numbers.tolist()) == (2, [3.0, 3.0])


def test_a_whole_share_is_not_dropped_before_its_round_is_complete() -> None:
    dense, idle = Dense(), Standing(None, 10, contributed=False)
    head = daemon(HEAD, view=1, done=10)
    head.book = object.__new__(DenseBook)
    head.book.row = lambda replica: 0
    dense.rules._follow_dense(head, TimePassed(), idle, kept=False)  # refused, or the round is complete
    head.me = OTHER
    with pytest.raises(Violation, match="drops the share of round 11"):
        dense.rules._follow_dense(head, TimePassed(), idle, kept=True)
