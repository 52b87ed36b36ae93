"""The daemon's one trainer, from attach to detach, and the state that is kept between two trainers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.attachment import CHECKED_WEIGHTS, Attachment, describe_unfinite, make_finite
from p2psgd.ipc.host import ControlHost, Given, TrainerState
from p2psgd.ipc.listener import Connection, Listener
from p2psgd.ipc.protocol import ReportRequest, StateRequest, pack_refusal
from p2psgd.ipc.ring_buffer import entry_bytes, half_after
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.script_state import KeptScript
from p2psgd.ipc.segments import Access, DenseSegments, create_segment, map_segment
from p2psgd.wire.mode import ASYNC, Mode, parse_mode
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# The daemon's side of one run's trainers: what is kept while they come and go.
#
# The residual outlives every trainer, and so does the count of mini-batches, which also says which half of
# the residual is current (ring_buffer.py); everything else is an `Attachment`, made for one trainer and
# thrown away with it. A trainer that keeps its residual elsewhere leaves a copy of it, perhaps of some
# mini-batches ago. Only one trainer is attached at a time. While none is, the residual stands still and can
# be lent as it is; the next trainer then gets a copy. What a trainer has left is looked through before the
# next one gets it, slice by slice (attachment.py). In a dense ring there is no residual: its segment is
# never touched and takes no memory.


TAKE_ENTRIES = 64  # taken from the outbox in one turn of the loop,
TAKE_INDICES = 2**18  # and at most about this many indices: a millisecond or two of decoding and applying


class TrainerPort:
    """Segments, deliver and take for the trainers of one run of `weights` weights.

    `inbox_bytes` and `outbox_bytes` are powers of two that hold at least one of the longest entries; None:
    the usual size. The first trainer goes on after `mini_batches` with `residual`, float32 (P,), or zeros,
    which is `residual_age` mini-batches behind.
    """

    def __init__(
        self,
        weights: int,
        *,
        mode: Mode = ASYNC,
        inbox_bytes: int | None = None,
        outbox_bytes: int | None = None,
        residual: NDArray[np.float32] | None = None,
        mini_batches: int = 0,
        residual_age: int = 0,
    ) -> None:
        self.weights = weights
        self.mode = mode
        self.inbox_bytes = inbox_bytes or layout.inbox_bytes(weights)
        self.outbox_bytes = outbox_bytes or layout.outbox_bytes(weights, mode)
        assert self.inbox_bytes >= entry_bytes(layout.inbox_entry_bytes_max(weights)), inbox_bytes
        assert self.outbox_bytes >= layout.outbox_bytes_min(weights, mode), outbox_bytes
        self.generation = 0
        self.reloads = 0
        self.attachment: Attachment | None = None
        self._mini_batches = mini_batches
        self._stopping = False
        self._lent = False
        self.residual_age = residual_age  # mini-batches that it is behind, as of the last trainer's end
        self.unfinite = 0  # weights that check_residual has set to zero, until somebody sets this to 0
        self._checked = weights if residual is None else 0  # so many of the residual's weights are finite
        self._make_residual(residual)

    @property
    def mini_batches(self) -> int:
        """Mini-batches that this node's trainers have published, over all their lives."""
        return self.attachment.progress() if self.attachment else self._mini_batches

    def check_residual(self) -> bool:
        """Look through a slice of the residual that the next trainer gets, and set to zero what of it is NaN
        or infinite; True once the whole of it is finite.
        """
        assert self.attachment is None, self.generation
        begin, end = self._checked, min(self._checked + CHECKED_WEIGHTS, self.weights)
        if not np.isfinite(self._parts[self._half, begin:end]).all():
            if self._lent:
                self._renew_residual()
            parts = self._map_parts(self._residual, Access.WRITE)
            self.unfinite += make_finite(parts[self._half, begin:end])
        self._checked = end
        return end == self.weights

    @contextlib.contextmanager
    def attach(self) -> Iterator[list[int]]:
        """Make the segments of a new trainer and yield their descriptors; undone if the with block raises.

        They are [residual, inbox, outbox, counters, wake_trainer, wake_daemon] and may be used inside the
        block.
        """
        assert self.attachment is None, self.generation
        assert self._checked == self.weights, "check_residual() comes first"
        if self._lent or self._half != half_after(self._mini_batches):
            self._renew_residual()
        attachment = Attachment(
            weights=self.weights,
            mode=self.mode,
            generation=self.generation + 1,
            inbox_bytes=self.inbox_bytes,
            outbox_bytes=self.outbox_bytes,
            mini_batches=self._mini_batches,
            stopping=self._stopping,
        )
        try:
            yield [self._residual, *attachment.descriptors]
            attachment.close_memories()
        except BaseException:
            attachment.close()
            raise
        self.generation += 1
        self.attachment = attachment

    def deliver(self, body: bytes | bytearray) -> None:
        """Hand a peer's update to the trainer, if one is attached; TrainerError if it wrote rubbish."""
        if self.attachment:
            self.attachment.deliver(body)

    def take(self) -> list[Given]:
        """The next few things that the trainer gives; TrainerError if rubbish comes next."""
        return self.attachment.take(TAKE_ENTRIES, TAKE_INDICES) if self.attachment else []

    def take_all(self, end: int | None = None) -> Iterator[list[Given]]:
        """All that the trainer has published by now, or up to the position `end`, in turns as `take` gives
        them.
        """
        if self.attachment:
            published = self.attachment.published_bytes()
            end = published if end is None else min(end, published)
            while self.attachment.taken_bytes < end:
                yield self.attachment.take(TAKE_ENTRIES, TAKE_INDICES, end)

    def lend_residual(self) -> NDArray[np.float32] | None:
        """The residual, float32 (P,), read-only, while no trainer is attached; it will never change. None:
        there is none in this mode.
        """
        assert self.attachment is None, self.generation
        if self.mode.dense:
            return None
        self._lent = True
        half: NDArray[np.float32] = self._parts[self._half]
        return half

    @property
    def kept_residual(self) -> NDArray[np.float32] | None:
        """The trainer's copy of its residual, float32 (P,), read-only, as it gave it with its last state;
        None in a dense ring.
        """
        return None if self.mode.dense else self._parts[layout.RESIDUAL_PARTS - 1]

    def age_after(self, mini_batches: int) -> int:
        """How many mini-batches behind the attached trainer's residual after `mini_batches` was: as many as
        when it came, until it has published.
        """
        return self.residual_age if mini_batches == self._mini_batches else 0

    def reload(self) -> int:
        """The attached trainer is about to get the replica as it is now: where it reads its inbox on."""
        assert self.attachment is not None
        self.reloads += 1
        return self.attachment.reload()

    def finish(self) -> None:
        """Ask the trainer, or the next one if it has just crashed, to stop after its mini-batch."""
        self._stopping = True
        if self.attachment:
            self.attachment.request_stop()

    def detach(self, *, finished: bool) -> None:
        """The trainer is gone, and what it had published was taken: keep its count and drop its memory."""
        assert self.attachment is not None
        progress = self.attachment.progress()
        copied = self.attachment.residual_copy()
        at, self._half = copied or (progress, half_after(progress))
        self.residual_age = max(0, progress - at) + self.age_after(at)
        self._mini_batches = progress
        if not self.mode.dense:
            self._checked = 0
        if finished:
            self._stopping = False
        self.attachment.close()
        self.attachment = None

    def _make_residual(self, residual: NDArray[np.float32] | None) -> None:
        """Make a new segment whose current half is this residual; if that fails, nothing has changed."""
        half = half_after(self._mini_batches)
        descriptor = create_segment("p2psgd-residual", 4 * layout.RESIDUAL_PARTS * self.weights)
        try:
            if residual is not None:
                self._map_parts(descriptor, Access.WRITE)[half] = residual
            parts = self._map_parts(descriptor, Access.READ)
        except BaseException:
            os.close(descriptor)
            raise
        self._residual, self._parts, self._half, self._lent = descriptor, parts, half, False

    def _renew_residual(self) -> None:
        """Copy the residual to a new segment; the old one stays as it is with whoever has a map of it."""
        old = self._residual
        self._make_residual(self._parts[self._half])
        os.close(old)

    def _map_parts(self, descriptor: int, access: Access) -> NDArray[np.float32]:
        count = layout.RESIDUAL_PARTS * self.weights
        parts = map_segment(descriptor, np.float32, count, access)
        return parts.reshape(layout.RESIDUAL_PARTS, self.weights)

    def close(self) -> None:
        """Close all descriptors."""
        if self.attachment:
            self.detach(finished=False)
        descriptor, self._residual = self._residual, -1
        if descriptor >= 0:
            os.close(descriptor)
            del self._parts  # a map holds a descriptor of its own


