"""Observers read a frozen view of a replica, made by `view_of`, instead of the replica.

A view is of one moment and stays as it is while the replica goes on. It takes 0.05 ms to make with three
members, 0.3 ms with sixteen; what is asked on every event or tick is a property of `Replica`. Times are ages
in seconds, as of the `now` that it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from p2psgd.core.acks import NEVER
from p2psgd.core.frontier import Origin, name_node
from p2psgd.core.metrics import Counters, Tally
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.view import View
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.ring_messages import RingState

HOLDERS_MAX: Final = 8  # members that hold back most of the log
MEASURED_MAX: Final = 64  # members whose part of the log is measured while nobody is named


@dataclass(frozen=True, slots=True)
class MemberView:
    """Another member of the view, as this replica knows it.

    Attributes:
        heard_s: Since there was any news of it, from itself or, while it is not linked, through others; None:
            never.
        lag: Own updates that it is not known to have applied; None: nothing was ever received from it.
        through: Name of the linked peer that passes on its updates, or at least news of it, while it is not
            linked; empty: nobody does.
    """

    origin: Origin
    name: str
    linked: bool
    ready: bool
    heard_s: float | None
    lag: int | None
    through: str = ""


@dataclass(frozen=True, slots=True)
class PeerView:
    """A linked peer, as this replica knows it.

    Attributes:
        barred: Its node was removed from the run for good.
        view: Number of the latest view that it has sent, 0 before.
        silent_s: Since it was heard last.
        lag: Own updates that it has not acknowledged.
        frontier: What it has applied, by its last STATUS; None before the first.
        loss: Of its trainer, by the same; None if it is not known.
    """

    origin: Origin
    name: str
    ready: bool
    barred: bool
    view: int
    silent_s: float
    lag: int
    frontier: Mapping[Origin, FrontierRow] | None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """The update log in memory and, beyond it, on disk.

    Attributes:
        pressure: Share of what it may hold, with own updates that are not acknowledged counted by their
            smaller share.
        holders: Nodes, their names and the bytes that they have not acknowledged, the most first.
    """

    updates: int
    bytes: int
    budget_bytes: int
    stored_bytes: int = 0
    stored_budget_bytes: int = 0
    pressure: float = 0.0
    holders: Sequence[tuple[int, str, int]] = ()


@dataclass(frozen=True, slots=True)
class ScrubView:
    """The digest recomputed from the weights as they lie in memory.

    Attributes:
        count: Scrubs finished in this incarnation.
        quarantines: Those that found a difference where the one before had not.
        clean: What the last one found; None before the first.
        age_s: Since the last one; None before the first.
    """

    count: int
    quarantines: int
    running: bool
    clean: bool | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot on its way, to a peer (`giving`) or from one."""

    node: int
    name: str
    giving: bool
    done_bytes: int
    total_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class RingView:
    """The ring of a run in ring mode.

    Attributes:
        state: What this node's next STATUS reports about it.
        order: Node ids of the last generation, around the ring.
        waiting_for: Who is waited for and since when, in a sentence; empty if nobody is.
        since_s: Since the last round was completed, or the generation began or ended.
    """

    state: RingState
    order: tuple[int, ...]
    waiting_for: str
    since_s: float


