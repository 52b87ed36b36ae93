"""The residual on the device: two halves, of which each send reads one and writes the other.

Which one is current follows from the last send that was published, as in shared memory
(ipc/ring_buffer.py): so here too a send that was interrupted has done all or nothing. Copies go to the
daemon's memory now and then, and the last one when the trainer leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.client.compute import PassResult, Segment, words_max
from p2psgd.gpu.kernels import Kernels
from p2psgd.gpu.memory import pinned_words
from p2psgd.gpu.pass_state import PassGroup
from p2psgd.ipc import layout
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.trainer_memory import TrainerMemory


class DeviceResidual:
    """Residual of one link, on the current device; `copy_s`: seconds after which a copy is due."""

    def __init__(
        self,
        answer: AttachAnswer,
        memory: TrainerMemory[Any],
        kernels: Kernels,
        *,
        copy_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ranges_max = len(answer.tensors) + 1  # the turn may cut one in two
        room = words_max(layout.send_indices_max(answer.coordinates), answer.tensors)
        self._memory = memory
        self._kernels = kernels
        self._copy_s, self._clock = copy_s, clock
        self._halves = [cupy.zeros(answer.weights, np.float32) for _ in range(2)]  # each aligned
        self._state = kernels.make_state(answer.weights, ranges_max)
        # Where both sides see them the kernel writes words to the host as it finds them.
        self._words, self._device_words = pinned_words(room) or (
            np.empty(room, np.uint32),
            cupy.empty(room, np.uint32),
        )
        self._apart = self._words.ctypes.data != self._device_words.data.ptr
        self.current.set(memory.take_out_residual())
        self._copied_s, self._copied = clock(), memory.steps

    @property
    def current(self) -> Any:
        """Return the residual (P,), as of the last publication."""
        return self._halves[self._memory.half]

    def pass_over(
        self, delta: Any, chains: Sequence[Segment], meanwhile: Callable[[], None]
    ) -> list[tuple[PassResult, Any]]:
        """Pass over all chains, and wait, after `meanwhile`, for what they found; with it the same words on
        the device.

        The words are the host's and the device's until the next call. ValueError if a sum is NaN or infinite.
        """
        groups = [PassGroup(chain.threshold, chain.ranges, chain.room) for chain in chains]
        source = self.current
        target = self._halves[1 - self._memory.half]
        self._state.make_clean()
        self._kernels.residual_pass(source, delta, target, self._device_words, self._state, groups)
        meanwhile()
        result = self._state.read()
        found = []
        begin = 0
        for chain, counts, missed in zip(chains, result.counts, result.missed, strict=True):
            end = begin + sum(counts)
            words = self._device_words[begin:end]
            if self._apart and len(words):
                words.get(out=self._words[begin:end])
            found.append((PassResult(self._words[begin:end], counts, missed), words))
            begin += chain.room
        return found

    def copy_if_due(self) -> None:
        """Copy the residual between two steps, if that is due."""
        due = self._clock() - self._copied_s >= self._copy_s
        if due and self._memory.steps != self._copied:
            self.copy()

    def copy(self) -> NDArray[np.float32]:
        """Copy it to where the next trainer gets it from; return that, (P,)."""
        copy = self._memory.copy_residual(lambda half: self.current.get(out=half))
        self._copied_s, self._copied = self._clock(), self._memory.steps
        return copy
