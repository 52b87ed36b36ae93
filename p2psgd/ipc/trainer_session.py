"""The daemon's session with its one trainer, and what is kept between two of them.

More than 700 lines: everything that changes the state of a session stands beside its table of transitions.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.ipc import layout
from p2psgd.ipc.listener import Connection, Listener
from p2psgd.ipc.protocol import (
    ERROR_CHARACTERS_MAX,
    STOPPED,
    DetachRequest,
    EvaluateRequest,
    ReloadRequest,
    ReportRequest,
    StateRequest,
    pack_answer,
    pack_refusal,
)
from p2psgd.ipc.reported import Reported
from p2psgd.ipc.residual_segment import ResidualSegment, describe_unfinite
from p2psgd.ipc.ring_buffer import entry_bytes
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.script_state import KeptScript, ScriptState
from p2psgd.ipc.segments import ClosureSegments, DenseSegments, sealed_copy
from p2psgd.ipc.tensor_table import pack_tensors
from p2psgd.ipc.trainer_memory import Attachment, Given
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.fixed_point import count_groups
from p2psgd.wire.messages import Fields
from p2psgd.wire.mode import ASYNC, parse_mode

# ----------------------------------------------------------------------------
# The states of a session. One trainer at a time waits or is attached.
#
# A trainer leaves in one of four ways: it detaches; its connection ends; its process ends (seen by a pidfd,
# because a child that it forked may hold the connection open); or it is refused for corrupt data in
# shared memory. What it had published whole is taken first, but for a refused one: from its first bad entry
# on, nothing is.


class SessionState(enum.Enum):
    """States of the daemon's place for a trainer."""

    DETACHED = "detached"
    WAITING = "waiting"
    ATTACHED = "attached"
    REFUSED = "refused"
    CLOSED = "closed"


SESSION: Final = Transitions(
    "trainer session",
    SessionState.DETACHED,
    {
        SessionState.DETACHED: {
            SessionState.WAITING: "a trainer asks to attach",
            SessionState.CLOSED: "the daemon stops",
        },
        SessionState.WAITING: {
            SessionState.ATTACHED: "the node is ready, the residual is checked and the memory handed over",
            SessionState.DETACHED: "the trainer goes away, or its memory cannot be made",
            SessionState.CLOSED: "the daemon stops",
        },
        SessionState.ATTACHED: {
            SessionState.DETACHED: "it detaches, ends, or corrupts the shared memory",
            SessionState.REFUSED: "what it gave to a round does not fit; nothing more of it is passed on",
        },
        SessionState.REFUSED: {
            SessionState.DETACHED: "it is told so in the next turn of the loop, or ends before",
        },
        SessionState.CLOSED: {},
    },
)

# ----------------------------------------------------------------------------
# What a node's trainer goes on from, and what the session needs to know of the node around it.


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """The state that a node's trainer goes on from: after `steps`, between two of them.

    `residual` is float32 (P,), read-only, and stays as it is until the next state is asked for (None: zeros);
    `script` is what the script keeps of its own, its arrays read-only (None: nothing). The residual is
    `residual_age` steps old where a trainer that kept it elsewhere has crashed.
    """

    residual: NDArray[np.float32] | None
    script: ScriptState | None
    steps: int
    residual_age: int = 0


