"""Mode `owners` at one node: it contributes to the owners of all ranges, and owns one itself.

A contribution goes to the owner of its range alone, which adds it to its sum and publishes what is due as an
ordinary update of its own: only these change weights. Each such update covers contributions: "it is in the
weights" and "everybody who has the weights knows it" are one fact. A contributor keeps what is not covered.
When an owner has left, has had no link for GONE_S, or has been silent for half a failure timeout as well, the
contributor gives it to others. If an update of the old owner comes to light later that covers it all the
same, the contributor contributes the opposite: so each contribution counts once, without an agreement on who
owns what, or on who is gone.

What a dead owner had added up and not published is lost, as a dead daemon's residual is.

In rounds two rules are added. A trainer contributes once to all owners, if only that it has nothing, and
again when the updates of all of them for that round are applied here. An owner publishes when all members
have contributed (barrier.py). So nobody is ahead, and as sums are integers, the weights after a round depend
on the contributions alone.

Without rounds a trainer's weights are the replica and what it has contributed that no update covers yet:
otherwise it would repeat the same correction until the owner's update comes.

More than 700 lines, since all of it changes the same few facts: what is contributed to which owner, what is
covered, and who owns what. Sums, rules, their states, channels and waits of rounds have files of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Deliver, LogEvent, OpenRound, RejectContribution
from p2psgd.core.events import PeerStatus
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.owners.aggregator import Aggregator, Update
from p2psgd.core.owners.barrier import Barrier
from p2psgd.core.owners.channel import Channel, Pending
from p2psgd.core.owners.custody import Custody
from p2psgd.core.owners.ranges import Range, cut, owner_count, range_of, ranges_of
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.receive import Applier
from p2psgd.core.retention import Retention
from p2psgd.core.send import LogSender, Outbound
from p2psgd.core.state import U64_MODULUS, State
from p2psgd.core.status import StatusSender
from p2psgd.wire import codec
from p2psgd.wire.contribution import (
    ContributionHeader,
    encode_words,
    pack_contribution,
    parse_contribution,
)
from p2psgd.wire.cover import CoverRow
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import (
    ROUND_MAX,
    BucketContributed,
    ContributionMade,
    RingState,
    pack_ring_state,
)
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update

PENDING_MAX: Final = 16  # contributions to one owner that are not covered: from then on the trainer waits
PENDING_BYTES_MAX: Final = 64 * 1024**2  # or this many bytes to all of them together
REDEALT_BYTES_MAX: Final = 16 * 1024**2  # given to others, and not yet known to count twice
GRADIENTS_BYTES_MAX: Final = 256 * 1024**2  # of one round; beyond, they are added as they came
GONE_S: Final = 0.5  # without a link an owner is given nothing more
PUBLISH_MIN_S: Final = 0.002  # between two publications, however much comes
PUBLISH_S: Final = 0.5  # what comes later than this after the last one is published at once
AHEAD: Final = PENDING_MAX // 2  # contributions of one node that are not covered: with more it soon waits


class Owners:
    """A node's part in mode `owners`, as contributor and as owner."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        node: Node,
        applier: Applier,
        retention: Retention,
        status_sender: StatusSender,
        log_sender: LogSender,
        out: Outbound,
        published: Callable[[int, float], None],
        restored: Iterable[bytes],
        rounds: bool,
        now: float,
    ) -> None:
        """`published` is called with the steps at each publication. `restored`: the rule's state of a
        checkpoint, as Custody.pack returned it.
        """
        self.aggregator = Aggregator(state.spec)
        self.rule = parse_mode(state.spec.mode).rule
        self.custody = (
            None
            if self.aggregator.rule is None
            else Custody(
                cluster,
                self.aggregator.rule.state,
                weights=state.spec.weights,
                out=out,
                restored=restored,
            )
        )
        self.channels: dict[Origin, Channel] = {}
        self.received: dict[Origin, int] = {}  # the last number of each contributor
        self.lost = 0  # contributions that were given up
        self.round = 0  # in rounds: the last one that is complete here
        self.barrier = Barrier(cluster, state, usable=self._is_usable, now=now) if rounds else None
        self._cluster = cluster
        self._state = state
        self._node = node
        self._applier = applier
        self._retention = retention
        self._status_sender = status_sender
        self._log_sender = log_sender
        self._out = out
        self._published = published
        self._opened = False  # the trainer may contribute to the next round,
        self._given = 0  # and has to this one,
        self._given_at = now  # then
        self._awaited: Origin | None = None  # an owner whose updates for that round are not all here
        self._due: set[Origin] = set()  # contributors whose numbers the next update covers
        self._view = cluster.membership.view
        self._members: tuple[Origin, ...] = ()
        self._owners: tuple[Origin, ...] = ()  # the first of them
        self._usable: list[int] | None = None  # places of the owners that can be given something
        self._said_gone: set[Origin] = set()  # owners of this view that were reported
        self._range: Range = (0, 0)  # which is this node's then
        self._left = False
        self._gone_since: dict[Origin, float] = {}  # members that cannot be given anything
        self._came = 0  # contributions since the last publication,
        self._gradients: list[
            tuple[Origin, NDArray[np.uint32], int, float]
        ] = []  # of a round, until it is whole,
        self._gradients_bytes = 0  # and their size
        self._contributors: set[Origin] = set()  # and whose they are
        self._steps = self._told_steps = 0
        self._published_at = now
        self._seen_digest = 0  # of what the trainer's weights have beyond the replica
        self._enter_view(now)
        if self.barrier is not None:
            status_sender.standing = lambda: pack_ring_state(self.standing)

    # -- what others look at

    @property
    def me(self) -> Origin:
        """Return this node."""
        return self._cluster.me

    @property
    def full(self) -> bool:
        """Return whether the trainer must wait until owners cover more; in rounds it waits for these."""
        if self.barrier is not None:
            return False
        return any(channel.waits(PENDING_MAX) for channel in self.channels.values()) or (
            sum(channel.bytes for channel in self.channels.values()) >= PENDING_BYTES_MAX
        )

    @property
    def _owns(self) -> bool:
        return self._range[0] < self._range[1]

    @property
    def owners(self) -> int:
        """Return the number of owners."""
        return len(self._owners)

    def _uncovered(self) -> Iterator[tuple[Channel, Pending]]:
        """Yield the contributions of this node that no update covers, but for those given to others."""
        for channel in self.channels.values():
            for each in channel.pending:
                if not each.redealt:
                    yield channel, each

    @property
    def waiting(self) -> int:
        """Return how many contributions of this node no update covers, but for those given to others."""
        return sum(1 for _ in self._uncovered())

    @property
    def waiting_bytes(self) -> int:
        """Return what these take."""
        return sum(each.bytes for _, each in self._uncovered())

    @property
    def waits_to_leave(self) -> bool:
        """Return whether one of them is of this node's trainer, or is not sent: what else owners have been
        sent is in their keeping, as what they have added up is.
        """
        unsent = any(
            each.own or each.number > channel.sent
            for channel, each in self._uncovered()
            if channel.owner != self.me
        )
        return unsent or (self.custody is not None and bool(self.custody.waiting))

    def oldest(self) -> tuple[float, Origin] | None:
        """Return when the oldest contribution was made that no update covers, and its owner."""
        return min(((each.made, channel.owner) for channel, each in self._uncovered()), default=None)

    # -- the trainer's weights

    @property
    def trainer_digest(self) -> int:
        """Return the digest of what `trainer_weights` returns."""
        return (self._state.lattice.digest + self._seen_digest) % U64_MODULUS

    def trainer_weights(self) -> NDArray[np.int32]:
        """Return a copy of the replica, int32 (P,), with what its trainer has contributed and no update
        covers.
        """
        weights = self._state.lattice.coordinates.copy()
        for channel in self.channels.values():
            for each in channel.pending:
                if each.seen:
                    codec.apply_coordinates(weights, each.words, each.magnitude)
        return weights

    def _see(self, each: Pending, *, sign: int) -> None:
        self._seen_digest += sign * self._state.contribution(each.words, each.magnitude)
        self._seen_digest %= U64_MODULUS

    def _take_off(self, each: Pending) -> None:
        """Take a contribution off the trainer's weights, if it is in them: an update holds it, or nothing."""
        if each.seen:
            each.seen = False
            self._see(each, sign=-1)
            self._deliver(self.me, self._steps, each.magnitude, each.words ^ np.uint32(1))

    def hear_steps(self, peer: Peer, steps: int) -> None:
        """Note the steps in a peer's STATUS, and pass them on to the trainer."""
        if self._state.frontier.note_steps(peer.origin.node, steps):
            self._deliver(peer.origin, steps, 1, np.empty(0, np.uint32))

    def _deliver(self, origin: Origin, steps: int, magnitude: int, words: NDArray[np.uint32]) -> None:
        """Give the trainer what no update holds, in the form of one."""
        base, payload = encode_words(words, self._state.spec.weights) if len(words) else (0, b"")
        header = UpdateHeader(
            *origin,
            sequence=1,
            digest=0,
            steps=steps,
            magnitude=magnitude,
            count=len(words),
            base=base,
            cover=(),
        )
        self._out.emit(Deliver(pack_update(header, payload)))

    # -- rounds

    @property
    def standing(self) -> RingState:
        """Return what the next STATUS says of this node's trainer, in rounds."""
        barrier = self.barrier
        assert barrier is not None
        return RingState(
            generation=0,
            round=self.round,
            running=barrier.active and barrier.joined,
            active=barrier.active,
            contributed=self._given > self.round,
        )

    def change_trainer(self, active: bool, now: float) -> None:
        """Note that a trainer came, or went."""
        barrier = self.barrier
        assert barrier is not None
        barrier.active, barrier.joined, self._opened = active, False, False
        self._status_sender.send_to_all(now)  # the others wait for it, or not
        self._publish_if_due(now)
        self._open_round(now)

    def on_status(self, peer: Peer, status: PeerStatus, now: float) -> None:
        """Give a peer that is ready its part from now on. Take in, in rounds, whether its trainer takes part;
        PeerError if it does not say that.
        """
        if peer.origin in self._gone_since and self._is_here(peer.origin, now):
            del self._gone_since[peer.origin]
        if self.barrier is None:
            return
        if status.ring is None:
            raise PeerError(
                RejectCode.RING, f"{peer.name} did not say whether its trainer takes part in rounds"
            )
        self.barrier.on_state(peer.origin, status.ring)
        self._publish_if_due(now)

    def share(self, made: ContributionMade | BucketContributed, now: float) -> None:
        """Take what this node's trainer contributes to the round; refuse what was not asked for."""
        barrier = self.barrier
        assert barrier is not None
        assert isinstance(made, ContributionMade), made
        if not self._opened:
            number = self.round + 1
            words = f"unexpected contribution to round {number}: it has one, or the round has not started"
            self._out.emit(RejectContribution(words))
            return
        first = not barrier.joined
        self._opened, self._given, self._given_at = False, self.round + 1, now
        self._steps = max(self._steps, made.steps)
        shares: dict[Origin, list[Pending]] = {
            each: [] for each in self._owners if self._is_usable(each, now)
        }
        for update in made.updates:
            whole = self._pending(update, now)
            for owner, part in self._cut(whole, now):
                shares.setdefault(owner, []).append(part)
        for owner, share in shares.items():
            parts = share or [self._nothing(now)]
            parts[-1].round = self._given
            for part in parts:
                self._append(owner, part)
            self._push_to(owner, now)
        barrier.end(self.me, self._given)
        self._contributors.add(self.me)
        if first:
            self._status_sender.send_to_all(now)
        self._publish_if_due(now)

    def _look_for_late(self, barrier: Barrier, now: float) -> None:
        for member in barrier.tick(now, ready=self._node.ready):
            words = f"its trainer has not contributed to round {barrier.published + 1}: the others go on"
            if member in self._owners:
                words += " without that, once it has published what it adds up itself"
            name = self._cluster.name_of(member)
            self._out.emit(LogEvent("late", f"{name} is late: {words}", member.node))

    def _nothing(self, now: float) -> Pending:
        return Pending(np.empty(0, np.uint32), 1, seen=False, steps=self._steps, made=now)

    def _end_round(self, now: float) -> None:
        """Tell owners that have come since, or can be reached again, that the last round is over for them."""
        barrier = self.barrier
        if barrier is None or not (barrier.active and self._given):
            return
        for owner in self._owners:
            channel = self.channels.get(owner)
            if (channel is None or channel.round < self._given) and self._is_usable(owner, now):
                part = self._nothing(now)
                part.round = self._given
                self._append(owner, part)
                self._push_to(owner, now)

    def _open_round(self, now: float) -> None:
        """Let the trainer contribute to the next round once all updates of the last one are here, and there
        is room in the log.
        """
        barrier = self.barrier
        if barrier is None or self._opened or not barrier.active:
            return
        if not self._node.ready or self._cluster.membership.stopping or not barrier.begun(now):
            return
        if self._given > self.round and self._find_awaited(now) is not None:
            return
        if not self._usable_places(now):
            return  # what was contributed would count in no round, and the next one would follow at once
        self.round = max(self.round, self._given, self._state.frontier.steps_max)
        if not self._owns:
            barrier.follow(self.round, now)
        if self._retention.full or self.round == ROUND_MAX:
            return
        self._opened = True
        self._out.emit(OpenRound(barrier.contributors, 0))

    def _find_awaited(self, now: float) -> Origin | None:
        """Return an owner whose updates for the round that this node has contributed to are not all here.
        None is waited for that is gone: what it does not cover others were given, for the next round.
        """
        if self._awaited is None or not self._awaits(self._awaited, now):
            self._awaited = next((each for each in self._owners if self._awaits(each, now)), None)
        return self._awaited

    def _awaits(self, owner: Origin, now: float) -> bool:
        channel = self.channels.get(owner)
        if channel is None or channel.round < self._given or owner not in self._owners:
            return False
        complete = self._state.frontier.steps_of(owner) >= self._given and channel.ends_round
        return not complete and self._is_usable(owner, now)

    def unreachable(self, now: float) -> dict[Origin, str]:
        """Return, in rounds, the owners if none of them can be given anything, and why they should go:
        without another view no round would ever end.
        """
        if self.barrier is None or self._usable_places(now):
            return {}
        return dict.fromkeys(self._owners, "it owns weights, and no owner can be reached")

    def waiting_for(self, now: float) -> str:
        """Return which members, or which owners' updates, a round waits for and since when; empty if none."""
        barrier = self.barrier
        if barrier is None or not (barrier.active and self._node.ready):
            return ""
        if self.round == ROUND_MAX:
            return f"round {ROUND_MAX:,} is the last one that can be numbered: start a new run"
        if not self._usable_places(now):
            names = ", ".join(map(self._cluster.name_of, self._owners[:3]))
            return f"round {self.round + 1} waits for an owner: {names} cannot be reached"
        words = barrier.explain(now)
        if words or self._opened or self._given <= self.round or self._awaited is None:
            return words
        name = self._cluster.name_of(self._awaited)
        return f"round {self._given} has waited for {now - self._given_at:.1f} s for the sum of {name}"

    # -- contributing

    def give(self, made: OwnUpdateMade, now: float) -> None:
        """Take what this node's trainer made."""
        self._steps = max(self._steps, made.steps)
        self._contribute(self._pending(made, now), now)
        self._came += 1
        self._contributors.add(self.me)
        own = self.channels.get(self.me)
        self._publish_if_many(0 if own is None else len(own.pending), now)

    def _pending(self, made: OwnUpdateMade, now: float) -> Pending:
        """Return what this node's trainer made, before it is cut. Its weights have it, but for a gradient,
        and but for rounds, in which they are the replica.
        """
        seen = not made.rate and self.barrier is None
        return Pending(
            made.words, made.magnitude, seen=seen, own=True, steps=self._steps, made=now, rate=made.rate
        )

    def _contribute(self, whole: Pending, now: float) -> None:
        for owner, part in self._cut(whole, now):
            self._append(owner, part)
            self._push_to(owner, now)

    def _cut(self, whole: Pending, now: float) -> Iterator[tuple[Origin, Pending]]:
        for place, words in enumerate(cut(whole.words, len(self._owners), self._state.spec.weights)):
            if len(words):
                yield self._recipient(place, now), whole.part(words)

    def _append(self, owner: Origin, part: Pending) -> None:
        channel = self.channels.setdefault(owner, Channel(owner))
        if owner == self._cluster.me:
            self._add(owner, part.words, part.magnitude, part.rate)
        else:
            base, payload = encode_words(part.words, self._state.spec.weights)
            header = ContributionHeader(
                channel.last + 1, part.magnitude, base, len(part.words), part.rate, part.round
            )
            part.body = pack_contribution(header, payload)
        channel.append(part)
        if part.seen:
            self._see(part, sign=1)

    def _push_to(self, owner: Origin, now: float) -> None:
        peer = self._cluster.peers.get(owner)
        if peer is not None:
            self.push(peer, now)

    def _contribute_all(self, updates: Iterable[Update], now: float) -> None:
        """Contribute what this node has added up; its updates so far cover where that came from."""
        most, after = codec.indices_max(self._state.spec.weights), self._state.frontier.sequence(self.me)
        for magnitude, words in updates:
            for begin in range(0, len(words), most):
                part = words[begin : begin + most]
                each = Pending(part, magnitude, seen=False, steps=self._steps, made=now, after=after)
                self._contribute(each, now)

    def _recipient(self, place: int, now: float) -> Origin:
        """Return who is given what belongs to the owner at this place: itself, or who owns it while that is
        gone.
        """
        usable = self._usable_places(now)
        if not usable:
            return self._cluster.me
        return self._owners[usable[min(bisect_left(usable, place), len(usable) - 1)]]

    def _usable_places(self, now: float) -> list[int]:
        return [place for place, owner in enumerate(self._owners) if self._is_usable(owner, now)]

    def _is_usable(self, member: Origin, now: float) -> bool:
        since, patience_s = self._gone_since.get(member), self._cluster.timing.failure_timeout_s
        if self.barrier is None:
            patience_s = min(GONE_S, patience_s)
        return since is None or now - since < patience_s

    def push(self, peer: Peer, now: float) -> None:
        """Send the owner what it has not been sent on this link, while there is credit."""
        channel = self.channels.get(peer.origin)
        if channel is None or peer.status is None or peer.barred:
            return
        for each in channel.unsent():
            if peer.credit <= 0 or self._lacks_update(peer, each.after, now):
                break
            self._out.send(peer, pack_frame(FrameType.CONTRIBUTION, each.body))

    def _lacks_update(self, peer: Peer, after: int, now: float) -> bool:
        """Return whether the update `after` of this node is still to be sent, and send it if another node
        relays it: an owner must not have what this node had added up without the update that covers where
        that came from.
        """
        if max(peer.has(self.me), peer.own_sent) < after:
            self._log_sender.bring_up(peer, now)
        return max(peer.has(self.me), peer.own_sent) < after

    def link(self, peer: Peer, now: float) -> None:
        """Send an owner again what its updates do not cover, on a new link."""
        channel = self.channels.get(peer.origin)
        if channel is not None:
            channel.resend()
            self.push(peer, now)

    def covered(self, owner: Origin, now: float) -> None:
        """Note what an owner's update that was just applied covers."""
        channel = self.channels.get(owner)
        if channel is not None:
            self._cover(channel, self._state.covers.numbers(owner).get(self.me, 0), now)

    def _cover(self, channel: Channel, number: int, now: float) -> None:
        for each in channel.cover(number):
            self._take_off(each)
            if each.redealt:
                self._contribute(each.opposite(), now)

    # -- owning

    def take(self, peer: Peer, body: bytes | bytearray, now: float) -> None:
        """Take in a peer's contribution; PeerError unless all of it is right."""
        header, words = parse_contribution(body, self._state.spec.weights, gradients=self.rule.gradients)
        if header.round and self.barrier is None:
            raise PeerError(RejectCode.CONTRIBUTION, "a contribution ends a round, and the run has none")
        if self._left:
            return
        origin = peer.origin
        if origin not in self.received and len(self.received) >= ORIGINS_MAX:
            raise PeerError(
                RejectCode.CONTRIBUTION, f"one incarnation of an owner has at most {ORIGINS_MAX} contributors"
            )
        if header.number <= self.received.get(origin, 0):
            self._due.add(origin)  # sent again: the next update says so
            return
        if not self.aggregator.takes(words):
            raise PeerError(
                RejectCode.CONTRIBUTION, "this owner has no room for more contributions outside of its range"
            )
        self._due.add(origin)
        self.received[origin] = header.number
        self._add(origin, words, header.magnitude, header.rate)
        self._came += 1
        self._contributors.add(origin)
        if self.barrier is None:
            covered = self._state.covers.numbers(self.me).get(origin, 0)
            self._publish_if_many(header.number - covered, now)
            return
        if header.round:
            self.barrier.end(origin, header.round)
        self._publish_if_due(now)

    def _add(self, origin: Origin, words: NDArray[np.uint32], magnitude: int, rate: float) -> None:
        """Add a contribution up; in rounds a gradient with all others of its round, by the order of nodes:
        what a rule makes of them depends on it.
        """
        lacks = self.custody is not None and self.custody.waits
        if not rate or (self.barrier is None and not lacks and not self._gradients):
            self.aggregator.add(words, magnitude, rate)
            return
        self._gradients.append((origin, words, magnitude, rate))
        self._gradients_bytes += words.nbytes
        if self._gradients_bytes > GRADIENTS_BYTES_MAX:
            self._add_gradients()

    def _add_gradients(self) -> None:
        for _, words, magnitude, rate in sorted(self._gradients, key=lambda each: each[0]):
            self.aggregator.add(words, magnitude, rate)
        self._gradients.clear()
        self._gradients_bytes = 0

    def _publish_if_due(self, now: float) -> None:
        """Publish in rounds what this owner was given, if it waits for nobody."""
        if self.barrier is None:
            return
        own = self.channels.get(self.me)
        came = self._came > 0 or bool(self._due) or (own is not None and bool(own.pending))
        if self.barrier.is_due(came=came, now=now):
            self.publish(now)

    def _publish_if_many(self, ahead: int, now: float) -> None:
        """Publish if as many contributions have come as there are members, or the last one came late.

        `ahead`: how many of its contributor are not covered. One that trains while most do not is at its
        limit before as many have come.
        """
        since = now - self._published_at
        many = self._came >= len(self._members) or ahead >= AHEAD
        if since >= PUBLISH_S or (many and since >= PUBLISH_MIN_S):
            self.publish(now)

    def publish(self, now: float) -> None:
        """Publish what is due as updates of this node, the first of which covers what came."""
        if not self._node.ready or self._node.quarantined or self._cluster.membership.stopping:
            return
        if self._retention.full:
            return  # the log is full: contributors, and then their trainers, wait for what others acknowledge
        if self.custody is not None and self.custody.waits:
            return
        self._published_at, self._came = now, 0
        self._add_gradients()
        begin, end = self.aggregator.range
        quantum = np.float32(self._state.spec.quantum)
        updates = self.aggregator.take(
            len(self._contributors),
            alone=len(self._members) == 1,
            weights=lambda: self._state.lattice.coordinates[begin:end].astype(np.float32) * quantum,
        )
        self._contributors.clear()
        own = self.channels.get(self._cluster.me)
        if own is not None:  # also if all of it adds up to nothing
            self._cover(own, own.last, now)
        cover = self._state.covers.rows(self.me, {origin: self.received[origin] for origin in self._due})
        self._due.clear()
        steps = self._published_steps(now)
        # Of who owns nothing STATUS has the steps, and updates would be many.
        if updates or cover or (self._owns and steps > self._told_steps):
            most = codec.indices_max(self._state.spec.weights)
            parts = [
                (magnitude, words[start : start + most])
                for magnitude, words in updates or [(1, np.empty(0, np.uint32))]
                for start in range(0, max(len(words), 1), most)
            ]
            for place, (magnitude, words) in enumerate(parts, 1):
                if place == len(parts):
                    self._told_steps = steps  # a node that has the last update has all of them
                self._publish(magnitude, words, cover)
                cover = ()
            self._published(self._steps, now)
        self._give_on(now)

    def _give_on(self, now: float) -> None:
        """Contribute gradients for other ranges to their owners, which alone can make changes of them."""
        misplaced, self.aggregator.misplaced = self.aggregator.misplaced, []
        for words, magnitude, rate in misplaced:
            after = self._state.frontier.sequence(self.me)
            each = Pending(words, magnitude, rate=rate, seen=False, steps=self._steps, made=now, after=after)
            self._contribute(each, now)

    def _published_steps(self, now: float) -> int:
        """Return the steps that the next updates tell: in rounds the last one that all contributed to."""
        if self.barrier is None:
            return self.covered_steps()
        self.barrier.publish(self.barrier.complete(now), now)
        return self.barrier.published

    def covered_steps(self) -> int:
        """Return up to where updates cover what the trainer has made: others count a step when they have
        it. In rounds, of which others number theirs by this, the last one that is complete here.
        """
        if self.barrier is not None:
            return self.round
        waiting = (
            each.steps - 1 for channel, each in self._uncovered() if each.own and channel.owner != self.me
        )
        return max(self._told_steps, min(waiting, default=self._steps))

    def _publish(self, magnitude: int, words: NDArray[np.uint32], cover: tuple[CoverRow, ...]) -> None:
        state, me = self._state, self._cluster.me
        base, payload = encode_words(words, state.spec.weights) if len(words) else (0, b"")
        sequence, digest = state.frontier.at(me)
        header = UpdateHeader(
            *me,
            sequence=sequence + 1,
            digest=(digest + state.contribution(words, magnitude)) % U64_MODULUS,
            steps=self._told_steps,
            magnitude=magnitude,
            count=len(words),
            base=base,
            cover=cover,
        )
        self._applier.apply(me, header, words, pack_update(header, payload))

    # -- time, and who is there

    def look(self, now: float) -> None:
        """Follow a new view."""
        if self._cluster.membership.view is not self._view:
            self._enter_view(now)
        self._open_round(now)

    def tick(self, now: float) -> None:
        """Publish what waits, and give what owners that are gone were given to others."""
        self._follow_members(now)
        self._follow_owners(now)
        if self.barrier is not None:
            self._look_for_late(self.barrier, now)
            self._end_round(now)
        self._redeal(now)
        for owner in self.channels:
            peer = self._cluster.peers.get(owner)
            if peer is not None:
                self.push(peer, now)
        if self.barrier is None and now - self._published_at >= PUBLISH_S:
            self.publish(now)
        self._publish_if_due(now)
        self._move(now)
        if self.custody is not None:
            self.custody.tick(now)

    def _follow_members(self, now: float) -> None:
        """Note who of the members can be given something, and since when the others cannot."""
        for member in self._members:
            if self._is_here(member, now):
                self._gone_since.pop(member, None)
                continue
            self._gone_since.setdefault(member, now)
            peer = self._cluster.peers.get(member)
            if self.barrier is not None and peer is not None and peer.state is PeerState.LEAVING:
                self._gone_since[member] = -math.inf  # nothing more comes of it

    def _is_here(self, member: Origin, now: float) -> bool:
        """Return whether a member can be given something at this moment."""
        silence_s = math.inf if self.barrier is not None else self._cluster.timing.failure_timeout_s / 2
        peer = self._cluster.peers.get(member)
        return member == self._cluster.me or (
            peer is not None
            and peer.ready
            and now - peer.last_seen <= silence_s
            and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
        )

    def _enter_view(self, now: float) -> None:
        me, before = self._cluster.me, self._members
        self._view = self._cluster.membership.view
        self._members = self._view.members or (me,)
        if self._left and len(self._members) > 1:
            self._members = tuple(member for member in self._members if member != me)
            self._status_sender.resigned = True
        # Give a newcomer nothing before it is ready: it could not publish that, and what is given to others
        # meanwhile would count twice if this node ended before it could. Rounds wait for it.
        apart = self.barrier is None and self._node.ready
        self._gone_since = {
            member: self._gone_since.get(member, -math.inf)
            for member in self._members
            if member in self._gone_since or (apart and member not in before)
        }
        self._owners = self._members[: owner_count(len(self._members), self._state.spec.weights)]
        self._follow_members(now)
        self._usable = None
        self._said_gone.clear()
        self._follow_owners(now)
        self._redeal(now)
        if self.barrier is not None:
            self.barrier.keep({me, *self._view.members, *self._cluster.peers})
            self._end_round(now)
            self._publish_if_due(now)

    def _follow_owners(self, now: float) -> None:
        """Own what the members that can be given something leave to this node."""
        usable = self._usable_places(now)
        if usable == self._usable:
            return
        before, self._usable = self._usable, usable
        if before is not None:  # else the view is new
            self._say_moved(before, usable)
        ranges = ranges_of(usable, len(self._owners), self._state.spec.weights)
        owners = {self._owners[place]: each for place, each in zip(usable, ranges, strict=True)}
        if self.custody is not None:
            self.custody.enter(owners, self._view, now)
        if not self._owns:
            self._contributors.clear()  # who owns nothing publishes nothing, but notes its own part in rounds
        self._range = owners.get(self._cluster.me, (0, 0))
        if self.barrier is not None:
            self.barrier.owns = self._owns
        self._move(now)

    def _say_moved(self, before: Sequence[int], usable: Sequence[int]) -> None:
        """Report, once in a view, each owner that has gone without a word and whose weights others own."""
        membership = self._cluster.membership
        if not usable or not self._node.ready or self._left or membership.stopping:
            return
        for place in sorted({*before} - {*usable}):
            owner, peer = self._owners[place], self._cluster.peers.get(self._owners[place])
            expected = membership.is_leaving(owner.node) or owner.node == self.me.node
            if expected or owner in self._said_gone or (peer is not None and not peer.ready):
                continue
            self._said_gone.add(owner)
            begin, end = range_of(place, len(self._owners), self._state.spec.weights)
            words = f"{self._cluster.name_of(owner)} does not answer, and another node owns its weights"
            words += f" {begin:,} to {end - 1:,} until it is back, or there is another view"
            self._out.emit(LogEvent("owners", words, owner.node))

    def _move(self, now: float) -> None:
        """Own the range of the view, and contribute what this node has added up outside of it, but only once
        its updates cover where that came from: if they never do, the contributors give it to others.
        """
        if self._range == self.aggregator.range:
            return
        if not self._is_idle:
            self.publish(now)
        if self._is_idle:
            self._contribute_all(self.aggregator.move(self._range), now)
            self._hand_on_state()

    @property
    def _is_idle(self) -> bool:
        """Return whether nothing that others have given is in the sum before an update covers it. Gradients
        that wait for a round are not in it.
        """
        return not self._due and self.aggregator.idle

    def _hand_on_state(self) -> None:
        """Give the rule's state of weights that this node owns no more to their owners."""
        pieces, self.aggregator.pieces = self.aggregator.pieces, []
        if self.custody is not None:
            for piece in pieces:
                self.custody.give(piece)
            self.custody.push()

    def hand_over(self, now: float) -> None:
        """Publish what is due, and contribute to the others what else this owner has added up, since it
        leaves. What comes from now on is not taken: nothing would ever cover it. So it says at once that
        others give it nothing from now on: GOODBYE comes only when they have acknowledged all.
        """
        self.publish(now)
        self._left = True
        self._enter_view(now)
        self._status_sender.send_to_all(now)

    def _redeal(self, now: float) -> None:
        """Give to others what the updates of owners that are gone do not cover."""
        for owner, channel in list(self.channels.items()):
            if owner == self._cluster.me or (owner in self._members and self._is_usable(owner, now)):
                continue
            for each in channel.to_redeal():
                each.redealt = True
                self._contribute(each, now)
                if each.seen:  # there, and no longer here
                    each.seen = False
                    self._see(each, sign=-1)
        redealt = [channel for channel in self.channels.values() if channel.redealt_bytes]
        redealt.sort(key=lambda channel: channel.owner.incarnation)
        while sum(channel.redealt_bytes for channel in redealt) > REDEALT_BYTES_MAX:
            oldest = redealt.pop(0)
            why = "if an update of it comes to light that holds them, they count twice"
            self._say_lost(oldest.owner, oldest.forget_redealt(), why)

    def _say_lost(self, owner: Origin, lost: list[Pending], why: str) -> None:
        for each in lost:
            self._take_off(each)
        self.lost += len(lost)
        if lost:
            words = f"{len(lost)} contributions to {self._cluster.name_of(owner)} are given up: {why}"
            self._out.emit(LogEvent("contributions", words, owner.node))

    def replaced(self, now: float) -> None:
        """Note that a snapshot has replaced the replica: updates that cover contributions may be in it that
        this node has not seen.
        """
        for channel in list(self.channels.values()):
            if channel.owner == self._cluster.me:
                continue
            self._cover(channel, self._state.covers.numbers(channel.owner).get(self.me, 0), now)
