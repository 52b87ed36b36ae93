"""Mode `closure` at one node: its trainer evaluates loss and gradient over all data, with all other members.

All members run the same optimizer in lockstep and ask for the same evaluations. Of each, the first usable
member of the view deals the portions (leader.py); a trainer adds up those that it is granted; when each
portion is in somebody's sum, the leader makes a table of that, by which the members add up their sums
(sums.py). Every total is the same, by whatever table: so leaders need no agreement, and two at once would
only be twice the work. A member that has a total reports that to all, and one that was late fetches it.

What a trainer asks with has a digest. The first that comes for an evaluation holds, and one that differs is
refused with both: members whose optimizers have drifted apart would never notice.

All here changes the same few facts of one evaluation: how far the trainer is, what it was dealt, by which
table it adds up, and which peers have the result.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from p2psgd.core.closure.leader import Leader
from p2psgd.core.closure.members import Members
from p2psgd.core.closure.portions import Task, describe_difference
from p2psgd.core.closure.results import Result, ResultLog
from p2psgd.core.closure.sums import WINDOW_PIECES, ClosureMemory, Pull, Table, TableSums
from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import AnswerEvaluation
from p2psgd.core.events import EvaluationMessage, EvaluationNumbers
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.send import Outbound
from p2psgd.wire.evaluation import (
    EvaluationAnswered,
    EvaluationAsked,
    Kind,
    Numbers,
    Portions,
    each_of,
    pack_exponents,
    pack_numbers,
    pack_portions,
    parse_exponents,
    parse_leases,
    parse_numbers,
    parse_portions,
    parse_table,
    refusal,
)
from p2psgd.wire.fixed_point import NOTHING, Exponents, Sums, count_groups
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import (
    HELD_MAX,
    EvaluationFetch,
    EvaluationLease,
    EvaluationReport,
    EvaluationResult,
    EvaluationTable,
    Message,
)

PIECE_TIMEOUTS: Final = 3  # failure timeouts for a piece of 1 MiB of a result, before another peer is asked
KEEPALIVE_S: Final = 1.0  # a trainer that waits so long may look at something else meanwhile
WORDS_MAX: Final = 250  # of one member's failure
OVERDRAFT_BYTES: Final = 4096  # of messages while a link is full: reports and tables are sent again
OWED_MAX: Final = 4 * WINDOW_PIECES  # requests of a peer that wait for its link; beyond, it must ask again


@dataclass(slots=True)
class Seat:
    """The evaluation that this node's trainer has asked for, as far as it is."""

    task: Task
    exponents: Exponents  # the highest of all portions that it has computed
    added: Portions = 0  # in the trainer's sum,
    adding: Portions = 0  # and to be added by it next
    held: dict[int, int] = field(default_factory=dict)  # computed and not yet added, by checksum
    computing: int | None = None
    failures: dict[int, str] = field(default_factory=dict)
    untold: set[int] = field(default_factory=set)  # of these, what the leader has not been sent
    told_to: tuple[Origin, int] | None = None  # the leader and the attempt of what it has been sent
    granted: Portions = 0  # by the leader's last answer,
    decided: Portions = 0
    leases: tuple[int, ...] = ()
    ahead: bool = False
    done: bool = False
    error: str = ""


@dataclass(slots=True)
class Download:
    """A result on its way from a peer that has it; `result` follows once its description is here."""

    evaluation: int
    source: Origin
    pull: Pull
    result: Result | None = None
    moved_at: float = 0.0