class SessionHost(Protocol):
    """The daemon, as the session sees it. All calls happen on the loop and return at once."""

    name: str  # of the node,
    node_id: int  # and its id

    def rank(self) -> tuple[int, int] | None:
        """Return the part i of n of the data that this node's trainer takes, if it was given one."""

    def run(self) -> RunProposal | None:
        """The run that is known, if one is."""

    def trainer_weights(self) -> NDArray[np.int32]:
        """The weights that the trainer must have, int32 (C,): the live replica, and in mode `owners` what the
        trainer has contributed besides; copied before control returns to the loop.
        """

    def trainer_digest(self) -> int:
        """The digest of these."""

    def digest_key(self) -> int:
        """Return the key of the run's digests."""

    def peer_steps(self) -> dict[int, int]:
        """The largest mini-batch number seen of each peer, by node id."""

    def ready(self) -> str:
        """Return why no trainer may train on this node now, one sentence for people; "" if one may."""

    def outbox_taken(self, taken: Sequence[Given]) -> None:
        """Note what one turn of the loop took from the outbox and has handed to `handle`."""

    def trainer_state(self, state: TrainerState) -> None:
        """The answer to `request_state`: all that the trainer gave until then was handed to `handle`, and
        nothing after it.
        """

    def trainer_attached(self, pid: int) -> None:
        """Note that a trainer has attached."""

    def trainer_left(self, *, finished: bool, words: str) -> None:
        """Note that the trainer has left; `words` go on after "the trainer", such as "left corrupt inbox
        counters: ...".
        """

    def alarm(self, words: str) -> None:
        """Report something that a person should look at."""


# ----------------------------------------------------------------------------
# The session itself.
#
# The residual outlives every trainer, and so do the count of mini-batches and what the script gave to be
# kept; everything else is an `Attachment`, made for one trainer and thrown away with it. Taking from the
# outbox happens in short turns on the loop, so that a busy trainer does not keep the daemon from its peers.


TAKE_ENTRIES: Final = 64  # taken from the outbox in one turn of the loop,
TAKE_INDICES: Final = 2**18  # and about this many indices: a millisecond or two of decoding and applying
SAY_EVERY_S: Final = 2.0  # a waiting trainer is told why at most so often
ENDED: Final = "ended without detaching"


