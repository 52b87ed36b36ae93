"""Lets a trainer wait for its daemon: for room in the outbox, for a round to be opened, for anything new.

All of it on two descriptors: the daemon's signal, and the connection, whose end means that the daemon is
gone. The daemon's request for the trainer's state is answered meanwhile.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Sequence
from typing import Final

from p2psgd.client.buckets import Given
from p2psgd.client.checkpoint import Keeping
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import ReportRequest
from p2psgd.ipc.trainer_memory import TrainerMemory

# An array's round is waited for this long when the daemon asks for the end: others, who give their part of it
# soon, have not been asked, and a mini-batch that has begun should end.
GRACE_S: Final = 5.0
SAID_AFTER_S: Final = 1.0  # that the trainer waits for owners: a shorter wait is no news


class Waiting:
    """Waits of one link."""

    def __init__(self, client: ControlClient, memory: TrainerMemory[Given], keeping: Keeping) -> None:
        self.rounds_s = 0.0  # for rounds to be opened, all together,
        self.room_s = 0.0  # and for room in the outbox
        self._client = client
        self._memory = memory
        self._keeping = keeping
        self.says_it_waits = False  # in the daemon's status, until a report that it does not gets through
        self._poll = select.poll()
        self._poll.register(client, select.POLLIN)
        self._poll.register(memory.wake_trainer, select.POLLIN)

    @property
    def is_open(self) -> bool:
        """A round is open that this trainer has not contributed to."""
        return self._memory.rounds_opened > self._memory.mark.contributions

    def until_open(self, *, grace_s: float = 0.0, timeout_s: float = math.inf) -> bool:
        """Wait until that is so; False once `timeout_s` are over, or `grace_s` and the daemon asks for the
        end.
        """
        memory, begun = self._memory, time.perf_counter()
        if not self.is_open:
            memory.remind()
        try:
            while not self.is_open:
                spent_s = time.perf_counter() - begun
                left_s = min(timeout_s - spent_s, grace_s - spent_s if memory.stopping else math.inf)
                if left_s <= 0:
                    return False
                self._keeping.give_if_asked()
                self.sleep(left_s)
        finally:
            self.rounds_s += time.perf_counter() - begun
        return True

    def until_room(self, entries: Sequence[bytes]) -> None:
        """Wait until these fit into the outbox; TrainerError if they never do."""
        words = "the daemon's outbox is full: it takes updates more slowly than this trainer makes them"
        self._until(lambda: self._memory.has_room(entries), words, said_after_s=0.0)

    def until_taken(self, end: int) -> None:
        """Wait until the daemon has taken the outbox up to this position."""
        words = "the owners' updates do not cover yet what this trainer has contributed"
        self._until(lambda: self._memory.has_taken(end), words, said_after_s=SAID_AFTER_S)

    def _until(self, done: Callable[[], bool], words: str, *, said_after_s: float) -> None:
        if not done():
            begun = time.perf_counter()
            self._memory.remind()
            while not done():
                left_s = said_after_s - (time.perf_counter() - begun)
                if left_s <= 0 and not self.says_it_waits:
                    self.says_it_waits = self._client.tell(ReportRequest(waits=words))
                self._keeping.give_if_asked()
                self.sleep(left_s if left_s > 0 else math.inf)
            self.room_s += time.perf_counter() - begun
        if self.says_it_waits:
            self.says_it_waits = not self._client.tell(ReportRequest(waits=""))

    def sleep(self, timeout_s: float) -> None:
        """Wait for a signal of the daemon; DaemonLost if it goes away meanwhile."""
        self._poll.poll(None if timeout_s == math.inf else math.ceil(1000 * timeout_s))
        self._memory.wake_trainer.clear()
        self._client.check_daemon()
