"""The daemon's one place for a trainer: who holds it, from attaching to leaving.

A trainer leaves in one of four ways: it detaches; its connection ends; its process ends (seen by a pidfd,
because a child that it forked may hold the connection open); or it is refused for writing rubbish into shared
memory. What it had published whole is taken first, but for a refused one: from its first bad entry on,
nothing is. Taking happens in short turns on the loop, so that a busy trainer does not keep the daemon from
its peers.

What a new trainer goes on from is kept here between two of them: the residual and the count of mini-batches
(port.py), and what the script gave to be kept; how the host gets it is state_handover.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from p2psgd.errors import TrainerError
from p2psgd.ipc.answers import pack_refusal
from p2psgd.ipc.dense_segments import DenseSegments
from p2psgd.ipc.finite_residual import describe_unfinite
from p2psgd.ipc.host import ControlHost, Given, OwnUpdate, TrainerState
from p2psgd.ipc.kept_script import KeptScript
from p2psgd.ipc.listener import Connection, Listener
from p2psgd.ipc.port import TrainerPort
from p2psgd.ipc.proposal import RunProposal
from p2psgd.ipc.requests import ReportRequest, StateRequest
from p2psgd.ipc.state_handover import StateHandover
from p2psgd.ipc.trainer_figures import TrainerFigures
from p2psgd.wire.mode import parse_mode

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
        updates = [update for update in given if isinstance(update, OwnUpdate)]
        if updates:
            self._host.own_updates(updates)
        for share in given:
            if not isinstance(share, OwnUpdate) and not self._refusing:
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
