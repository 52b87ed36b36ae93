"""The trainer of a node: its state, the command that starts it, and its pace."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from p2psgd.base.errors import ExitCode
from p2psgd.core.timing import Timing
from p2psgd.ipc.trainer_session import ENDED, SessionState, TrainerSession
from p2psgd.node.options import NodeOptions
from p2psgd.node.stopping import DRAIN_POLL_S
from p2psgd.node.trainer_process import STOP_TIMEOUT_S, Supervisor
from p2psgd.observe.status import NodeState, TrainerStatus
from p2psgd.storage.event_log import EventLog

LEAVE_S: Final = 3.0  # for a script that is asked to end, to leave after its mini-batch
END_S: Final = 10.0  # and then to evaluate and save

# ----------------------------------------------------------------------------
# How fast the trainers of the run are, as a daemon counts steps: known also of scripts that report nothing.


EVERY_S: Final = 1.0
LOOKS_MAX: Final = 6  # a rate is a mean over five seconds
OWN: Final = 0  # the node itself: no node has this id, only the one row of a dense ring, which counts rounds


class Pace:
    """The rates of trainers, in steps per second, from samples of their number by node."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[int, int]]] = deque(maxlen=LOOKS_MAX)

    def is_due(self, now: float) -> bool:
        """Return whether it is time for another sample; `now` in seconds, monotonic."""
        return not self._looks or now - self._looks[-1][0] >= EVERY_S

    def look(self, steps: Mapping[int, int], now: float) -> None:
        self._looks.append((now, steps))

    @property
    def per_s(self) -> dict[int, float]:
        """Return the steps per second of each node of which there are two samples."""
        if len(self._looks) < 2:
            return {}
        (began, first), (end, last) = self._looks[0], self._looks[-1]
        return {node: (last[node] - first[node]) / (end - began) for node in last if node in first}


class LastSteps:
    """A watch on the last steps of the other nodes: they are made when none has come for 12 failure timeouts,
    or no other node is left. A node that ends with its trainer waits for that, so that all end with the same
    weights.
    """

    def __init__(self, failure_timeout_s: float) -> None:
        self._quiet_s = Timing(failure_timeout_s).gone_s
        self._steps: object = None
        self._since = 0.0

    def are_made(self, steps: object, now: float, *, alone: bool = False) -> bool:
        """Return whether they are; `steps`: what changes with steps of other nodes; `now` in seconds in which
        this process has run.
        """
        if steps != self._steps:
            self._steps, self._since = steps, now
        return alone or now - self._since >= self._quiet_s


# ----------------------------------------------------------------------------
# The trainer of a node, as far as the node answers for it: the command that it was started with, which it
# starts and stops, and what has become of the trainer that is or was attached.


ABOUT_IT: Final = {"fields": {"kind": "trainer"}}  # in the log
FINISHED: Final = "ended with its trainer, which has finished"
WAITS_FOR_LAST: Final = "the trainer has finished; this node ends once no other makes steps any more"

log = logging.getLogger("p2psgd.node")


