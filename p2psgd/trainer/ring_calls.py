"""What a link offers in ring mode beside `receive` and `send` (link.py): empty shares, and the parts of a
dense share.

All of them are calls between two rounds, or inside one that was opened for this trainer.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.trainer.dense_rounds import DenseRounds
from p2psgd.trainer.given import Given
from p2psgd.trainer.waiting import GRACE_S, Waiting
from p2psgd.wire.mode import Mode


class RingCalls(abc.ABC):
    """Of a link in `mode`."""

    mode: Mode
    _client: ControlClient
    _memory: TrainerMemory[Given]
    _waiting: Waiting
    _dense: DenseRounds | None

    @abc.abstractmethod
    def _check_open(self) -> None:
        """TrainerError if the link is closed."""

    @abc.abstractmethod
    def _follow(self) -> int:
        """Bring the weights up to date with what has come; how many updates, or shares of a dense round."""

    @abc.abstractmethod
    def _wait_for_room(self, entries: list[bytes]) -> None:
        """Wait until the outbox has room for these."""

    @property
    def round(self) -> int:
        """The number of the round that was opened last, the same at all nodes; 0 before the first.

        It is this node's to give to until it has, and counts the rounds of the run, also those that this node
        had no part in.
        """
        return self._memory.round

    def skip(self) -> int:
        """Give an empty share to the round of a sparse ring, to follow the others; return 0.

        It does not count as a mini-batch. Waits for the round to be opened like `send`.
        """
        self._check_open()
        self._client.check_daemon()
        if not self.mode.ring or self.mode.dense:
            raise TrainerError('skip is for a run in ring mode with payload = "sparse"')
        if self._waiting.until_open():
            self._memory.settle()
            memory = self._memory
            entries = [layout.OUTBOX_ENTRY.pack(memory.mini_batches, 0, 0)]
            self._wait_for_room(entries)
            memory.publish(entries, memory.mark.share(changes=True), ends=False)
        return 0

    @property
    def proposed(self) -> Mapping[str, NDArray[np.float32]]:
        """In a dense ring: what this node gives to the round, by tensor, float32 in their shapes, to be
        written between `receive` (or `allreduce_wait`) and `allreduce_begin`. TrainerError elsewhere.
        """
        return self._dense_rounds("proposed").proposed

    def allreduce_begin(self, name: str) -> None:
        """In a dense ring: the numbers of `proposed[name]` are whole, the daemon may send them around.

        Begin tensors as soon as they are whole and in the same order at all nodes, such as that in which
        back-propagation makes them.
        """
        dense = self._dense_rounds("allreduce_begin")
        if self._waiting.until_open():
            self._follow()
            dense.begin(name)

    def allreduce_wait(self) -> int:
        """In a dense ring: wait for the round that all tensors are begun in, and change the weights by the
        mean of all proposed changes; return how many nodes had a share in it.

        0 if `stopping` came first: the weights are as before. TrainerError, with nothing given, if a tensor
        is not begun: begin it and call this again.
        """
        dense = self._dense_rounds("allreduce_wait")
        if not dense.pending:
            if self._memory.stopping:  # what could not be begun any more is not missing
                return 0
            dense.refuse_to_wait()
        return self._follow() if self._waiting.until_open() else 0

    @property
    def contributors(self) -> int:
        """How many nodes had a share in the last round that is complete: as many have put into the result of
        the last `allreduce`. Fewer than there are nodes while some have no trainer.
        """
        return self._memory.contributors

    def array(self, *shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """In a dense ring: memory of this shape, `array(4, 3)` or `array((4, 3))`, for what `allreduce` is to
        sum, which it then need not copy; always the same, as long as the link.
        """
        sizes = (each if isinstance(each, tuple) else (each,) for each in shape)
        return self._dense_rounds("array").array(tuple(itertools.chain.from_iterable(sizes)))

    def allreduce(
        self,
        array: NDArray[np.float32] | np.float32,
        op: str = "mean",
        *,
        name: str = "array",
        out: NDArray[np.float32] | None = None,
        copy: bool = True,
    ) -> NDArray[np.float32]:
        """Sum ("sum") or average ("mean") an array over all nodes that give one, in a run in ring mode with a
        dense payload: each node calls this with an array of the same shape, and all get the same array,
        of `contributors` nodes: a new one,
        or `out`, contiguous and of that shape, perhaps `array` itself. `copy` False, for a sum of no more
        numbers than `array()` has room for: as it lies in the daemon's memory, read-only, and good until this
        link next gives something or for one patience, whichever ends first: this node may then be out of the
        ring, and later rounds are written there.

        Any float32 array; `name` is what the sentence calls it if shapes differ.
        """
        dense = self._dense_rounds("allreduce")
        whole = dense.check_array(array, op)
        result = None
        if not copy:
            dense.check_uncopied(whole, op, out)
        elif out is None:
            result = np.empty(whole.shape, np.float32)
        else:
            result = dense.check_out(out, whole.shape)
        if not self._waiting.until_open(grace_s=GRACE_S):
            raise TrainerError("allreduce is not done: the daemon asks this trainer to end")
        self._follow()
        return dense.allreduce(whole, op, str(name), result)

    @property
    def waited_s(self) -> float:
        """How long this link has waited for room in the daemon's outbox, and in ring mode for rounds to be
        opened.
        """
        return self._waiting.room_s + self._waiting.rounds_s

    @property
    def adding_s(self) -> float:
        """How long the daemon has added up shares since this trainer attached, in ring mode."""
        return self._memory.adding_us / 1e6

    @property
    def sending_s(self) -> float:
        """How long it has handed what goes around to the network, likewise."""
        return self._memory.sending_us / 1e6

    def _dense_rounds(self, call: str) -> DenseRounds:
        self._check_open()
        if self._dense is None:
            payload = f'in ring mode with payload = "{self.mode.payload}"' if self.mode.ring else "async"
            raise TrainerError(
                f'{call} needs a run in ring mode with payload = "dense": this one is {payload}'
            )
        self._client.check_daemon()
        return self._dense
