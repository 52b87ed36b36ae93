"""The ring of one replica: its generations, when its trainer may contribute, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import OpenRound, RejectContribution
from p2psgd.core.events import PeerStatus, RingMessage
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.retention import Retention
from p2psgd.core.ring.formation import Formation, RingStates
from p2psgd.core.ring.rounds import (
    Completed,
    Generation,
    OnComplete,
    RingCounters,
    RingLife,
    RingPhase,
    Rounds,
    StopReason,
)
from p2psgd.core.ring.stragglers import ResultServer, StragglerVotes
from p2psgd.core.send import Outbound
from p2psgd.core.snapshot_fetch import FetchProgress
from p2psgd.core.state import State
from p2psgd.core.status import StatusSender
from p2psgd.wire.messages import RingBegin
from p2psgd.wire.mode import Mode
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import (
    GENERATION_MAX,
    ROUND_MAX,
    BucketContributed,
    ContributionMade,
    RingState,
    pack_ring_state,
)

NAMED_MAX: Final = 3
SILENT_STATUSES: Final = 1.5  # a STATUS comes each status_s; so many without any is silence
FRESH_STATUSES: Final = 0.5  # whoever gives its share later than that in a round says so at once (Ring.share)
ON_ITS_WAY_TIMEOUTS: Final = 0.5  # frames take their time

# ----------------------------------------------------------------------------
# The ring of one replica: generations begin, and stop as soon as anything is wrong.
#
# A generation runs over replicas that are complete and the same at every member of the view; within it rounds
# follow each other without any agreement. It ends, for this node and soon for all, with the first of them
# that loses a neighbour, learns of another view or is not READY any more; then repair makes all members
# equal again as in asynchronous mode, and the head, the member with the lowest node id, begins the next
# generation from the shares that are still there. What happens within a round is Rounds' business.


class Ring:
    """The ring of one replica in ring mode."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        rounds: Callable[[OnComplete], Rounds],
        *,
        node: Node,
        life: RingLife,
        taking: FetchProgress,
        status_sender: StatusSender,
        retention: Retention,
        out: Outbound,
        mode: Mode,
        now: float,
    ) -> None:
        """`rounds` makes the rounds, sparse or dense, given what is called whenever one is complete."""
        self.counters = RingCounters()
        self.generation: Generation | None = None  # None unless the life is FORMING or RUNNING
        self.order: tuple[int, ...] = ()  # node ids of the last generation, around the ring
        self.since = now  # when the last round was completed, or the generation began or ended
        self.given_at = now  # when this node's share of the round under way was given
        self.late: dict[Origin, str] = {}  # members that hold the ring back, and how
        self.standstill = ""  # why the ring has not moved for a while
        self.active = False  # there is a trainer that takes part
        self._opened = False  # it may give a contribution, and has not given it whole
        self._last = Completed(0, 0, own=False)
        self._moved = now  # when a frame of a round came last, or left this node's memory
        self.rounds = rounds(self._complete)
        self._cluster = cluster
        self._state = state
        self._node = node
        self._life = life
        self._taking = taking
        self._status_sender = status_sender
        self._retention = retention
        self._out = out
        self._ring_states = RingStates()
        self._formation = Formation(cluster, state, node=node, ring_states=self._ring_states, mode=mode)
        self._straggler_votes = StragglerVotes(
            cluster, node=node, ring_states=self._ring_states, formation=self._formation
        )
        self._view = cluster.membership.view
        self._number = 0  # of the last generation in that view
        self._begin_due = now  # the head begins no generation before
        self._news: tuple[object, ...] = ()  # at the last look
        self._result_server = (
            ResultServer(cluster, state, ring_states=self._ring_states, rounds=self.rounds)
            if mode.dense
            else None
        )
        status_sender.standing = lambda: pack_ring_state(self.state)

    # -- what others look at

    @property
    def running(self) -> bool:
        """Return whether a generation is under way here."""
        return self.generation is not None

    @property
    def state(self) -> RingState:
        """Return what the next STATUS reports."""
        same = self._view.number == self._cluster.membership.view.number
        return RingState(
            generation=self._number if same else 0,
            round=self.rounds.done,
            running=self.running and same,
            active=self.active,
            contributed=self.rounds.contributed,
        )

    def waiting_for(self, now: float) -> str:
        """Return which members the ring waits for and since when, or why it stands still; empty if it does
        neither.
        """
        had_trainers = self.running or self.rounds.done > 0 or self._ring_states.rounds(self._view) > 0
        if had_trainers and not self._ring_states.active(self._view, mine=self.active):
            return ""  # nobody waits for a share of those who only follow, or whose trainers have finished
        hindrance = "" if self.running else self._formation.hindrance(self.state, now)
        return self._describe_wait(hindrance, now)

    # -- the trainer

    def change_trainer(self, active: bool, now: float) -> None:
        """Note that a trainer came, or went."""
        self.active, self._opened = active, self._opened and active
        self.rounds.activate(active, now)
        self._heed(now)
        self._status_sender.send_to_all(now)  # the others may wait for just that
        self._open_round()
        self._try_to_begin(now)

    def share(self, event: ContributionMade | BucketContributed, now: float) -> None:
        """Take the trainer's contribution to a round, or a part of it; refuse one that was not asked for."""
        if not self._opened:
            number = self.rounds.done + 1
            words = (
                f"unexpected contribution for round {number}: already received, or the round has not started"
            )
            self._out.emit(RejectContribution(words))
            return
        self.rounds.share(event, now)
        self._heed(now)
        if self.rounds.contributed:
            self._opened = False
            self.given_at = now
            if now - self.since > FRESH_STATUSES * self._cluster.timing.status_s:
                self._status_sender.send_to_all(now)  # or people would be told that this round waits for it

    def _complete(self, completed: Completed, now: float) -> None:
        self.counters.rounds += 1
        self.since = now
        if self._result_server is not None:
            self._result_server.completed()
        self._opened = self._opened and not completed.own
        self._last = completed
        self._open_round()

    def _open_round(self) -> None:
        """Let the trainer give its next share, if it is time: not while the log is full, and not before the
        replica is that of all members. Without a generation that is not known: a round may be complete
        elsewhere, or this node's memory wrong.
        """
        last, done = self._last, self.rounds.done
        if not (self.active and self.running) or self._opened or self.rounds.contributed or self._log_is_full:
            return
        self._opened = True
        known = last.round == done
        self._out.emit(OpenRound(last.contributors if known else 0, last.sums if known else 0))

    @property
    def _log_is_full(self) -> bool:
        """Return whether the log was full at the last look at it or is full now: rounds may come faster than
        looks.
        """
        return self._retention.full

    # -- what peers say

    def on_message(self, peer: Peer, message: RingMessage, now: float) -> None:
        """Take in a frame of a ring; PeerError for what no honest peer says (RINGS.md, 29)."""
        if isinstance(message, RingBegin):
            self._hear_begin(peer, message, now)
        elif peer.origin in self._cluster.membership.view:  # who was evicted has results of its own
            self.rounds.on_message(peer, message, now)
            self._heed(now)

    def on_status(self, peer: Peer, status: PeerStatus, now: float) -> None:
        """Take in where a peer stands in the ring."""
        if status.ring is None:
            raise PeerError(RejectCode.RING, f"{peer.name} sent no ring state")
        self._ring_states.on_state(peer.origin, status.ring, status.view, now)
        self._leave_if_told(now)
        self._try_to_begin(now)

    def _hear_begin(self, peer: Peer, begin: RingBegin, now: float) -> None:
        view, me = self._cluster.membership.view, self._cluster.me
        if begin.view != view.number or me not in view:
            return
        if begin.generation > GENERATION_MAX or begin.round > ROUND_MAX:
            words = f"generation {begin.generation} with round {begin.round} is impossible"
            raise PeerError(RejectCode.RING, words)
        place = view.members.index(me)
        if place == 0 or view.members[place - 1] != peer.origin:
            raise PeerError(
                RejectCode.RING, f"{peer.name} is not to pass on to this node that a generation begins"
            )
        if begin.generation > self._number:
            self.stop(StopReason.LATER, now)
            generation = Generation(view.number, begin.generation, view.members, place)
            self._start(generation, begin.round, begin.digest, now)

    def drained(self, peer: Peer, now: float) -> None:
        """Go on sending on a link that has credit again."""
        self._moved = now
        self.rounds.drained(peer, now)
        self._heed(now)

    def leave(self, now: float) -> None:
        """Stop, since this node has said GOODBYE."""
        self.stop(StopReason.LEAVING, now)

    def unlink(self, peer: Origin, now: float) -> None:
        """Note that a link is gone: without a neighbour's this node is out of the generation."""
        self._ring_states.forget(peer)
        if self.generation is not None and peer in (self.generation.left, self.generation.right):
            self.stop(StopReason.LINK, now)

    # -- time

    def look(self, now: float) -> None:
        """Check after every event whether what holds a generation together still holds, and what held up a
        share.
        """
        view = self._cluster.membership.view
        if view is not self._view:
            self.stop(StopReason.VIEW, now, tell=False)  # who enters a view tells everybody anyway
            self._view, self._number = view, 0
            self._try_to_begin(now)
        elif self.running and not self._is_fit():
            self.stop(StopReason.UNREADY, now)
        self._open_round()  # the log was full

    def tick(self, now: float) -> None:
        """Update the straggler votes, and do what is due."""
        self._leave_if_told(now)
        if self._is_stuck(now):
            self.stop(StopReason.STUCK, now)
        if self.running:
            self.rounds.tick(now)
            self._heed(now)
        self.late = self._straggler_votes.look(self.state, self.rounds.missing, now)
        self._tell_news(now)
        if self._result_server is not None and not self.running:
            self._result_server.serve(now)
        still = self.waiting_for(now) if not self.running else ""
        self.standstill = still if now - self.since > self._cluster.timing.failure_timeout_s else ""
        self._try_to_begin(now)

    def _is_stuck(self, now: float) -> bool:
        """Return whether nobody is waited for and yet nothing comes: something of this round has been lost on
        its way.
        """
        if not (self.running and self.rounds.contributed):
            return False
        quiet_s = now - max(self._moved, self.since, self.given_at)
        given = self._ring_states.all_given(self._number, self.rounds.done, self._view)
        return quiet_s > self._cluster.timing.silence_s and given

    def _tell_news(self, now: float) -> None:
        """Send a STATUS while idle if anything has changed: the others wait for just that, as long as a
        STATUS is apart from the next.
        """
        news = self._node.ready, self._state.frontier.version, self.state
        if not self.running and news != self._news:
            self._status_sender.send_to_all(now)
        self._news = news

    # -- generations

    def _try_to_begin(self, now: float) -> None:
        """Begin the next generation as soon as all can take part, if this node is the head."""
        view = self._cluster.membership.view
        if self.running or now < self._begin_due or not view.members or view.members[0] != self._cluster.me:
            return
        if view is not self._view or not self._is_fit() or self._formation.hindrance(self.state, now):
            return
        self._begin_due = now + self._cluster.timing.status_s
        number = 1 + max(self._number, self._ring_states.generations(view))
        first = 1 + max(self.rounds.done, self._ring_states.rounds(view))
        generation = Generation(view.number, number, view.members, 0)
        self._start(generation, first, self._state.lattice.digest, now)

    def _is_fit(self) -> bool:
        """Return whether this node can take part: its replica is complete and stays so."""
        return self._node.ready and self._taking.donor is None and not self._cluster.membership.stopping

    def _start(self, generation: Generation, first: int, digest: int, now: float) -> None:
        self.generation, self._number = generation, generation.number
        self.order = tuple(member.node for member in generation.order)
        self.since = now
        self.counters.generations += 1
        self._formation.begun = True
        self._life.move(RingPhase.FORMING)
        right = self._cluster.peers.get(generation.right)
        if right is None or generation.left not in self._cluster.peers:
            self.stop(StopReason.LINK, now)
        elif not self._is_fit():
            self.stop(StopReason.UNREADY, now)
        elif self._state.lattice.digest != digest or not self.rounds.fits(first):
            self.stop(StopReason.UNLIKE, now)  # something came in since it told what it has
        elif self._ring_states.quitter(generation.number, self._view) is not None:
            self.stop(StopReason.TOLD, now)
        else:
            self._life.move(RingPhase.RUNNING)
            if generation.right != generation.order[0]:
                begin = RingBegin(
                    view=generation.view,
                    generation=generation.number,
                    round=first,
                    digest=digest,
                )
                self._out.send_message(right, begin)
            self.given_at = now
            if self._result_server is not None:
                self._result_server.begin()
            self.rounds.begin(generation, first, now)
            self._heed(now)
            self._open_round()

    def _heed(self, now: float) -> None:
        if self.rounds.request_stop:
            self.stop(StopReason.REFUSED, now)
        elif self.rounds.done >= ROUND_MAX:
            self.stop(StopReason.LAST, now)

    def _leave_if_told(self, now: float) -> None:
        if self.generation is None or self._view is not self._cluster.membership.view:
            return
        if self._ring_states.quitter(self.generation.number, self._view) is not None:
            self.stop(StopReason.TOLD, now)

    def stop(self, why: StopReason, now: float, *, tell: bool = True) -> None:
        """End the generation, if there is one; what this node gave stays for the next."""
        if self.generation is None:
            return
        self.generation = None
        self.since = now
        self.counters.stops[why] += 1
        self._life.move(RingPhase.STOPPED)
        self.rounds.stop()
        if tell:
            self._status_sender.send_to_all(now)

    # -- what the ring waits for, in one sentence for people
    #
    # What comes through the ring says little of that: it stops at the first member that has not given, and
    # whatever lies behind that one is missing too. So the sentence is made of each member's own STATUS,
    # and names the silent ones. A member that was not heard lately is named before all others: no node gets
    # on without it, no matter which ones have given.

    def _describe_wait(self, hindrance: str, now: float) -> str:
        """Describe the wait; empty where `explain` says already why this node is not READY."""
        if self._cluster.me not in self._cluster.membership.view or not self._node.ready:
            return ""
        if self.generation is None:
            reason = hindrance or "the head is to begin"
            more = self._cluster.membership.explain()
            return f"the ring has stood still for {now - self.since:.1f} s: {reason}" + (
                f"; {more}" if more else ""
            )
        return self._describe_round(self.generation, now)

    def _describe_round(self, generation: Generation, now: float) -> str:
        """Describe the latest round that is under way anywhere."""
        last = max(self.rounds.done, self._ring_states.rounds(self._cluster.membership.view))
        waited_s = now - max(self.since, self.given_at)
        said = f"round {last + 1} has waited for {waited_s:.1f} s"
        quiet = {each: now - self._heard(each) for each in generation.order if each != self._cluster.me}
        silent = [
            each
            for each, quiet_s in quiet.items()
            if quiet_s > SILENT_STATUSES * self._cluster.timing.status_s
        ]
        if silent:
            return f"{said}: {self._name(silent)} not heard for {min(quiet[each] for each in silent):.1f} s"
        late, behind, unsure, untold = self._sort_members(generation, last)
        if late:
            of_one = f"{self._name(late)}'s trainer"
            return f"{said} for {of_one if len(late) == 1 else f'the trainers of {self._name(late)}'}"
        if behind:
            return f"{said} for {self._name(behind)}, where not all of round {last} has come"
        if untold:
            return f"{said} for {self._name(untold)}"
        if unsure or waited_s <= ON_ITS_WAY_TIMEOUTS * self._cluster.timing.failure_timeout_s:
            return ""
        return f"round {last + 1}: all shares are given and on their way for {waited_s:.1f} s"

    def _sort_members(
        self, generation: Generation, last: int
    ) -> tuple[list[Origin], list[Origin], list[Origin], list[Origin]]:
        """Return the members whose trainer has not given to the round after `last`, those that lack `last`,
        those whose last STATUS is too old to decide, and those that have reported nothing.
        """
        late, behind, unsure, untold = [], [], [], []
        fresh = self.since + FRESH_STATUSES * self._cluster.timing.status_s
        given = set(generation.order).difference(self.rounds.missing) if last == self.rounds.done else set()
        for member in sorted(generation.order):
            told = self._ring_states.of(member, self._cluster.membership.view)
            mine = member == self._cluster.me
            if told is None and not mine:
                if member not in given:
                    untold.append(member)
                continue
            state = self.state if told is None else told.state
            sure = told is None or (told.at >= fresh and state.generation == generation.number)
            if member in given or (state.round >= last and (state.contributed or not state.active)):
                continue
            if not sure:
                unsure.append(member)
            elif state.round < last:
                behind.append(member)
            else:
                late.append(member)
        return late, behind, unsure, untold

    def _heard(self, member: Origin) -> float:
        """Return when a member sent anything itself, or, if it is not linked, when others had news of it; at
        the earliest when the wait began.
        """
        peer = self._cluster.peers.get(member)
        return max(self.since, self._cluster.acks.heard(member)) if peer is None else peer.last_seen

    def _name(self, members: Sequence[Origin]) -> str:
        names = ["this node" if each == self._cluster.me else self._cluster.name_of(each) for each in members]
        more = f" and {len(names) - NAMED_MAX} more" if names[NAMED_MAX:] else ""
        return ", ".join(names[:NAMED_MAX]) + more