# ----------------------------------------------------------------------------
# What a node's trainer goes on from: given to the first one, and asked of each for the host to keep.


class StateHandover:
    """`wanted`: the host has asked and has no answer yet. `restored` is what an earlier daemon wrote down,
    until a trainer's memory has been made of it. A `port` of None: there is no such memory yet.
    """

    def __init__(self, host: ControlHost, script: KeptScript) -> None:
        self.wanted = False
        self.restored = TrainerState(None, None, 0)
        self._host = host
        self._script = script

    def restore(self, state: TrainerState) -> None:
        """The first trainer is to go on from here; TrainerError if the script's part is no state."""
        self._script.put(state.script)
        self.restored = state

    def want(self, port: TrainerPort | None) -> None:
        """Ask the trainer for its state; the host gets it, and at once if no trainer is attached."""
        self.wanted = True
        if port is None or port.attachment is None:
            self.give(port)
        else:
            port.attachment.want_state()

    def give(self, port: TrainerPort | None) -> None:
        """Give the host the state of a trainer that is not there: nobody changes it now."""
        self.wanted = False
        state = self.restored
        if port is not None:
            residual, mini_batches = port.lend_residual(), port.mini_batches
            state = TrainerState(residual, self._script.state, mini_batches, port.residual_age)
        self._host.trainer_state(state)

    def take(self, port: TrainerPort, request: StateRequest, descriptors: list[int]) -> None:
        """The trainer's answer, once all updates before it have been taken from its outbox.

        TrainerError, with nothing changed, if this is no state.
        """
        attachment = port.attachment
        assert attachment is not None
        if attachment.taken_bytes != request.outbox:
            raise TrainerError(f"no update of the outbox ends at {request.outbox}, where the state begins")
        if not attachment.mini_batches <= request.mini_batches <= attachment.progress():
            raise TrainerError(
                f"a state after mini-batch {request.mini_batches}, of a trainer that has come to"
                f" {attachment.progress()}"
            )
        self._script.take(descriptors)
        self.wanted = False
        attachment.accept_state()
        self._host.trainer_state(
            TrainerState(
                port.kept_residual,
                self._script.state,
                request.mini_batches,
                port.age_after(request.mini_batches),
            )
        )


