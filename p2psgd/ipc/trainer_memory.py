"""The trainer's end of the memory it shares with its daemon: the counterpart of attachment.py.

What to publish when; what it means is trainer/link.py's. Not safe for several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.answers import AttachAnswer
from p2psgd.ipc.counters import COUNTERS_WORDS, Counter, Counters
from p2psgd.ipc.ring import RingReader, RingWriter, entry_bytes
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.wakeup import Wakeup
from p2psgd.wire.frames import UPDATE_HEADER_BYTES


class TrainerMemory:
    """Residual, rings, counters and wake-ups as `answer` describes them.

    `memories` are descriptors [residual, inbox, outbox, counters], needed only by this call; `wake_trainer`
    and `wake_daemon` belong to this object. `residual` is float32 (P,).
    """

    def __init__(
        self, answer: AttachAnswer, memories: Sequence[int], wake_trainer: Wakeup, wake_daemon: Wakeup
    ) -> None:
        residual, inbox, outbox, counters = memories
        self.residual: NDArray[np.float32] = map_segment(residual, np.float32, answer.weights, Access.WRITE)
        self._counters = Counters(map_segment(counters, np.uint64, COUNTERS_WORDS, Access.WRITE))
        generation = self._counters.load(Counter.GENERATION)
        if generation != answer.generation:
            raise TrainerError(f"the shared memory is of generation {generation}, not {answer.generation}")
        self._inbox = RingReader(
            map_segment(inbox, np.uint8, answer.inbox_bytes, Access.READ),
            answer.generation,
            length_min=UPDATE_HEADER_BYTES + 1,
            length_max=layout.inbox_entry_bytes_max(answer.weights),
        )
        self._outbox = RingWriter(
            map_segment(outbox, np.uint8, answer.outbox_bytes, Access.WRITE), answer.generation
        )
        self._room_wanted = entry_bytes(layout.outbox_entry_bytes_max(answer.weights))
        self.wake_trainer = wake_trainer
        self._wake_daemon = wake_daemon

    @property
    def reload_wanted(self) -> bool:
        """Whether the inbox lacks updates, so that the weights must come from the replica."""
        return self._counters.load(Counter.RELOAD_WANTED) != 0

    @property
    def stopping(self) -> bool:
        """Whether the daemon asks for the end after this mini-batch."""
        return self._counters.load(Counter.STOPPING) != 0

    def has_updates(self) -> bool:
        """Whether an update lies in the inbox."""
        self._inbox.accept_head(self._counters.load(Counter.INBOX_HEAD))
        return self._inbox.pending_bytes > 0

    def updates(self) -> Iterator[bytes]:
        """The UPDATE bodies in the inbox now; asking for the next gives back the room of the last."""
        self.has_updates()
        while (body := self._inbox.take()) is not None:
            yield body
            self._counters.store(Counter.INBOX_TAIL, self._inbox.tail)

    def skip_inbox(self, position: int) -> None:
        """Read on at this position, where the daemon said at a reload."""
        self._inbox.skip_to(position)
        self._counters.store(Counter.INBOX_TAIL, position)

    def has_room(self) -> bool:
        """Whether the outbox has room for any update there can be."""
        self._outbox.accept_tail(self._counters.load(Counter.OUTBOX_TAIL))
        return self._outbox.room >= self._room_wanted

    def begin_pass(self, mini_batch: int) -> None:
        """Publish that the residual is about to change for this mini-batch."""
        self._counters.store(Counter.PASS_BEGUN, mini_batch)

    def end_pass(self, mini_batch: int) -> None:
        """Publish that this mini-batch's send is done."""
        self._counters.store(Counter.PASS_DONE, mini_batch)

    def put_update(self, mini_batch: int, step: int, count: int, payload: bytes) -> None:
        """Write and publish one update; the caller has seen to the room."""
        self._outbox.put(layout.OUTBOX_ENTRY.pack(mini_batch, step, count), payload)
        self.publish()

    def publish(self) -> None:
        """Let the daemon see all that was written into the outbox."""
        self._counters.store(Counter.OUTBOX_HEAD, self._outbox.head)
        self._wake_daemon.signal()

    def close(self) -> None:
        """Close the wake-ups; the maps go with this object."""
        self.wake_trainer.close()
        self._wake_daemon.close()