class NodeTrainer:
    """The trainer of one node, as the node sees it."""

    def __init__(
        self,
        options: NodeOptions,
        session: TrainerSession,
        events: EventLog,
        *,
        peer_steps: Callable[[], Mapping[int, int]],
        is_alone: Callable[[], bool],
        fail: Callable[[str, ExitCode], None],
    ) -> None:
        """Take `peer_steps`, which returns the steps of the other nodes, `is_alone`, whether the view has no
        others, and `fail`, which ends the node with a sentence.
        """
        self._state = NodeState.WAITING
        self._options = options
        self._session = session
        self._events = events
        self._peer_steps = peer_steps
        self._is_alone = is_alone
        self._last_steps = LastSteps(options.failure_timeout_s)
        self._fail = fail
        self._came = False
        self._ended = False
        self._asked = False  # to end
        self._pace = Pace()
        self._supervisor: Supervisor | None = None

    @property
    def state(self) -> NodeState:
        """Return the node's state: joining is one whose trainer waits until it is ready."""
        waits = self._session.state is SessionState.WAITING
        if self._state is not NodeState.DRAINING and waits:
            return NodeState.JOINING
        return self._state

    def start(self) -> None:
        """Start the command that the node was given; without one, wait for any trainer that attaches."""
        place = self._options.control_place
        if self._options.trainer is None:
            log.info("waiting for a trainer: start one with P2PSGD_CONTROL=%s", place)
            return
        self._supervisor = Supervisor(
            self._options.trainer,
            environment={"P2PSGD_CONTROL": str(place)},
            progress=lambda: self._session.steps,
            came=lambda: self._came,
            crashed=lambda words: self._events.write("trainer", words),
            ended=self._on_end,
            failed=self._fail,
        )
        self._supervisor.start()

    def _on_end(self) -> None:
        """Note that the command is done, and is not started again."""
        if not (self._came or self._asked or self._state is NodeState.DRAINING):
            words = f"the trainer ended without attaching to this node: {self._options.trainer}"
            self._fail(words, ExitCode.CONFIGURATION)
        elif self._state is not NodeState.DRAINING:
            self._state = NodeState.SERVING
            self._ended = True
            if self._options.end_with_trainer:
                log.info("%s", WAITS_FOR_LAST, extra=ABOUT_IT)

    async def drain(self, *, to_its_end: bool = False) -> None:
        """Let the trainer end its mini-batch, take what it made, and nothing after that. `to_its_end`: give a
        script that leaves by itself, as it is asked to, END_S for what it does then.
        """
        self._state = NodeState.DRAINING
        self._session.pause_outbox(paused=False)
        attached = self._session.attachment is not None
        self._session.finish()
        if self._supervisor is None:
            await self._until_detached(STOP_TIMEOUT_S)
        else:
            if attached and to_its_end:
                self._supervisor.finish()
                await self._until_detached(LEAVE_S)
                if self._session.attachment is None:
                    await self._supervisor.wait(END_S)
            await self._supervisor.stop()
        self._session.drain()
        self._session.outbox_closed = True

    async def _until_detached(self, limit_s: float) -> None:
        """Give the trainer the time to end its mini-batch and leave."""
        for _ in range(round(limit_s / DRAIN_POLL_S)):
            if self._session.attachment is None:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    def tick(self, now: float) -> None:
        """Count how fast it trains, and the others; `now` in seconds of the node's clock. Here a node ends
        with its trainer.
        """
        if self._ended and self._options.end_with_trainer and self._state is not NodeState.DRAINING:
            steps = sum(self._peer_steps().values())
            if self._last_steps.are_made(steps, now, alone=self._is_alone()):
                self._fail(FINISHED, ExitCode.OK)
        if self._pace.is_due(now):
            self._pace.look({**self._peer_steps(), OWN: self._session.steps}, now)

    def kill(self) -> None:
        """Kill the trainer at once, with all that it has started."""
        if self._supervisor is not None:
            self._supervisor.kill()

    async def close(self) -> None:
        """Leave no trainer behind."""
        if self._supervisor is not None:
            self._supervisor.kill()
            await self._supervisor.stop()

    def finish(self) -> None:
        """Do not start the trainer again: it was asked to end."""
        self._asked = True
        if self._supervisor is not None:
            self._supervisor.finish()

    def came(self) -> None:
        """Note that a trainer has asked to attach, and fits the run."""
        self._came = True

    def attached(self, pid: int) -> None:
        """Report that the trainer has attached."""
        self._came = True
        self._pace = Pace()
        log.info("trainer %d attached", pid, extra=ABOUT_IT)
        self._events.write("trainer", f"trainer {pid} attached")
        if self._state is not NodeState.DRAINING:
            self._state = NodeState.TRAINING

    def left(self, *, finished: bool, words: str) -> None:
        """Report that the trainer has left; `words` give the reason, if there is one."""
        why = words or ("done" if finished else "gone")
        if words == ENDED and self._state is NodeState.DRAINING:
            why = "stopped with its node"  # by a SIGTERM, which most scripts do not catch
        log.info("trainer left: %s", why, extra=ABOUT_IT)
        self._events.write("trainer", f"the trainer left: {why}")
        if self._state is not NodeState.DRAINING:
            self._state = NodeState.SERVING if finished or self._asked else NodeState.WAITING

    @property
    def is_cut_short(self) -> bool:
        """Return whether this node was to end with its trainer, which has not finished: it must be started
        again. The trainer of a part is not this daemon's.
        """
        return self._options.end_with_trainer and self._options.part is None and not self._ended

    @property
    def loss(self) -> float | None:
        """Return the loss that the trainer reported last; None if it has not."""
        return self._session.loss

    def status(self) -> TrainerStatus:
        """Return the trainer's part of the node's status."""
        figures, supervisor = self._session.status(), self._supervisor
        figures["finished"] |= self._ended
        steps_per_s = self._pace.per_s.get(OWN) if figures["attached"] else None
        if not figures["samples_per_s"] and figures["batch"] and steps_per_s is not None:
            figures["samples_per_s"] = steps_per_s * figures["batch"]
        return TrainerStatus(
            **figures,
            steps_per_s=steps_per_s,
            supervised=supervisor is not None,
            running=supervisor is not None and supervisor.running,
            restarts=0 if supervisor is None else supervisor.restarts,
            crash="" if supervisor is None else supervisor.words,
            restart_in_s=0.0 if supervisor is None else supervisor.restart_in_s,
        )

    def peer_paces(self) -> Mapping[int, float]:
        """Return the steps per second of the other nodes, as far as they are known."""
        return {node: per_s for node, per_s in self._pace.per_s.items() if node != OWN}