# ----------------------------------------------------------------------------
# What the attached trainer last said about its progress, for people.


SPLIT = ("steps", "computing_s", "waiting_s", "adding_s", "sending_s", "daemon_adding_s", "daemon_sending_s")
FIGURES = ("samples", "samples_per_s", "loss", "test_accuracy", "epoch", "waits", *SPLIT)


class TrainerFigures:
    """The latest of each figure; a trainer's stay when it leaves, but for its speed and what it waits for."""

    def __init__(self) -> None:
        self._figures = {name: getattr(ReportRequest(), name) for name in FIGURES}

    def update(self, report: ReportRequest) -> None:
        """Take over the figures that the report names."""
        for name in report.model_fields_set & self._figures.keys():
            self._figures[name] = getattr(report, name)

    def trainer_left(self) -> None:
        """Nobody computes and nobody waits any more."""
        self._figures.update(samples_per_s=0.0, waits="")

    def as_dict(self) -> dict[str, Any]:
        """For the status."""
        return dict(self._figures)


# ----------------------------------------------------------------------------
# The daemon's one place for a trainer: who holds it, from attaching to leaving.
#
# A trainer leaves in one of four ways: it detaches; its connection ends; its process ends (seen by a pidfd,
# because a child that it forked may hold the connection open); or it is refused for writing rubbish into
# shared memory. What it had published whole is taken first, but for a refused one: from its first bad entry
# on, nothing is. Taking happens in short turns on the loop, so that a busy trainer does not keep the daemon
# from its peers.
#
# What a new trainer goes on from is kept here between two of them: the residual and the count of
# mini-batches (TrainerPort), and what the script gave to be kept; the host gets it by a StateHandover.