@dataclass(frozen=True, slots=True)
class OwnersView:
    """The range that this node owns and its contributions, in mode `owners`.

    Attributes:
        rule: What owners make of contributions.
        state_bytes: What the rule keeps for the node's range.
        kept_bytes: What the node keeps of other owners' rules, as their deputy or on the way to them.
        owned: The first weight that it owns, and the one after the last.
        owners: The number of owners.
        waiting: Contributions that no update of their owner covers.
        waiting_bytes: What these take.
        oldest_s: Since the oldest of them was made; 0 if there is none.
        slowest: Name of the owner that has it; empty if there is none.
        lost: Contributions that were given up.
    """

    rule: str
    state_bytes: int
    kept_bytes: int
    owned: tuple[int, int]
    owners: int
    waiting: int
    waiting_bytes: int
    oldest_s: float
    slowest: str
    lost: int


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """The evaluations of a node in mode `closure`. Portions are known at the leader alone.

    Attributes:
        number: The evaluation that this node's trainer asks for; 0 if there is no trainer.
        waits: It has not got the result.
        first: The first evaluation whose result is in this node's log; above `last` if there is none.
        last: The last one.
        leader: Name of the node that deals portions, as this one knows it.
        portions: How many the present evaluation has; 0 if this node does not lead.
        done: Those of them that are in a member's sum.
        leased: Those that members compute.
        again: Portions that this node has leased to a second member, since it was started.
        slowest: Name of the member that has had a portion for longest; empty if none has.
        slowest_s: For how long it has.
        fewest: Name of the member with the fewest portions done; empty if it has no other beside it.
        fewest_done: How many it has done.
    """

    number: int
    waits: bool
    first: int
    last: int
    leader: str
    portions: int
    done: int
    leased: int
    again: int
    slowest: str
    slowest_s: float
    fewest: str
    fewest_done: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as observers need it.

    Attributes:
        names: What people call nodes, by id; of some there may be none.
        waits: Why this node is not READY or its trainer must wait, in a sentence; empty if neither.
        sequence: Number of own updates.
        magnitude_max: Largest absolute weight in quanta; None in a dense ring, whose weights are floats.
        bootstrap_expect: Nodes that bootstrap the run together, this one included.
        view_waits: What the next view waits for, in a sentence; empty if there is nothing to decide.
        members: The other members of the view, in its order.
    """

    spec: RunSpec
    me: Origin
    names: Mapping[int, str]
    failure_timeout_s: float
    ready: bool
    waits: str
    sequence: int
    digest: int
    magnitude_max: int | None
    frontier: tuple[FrontierRow, ...]
    bootstrap_expect: int
    view: View
    view_waits: str
    members: tuple[MemberView, ...]
    peers: Mapping[Origin, PeerView]
    log: LogView
    scrub: ScrubView
    snapshots: tuple[SnapshotView, ...]
    ring: RingView | None
    owners: OwnersView | None
    evaluation: EvaluationView | None
    counters: Counters
    tally: Tally

    @property
    def removed(self) -> bool:
        """Return whether this node was removed for good: it is about to end."""
        return self.me.node in self.view.forbidden

    def name_of(self, node: int) -> str:
        """Return what people call a node: its name if that is known, else its id."""
        return name_node(node, self.names)


def view_of(replica: Replica, now: float) -> ReplicaView:
    """Return the view of a replica as of `now`, seconds by the replica's clock. Changes nothing."""
    membership, spec = replica.membership, replica.spec
    return ReplicaView(
        spec=spec,
        me=replica.me,
        names=dict(replica.names),
        failure_timeout_s=replica.timing.failure_timeout_s,
        ready=replica.ready,
        waits=replica.waiting_for(),
        sequence=replica.sequence,
        digest=replica.lattice.digest,
        magnitude_max=None if spec.dense else replica.lattice.magnitude_max,
        frontier=tuple(replica.frontier.rows()),
        bootstrap_expect=membership.bootstrap_expect,
        view=membership.view,
        view_waits=membership.explain(),
        members=tuple(_member(replica, member, now) for member in replica.cluster.other_members),
        peers={
            peer.origin: PeerView(
                peer.origin,
                peer.name,
                ready=peer.ready,
                barred=peer.barred,
                view=peer.view,
                silent_s=now - peer.last_seen,
                lag=replica.lag(peer),
                frontier=peer.status,
                loss=peer.loss,
            )
            for peer in replica.peers.values()
        },
        log=_log(replica),
        scrub=_scrub(replica, now),
        snapshots=_snapshots(replica, now),
        ring=_ring(replica, now),
        owners=_owners(replica, now),
        evaluation=_evaluation(replica, now),
        counters=replace(replica.counters, lost_durability=replica.log.lost_durability),
        tally=replace(replica.tally),
    )


def _member(replica: Replica, member: Origin, now: float) -> MemberView:
    acks, peer = replica.acks, replica.peers.get(member)
    heard = acks.heard(member) if peer is None else peer.last_seen
    return MemberView(
        member,
        replica.cluster.name_of(member),
        linked=peer is not None,
        ready=peer is not None and peer.ready,
        heard_s=None if heard == NEVER else now - heard,
        lag=None if heard == NEVER else replica.sequence - acks.applied(member, replica.me),
        through="" if peer is not None else _relay(replica, member, now - heard),
    )


def _relay(replica: Replica, member: Origin, silent_s: float) -> str:
    """Return the name of the linked peer that relays what comes from a member that is not linked; empty if
    nothing came from that member for a failure timeout.
    """
    relays = (replica.receiver.relays.get(member.node), replica.acks.reporter(member))
    linked = [each for each in relays if each is not None and each != member and each in replica.peers]
    return (
        replica.cluster.name_of(linked[0]) if linked and silent_s <= replica.timing.failure_timeout_s else ""
    )