class TrainerSession(Lifecycle[SessionState]):
    """Attaches, serves and releases trainers, whose connections are the listener's.

    `inbox_bytes` and `outbox_bytes` are powers of two that hold at least one of the longest entries; None:
    the usual size. While `outbox_closed` is true nothing is taken from a trainer but by `drain`. Before the
    first one attaches are set: `handle`, which gets each update of the own trainer, to be applied and sent,
    and each part of what it gives to a round; in a dense ring `dense`, and in mode `closure` `closure`, the
    memory that all trainers get.
    """

    def __init__(
        self,
        host: SessionHost,
        listener: Listener,
        *,
        inbox_bytes: int | None = None,
        outbox_bytes: int | None = None,
    ) -> None:
        super().__init__(SESSION)
        self.attachment: Attachment | None = None  # in the states ATTACHED and REFUSED
        self.connection: Connection | None = None  # there too, and in WAITING
        self.pid = 0  # of its process
        self.outbox_closed = False
        self.handle: Callable[[Given], object] = _refuse_early
        self.dense: DenseSegments | None = None
        self.closure: ClosureSegments | None = None
        self.script = KeptScript()
        self._host = host
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mode = ASYNC
        self._inbox_bytes, self._outbox_bytes = inbox_bytes, outbox_bytes
        self._residual: ResidualSegment | None = None  # from the first trainer that was let in on
        self._restored: NDArray[np.float32] | None = None  # what the first one goes on from
        self._restored_age = 0
        self._steps = 0  # published by all trainers before this one
        self._generation = self._reloads = self._refused = self._differed = 0
        self._reported = Reported()
        self._pidfd = -1
        self._paused = self._take_scheduled = False
        self._stopping = False  # the trainer was asked to stop, and none has finished since
        self._finished = False  # the last one that left
        self._state_wanted = False
        self._evaluating = False  # the trainer waits for an answer
        # Of the replica, as the trainer got it last: when it attached, reloaded, or was given its last round.
        self._digest_given = 0
        self._said, self._silent_until = "", 0.0  # to the trainer that waits
        self._look_due: asyncio.Handle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop."""
        self._loop = loop

    def close(self) -> None:
        """Let the trainer go and close everything; one that waits hears it from the listener."""
        self._state_wanted = False
        if self._look_due is not None:
            self._look_due.cancel()
        if self.attachment is not None:
            farewell = pack_refusal(STOPPED)
            self._leave(finished=False, words="was cut off: its daemon has stopped", farewell=farewell)
        self.connection = None
        self.move(SessionState.CLOSED)
        for held in (self._residual, self.dense, self.closure, self.script):
            if held is not None:
                held.close()

    # -- what the node knows of it

    @property
    def steps(self) -> int:
        """Return the steps that this node's trainers have published, over all their starts."""
        return self.attachment.progress() if self.attachment else self._steps

    @property
    def loss(self) -> float | None:
        """Return the loss that a trainer reported last; None if none has."""
        return self._reported.loss

    def status(self) -> Fields:
        """Return what the node's status shows about the trainer, and how many requests were refused."""
        attached = self.attachment is not None
        figures = self._reported.at(self.steps)
        if figures["waits"]:
            figures["waits"] = self._host.ready() or figures["waits"]
        if self.state is SessionState.WAITING:
            figures["waits"] = self._host.ready()
        return {
            "attached": attached,
            "pid": self.pid if attached else None,
            "finished": self._finished,
            "steps": self.steps,
            **figures,
            "reloads": self._reloads,
            "copies_mended": self._differed,
            "refused_trainers": self._refused,
            "refused_requests": self._listener.refused_requests,
        }

    def restore(self, state: TrainerState) -> None:
        """Let the node's first trainer go on from this state instead of from nothing; call it before that
        trainer attaches.

        `residual` is float32 (P,) of the run that it will attach to. TrainerError if `script` is not a state.
        """
        assert self._residual is None, "a trainer was let in before"
        self.script.put(state.script)
        self._restored, self._restored_age = state.residual, state.residual_age
        self._steps = state.steps

    # -- attaching
    #
    # A trainer waits while its node is not ready for one. It is sent why, and again when that has changed, at
    # most every 2 s and never before it has read what it was sent last; then it is let in, as late as that
    # may be.

    def check_free(self) -> None:
        """Raise TrainerError if a trainer is attached or waits, and has not gone."""
        if self.connection is not None and self.connection.has_closed():
            self._listener.settle(self.connection)
        if self.connection is not None:
            does = "waits to attach" if self.state is SessionState.WAITING else "is attached"
            raise TrainerError(f"another trainer (pid {self.pid}) {does} to this daemon: stop it first")

    def request_attach(self, connection: Connection, pid: int) -> None:
        """Attach this trainer, now or when the node is ready and what it goes on from is looked through;
        `check_free` comes first.
        """
        self.move(SessionState.WAITING)
        self.connection, self.pid = connection, pid
        self._said, self._silent_until = "", 0.0
        self._look()

    def readiness_changed(self) -> None:
        """Note that the result of `host.ready` may have changed: the next turn of the loop checks whether the
        trainer that waits is let in, or which sentence it is sent.
        """
        if self.state is SessionState.WAITING:
            assert self._loop is not None
            self._look_at(self._loop.call_soon(self._look))

    def _look_at(self, due: asyncio.Handle) -> None:
        """Plan the next look in place of the one planned: there is one at a time."""
        if self._look_due is not None:
            self._look_due.cancel()
        self._look_due = due

    def _look(self) -> None:
        if self.state is not SessionState.WAITING:
            return
        assert self._loop is not None
        assert self.connection is not None
        now, words = self._loop.time(), self._host.ready()
        if not words:
            self._listener.guard(self.connection, self._let_in)
        elif words == self._said:
            return
        elif now < self._silent_until or self.connection.is_owed_a_read():
            self._look_at(self._loop.call_later(max(0.1, self._silent_until - now), self._look))
        else:
            self._said, self._silent_until = words, now + SAY_EVERY_S
            self._listener.send(self.connection, pack_answer({"waits": words[:ERROR_CHARACTERS_MAX]}))

    def _let_in(self) -> None:
        """Attach the trainer that waits, or look through the next slice of the residual.

        If an error keeps it from being attached, it waits no more.
        """
        run = self._host.run()
        assert run is not None, "only a run that is known is asked for"
        try:
            if self._look_through(run):
                self._attach(run)
            else:
                self.readiness_changed()
        except BaseException:
            if self.state is SessionState.WAITING:
                self.move(SessionState.DETACHED)
                self.connection = None
            raise

    def _look_through(self, run: RunProposal) -> bool:
        """Check a slice of the residual that the trainer gets; False while there is more of it.

        The host is alarmed if weights of it were not finite.
        """
        if self._residual is None:
            self._prepare(run)
        assert self._residual is not None
        if not self._residual.check():
            return False
        if self._residual.unfinite:
            words = describe_unfinite(self._residual.unfinite, run.weights, "the next trainer")
            self._host.alarm(words)
            self._residual.unfinite = 0
        return True

    def _prepare(self, run: RunProposal) -> None:
        """Make what all trainers of this run share."""
        mode = parse_mode(run.mode)
        self._mode = mode
        self._inbox_bytes = self._inbox_bytes or layout.inbox_bytes(run.coordinates, mode)
        self._outbox_bytes = self._outbox_bytes or layout.outbox_bytes(run.coordinates, mode)
        longest = entry_bytes(layout.inbox_entry_bytes_max(run.coordinates))
        assert self._inbox_bytes >= longest, self._inbox_bytes
        assert self._outbox_bytes >= layout.outbox_bytes_min(run.coordinates, mode), self._outbox_bytes
        self._residual = ResidualSegment(
            run.weights,
            dense=mode.dense,
            residual=self._restored,
            age=self._restored_age,
        )
        self._restored = None

    def _attach(self, run: RunProposal) -> None:
        """Make the memory of the trainer that waits and hand it over.

        Raises TrainerError if that did not reach it; then nothing has changed.
        """
        assert self._residual is not None
        assert self._inbox_bytes is not None
        assert self._outbox_bytes is not None
        residual, half = self._residual.hand_over()
        attachment = Attachment(
            coordinates=run.coordinates,
            mode=self._mode,
            generation=self._generation + 1,
            inbox_bytes=self._inbox_bytes,
            outbox_bytes=self._outbox_bytes,
            steps=self._steps,
            half=half,
            stopping=self._stopping,
        )
        try:
            shared = self.dense or self.closure
            sums = [] if shared is None else shared.descriptors
            descriptors = [residual, *attachment.descriptors, *sums, *self.script.descriptors]
            assert self.connection is not None
            if not self.send_weights(self.connection, self._describe(run, self._residual), descriptors):
                raise TrainerError("the trainer has closed its connection while it was being attached")
            attachment.close_memories()
        except BaseException:
            attachment.close()
            raise
        self.attachment = attachment
        self._generation += 1
        self._reported.begin(self._steps)
        self.move(SessionState.ATTACHED)
        self._finished = False
        self._digest_given = self._host.trainer_digest()
        self._watch(self.connection, attachment)
        self._host.trainer_attached(self.pid)

    def _describe(self, run: RunProposal, residual: ResidualSegment) -> Fields:
        """Return what the trainer must know, for AttachAnswer."""
        return {
            "generation": self._generation + 1,
            "node": self._host.name,
            "node_id": self._host.node_id,
            "rank": self._host.rank(),
            "weights": run.weights,
            "shards": run.shards,
            "quantum_log2": run.quantum_log2,
            "mode": run.mode,
            "tensors": pack_tensors(run.tensors),
            "inbox_bytes": self._inbox_bytes,
            "outbox_bytes": self._outbox_bytes,
            "steps": self._steps,
            "residual_age": residual.age,
            "peer_steps": list(self._host.peer_steps().items()),
        }

    def _watch(self, connection: Connection, attachment: Attachment) -> None:
        assert self._loop is not None
        self._loop.add_reader(attachment.wake_daemon.fileno(), self._on_wake)
        try:
            self._pidfd = os.pidfd_open(connection.pid)
        except OSError:
            return  # it has ended already, or lives in a foreign pid namespace: its connection tells
        self._loop.add_reader(self._pidfd, self._on_exit)

    def send_weights(
        self,
        connection: Connection,
        answer: Fields,
        descriptors: list[int] | None = None,
        *,
        weights: NDArray[np.int32] | None = None,
    ) -> bool:
        """Send an answer with a copy of the trainer's weights, or of these, as its first descriptor; False if
        that cannot be.
        """
        packed = pack_answer(answer)
        copy = sealed_copy("p2psgd-weights", self._host.trainer_weights() if weights is None else weights)
        try:
            return self._listener.send(connection, packed, [copy, *(descriptors or [])])
        finally:
            os.close(copy)

    # -- updates in and out

    def deliver(self, body: bytes | bytearray) -> None:
        """Hand a peer's UPDATE body to the trainer, if one is attached; never waits, never calls the host."""
        if self.attachment is None:
            return
        try:
            self.attachment.deliver(body)
        except TrainerError as error:
            assert self._loop is not None
            words = f"left corrupt inbox counters in shared memory: {error}"
            self._loop.call_soon(self._refuse, self.connection, words)

    def show_links(self, *, busy: bool) -> None:
        """Show the trainer, if there is one, whether the links are busy with what was made before."""
        if self.attachment is not None:
            self.attachment.show_links(busy=busy)

    def pause_outbox(self, *, paused: bool) -> None:
        """Leave what the trainer publishes in its outbox for now, or go on; once that is full it waits.

        Reload, detach and drain take it all the same: nothing is lost.
        """
        if self._paused and not paused and not self._take_scheduled and self._loop is not None:
            self._take_scheduled = True
            self._loop.call_soon(self._take)
        self._paused = paused

    def drain(self, end: int | None = None) -> bool:
        """Take all that the trainer has published by now, or up to the position `end` of its outbox; False if
        the trainer had to be refused for corrupt counters or entries.
        """
        attachment = self.attachment
        if attachment is None:
            return True
        try:
            published = attachment.published_bytes()
            end = published if end is None else min(end, published)
            while attachment.outbox.tail < end:
                self._pass_on(attachment.take(TAKE_ENTRIES, TAKE_INDICES, end))
        except TrainerError as error:
            self._refuse(self.connection, f"wrote an outbox entry that does not check: {error}")
            return False
        return True

    def _on_wake(self) -> None:
        if self.attachment is None:
            return
        self.attachment.wake_daemon.clear()
        if not self._take_scheduled:
            self._take()

    def _take(self) -> None:
        self._take_scheduled = False
        if self.attachment is None or self._paused or self.outbox_closed:
            return
        try:
            taken = self.attachment.take(TAKE_ENTRIES, TAKE_INDICES)
        except TrainerError as error:
            self._refuse(self.connection, f"wrote an outbox entry that does not check: {error}")
            return
        if taken:
            assert self._loop is not None
            self._take_scheduled = True
            self._loop.call_soon(self._take)  # there may be more: look again after everybody else had a turn
            self._pass_on(taken)

    def _pass_on(self, taken: list[Given]) -> None:
        for given in taken:
            if self.state is SessionState.REFUSED:
                return
            self.handle(given)
        if taken:
            self._host.outbox_taken(taken)

    # -- rounds

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """Allow the trainer, if one is attached, to make its contribution to this round of ring mode;
        everything of the round before was delivered. The other figures are described in ring_buffer.py.

        Before its first round it must reload the weights if rounds have changed them since it attached: with
        a contribution that the trainer before it had made, or in a dense ring, where nothing else brings it
        changes.
        """
        attachment = self.attachment
        if attachment is None:
            return
        if not attachment.entries.opened and self._host.trainer_digest() != self._digest_given:
            attachment.want_reload()
        self._digest_given = self._host.trainer_digest()
        attachment.open_round(
            number, contributors=contributors, sums=sums, adding_us=adding_us, sending_us=sending_us
        )

    def reject_contribution(self, words: str) -> None:
        """Reject, in ring mode, a contribution that does not fit the others'. Pass no more of it on, and let
        the trainer go in the next turn of the loop; its link raises `words`. The host is not called before.
        """
        if self.state is SessionState.ATTACHED:
            assert self._loop is not None
            self.move(SessionState.REFUSED)
            self._loop.call_soon(self._end_refused, self.connection, words)

    def _end_refused(self, connection: Connection | None, words: str) -> None:
        if connection is not None and connection is self.connection:
            self._refused += 1
            farewell = pack_refusal(words, contribution=True)
            self._let_go(finished=False, words=f"gave what does not fit: {words}", farewell=farewell)

    # -- evaluations

    def evaluate(self, request: EvaluateRequest) -> None:
        """Pass on what the trainer asks of an evaluation; it waits for `answer_evaluation`."""
        run = self._host.run()
        if run is None or not self._mode.closure:
            raise TrainerError("evaluate is for a run in mode 'closure'")
        asked = request.asked(count_groups(len(run.tensors)))
        self._evaluating = True
        self.handle(asked)

    def answer_evaluation(self, answer: EvaluationAnswered) -> None:
        """Send the trainer what it waits for."""
        if self.attachment is None or self.connection is None or not self._evaluating:
            return
        self._evaluating = False
        fields = {
            **dataclasses.asdict(answer),
            "compute": -1 if answer.compute is None else answer.compute,
            "prefetch": -1 if answer.prefetch is None else answer.prefetch,
        }
        self._listener.send(self.connection, pack_answer(fields))

    # -- the replica as a whole

    def replica_replaced(self) -> None:
        """Note that the replica is another one as a whole: the trainer reloads it before its next step."""
        if self.attachment is not None:
            self.attachment.want_reload()

    def reload(self, request: ReloadRequest) -> Fields | None:
        """Take what the trainer has published; the answer, which goes with a copy of the replica. None if it
        had to be refused.
        """
        assert self.attachment is not None
        if not self.outbox_closed and not self.drain():
            return None
        self._differed += request.differed
        self._digest_given = self._host.trainer_digest()
        self._reloads += 1
        counts = list(self._host.peer_steps().items())
        return {"inbox": self.attachment.reload(), "peer_steps": counts}

    def compare(self) -> Fields | None:
        """Take what the trainer has published; the answer, with where its inbox ends and the digest of the
        weights there. No digest: what it has published stays where it is, or the inbox lacks updates. None:
        it had to be refused.

        In a dense ring a round that it had no part in may be in the replica, and it learns of that with the
        next: there the digest is that of what it was given.
        """
        assert self.attachment is not None
        if not self.outbox_closed and not self.drain():
            return None
        known = not self.outbox_closed and not self.attachment.reload_wanted
        digest = self._host.trainer_digest() if self.dense is None else self._digest_given
        key = self._host.digest_key()
        return {"inbox": self.attachment.inbox.head, "key": key, "digest": digest if known else None}

    # -- the state to be kept

    def request_state(self) -> None:
        """Ask for the trainer's state: `host.trainer_state` gets it, at once if no trainer is attached, else
        once the trainer is between two mini-batches or has gone. Asked again before that, it is given once;
        from this call on, the residual of the state before must not be used any more.
        """
        self._state_wanted = True
        if self.attachment is None:
            self._give_state()
        else:
            self.attachment.want_state()

    def take_state(self, request: StateRequest, descriptors: list[int]) -> bool:
        """Take the trainer's answer, once all updates before it were taken; False if it had to be refused for
        corrupt entries in its outbox.

        TrainerError, with nothing changed, if this is not a state. An answer that has come too late, since
        the trainer was interrupted and has gone on, is ignored: the trainer will send another. An
        unasked one lacks the residual: only the script's part is taken, and no checkpoint comes of it.
        """
        if request.unasked:
            self.script.take(descriptors)
            return True
        attachment, residual = self.attachment, self._residual
        assert attachment is not None
        assert residual is not None
        too_late = attachment.outbox.tail > request.outbox
        if not self._state_wanted or self.outbox_closed or too_late:
            return True
        if not self.drain(request.outbox):
            return False
        if attachment.outbox.tail != request.outbox:
            raise TrainerError(f"no update of the outbox ends at {request.outbox}, where the state begins")
        if not attachment.entries.steps <= request.steps <= attachment.progress():
            raise TrainerError(
                f"a state after step {request.steps}, of a trainer that has come to {attachment.progress()}"
            )
        if descriptors:  # else its script has none to give yet, and the one before may have had
            self.script.take(descriptors)
        self._state_wanted = False
        attachment.accept_state()
        age = self._age_after(request.steps)
        state = TrainerState(residual.kept, self.script.state, request.steps, age)
        self._host.trainer_state(state)
        return True

    def _give_state(self) -> None:
        """Give the host the state of a trainer that is not there: nobody changes it now."""
        self._state_wanted = False
        if self._residual is None:
            residual, age = self._restored, self._restored_age
        else:
            residual, age = self._residual.lend(), self._residual.age
        self._host.trainer_state(TrainerState(residual, self.script.state, self._steps, age))

    def _age_after(self, steps: int) -> int:
        """Return how many steps old the attached trainer's residual after `steps` was: as many as when it
        came, until it has published.
        """
        assert self._residual is not None
        return self._residual.age if steps == self._steps else 0

    # -- its end

    def finish(self) -> None:
        """Ask the trainer, or the next one if there is none, to stop after its current mini-batch."""
        self._stopping = True
        if self.attachment is not None:
            self.attachment.request_stop()

    def report(self, report: ReportRequest) -> None:
        """Take note of the figures that the trainer names, for people; they stay when it leaves, but for its
        speed and what it waits for.
        """
        self._reported.take(report, self.steps)

    def detach(self, request: DetachRequest, kept: list[int]) -> None:
        """Let the trainer leave of its own will, and answer it.

        `kept`: the memfd of its script's last state, if it gives one; TrainerError, and it has not left, if
        that is none.
        """
        if kept:
            self.script.take(kept)
        words = "has finished" if request.finished else "has detached before its end"
        self._leave(finished=request.finished, words=words, farewell=pack_answer({}))

    def lost(self, connection: Connection) -> None:
        """Note that a connection has ended; if it was the trainer's, so has the trainer."""
        if connection is not self.connection:
            return
        if self.state is SessionState.WAITING:
            self.move(SessionState.DETACHED)
            self.connection = None
        else:
            self._leave(finished=False, words=ENDED)

    def _on_exit(self) -> None:
        if self.connection is not None:
            self._listener.settle(self.connection)  # it may have detached before
        if self.connection is not None:
            self.lost(self.connection)

    def _refuse(self, connection: Connection | None, words: str) -> None:
        if connection is not None and connection is self.connection:
            self._refused += 1
            farewell = pack_refusal(f"the daemon refused this trainer: it {words}")
            self._let_go(finished=False, words=words, farewell=farewell)

    def _leave(self, *, finished: bool, words: str, farewell: bytes = b"") -> None:
        """Take what the trainer had published, then let it go."""
        if self.outbox_closed or self.drain():
            self._let_go(finished=finished, words=words, farewell=farewell)

    def _let_go(self, *, finished: bool, words: str, farewell: bytes) -> None:
        connection, self.connection = self.connection, None
        attachment, self.attachment = self.attachment, None
        assert connection is not None
        assert attachment is not None
        assert self._loop is not None
        self._loop.remove_reader(attachment.wake_daemon.fileno())
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.move(SessionState.DETACHED)
        self._take_back(attachment)
        self._evaluating = False
        self._finished = finished
        self._stopping = self._stopping and not finished
        self._reported.end()
        self._host.trainer_left(finished=finished, words=words)
        if self._state_wanted and not self.outbox_closed:
            self._give_state()
        self._listener.close_connection(connection, farewell)

    def _take_back(self, attachment: Attachment) -> None:
        """Keep the count and the residual of a trainer that is gone, and drop its memory."""
        assert self._residual is not None
        progress = attachment.progress()
        copied = attachment.residual_copy()
        at, half = copied or (progress, attachment.half)
        self._residual.take_back(half=half, age=max(0, progress - at) + self._age_after(at))
        self._steps = progress
        attachment.close()


def _refuse_early(given: Given) -> None:
    raise AssertionError(f"{given} was given before the run is known")
