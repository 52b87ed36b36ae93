"""The barrier of an owner in rounds: which members' contributions it waits for before it publishes their sum.

A member is expected that has a trainer which takes part, by its last STATUS or its last contribution; in
the very first round each that has a trainer. A member that cannot be reached is not expected, and one that is
late is left out until it contributes again: every wait of a round has an end.

Which round a contribution belongs to decides little: an owner publishes a round once all that it expects have
ended it, whatever else it has. So it does not matter that members learn of views one after the other, or that
one of them is ahead for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.state import State
from p2psgd.wire.ring_messages import RingState

HALF_TIMEOUTS: Final = 1  # after half of the contributions have come, the others have so long at least,
FIRST_TIMEOUTS: Final = 12  # and after the first one


class Barrier:
    """The members that one owner waits for."""

    def __init__(
        self, cluster: Cluster, state: State, *, usable: Callable[[Origin, float], bool], now: float
    ) -> None:
        """`usable` returns whether a member can be reached, or could lately."""
        self.active = False  # this node has a trainer,
        self.joined = False  # which has contributed since it came
        self.owns = True  # this node owns weights: one that owns none waits for nobody
        self.published = 0  # the last round whose sum this owner has published
        self.contributors = 0  # to that round
        self.ended: dict[Origin, int] = {}  # the last round that each has contributed to
        self._cluster = cluster
        self._state = state
        self._usable = usable
        self._told: dict[Origin, RingState] = {}
        self._left_out: set[Origin] = set()  # late, until they contribute again
        self._overdue = False  # a contribution to a round that is published has come
        self._missing: Origin | None = (
            None  # a member that has not contributed to the next one, when last seen
        )
        self.since = now  # when a round was published last,
        self._first: float | None = None  # when the first contribution to the next one was seen,
        self._half: float | None = None  # and when half of them were
        self._founded: float | None = None  # since when this node knows a view
        self._lacking: Origin | None = None  # a member without a trainer, when last seen
        self._taking: list[Origin] | None = None  # members that take part; None: to be found anew,
        self._taking_of: tuple[object, ...] = ()  # as what else it follows from was otherwise
        self._restored = state.frontier.steps_max  # the last round that it knew at its start
        self._begun = self._from_first = False

    # -- what is known of the members

    def on_state(self, peer: Origin, state: RingState) -> None:
        """Take in what a STATUS says of a member's trainer."""
        before, self._told[peer] = self._told.get(peer), state
        if before is None or (before.active, before.running) != (state.active, state.running):
            self._taking = None

    def end(self, member: Origin, number: int) -> None:
        """Note that a member has contributed all that it has to this round."""
        self._overdue |= number <= self.published
        self.ended[member] = max(number, self.ended.get(member, 0))
        if member in self._left_out:
            self._left_out.remove(member)
            self._taking = None
        if member == self._cluster.me:
            self.joined = True
        elif (told := self._told.get(member)) is None or not (told.active and told.running):
            self._told[member] = RingState(0, number - 1, running=True, active=True, contributed=True)
            self._taking = None

    def keep(self, members: Iterable[Origin]) -> None:
        """Forget all but these."""
        kept = set(members)
        self._told = {each: state for each, state in self._told.items() if each in kept}
        self.ended = {each: number for each, number in self.ended.items() if each in kept}
        self._left_out &= kept
        self._taking = None

    def _has_trainer(self, member: Origin) -> bool:
        told = self._told.get(member)
        return self.active if member == self._cluster.me else told is not None and told.active

    def _takes_part(self, member: Origin) -> bool:
        told = self._told.get(member)
        return self.joined if member == self._cluster.me else told is not None and told.running

    # -- the round

    def begun(self, now: float) -> bool:
        """Return whether the first round since all nodes were started may begin, or has: two runs begin alike
        if it waits for all nodes of the bootstrap with their trainers. Not for ever, since one of them may
        never come.
        """
        membership = self._cluster.membership
        view = membership.view
        if self._begun or not view.number:
            return self._begun and view.number > 0
        if self._founded is None:
            self._founded = now
        if self._state.frontier.steps_max > self._restored:
            self._begun = True
        elif not self._is_absent() or now - self._founded >= self._cluster.timing.gone_s:
            self._begun = self._from_first = True
        return self._begun

    def _is_absent(self) -> bool:
        """Return whether the first round waits for anybody. It is asked after each event of a start: the
        member that had no trainer last most likely has none.
        """
        membership, lacking = self._cluster.membership, self._lacking
        if membership.bootstrap_expect > len(membership.view.members):
            return True
        if lacking is None or lacking not in membership.view or not self._awaits_trainer(lacking):
            self._lacking = next(filter(self._awaits_trainer, membership.view.members), None)
        return self._lacking is not None

    def _awaits_trainer(self, member: Origin) -> bool:
        """Return whether a member has no trainer, as far as that is known here. Owners wait for all; a node
        that owns nothing may contribute before they begin, and need not be linked to each member.
        """
        linked = member == self._cluster.me or member in self._cluster.peers
        return (self.owns or linked) and not self._has_trainer(member)

    @property
    def absent(self) -> list[str]:
        """Return what the first round waits for: the members without a trainer, and how many are no members
        yet.
        """
        membership = self._cluster.membership
        members = membership.view.members
        missing = membership.bootstrap_expect - len(members)
        names = [self._name(each) for each in members if self._awaits_trainer(each)]
        return names + ([f"{missing} more nodes"] if missing > 0 else [])

    def expected(self, now: float) -> list[Origin]:
        """Return the members that are waited for, or would be."""
        return [each for each in self._find_taking() if self._usable(each, now)]

    def _find_taking(self) -> list[Origin]:
        """Return the members with a trainer that takes part, and is not late: found anew when that may have
        changed, and not in each round.
        """
        view = self._cluster.membership.view
        facts = view, self._is_first, self.active, self.joined
        if self._taking is None or self._taking_of != facts:
            self._taking_of = facts
            self._taking = [each for each in view.members if self._is_taking_part(each)]
        return self._taking

    @property
    def _is_first(self) -> bool:
        return self._from_first and not self.published

    def _is_taking_part(self, member: Origin) -> bool:
        return (
            self._has_trainer(member)
            and (self._is_first or self._takes_part(member))
            and member not in self._left_out
        )

    def _is_expected(self, member: Origin, now: float) -> bool:
        return self._is_taking_part(member) and self._usable(member, now)

    def _finds_missing(self, now: float) -> bool:
        """Return whether a member is expected that has not contributed to the next round. The one that was
        missing last most likely is: all are looked at once a round, and not at each contribution.
        """
        missing, view = self._missing, self._cluster.membership.view
        if missing is None or missing not in view or not self._is_missing(missing, now):
            self._missing = next((each for each in view.members if self._is_missing(each, now)), None)
        return self._missing is not None

    def _is_missing(self, member: Origin, now: float) -> bool:
        return self.ended.get(member, 0) <= self.published and self._is_expected(member, now)

    def complete(self, now: float) -> int:
        """Return the last round that all expected members have contributed to, or that is published."""
        ended = (self.ended.get(member, 0) for member in self.expected(now))
        last = min(ended, default=max(self.ended.values(), default=0))
        return max(self.published, last)

    def is_due(self, *, came: bool, now: float) -> bool:
        """Return whether it is time to publish; `came`: anything has come since the last time."""
        if not self.begun(now):
            return False
        if self._overdue:
            return True  # who was late waits for nothing else
        if not self.owns:
            return came
        if self._finds_missing(now):
            return False
        return self.complete(now) > self.published or (came and not self.expected(now))

    def publish(self, number: int, now: float) -> None:
        """Note that all that came is published, and rounds up to this one are complete."""
        self._overdue = False
        if number > self.published:
            self.published, self.since = number, now
            self._first = self._half = None
            self.contributors = sum(ended >= number for ended in self.ended.values())

    def follow(self, number: int, now: float) -> None:
        """Note, where this node owns nothing, that the owners have published this round."""
        self.published, self.since = number, now
        self._first = self._half = None  # it may have owned weights before, and may again
        self.contributors = len(self.expected(now))

    def waits_for(self, now: float) -> list[Origin]:
        """Return the members that have not contributed to the next round, where others have."""
        expected = self.expected(now) if self.owns else []
        waiting = [member for member in expected if self.ended.get(member, 0) <= self.published]
        return waiting if len(waiting) < len(expected) else []

    def tick(self, now: float, *, ready: bool) -> list[Origin]:
        """Leave out, and return, who is late: who takes twice as long as half of the members, and one failure
        timeout longer at least. An owner that is not `ready` is given nothing.
        """
        waiting = self.waits_for(now)
        if not (ready and self.begun(now)):
            self._first = self._half = None
            return []
        if not waiting:
            return []
        if self._first is None:
            self._first = now
        if self._half is None and 2 * len(waiting) <= len(self.expected(now)):
            self._half = now
        for reached, timeouts in ((self._first, FIRST_TIMEOUTS), (self._half, HALF_TIMEOUTS)):
            if reached is None:
                continue
            patience_s = max(timeouts * self._cluster.timing.failure_timeout_s, reached - self.since)
            if now - reached >= patience_s:
                self._left_out.update(waiting)
                self._taking = None
                return waiting
        return []

    # -- for people

    def explain(self, now: float) -> str:
        """Return which members this owner waits for and since when; empty if for none."""
        if not self.begun(now):
            return f"round 1 waits for the trainers of all nodes: {', '.join(self.absent[:3])} missing"
        waiting = self.waits_for(now)
        if not waiting or self._first is None:
            return ""
        names = ", ".join(map(self._name, waiting[:3])) + (
            f" and {len(waiting) - 3} more" if waiting[3:] else ""
        )
        whom = f"{names}'s trainer" if len(waiting) == 1 else f"the trainers of {names}"
        if not any(each == self._cluster.me or each in self._cluster.peers for each in waiting):
            whom = f"{names}, to which there is no link"
        return f"round {self.published + 1} has waited for {now - self._first:.1f} s for {whom}"

    def _name(self, member: Origin) -> str:
        return "this node" if member == self._cluster.me else self._cluster.name_of(member)