ENDED: Final = "ended without detaching"


class TrainerSeat:
    """Attaches, serves and releases trainers, whose connections are the listener's.

    While `outbox_closed` is true nothing is taken from a trainer but by `drain`.
    """

    def __init__(
        self,
        host: ControlHost,
        listener: Listener,
        *,
        inbox_bytes: int | None,
        outbox_bytes: int | None,
    ) -> None:
        self.port: TrainerPort | None = None
        self.outbox_closed = False
        self._paused = False
        self.connection: Connection | None = None
        self.pid = 0
        self.script = KeptScript()
        self.dense: DenseSegments | None = None  # of a dense ring
        self._digest_given = 0  # of the replica, as the trainer got it last: when it attached, reloaded,
        # or was given its last round
        self._state = StateHandover(host, self.script)
        self._host = host
        self._listener = listener
        self._inbox_bytes = inbox_bytes
        self._outbox_bytes = outbox_bytes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pidfd = -1
        self._take_scheduled = False
        self._figures = TrainerFigures()
        self._finished = False
        self._refusing = False  # the trainer's share; it goes in the next turn of the loop
        self._stopping = False
        self._refused = 0
        self._differed = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop."""
        self._loop = loop

    def close(self) -> None:
        """Let the trainer go and close everything."""
        self._state.wanted = False
        if self.connection is not None:
            self._leave(
                finished=False,
                words="was cut off: its daemon has stopped",
                farewell=pack_refusal("the daemon has stopped"),
            )
        if self.port is not None:
            self.port.close()
        if self.dense is not None:
            self.dense.close()
        self.script.close()

    def restore(self, state: TrainerState) -> None:
        """The first trainer is to go on from here; TrainerError if the script's part is no state."""
        assert self.port is None
        self._state.restore(state)

    def prepare(self, run: RunProposal) -> bool:
        """Look through a slice of the residual that the next trainer gets; False while there is more of it.

        The host hears how many weights of it were not finite.
        """
        assert self.connection is None, self.pid
        if self.port is None:
            self.port = self._make_port(run)
        port = self.port
        if not port.check_residual():
            return False
        if port.unfinite:
            self._host.alarm(describe_unfinite(port.unfinite, port.weights, "the next trainer"))
            port.unfinite = 0
        return True

    def _make_port(self, run: RunProposal) -> TrainerPort:
        restored = self._state.restored
        port = TrainerPort(
            run.weights,
            mode=parse_mode(run.mode),
            inbox_bytes=self._inbox_bytes,
            outbox_bytes=self._outbox_bytes,
            residual=restored.residual,
            mini_batches=restored.mini_batches,
            residual_age=restored.residual_age,
        )
        self._state.restored = TrainerState(None, None, 0)
        if self._stopping:
            port.finish()
        return port

    def attach(
        self, connection: Connection, pid: int, hand_over: Callable[[TrainerPort, list[int]], bool]
    ) -> None:
        """Seat a trainer, once `prepare` has said yes; `hand_over(port, descriptors)` gives it its segments
        and says whether they left.

        Raises TrainerError if they did not reach it; then nothing has changed.
        """
        assert self.connection is None, self.pid
        assert self.port is not None, "prepare() comes first"
        with self.port.attach() as descriptors:
            if not hand_over(self.port, descriptors):
                raise TrainerError("the trainer has closed its connection while it was being attached")
        self.connection = connection
        self.pid = pid
        self._finished = False
        self._refusing = False
        self._digest_given = self._host.replica_digest()
        self._watch(connection.pid)
        self._host.trainer_attached(self.pid)

    def deliver(self, body: bytes | bytearray) -> None:
        """Hand a peer's update to the trainer, if there is one; never waits and never calls the host."""
        if self.port is None:
            return
        try:
            self.port.deliver(body)
        except TrainerError as error:
            assert self._loop is not None
            self._loop.call_soon(self._refuse, self.connection, f"wrote rubbish about its inbox: {error}")

    def finish(self) -> None:
        """Ask the trainer, or the next one if there is none, to stop after its current mini-batch."""
        self._stopping = True
        if self.port is not None:
            self.port.finish()

    def drain(self, end: int | None = None) -> bool:
        """Take all that the trainer has published by now, or up to the position `end` of its outbox; False if
        it had to be refused for rubbish.
        """
        try:
            if self.port is not None:
                for given in self.port.take_all(end):
                    self._pass_on(given)
        except TrainerError as error:
            self._refuse(self.connection, f"wrote an outbox entry that does not check: {error}")
            return False
        return True

    def reload(self, *, differed: bool) -> int | None:
        """Take what the trainer has published; where it reads its inbox on, None if it had to be refused.

        `differed`: it reloads since its weights were wrong.
        """
        assert self.port is not None
        if not self.outbox_closed and not self.drain():
            return None
        self._differed += differed
        self._digest_given = self._host.replica_digest()
        return self.port.reload()

    def compare(self) -> tuple[int, int | None] | None:
        """Take what the trainer has published; where its inbox ends, and the digest of the weights there. No
        digest: what it has published stays where it is, or the inbox lacks updates. None: it had to be
        refused.

        In a dense ring a round that it had no part in may be in the replica, and it learns of that with the
        next: there the digest is that of what it was given.
        """
        assert self.port is not None
        assert self.port.attachment is not None
        if not self.outbox_closed and not self.drain():
            return None
        attachment = self.port.attachment
        known = not self.outbox_closed and not attachment.reload_wanted
        digest = self._host.replica_digest() if self.dense is None else self._digest_given
        return attachment.inbox_end, digest if known else None

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """In ring mode: the trainer, if there is one, may give its share of this round.

        Before its first it takes the weights anew if rounds have changed them since it attached: with a share
        that the trainer before it had given, or in a dense ring, where nothing else brings it changes.
        """
        attachment = None if self.port is None else self.port.attachment
        if attachment is None:
            return
        if not attachment.rounds_opened and self._host.replica_digest() != self._digest_given:
            attachment.want_reload()
        self._digest_given = self._host.replica_digest()
        attachment.open_round(
            number, contributors=contributors, sums=sums, adding_us=adding_us, sending_us=sending_us
        )

    def refuse_share(self, words: str) -> None:
        """In ring mode: what the trainer gave does not fit what others gave. Take no more of it, and let it
        go with this sentence in the next turn of the loop; the host is not called before.
        """
        if self.connection is not None and not self._refusing:
            assert self._loop is not None
            self._refusing = True
            self._loop.call_soon(self._end_refused, self.connection, words)

    def _end_refused(self, connection: Connection, words: str) -> None:
        if connection is self.connection:
            self._refused += 1
            farewell = pack_refusal(words, share=True)
            self._let_go(finished=False, words=f"gave what does not fit: {words}", farewell=farewell)

    def want_reload(self) -> None:
        """The replica was replaced as a whole: the trainer must take it anew."""
        if self.port is not None and self.port.attachment is not None:
            self.port.attachment.want_reload()

    def want_state(self) -> None:
        """Ask the trainer for its state; the host gets it, and at once if no trainer is attached."""
        self._state.want(self.port)

    def take_state(self, request: StateRequest, descriptors: list[int]) -> bool:
        """The trainer's answer; False if it had to be refused for rubbish in its outbox.

        TrainerError, with nothing changed, if this is no state. One that has come too late, since the trainer
        was interrupted and has gone on, is nothing to the host: the trainer will send another.
        """
        assert self.port is not None
        assert self.port.attachment is not None
        too_late = self.port.attachment.taken_bytes > request.outbox
        if not self._state.wanted or self.outbox_closed or too_late:
            return True
        if not self.drain(request.outbox):
            return False
        self._state.take(self.port, request, descriptors)
        return True

    def pause(self, *, paused: bool) -> None:
        """Leave what the trainer publishes in its outbox for now, or go on; once that is full it waits.

        Reload, detach and drain take it all the same: nothing is lost.
        """
        if self._paused and not paused and not self._take_scheduled and self._loop is not None:
            self._take_scheduled = True
            self._loop.call_soon(self._take)
        self._paused = paused

    def report(self, figures: ReportRequest) -> None:
        """Take note of what the trainer says about its progress."""
        self._figures.update(figures)

    def detach(self, *, finished: bool, kept: list[int], answer: bytes) -> None:
        """The trainer leaves of its own will, and gets an answer.

        `kept`: the memfd of its script's last state, if it gives one; TrainerError, and it has not left, if
        that is none.
        """
        if kept:
            self.script.take(kept)
        words = "has finished" if finished else "has detached before its end"
        self._leave(finished=finished, words=words, farewell=answer)

    def lost(self, connection: Connection) -> None:
        """A connection has ended; if it was the trainer's, so has the trainer."""
        if connection is self.connection:
            self._leave(finished=False, words=ENDED)

    def status(self) -> dict[str, Any]:
        """What the node's status says about the trainer."""
        port = self.port
        figures = self._figures.as_dict()
        if figures["waits"]:
            figures["waits"] = self._host.ready() or figures["waits"]
        return {
            "attached": self.connection is not None,
            "pid": self.pid if self.connection is not None else None,
            "finished": self._finished,
            "mini_batches": port.mini_batches if port else self._state.restored.mini_batches,
            **figures,
            "reloads": port.reloads if port else 0,
            "copies_mended": self._differed,
            "refused_trainers": self._refused,
        }

    def _watch(self, pid: int) -> None:
        assert self._loop is not None
        assert self.port is not None
        assert self.port.attachment is not None
        self._loop.add_reader(self.port.attachment.wake_daemon.fileno(), self._on_wake)
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return  # it has ended already, or lives in a foreign pid namespace: its connection tells
        self._loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        if self.connection is not None:
            self._listener.settle(self.connection)  # it may have detached before
        if self.connection is not None:
            self.lost(self.connection)

    def _on_wake(self) -> None:
        if self.port is None or self.port.attachment is None:
            return
        self.port.attachment.wake_daemon.clear()
        if not self._take_scheduled:
            self._take()

    def _take(self) -> None:
        self._take_scheduled = False
        if self.outbox_closed or self._paused or self.port is None:
            return
        try:
            given = self.port.take()
        except TrainerError as error:
            self._refuse(self.connection, f"wrote an outbox entry that does not check: {error}")
            return
        if given:
            assert self._loop is not None
            self._take_scheduled = True
            self._loop.call_soon(self._take)  # there may be more: look again after everybody else had a turn
            self._pass_on(given)

    def _pass_on(self, given: list[Given]) -> None:
        updates = [update for update in given if isinstance(update, OwnUpdateMade)]
        if updates:
            self._host.own_updates(updates)
        for share in given:
            if not isinstance(share, OwnUpdateMade) and not self._refusing:
                self._host.shared(share)

    def _refuse(self, connection: Connection | None, words: str) -> None:
        if connection is not None and connection is self.connection:
            self._refused += 1
            last_words = pack_refusal(f"the daemon refused this trainer: it {words}")
            self._let_go(finished=False, words=words, farewell=last_words)

    def _leave(self, *, finished: bool, words: str, farewell: bytes = b"") -> None:
        """Take what the trainer had published, then let it go."""
        assert self.connection is not None
        if self.outbox_closed or self.drain():
            self._let_go(finished=finished, words=words, farewell=farewell)

    def _let_go(self, *, finished: bool, words: str, farewell: bytes) -> None:
        connection, self.connection = self.connection, None
        assert connection is not None
        assert self._loop is not None
        assert self.port is not None
        assert self.port.attachment is not None
        self._loop.remove_reader(self.port.attachment.wake_daemon.fileno())
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.port.detach(finished=finished)
        self._finished = finished
        self._stopping = self._stopping and not finished
        self._figures.trainer_left()
        self._host.trainer_left(finished=finished, words=words)
        if self._state.wanted and not self.outbox_closed:
            self._state.give(self.port)
        self._listener.close_connection(connection, farewell)