def _log(replica: Replica) -> LogView:
    """Measure who holds the log back: all members, but no more than 64 while it has room."""
    log = replica.log
    held_by = {
        member: log.pinned_bytes(partial(replica.acks.applied, member))
        for member in replica.retention.holders[:HOLDERS_MAX] or replica.cluster.other_members[:MEASURED_MAX]
    }
    return LogView(
        updates=len(log),
        bytes=log.bytes_held,
        budget_bytes=log.budget_bytes,
        stored_bytes=log.bytes_stored,
        stored_budget_bytes=log.store_budget_bytes,
        pressure=max(log.pressure, replica.retention.fullness),
        holders=[
            (member.node, replica.cluster.name_of(member), held)
            for member, held in sorted(held_by.items(), key=lambda row: -row[1])[:HOLDERS_MAX]
            if held
        ],
    )


def _scrub(replica: Replica, now: float) -> ScrubView:
    scanner, counters = replica.scanner, replica.counters
    return ScrubView(
        count=counters.scrubs,
        quarantines=counters.quarantines,
        running=scanner.scrubbing,
        clean=scanner.clean,
        age_s=None if scanner.scrubbed is None else now - scanner.scrubbed,
    )


def _snapshots(replica: Replica, now: float) -> tuple[SnapshotView, ...]:
    views = []
    for peer in replica.peers.values():
        feed = peer.feed
        if feed is not None:
            rate = feed.bytes_sent / max(now - feed.began, 1e-3)
            views.append(
                SnapshotView(peer.origin.node, peer.name, True, feed.bytes_sent, feed.bytes_total, rate)
            )
    taking = replica.fetch.taking
    if taking.donor is not None:
        rate = taking.bytes_taken / max(now - taking.began, 1e-3)
        total = 4 * replica.spec.coordinates
        name = replica.cluster.name_of(taking.donor)
        views.append(SnapshotView(taking.donor.node, name, False, taking.bytes_taken, total, rate))
    return tuple(views)


def _ring(replica: Replica, now: float) -> RingView | None:
    ring, owners = replica.ring, replica.owners
    if ring is not None:
        return RingView(ring.state, tuple(ring.order), ring.waiting_for(now), now - ring.since)
    if owners is not None and owners.barrier is not None:
        return RingView(owners.standing, (), owners.waiting_for(now), now - owners.barrier.since)
    return None


def _owners(replica: Replica, now: float) -> OwnersView | None:
    owners = replica.owners
    if owners is None:
        return None
    oldest = owners.oldest()
    return OwnersView(
        owners.rule.word,
        0 if owners.aggregator.rule is None else owners.aggregator.rule.state.size_bytes,
        0 if owners.custody is None else owners.custody.size_bytes,
        owners.aggregator.range,
        owners.owners,
        owners.waiting,
        owners.waiting_bytes,
        0.0 if oldest is None else now - oldest[0],
        "" if oldest is None else replica.cluster.name_of(oldest[1]),
        owners.lost,
    )


def _evaluation(replica: Replica, now: float) -> EvaluationView | None:
    closure = replica.closure
    if closure is None:
        return None
    dealer = closure.leader.dealer
    holders = {} if dealer is None else dealer.holders
    oldest = min(
        ((since, member) for member, holder in holders.items() for since in holder.leases.values()),
        default=None,
    )
    shares = [(holder.added.bit_count(), member) for member, holder in holders.items()]
    fewest = min(shares) if len(shares) > 1 else None
    return EvaluationView(
        number=closure.number,
        waits=closure.seat is not None,
        first=closure.results.first,
        last=closure.results.last,
        leader=replica.cluster.name_of(closure.reported_to),
        portions=0 if dealer is None else dealer.task.portions,
        done=sum(holder.added.bit_count() for holder in holders.values()),
        leased=len({portion for holder in holders.values() for portion in holder.leases}),
        again=closure.counts.total["portion leased again"],
        slowest="" if oldest is None else replica.cluster.name_of(oldest[1]),
        slowest_s=0.0 if oldest is None else now - oldest[0],
        fewest="" if fewest is None else replica.cluster.name_of(fewest[1]),
        fewest_done=0 if fewest is None else fewest[0],
    )
