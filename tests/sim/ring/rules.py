"""What must hold of the ring after every event: R1 to R7 of README.md.

Looks at each node's standing before and after an event, and keeps for each generation what its rounds began
with: within one, all members go through the same replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from p2psgd.core.effects import Effect, OpenRound, RejectContribution
from p2psgd.core.events import Event, TimePassed, TrainerChanged
from p2psgd.core.frontier import Origin
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade
from tests.sim.agreement import Agreement
from tests.sim.ledger import Ledger, label
from tests.sim.outcome import Violation
from tests.sim.ring.dense_ledger import DenseBook, DenseLedger, Share, Sums
from tests.sim.ring.held import check_held
from tests.sim.ring.openings import Openings, Rows, rows_of
from tests.sim.ring.sightings import RingSightings
from tests.sim.ring.standing import GenerationId, Standing
from tests.sim.scenario import Scenario

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon


class World(Protocol):
    """What the rules see of the world."""

    scenario: Scenario

    @property
    def now(self) -> float: ...
    def living(self) -> list[Daemon]: ...
    def see(self, what: str, times: int = 1) -> None: ...
    def generation_begun(self, head: Daemon) -> None: ...


@dataclass(slots=True)
class _Course:
    """How one generation went: by the number of rounds done, the digest that all members must have then, and
    what is in those weights; in a dense ring by round, the shares that went into it and their sums.
    """

    order: tuple[Origin, ...]
    first: int
    digests: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    given: dict[int, dict[Origin, Share]] = field(default_factory=dict)
    sums: dict[int, Sums] = field(default_factory=dict)


class RingRules:
    """Of one run."""

    def __init__(self, world: World, agreement: Agreement, ledger: Ledger | DenseLedger) -> None:
        self.sightings = RingSightings(world)
        self._world = world
        self._agreement = agreement
        self._ledger = ledger
        self._dense = ledger if isinstance(ledger, DenseLedger) else None
        self._courses: dict[GenerationId, _Course] = {}
        self._before: dict[Origin, Standing] = {}
        self._last_sums: dict[Origin, tuple[int, Sums]] = {}  # by life: its last round, what that came to
        self._openings = Openings(world, agreement, self._last_sums)

    def after_event(self, daemon: Daemon, event: Event, effects: list[Effect]) -> None:
        """Violation unless the node keeps in step."""
        before, after = self._before.get(daemon.me), daemon.standing()
        if isinstance(event, BucketContributed) and self._dense is not None:
            assert daemon.memory is not None
            self._openings.check_kept(daemon)
            self._dense.give(daemon.me, event, daemon.memory.given(event.kind))
        if isinstance(event, ContributionMade) and not event.updates:
            self._openings.forget(daemon.me)
        if before is None or after != before or daemon.replica.membership.view is not daemon.view:
            self._before[daemon.me] = after
            if before is not None and (after.id == before.id or after.done > before.done):
                self._note_share(daemon.me, before)
            self._follow(daemon, event, before, after)
        if self._dense is not None:
            refused = any(isinstance(effect, RejectContribution) for effect in effects)
            self._follow_dense(
                daemon, event, after, kept=before is not None and before.done == after.done and not refused
            )
            self._note_share(daemon.me, after)
        if isinstance(event, TimePassed) and after.generation is None:
            self._note_minority(daemon)
        for effect in effects:
            if isinstance(effect, OpenRound):
                self._openings.check(daemon, effect, effects, after)
            elif isinstance(effect, RejectContribution):
                self.sightings.refused(effect)

    def _note_share(self, life: Origin, standing: Standing) -> None:
        """What a life has given whole goes into the round under way in its generation; in others it may go
        into another one, long before a member that was cut off completes this.
        """
        share = None if self._dense is None else self._dense.pending.get(life)
        if share is not None and share.whole and standing.id is not None:
            self._courses[standing.id].given.setdefault(standing.done + 1, {})[life] = share

    def _note_minority(self, daemon: Daemon) -> None:
        """Its trainer waits since the others that it reaches cannot decide on a view."""
        replica = daemon.replica
        view, linked = replica.membership.view, {peer.node for peer in replica.peers}
        waits = daemon.ring_trainer.attached and daemon.me in view and len(view.members) > 1
        if waits and not self._agreement.is_quorum(view, linked | {daemon.me.node}):
            self._world.see("ring: minority stands still")

    def died(self, daemon: Daemon) -> None:
        """A node's life has ended."""
        standing = self._before.get(daemon.me)
        if standing is None or standing.generation is None or standing.id is None:
            return
        begun = self._courses[standing.id].first == standing.done + 1
        given = any(
            each.me in standing.generation.order and each.standing().contributed
            for each in self._world.living()
        )
        if standing.generation.place == 0 and begun and not given:
            self._world.see("ring: head died between RING_BEGIN and the first share")

    def _follow(self, daemon: Daemon, event: Event, before: Standing | None, after: Standing) -> None:
        me = label(daemon.me)
        if before is None:
            before = Standing(None, after.done, False)
        if after.done < before.done:
            raise Violation("R4", f"{me} had completed round {before.done}, and now only {after.done}")
        if after.id is not None and after.id != before.id:
            if self._dense is None and 0 < before.done == after.done - 1:
                self._world.see("ring: round completed by repair")
            self._begin(daemon, event, after)
        elif after.done > before.done:
            id_before = before.id if before.id is not None else after.id
            if id_before is None:
                self.sightings.completed_apart(daemon, event)
            else:
                assert before.generation is not None
                if after.done != before.done + 1:
                    raise Violation("R4", f"{me} went from round {before.done} to {after.done} in one event")
                self._complete(daemon, id_before, after.done)
        if before.contributed and not after.contributed:
            self._openings.forget(daemon.me)
        if after.id is not None and after.id.view != daemon.replica.membership.view.number:
            raise Violation("R4", f"{me} runs {after.id} in view {daemon.replica.membership.view.number}")
        if before.id is not None and after.id != before.id:
            self.sightings.stopped(daemon, event, before)
        check_held(daemon)

    def _begin(self, daemon: Daemon, event: Event, after: Standing) -> None:
        """R2 and R4: all begin with the same, which holds whatever a member has completed."""
        generation, me = after.generation, label(daemon.me)
        assert generation is not None
        assert after.id is not None
        course = self._courses.get(after.id)
        digest = daemon.replica.lattice.digest
        if course is None:
            course = self._courses[after.id] = _Course(generation.order, after.done + 1)
            course.digests[after.done], course.rows[after.done] = digest, rows_of(daemon.replica)
            if not daemon.replica.ready:
                raise Violation("R1", f"{me} begins {after.id}, and is not ready")
            self._check_members(daemon, course)
            self.sightings.begun(daemon, after)
            self._world.generation_begun(daemon)
        if generation.order != course.order:
            raise Violation(
                "R2", f"{me} runs {after.id} in the order {generation.order}, others {course.order}"
            )
        if after.done + 1 != course.first:
            words = f"{me} begins {after.id} with round {after.done + 1}, others with {course.first}"
            raise Violation("R2", words)
        self._check_digest(daemon, after.id, course, after.done)

    def _check_members(self, daemon: Daemon, course: _Course) -> None:
        """R4: a round that a member has completed is not run again. Who is in a later view ignores what
        begins in this one: a node that hears late that it is out may still begin what nobody takes part in.
        """
        view = daemon.replica.membership.view
        for other in self._world.living():
            takes_part = other.me in course.order and other.replica.membership.view.number == view.number
            if takes_part and other.standing().done >= course.first:
                words = f"{label(daemon.me)} begins round {course.first}, which {label(other.me)},"
                raise Violation("R4", f"{words} a member as well, has completed")

    def _check_digest(self, daemon: Daemon, of: GenerationId, course: _Course, done: int) -> None:
        digest = daemon.replica.lattice.digest
        if digest != course.digests.setdefault(done, digest):
            words = f"{label(daemon.me)} has other weights than others after round {done}"
            raise Violation("R2", f"{words} in generation {of.number} of view {of.view}")

    def _complete(self, daemon: Daemon, of: GenerationId, done: int) -> None:
        course = self._courses[of]
        first = done not in course.digests
        self._openings.complete(daemon)
        if self._dense is not None:
            if done not in course.sums:
                course.sums[done] = self._dense.sum_up(course.order, course.given.get(done, {}))
            self._take_sums(daemon, done, course.sums[done])
        else:
            self._check_given(daemon, done)
        rows = rows_of(daemon.replica)
        if self._dense is None:
            daemon.round_updates = sum(rows.values()) - sum(course.rows[done - 1].values())
        if first:
            course.rows[done] = rows
            self.sightings.completed(daemon, of, course.order, done)
            self._check_begun_with(of, course, done)
        self._check_digest(daemon, of, course, done)

    def _check_given(self, daemon: Daemon, done: int) -> None:
        """R5: what its trainer gave goes into the first round that the node is in, whichever that was for."""
        given = len(self._ledger.entries.get(daemon.me, ()))
        has = daemon.replica.frontier.sequence(daemon.me)
        if has < given:
            words = f"{label(daemon.me)} has given {given} updates to rounds, and completes round {done}"
            raise Violation("R5", f"{words} with {has} of them")

    def _check_begun_with(self, of: GenerationId, course: _Course, done: int) -> None:
        digest = course.digests.get(done - 1)
        if digest is not None:
            self._openings.check_basis(of, course.order, done, digest, course.rows[done - 1])

    def _take_sums(self, daemon: Daemon, done: int, sums: Sums) -> None:
        """A dense round is complete here: the state that it makes is known, or is so now."""
        dense, book = self._dense, daemon.book
        assert dense is not None
        assert isinstance(book, DenseBook)
        self._last_sums[daemon.me] = done, sums
        if sums.array:
            self._world.see("ring: array summed")
        replica = daemon.replica
        sequence = book.row(replica)
        if not sums.array and sequence not in dense.states:
            dense.step(label(daemon.me), book.sequence, sequence, sums, replica.lattice.coordinates)

    def _follow_dense(self, daemon: Daemon, event: Event, after: Standing, *, kept: bool) -> None:
        """R5: `kept`: nothing has happened that ends a share which was given whole."""
        dense = self._dense
        assert dense is not None
        book = daemon.book
        assert isinstance(book, DenseBook)
        share = dense.pending.get(daemon.me)
        if share is not None and share.whole and not after.contributed:
            if kept:
                raise Violation("R5", f"{label(daemon.me)} drops the share of round {after.done + 1}")
            del dense.pending[daemon.me]
            if not share.array and not dense.is_applied(share, book.row(daemon.replica)):
                self._world.see("share given up")
        if share is not None and not share.whole and isinstance(event, TrainerChanged):
            del dense.pending[daemon.me]
