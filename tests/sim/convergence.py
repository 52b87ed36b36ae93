"""The second phase: the core is healed, the rest stays as it is for ever, and the core must be one again.

The core is all nodes but the outcasts, and of these as many as the latest view needs for a quorum. Once all
of it is equal and READY the trainers may go on for a while, and it must be equal again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from p2psgd.core.events import RemovalRequested
from p2psgd.core.frontier import Origin
from p2psgd.core.retention import TRIM_FROM
from p2psgd.core.update_log import ENTRY_BYTES, UpdateLog
from tests.sim.chaos import Chaos
from tests.sim.clock import Clock
from tests.sim.closure.work import ClosureWork
from tests.sim.daemon import Daemon
from tests.sim.disk import Disk
from tests.sim.faults import Outcast
from tests.sim.invariants import Inspector
from tests.sim.ledger import label
from tests.sim.outcome import QuorumLostError, Violation
from tests.sim.ring.liveness import Liveness
from tests.sim.ring.work import RingWork
from tests.sim.scenario import RATE_MIN, Scenario
from tests.sim.survival import Survival
from tests.sim.whole import check_converged

if TYPE_CHECKING:
    from tests.sim.liar.liar import Liar

POLL_S: Final = 0.5
IDLE_INTERVALS: Final = 10  # a trainer pauses for ten of its usual intervals once in 20,000
CALM_S_MAX: Final = 3000.0
PERSON_TIMEOUTS: Final = 3  # of calm in which nobody was READY, until a person steps in
TIMEOUTS_MAX: Final = 30  # links: 8; then views, barrier, snapshot, and all of it again after a failure
ROOM_SHARE: Final = 1 - TRIM_FROM  # of a log is free at least once all is acknowledged
ROOM_TIMEOUTS_MAX: Final = 80  # for logs that are to take more than they have room for, such as eight updates
UNCHECKED_S: Final = 30.0  # that a run goes on in which nothing is promised
LIARS_END: Final = {
    "gone": "a liar is gone",
    "removed": "a liar was removed for good and goes on",
    "stays": "a liar goes on and nobody removes it",
}
EVALUATIONS: Final = 3  # that the core makes once all is healed
WORK_TIMEOUTS_MAX: Final = 20  # in which every node of the core must have made an update


class World(Protocol):
    """What is healed."""

    scenario: Scenario
    clock: Clock
    chaos: Chaos
    inspector: Inspector
    survival: Survival
    daemons: dict[int, Daemon]
    disks: dict[int, Disk]
    burnt: set[int]
    liars: dict[int, Liar]
    training: bool

    def see(self, what: str, times: int = 1) -> None: ...


class Convergence:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outcasts = {each.node: each for each in world.scenario.faults if isinstance(each, Outcast)}
        self.begun = False
        self._reminded = False
        self._calm_since = 0.0
        self._transfer_s: float | None = None  # that it may take to send what was missing then
        self._owed: dict[Origin, int] = {}  # what the core had when it was healed

    def run(self) -> float:
        """Heal and wait; returns how long it took."""
        world = self._world
        work = world.scenario.ring
        world.training = work is not None and not work.rests
        world.chaos.calm()
        self.begun = True
        for outcast in self._outcasts.values():
            world.chaos.cast_out(outcast)
        if world.inspector.unchecked:
            world.clock.run_until(world.clock.now + UNCHECKED_S)
            return 0.0
        self._end_lies()
        self._owe()
        took = 0.0 if world.training else self._wait(self._apart)
        if work is not None:
            took = max(took, self._run_rounds(work))
            self._wait(self._apart)
        elif world.scenario.closure is not None:
            took = max(took, self._run_evaluations(world.scenario.closure))
            self._wait(self._apart)
        elif world.scenario.work_s:
            self._work()
            self._wait(self._apart)
        self._check_end()
        return took

    def _run_rounds(self, work: RingWork) -> float:
        """The rings of the core go on; returns how long that took."""
        world = self._world
        world.training = True
        liveness = Liveness(world, self.core, work)
        took = self._wait(liveness.behind, beyond_s=liveness.limit_s)
        world.training = False
        return took

    def _run_evaluations(self, work: ClosureWork) -> float:
        """All trainers of the core catch up, and go on together; returns how long that took."""
        world = self._world
        world.training = True
        closures = [daemon.replica.closure for daemon in self.core()]
        past = max((closure.results.last for closure in closures if closure is not None), default=0)

        def behind() -> str | None:
            for daemon in self.core():
                done = daemon.evaluating_trainer.evaluated
                if done < past + EVALUATIONS:
                    return f"node {daemon.me.node} has made {done} of {past + EVALUATIONS} evaluations"
            return None

        for daemon in self.core():
            daemon.evaluating_trainer.recover()
        again_s = 4 * work.portions * max(work.step_s)
        trips = world.scenario.coordinates // work.piece_numbers + 4 * work.portions + 10
        trips_s = trips * (world.scenario.latency_s + world.scenario.jitter_s) + 0.1
        took = self._wait(behind, beyond_s=again_s * EVALUATIONS + trips_s * (past + EVALUATIONS))
        world.training = False
        return took

    def _end_lies(self) -> None:
        """What becomes of liars: a person has them removed for good, or not, and they go on, or not."""
        world = self._world
        for liar in world.liars.values():
            world.see(LIARS_END[liar.scheme.ends])
            if liar.scheme.ends == "gone":
                liar.die()
            elif liar.scheme.ends == "removed":
                world.chaos.forbidden.add(liar.me.node)

    def is_lost(self, place: int) -> bool:
        """Whoever lives there will never be heard of again, or never hear anything."""
        outcast = self._outcasts.get(place)
        return self.begun and outcast is not None and outcast.fate != "apart"

    def _owe(self) -> None:
        for daemon in self.core():
            for origin in daemon.replica.frontier:
                self._owed[origin] = max(daemon.replica.frontier.sequence(origin), self._owed.get(origin, 0))

    def core(self) -> list[Daemon]:
        """Return all nodes that must become one in the end."""
        forbidden = self._world.chaos.forbidden
        return [
            daemon
            for place, daemon in self._world.daemons.items()
            if place not in self._outcasts and daemon.me.node not in forbidden
        ]

    def _wait(self, hindrance: Callable[[], str | None], beyond_s: float = 0.0) -> float:
        """Until there is none; it may take `beyond_s` longer than to become equal and READY."""
        world = self._world
        self._begin_calm()
        while True:
            self._keep_quorum()
            if self._is_disturbed():
                self._begin_calm()
            elif not self._reminded:
                self._remind_person()
            self._ask_person()
            apart = hindrance()
            if apart is None and self._calm_since < world.clock.now:
                return world.clock.now - self._calm_since
            limit_s = self._limit_s() + beyond_s
            if world.clock.now > world.scenario.chaos_s + CALM_S_MAX:
                raise Violation("I4", f"{CALM_S_MAX:.0f} s after all was healed there is no calm: {apart}")
            if apart is not None and world.clock.now > self._calm_since + limit_s:
                raise Violation("I4", f"{limit_s:.0f} s after all was healed {apart}")
            world.clock.run_until(world.clock.now + POLL_S)

    def _keep_quorum(self) -> None:
        """Take in outcasts without which the core could not decide what follows the latest view, or the
        latest that it knows of.
        """
        agreement, can_decide = self._world.inspector.agreement, self._world.survival.can_decide
        core = {place: disk for place, disk in self._world.disks.items() if place not in self._outcasts}
        known = [disk.votes.view for disk in core.values()]
        known += [daemon.view for place, daemon in self._world.daemons.items() if place in core]
        for view in (max(known, key=lambda view: view.number), agreement.latest):
            nodes = {disk.node for place, disk in self._world.disks.items() if place not in self._outcasts}
            for place in sorted(self._outcasts):
                node = self._world.disks[place].node
                if not can_decide(view, nodes) and (view.number == 0 or node in view.incarnations):
                    self._world.chaos.take_in(self._outcasts.pop(place))
                    self._begin_calm()
                    nodes.add(node)
            if not can_decide(view, nodes):
                if can_decide(view, nodes | self._world.burnt):
                    lying = {liar.me.node for liar in self._world.liars.values()} & view.incarnations.keys()
                    self._world.see("quorum lost to a liar" if lying else "quorum lost with a disk")
                    raise QuorumLostError
                raise Violation("setup", f"no quorum of {view} can ever come back")

    def _remind_person(self) -> None:
        """Who was asked to remove a node for good may have died before it was done: now all are asked."""
        self._reminded = True
        for node in sorted(self._world.chaos.forbidden):
            for daemon in self.core():
                daemon.when_running(daemon.handle, RemovalRequested(node, forbid=True))

    def _ask_person(self) -> None:
        """Only who is READY evicts, and nobody is removed without whom the others could decide nothing. When
        for three failure timeouts nobody has been READY, or that has kept somebody from being removed for
        good, a person has those members removed that are not coming back.
        """
        core, now = self.core(), self._world.clock.now
        if now - self._calm_since < PERSON_TIMEOUTS * self._world.scenario.failure_timeout_s:
            return
        here = {daemon.me.node for daemon in core}
        can_spare = self._world.survival.can_spare(self._world.chaos.forbidden, here)
        if can_spare and any(daemon.replica.ready for daemon in core):
            return
        for daemon in core:
            for node in sorted(daemon.view.incarnations.keys() - here):
                self._world.see("removed by a person")
                self._begin_calm()
                daemon.when_running(daemon.handle, RemovalRequested(node, forbid=False))

    def _is_disturbed(self) -> bool:
        """Nodes of the core are down, ending or damaged."""
        world = self._world
        forbidden = {place for place, disk in world.disks.items() if disk.node in world.chaos.forbidden}
        away = forbidden | self._outcasts.keys() | world.liars.keys()
        up = world.daemons.keys() | away
        return (
            not world.chaos.returning <= away
            or len(up) < world.scenario.nodes
            or any(daemon.stopping or daemon.book.damaged for daemon in self.core())
        )

    def _begin_calm(self) -> None:
        self._calm_since, self._transfer_s = self._world.clock.now, None

    def _backoff_s(self) -> float:
        """How long, from the calm on, those that were evicted for slowness had to wait."""
        ends = (
            past.at + daemon.replica.timing.backoff_s(past.times)
            for daemon in self.core()
            for past in daemon.replica.membership._changes._evictions.values()
        )
        return max(0.0, max(ends, default=0.0) - self._calm_since)

    def _lacking(self) -> dict[Daemon, list[int]]:
        """The sizes of the frames that each node of the core lacks of what others of it have."""
        core, ledger = self.core(), self._world.inspector.ledger
        last: dict[Origin, int] = {}
        for daemon in core:
            for origin in daemon.replica.frontier:
                last[origin] = max(daemon.replica.frontier.sequence(origin), last.get(origin, 0))
        return {
            daemon: [
                len(entry.frame)
                for origin, most in last.items()
                for entry in ledger.entries.get(origin, [])[daemon.replica.frontier.sequence(origin) : most]
            ]
            for daemon in core
        }

    def _transfer_bytes(self, lacking: dict[Daemon, list[int]]) -> int:
        """To be sent: what is lacking and, since whoever lacks something may need one, snapshots."""
        logs = [each.replica.log.bytes_held + each.replica.log.bytes_stored for each in lacking]
        snapshot_bytes = 4 * self._world.scenario.coordinates + max(logs, default=0)
        return sum(sum(sizes) + snapshot_bytes for sizes in lacking.values() if sizes)

    def _limit_s(self) -> float:
        """I8: how long it may take. What the rules wait for goes by failure timeouts and back-offs, what is
        sent by the bytes missing and the speed of a link, which is bounded by its credit as well; and what a
        log has no room for is asked for again, as much as a trimmed log has free, a failure timeout later.
        """
        scenario = self._world.scenario
        if self._transfer_s is None:
            lacking = self._lacking()
            by_credit = scenario.credit_bytes / (scenario.latency_s + scenario.jitter_s)
            speed = min(scenario.bytes_per_s, by_credit)
            trims = max((_trims(each.replica.log, sizes) for each, sizes in lacking.items()), default=0.0)
            self._transfer_s = 2 * self._transfer_bytes(lacking) / speed
            self._transfer_s += min(trims, ROOM_TIMEOUTS_MAX) * scenario.failure_timeout_s
        return TIMEOUTS_MAX * scenario.failure_timeout_s + self._backoff_s() + self._transfer_s

    def _apart(self) -> str | None:
        """What keeps the core from being one."""
        core = self.core()
        if not core:
            return "nobody lives"
        there = self._world.chaos.forbidden - self._world.inspector.agreement.latest.forbidden
        if there:
            return f"nodes {sorted(there)} were to be removed for good"
        first = core[0]
        for daemon in core:
            if not daemon.replica.ready:
                return f"{label(daemon.me)} is not ready: {daemon.replica.waiting_for()}"
            if daemon.replica.frontier._rows != first.replica.frontier._rows:
                rows = [each.replica.frontier.rows() for each in (first, daemon)]
                only = [sorted(set(mine) - set(theirs)) for mine, theirs in (rows, rows[::-1])]
                (ours, theirs) = ([row[:3] for row in side] for side in only)
                return f"{label(first.me)} has applied {ours} where {label(daemon.me)} has {theirs}"
        account = self._world.inspector.account
        if account is not None and len(core) > 1 and not first.view.number:
            return f"{label(first.me)} has no view yet"  # and alone owns all weights
        waits = (None if account is None else account.pending(daemon) for daemon in core)
        return next(filter(None, waits), None)

    def _work(self) -> None:
        """The trainers go on: nobody may be kept from it for long."""
        world = self._world
        clock = world.clock
        world.training = True
        before = {daemon.me: daemon.trainer.updates for daemon in self.core()}
        begun = clock.now
        if world.scenario.in_rounds is not None:
            for daemon in self.core():
                daemon.ring_trainer.forced = True
                daemon.ring_trainer.recover()
        slowest_s = IDLE_INTERVALS / max(RATE_MIN, min(world.scenario.rates))
        clock.run_until(begun + world.scenario.work_s)
        while idle := [
            daemon
            for daemon in self.core()
            if daemon.trainer.updates == before.get(daemon.me) and daemon.me in daemon.view
        ]:
            if clock.now > begun + WORK_TIMEOUTS_MAX * world.scenario.failure_timeout_s + slowest_s:
                words = f"{label(idle[0].me)} made no update: {idle[0].replica.waiting_for()}"
                raise Violation("stall", words)
            clock.run_until(clock.now + POLL_S)
        world.training = False
        world.see("worked on")

    def _check_end(self) -> None:
        world = self._world
        account = world.inspector.account
        if account is not None:  # until all have heard that all are in this view
            world.clock.run_until(world.clock.now + world.scenario.failure_timeout_s)
            self._wait(self._apart)
        core = self.core()
        check_converged(core)
        if account is not None:
            account.check_routes(core)
        for daemon in world.daemons.values():
            world.inspector.check_whole(daemon)
        world.inspector.check_pairs()
        for daemon in core:
            if world.inspector.account is not None:
                world.inspector.account.check_end(daemon)
            world.see("duplicate dropped", daemon.replica.tally.duplicates)
            for origin, sequence in self._owed.items():
                has = daemon.replica.frontier.sequence(origin)
                if has < sequence and has + 1 < world.inspector.judge.abandoned.get(origin, 2**64):
                    words = (
                        f"{label(daemon.me)} has {has} updates of {label(origin)}, the core had {sequence}"
                    )
                    raise Violation("loss", words)


def _trims(log: UpdateLog, sizes: list[int]) -> float:
    """How often a log must be trimmed to take frames of these sizes, beyond what it has room for now."""
    room = max(0, log.capacity - log.bytes_held - log.bytes_stored)
    beyond = sum(sizes) + ENTRY_BYTES * len(sizes) - room
    return max(0.0, beyond / (log.capacity * ROOM_SHARE))