class Counts:
    """Counts of what has happened here, by name, since they were taken last."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def take(self) -> Counter[str]:
        """Return what has happened since the last call."""
        fresh = self.total - self._taken
        self._taken = self.total.copy()
        return fresh


class Closure:
    """A node's part in mode `closure`: its trainer's, the leader's if it leads, and that of an owner."""

    def __init__(
        self, cluster: Cluster, spec: RunSpec, memory: ClosureMemory, *, out: Outbound, backups: bool = True
    ) -> None:
        """`backups`: lease a portion to a second member if that has nothing else to do."""
        self.results = ResultLog()
        self.counts = Counts()
        self._groups = count_groups(len(spec.tensors))
        self._members = Members(cluster)
        self.leader = Leader(
            self._members,
            self.results,
            timing=cluster.timing,
            groups=self._groups,
            send=self._send,
            out=out,
            adopted=lambda: None if self.sums is None else self.sums.table,
            counts=self.counts.total,
            backups=backups,
        )
        self.active = False  # there is a trainer
        self.number = 0  # of the evaluation that it has asked for last
        self.seat: Seat | None = None  # while that is not answered
        self.sums: TableSums | None = None  # while members add up theirs
        self.download: Download | None = None
        self.reported_to = cluster.me  # the leader, at the last report
        self._cluster = cluster
        self._memory = memory
        self._out = out
        self._count = spec.weights + 1
        self._sum = 0  # that the trainer adds to: another number, another sum, which begins at zero
        self._waiting_since: float | None = None  # the trainer waits for an answer
        self._reported_at = 0.0
        self._held_by: dict[Origin, tuple[int, int]] = {}  # the results of each peer, first and last
        self._offered: dict[Origin, int] = {}  # the last result here that each peer was sent word of
        self._overdrawn: dict[Origin, int] = {}  # bytes of messages to peers since their links are full
        self._progress = (0, 0.0)  # of the sums, and since when
        self._tries = 0  # downloads that were given up
        self._owed: dict[Origin, deque[EvaluationFetch]] = {}  # what peers ask for whose link is full

    @property
    def me(self) -> Origin:
        """Return this node."""
        return self._cluster.me

    # -- the trainer

    def change_trainer(self, active: bool, now: float) -> None:
        """Note that a trainer came, or went, with all that it has added up."""
        seat = self.seat
        if seat is not None and not active:
            self._report(seat, now, active=False)
        self.active = active
        self.number = 0
        self._waiting_since = None
        self._leave_seat()

    def _leave_seat(self) -> None:
        self.seat = self.sums = self.download = None
        self._sum += 1

    def ask(self, asked: EvaluationAsked, now: float) -> None:
        """Take in what the trainer has computed, and answer it now or later."""
        self._waiting_since = now
        seat = self.seat
        same = seat is not None and (asked.evaluation, asked.digest, asked.portions) == (
            seat.task.evaluation,
            seat.task.digest,
            seat.task.portions,
        )
        if seat is None or not same:
            if asked.evaluation not in (self.number, self.number + 1) or not asked.evaluation:
                words = f"evaluation {asked.evaluation} cannot follow {self.number}"
                if seat is not None:
                    self._report(seat, now, active=False)
                self._refuse(asked.evaluation, words)
                return
            seat = self._take_seat(asked, now)
        elif asked.sum == self._sum:
            news, lost = self._learn(seat, asked), bool(seat.adding)
            if lost:  # it does not say that it has added what it was given: nobody knows what its sum holds
                self._begin_sum(seat)
            if news or lost:
                self._report(seat, now)
        elif seat.added or seat.adding or seat.held:  # of a sum that it knows nothing of
            self._begin_sum(seat)
            self._report(seat, now)
        self._answer(now)

    def _take_seat(self, asked: EvaluationAsked, now: float) -> Seat:
        """Begin an evaluation, or take it from the log."""
        self.number = asked.evaluation
        self._leave_seat()
        limits = self.results.limits_after(asked.evaluation - 1, self._groups)
        known = limits is not None
        if limits is None:
            limits = np.zeros(self._groups, np.int16)
        task = Task(asked.evaluation, asked.digest, asked.portions, 0, limits)
        self.seat = seat = Seat(task, np.full(self._groups, NOTHING, np.int16))
        result = self.results.find(asked.evaluation)
        if result is not None:
            self._finish(seat, result)
        elif not self._begin_download(seat, now):
            if known:
                self._report(seat, now)
            else:
                self._end_as_over(seat)
        return seat

    def _end_as_over(self, seat: Seat) -> None:
        number = seat.task.evaluation
        firsts = [first for first, last in self._held_by.values() if last >= number]
        first = min([self.results.first, *firsts])
        seat.error = (
            f"evaluation {number} is over, and no linked node holds it any more: results are kept from"
            f" {first} on; start all nodes of the run anew, or let this one join earlier"
        )

    def _learn(self, seat: Seat, asked: EvaluationAsked) -> bool:
        """Take in what the trainer did since it asked last; return whether that is news for the leader."""
        news = False
        for portion in asked.added:
            if seat.adding >> portion & 1:
                seat.adding ^= 1 << portion
                seat.added |= 1 << portion
                seat.held.pop(portion, None)
                news = True
        if asked.computed is None or asked.computed != seat.computing:
            return news
        seat.computing = None
        if asked.failed:
            seat.failures[asked.computed] = asked.failed[:WORDS_MAX]
            seat.untold.add(asked.computed)
        else:
            seat.held[asked.computed] = asked.checksum
            exponents = np.frombuffer(asked.exponents, "<i2").astype(np.int16)
            seat.exponents = np.maximum(seat.exponents, exponents)
        return True

    def _answer(self, now: float) -> None:
        """Answer the trainer if it waits and there is something to say."""
        seat = self.seat
        if self._waiting_since is None or seat is None:
            return
        if seat.error:
            self._refuse(seat.task.evaluation, seat.error)
            return
        if seat.done:
            self.seat = None
            self._emit(seat, done=True)
            return
        held = _set(seat.held)
        add = seat.granted & seat.decided & held & ~seat.adding
        drop = seat.decided & held & ~seat.granted
        if add:
            self.sums = None  # what a table names as this node's sum is about to change
        seat.adding |= add
        for portion in each_of(drop):
            del seat.held[portion]
        room = not add and len(seat.held) - seat.adding.bit_count() < (HELD_MAX if seat.ahead else 1)
        busy = _set(seat.held) | seat.added
        leases = [p for p in seat.leases if not busy >> p & 1 and p not in seat.failures]
        compute = leases[0] if leases and room else None
        late = now - self._waiting_since >= KEEPALIVE_S
        if add or drop or compute is not None or late:
            seat.computing = compute
            self._emit(
                seat,
                add=tuple(each_of(add)),
                drop=tuple(each_of(drop)),
                compute=compute,
                prefetch=leases[1] if compute is not None and leases[1:] else None,
            )

    def _emit(
        self,
        seat: Seat,
        *,
        add: tuple[int, ...] = (),
        drop: tuple[int, ...] = (),
        compute: int | None = None,
        prefetch: int | None = None,
        done: bool = False,
    ) -> None:
        self._waiting_since = None
        limits = pack_exponents(seat.task.limits)
        answer = EvaluationAnswered(
            seat.task.evaluation, self._sum, limits, add, drop, compute, prefetch, done
        )
        self._out.emit(AnswerEvaluation(answer))

    def _refuse(self, evaluation: int, words: str) -> None:
        self._waiting_since = None
        self._leave_seat()
        self._out.emit(AnswerEvaluation(EvaluationAnswered(evaluation, self._sum, error=words)))

    def _begin_sum(self, seat: Seat, task: Task | None = None) -> None:
        """Let the trainer begin its sum at zero, in another attempt if there is one."""
        self._sum += 1
        self.sums = None
        if seat.added or seat.adding:
            self.counts.total["sum begun anew"] += task is None
        seat.added = seat.adding = seat.granted = seat.decided = 0
        seat.held.clear()
        seat.computing = None
        if task is not None:
            seat.task, seat.leases = task, ()
            seat.exponents = np.full(self._groups, NOTHING, np.int16)
            self.leader.highest = 0

    def _report(self, seat: Seat, now: float, *, active: bool = True) -> None:
        """Tell the leader all of this node's standing, and of failures those that it does not know."""
        if seat.done or seat.error or self.download is not None:
            return
        self.reported_to = self._members.leader(now)
        self._reported_at = now
        task = seat.task
        if seat.told_to != (self.reported_to, task.attempt):
            seat.told_to = self.reported_to, task.attempt
            seat.untold = set(seat.failures)
        failures, seat.untold = sorted(seat.untold), set()
        for portion in (*failures, None):
            report = EvaluationReport(
                evaluation=task.evaluation,
                attempt=task.attempt,
                digest=task.digest,
                portions=task.portions,
                limits=pack_exponents(task.limits),
                exponents=pack_exponents(seat.exponents),
                added=pack_portions(seat.added, task.portions),
                held=pack_portions(_set(seat.held), task.portions),
                checksums=b"".join(
                    checksum.to_bytes(8, "little") for _, checksum in sorted(seat.held.items())
                ),
                failed=0 if portion is None else portion + 1,
                words="" if portion is None else seat.failures[portion],
                active=active,
            )
            if not self._send(self.reported_to, report, now) and portion is not None:
                seat.untold.add(portion)
            if self.seat is not seat or seat.done or seat.error:
                return

    # -- messages to members

    def _send(self, member: Origin, message: Message, now: float) -> bool:
        """Send a message to a member, unless it is not linked or its link is too full; return whether it was
        sent. One to this node is taken in at once.
        """
        if member == self.me:
            self._take(self.me, message, now)
            return True
        return self._send_to_peer(member, message)

    def _give(self, member: Origin, place: Numbers, numbers: Sums) -> None:
        peer = self._cluster.peers.get(member)
        if peer is not None:
            self._out.send(peer, pack_frame(FrameType.EVALUATION_NUMBERS, pack_numbers(place, numbers)))

    def link(self, peer: Peer, now: float) -> None:
        """Tell a new peer which results are here, and report to it if it leads."""
        self._offer(peer)
        if self.seat is not None and self._members.leader(now) == peer.origin:
            self._report(self.seat, now)

    def _offer(self, peer: Peer) -> None:
        """Tell a peer of the newest result here, which says which others are, unless its link is full: then
        `drained` does.
        """
        if peer.credit <= 0 or peer.state is PeerState.BARRED:
            return
        newest = self.results.announce(self.results.last)
        if newest is not None and self._offered.get(peer.origin, 0) < newest.evaluation:
            self._offered[peer.origin] = newest.evaluation
            self._out.send_message(peer, newest)

    def unlink(self, peer: Origin) -> None:
        """Forget what a peer has."""
        self._held_by.pop(peer, None)
        self._offered.pop(peer, None)
        self._overdrawn.pop(peer, None)
        self._owed.pop(peer, None)
        if self.download is not None and self.download.source == peer:
            self.download = None

    # -- what peers send

    def on_message(self, peer: Peer, message: EvaluationMessage | EvaluationNumbers, now: float) -> None:
        """Take in what a peer sends; PeerError unless all of it is right."""
        if isinstance(message, EvaluationNumbers):
            self._take_numbers(peer.origin, message.body, now)
        else:
            self._take(peer.origin, message, now)

    def _take(self, sender: Origin, message: Message, now: float) -> None:
        match message:
            case EvaluationReport():
                self.leader.hear_report(sender, message, now)
            case EvaluationLease():
                self._hear_lease(sender, message, now)
            case EvaluationTable():
                self._hear_table(sender, message, now)
            case EvaluationResult():
                self._hear_result(sender, message, now)
            case EvaluationFetch():
                self._hear_fetch(sender, message)
            case _:
                raise AssertionError(message)

    def _take_numbers(self, sender: Origin, body: bytes | bytearray, now: float) -> None:
        place, numbers = parse_numbers(body, self._count)
        if place.kind is Kind.RESULT:
            self._take_result(sender, place, numbers, now)
        elif self.sums is not None and self._fits(place, self.sums):
            self.sums.take(sender, place, numbers, self._give)
            self._ask_for_sums(now)

    @staticmethod
    def _fits(place: Numbers, sums: TableSums) -> bool:
        ours = (sums.task.evaluation, sums.task.attempt, *sums.table.key)
        return ours == (place.evaluation, place.attempt, place.table, place.leader)

    def _hear_fetch(self, sender: Origin, request: EvaluationFetch) -> None:
        """Give a peer what it asks for, as soon as its link has room: requests are small, answers are not."""
        begin, end = request.offset, request.offset + request.count
        if end > self._count:
            raise refusal(f"numbers {begin} to {end} of {self._count} are asked for")
        owed = self._owed.setdefault(sender, deque())
        if len(owed) < OWED_MAX and request not in owed:
            owed.append(request)
        if (peer := self._cluster.peers.get(sender)) is not None:
            self.drained(peer)

    def drained(self, peer: Peer) -> None:
        """Go on giving a peer what it has asked for, while its link has room, and what is new here."""
        owed = self._owed.get(peer.origin)
        while owed and peer.credit > 0:
            self._serve(peer.origin, owed.popleft())
        if not owed:
            self._owed.pop(peer.origin, None)
        self._offer(peer)

    def _serve(self, peer: Origin, request: EvaluationFetch) -> None:
        """Give a peer numbers that it asks for, if they are here."""
        begin, end = request.offset, request.offset + request.count
        kind = Kind(request.kind)
        place = Numbers(
            kind, request.evaluation, request.attempt, request.table, request.leader, request.offset
        )
        result = self.results.find(request.evaluation)
        if kind is Kind.PART:
            result = None
        if result is not None:  # or a total, which is the same by whatever table
            if kind is Kind.RESULT and not begin and (meta := self.results.announce(request.evaluation)):
                self._send_to_peer(peer, meta)
            self._give(peer, place, result.sums[begin:end])
        elif kind is Kind.RESULT:
            newest = self.results.announce(self.results.last)
            if newest is not None and not begin:
                self._send_to_peer(peer, newest)  # it may think that the result is still here
        elif self.sums is not None and self._fits(place, self.sums):
            self.sums.serve(peer, request, self._give)

    def _send_to_peer(self, member: Origin, message: Message) -> bool:
        peer = self._cluster.peers.get(member)
        if peer is None:
            return False
        credit = peer.credit
        once = isinstance(message, EvaluationLease) and bool(message.error)  # and so is a trainer's end:
        once = once or (isinstance(message, EvaluationReport) and not message.active)
        overdrawn = 0 if credit > 0 else self._overdrawn.get(member, 0)
        if overdrawn >= OVERDRAFT_BYTES and not once:
            return False
        self._out.send_message(peer, message)
        self._overdrawn[member] = overdrawn + (credit - peer.credit if credit <= 0 else 0)
        return True

    # -- a member

    def _hear_lease(self, leader: Origin, lease: EvaluationLease, now: float) -> None:
        seat = self.seat
        if seat is None or seat.done or leader != self.reported_to:
            return
        if lease.evaluation != seat.task.evaluation:
            return
        if lease.error:
            seat.error = lease.error
            self._answer(now)
            return
        if lease.attempt < seat.task.attempt:
            return
        limits = parse_exponents(lease.limits, self._groups)
        granted = parse_portions(lease.granted, seat.task.portions)
        decided = parse_portions(lease.decided, seat.task.portions)
        leases = parse_leases(lease.leases, seat.task.portions)
        if lease.attempt > seat.task.attempt:
            self._begin_sum(seat, replace(seat.task, attempt=lease.attempt, limits=limits))
        elif (seat.added | seat.adding) & ~granted:
            self._begin_sum(seat)
            seat.leases = leases
            self._report(seat, now)
            self._answer(now)
            return
        seat.granted, seat.decided, seat.leases, seat.ahead = granted, decided, leases, lease.ahead
        seat.untold.update(seat.failures.keys() & set(leases))  # the leader has not heard of these failures
        self._answer(now)

    def _hear_table(self, sender: Origin, message: EvaluationTable, now: float) -> None:
        self.leader.overtake(message, now)
        seat = self.seat
        if seat is None or seat.done:
            return
        task = seat.task
        if (message.evaluation, message.attempt) != (task.evaluation, task.attempt):
            return
        rows, sets = parse_table(message.holders, message.assignment, task.portions)
        exponents = pack_exponents(parse_exponents(message.exponents, self._groups))
        members = tuple(Origin(*row) for row in rows)
        table = Table((message.number, message.leader), members, sets, exponents)
        self.leader.highest = max(self.leader.highest, message.number)
        if self.me not in table.members:
            return
        if self.sums is not None and table.key <= self.sums.table.key:
            if table.key < self.sums.table.key and sender == self.reported_to != self.me:
                self._send_to_peer(sender, self.sums.table.message(task))
            return
        if seat.adding:
            return  # the trainer's sum may hold it by now; the report of that brings the table again
        if sets[table.members.index(self.me)] != seat.added:
            if sender != self.me:
                self._report(seat, now)
            return
        self.sums = TableSums(task, table, self.me, self._memory)
        self._progress = (0, now)
        for member in table.members:  # each passes it on before it asks: nobody asks for what is not known
            if member not in (self.me, sender):
                self._send_to_peer(member, message)
        self._ask_for_sums(now)

    def _ask_for_sums(self, now: float, *, again: bool = False) -> None:
        """Ask for what is next of the sums; note it if they are whole."""
        sums, seat = self.sums, self.seat
        if sums is None or seat is None:
            return
        if sums.done:
            exponents = parse_exponents(sums.table.exponents, self._groups)
            self._complete(Result(seat.task, exponents, sums.result), seat, now)
            return
        if sums.progress != self._progress[0]:
            self._progress = (sums.progress, now)
        sums.ask(self._send_to_peer, again=again)

    def _complete(self, result: Result, seat: Seat, now: float) -> None:
        """Keep a result, whose numbers are in the memory that the trainer reads, and offer it to peers."""
        self.results.append(result)
        self.sums = self.download = None
        self.leader.end_through(self.results.last)
        seat.task, seat.done = result.task, True
        self._answer(now)
        for peer in self._cluster.peers.values():
            self._offer(peer)

    # -- results of others

    def _finish(self, seat: Seat, result: Result) -> None:
        """Give the trainer a result of the log."""
        task = result.task
        if not seat.task.fits(task):
            one = f"the trainer of {self._members.name(self.me)}"
            seat.error = describe_difference(one, seat.task, "the run", task)
            return
        self._memory.totals[:] = result.sums
        seat.task, seat.done = task, True

    def _hear_result(self, sender: Origin, message: EvaluationResult, now: float) -> None:
        """Note which results a peer holds, and fetch what the trainer waits for."""
        if not message.first <= message.evaluation <= message.last:
            raise refusal(f"result {message.evaluation} of {message.first} to {message.last}")
        limits = parse_exponents(message.limits, self._groups)
        exponents = parse_exponents(message.exponents, self._groups)
        self._held_by[sender] = (message.first, message.last)
        self.leader.end_through(message.last)
        seat, download = self.seat, self.download
        if seat is None or seat.done or seat.error:
            return
        if download is None:
            if self.sums is None and self._begin_download(seat, now):
                return
            return
        if (sender, message.evaluation) != (download.source, download.evaluation) or download.result:
            return
        task = Task(message.evaluation, message.digest, message.portions, 0, limits)
        if not seat.task.fits(task):
            self.download = None
            one, other = self._members.name(self.me), self._members.name(sender)
            seat.error = describe_difference(one, seat.task, other, task)
            self._answer(now)
            return
        download.result = Result(task, exponents, np.empty(self._count, np.int64))

    def _begin_download(self, seat: Seat, now: float) -> bool:
        """Fetch the result that the trainer waits for from a peer that has it; False if there is none."""
        number = seat.task.evaluation
        others = [each for each, (first, last) in sorted(self._held_by.items()) if first <= number <= last]
        usable = [each for each in others if self._members.is_usable(each, now)]
        if not usable:
            return False
        turn = self.me.node + self._tries  # members that come at once ask different ones
        source = usable[turn % len(usable)]
        self.sums = None
        self.download = Download(number, source, Pull(0, self._count), moved_at=now)
        self._ask_for_result(self.download)
        return True

    def _look_for_result(self, seat: Seat, now: float) -> bool:
        """Fetch the result if a peer has it, or end the evaluation if all have dropped it."""
        if self._begin_download(seat, now):
            return True
        number, held = seat.task.evaluation, self._held_by.values()
        if any(first <= number <= last for first, last in held) or all(last < number for _, last in held):
            return False
        self._end_as_over(seat)
        return True

    def _ask_for_result(self, download: Download) -> None:
        for offset, count in download.pull.wants():
            request = EvaluationFetch(
                kind=Kind.RESULT,
                evaluation=download.evaluation,
                attempt=0,
                table=0,
                leader=0,
                offset=offset,
                count=count,
            )
            self._send_to_peer(download.source, request)

    def _take_result(self, sender: Origin, place: Numbers, numbers: Sums, now: float) -> None:
        seat, download = self.seat, self.download
        if seat is None or download is None or download.result is None:
            return
        if (sender, place.evaluation) != (download.source, download.evaluation):
            return
        if not download.pull.accept(place.offset, len(numbers)):
            return
        end = place.offset + len(numbers)
        download.result.sums[place.offset : end] = numbers
        self._memory.totals[place.offset : end] = numbers
        download.moved_at = now
        if download.pull.done:
            self.counts.total["result fetched from a peer"] += 1
            self._complete(download.result, seat, now)
        else:
            self._ask_for_result(download)

    # -- time

    def tick(self, now: float) -> None:
        """Follow who leads, deal anew what members had that are gone, and ask again for what is missing."""
        seat, timing = self.seat, self._cluster.timing
        status_s = timing.status_s
        if seat is not None and not seat.done and not seat.error:
            if self.download is not None:
                stuck_s = now - self.download.moved_at
                if stuck_s > PIECE_TIMEOUTS * timing.failure_timeout_s or (
                    stuck_s > 2 * status_s and not self._members.is_usable(self.download.source, now)
                ):
                    self.download = None
                    self._tries += 1  # another peer may give it
                    self._look_for_result(seat, now)
            elif self.sums is None:
                self._look_for_result(seat, now)
            elif now - self._progress[1] > status_s:
                self._progress = (self._progress[0], now)
                if not self._look_for_result(seat, now):
                    self._ask_for_sums(now, again=True)
            if self._members.leader(now) != self.reported_to or now - self._reported_at >= status_s:
                self._report(seat, now)
        self.leader.tick(now)
        if self._waiting_since is not None:
            self._answer(now)


def _set(portions: dict[int, int]) -> Portions:
    found = 0
    for portion in portions:
        found |= 1 << portion
    return found
