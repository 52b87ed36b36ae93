"""The working copy of the weights on the device.

Received updates are decoded on the host, into one of two stages; each is copied to the device and applied
there on a stream of its own, so that copying goes on beside whatever the device computes. Applying waits for
what was ordered before it on the trainer's stream, which reads the weights, and what is ordered after waits
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, cycle
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.gpu.kernels import Kernels
from p2psgd.gpu.pinned import pinned_empty
from p2psgd.ipc.answers import AttachAnswer
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.trainer.compute import NotePeer, cut
from p2psgd.trainer.received import BATCH_UPDATES_MAX, Batch, batch_words_max, decode_batches
from p2psgd.trainer.sweep import Group
from p2psgd.wire.mode import parse_mode

HEAD_WORDS = 2 * BATCH_UPDATES_MAX + 4  # of a stage: offsets and amounts, a multiple of 16 bytes
PIECE_NUMBERS = 1 << 22  # of the replica, made float32 on the host at a time


class Stage:
    """Room for one batch of updates, here and there: offsets, amounts and words, copied together."""

    def __init__(self, words: int) -> None:
        self._host: NDArray[np.uint32] = pinned_empty(HEAD_WORDS + words, np.uint32)
        self._device = cupy.empty(HEAD_WORDS + words, np.uint32)
        self._free = cupy.cuda.Event(disable_timing=True)  # once it has come, the host may write again

    def take(self) -> NDArray[np.uint32]:
        """Where the words of a batch go, once the one before is on the device."""
        self._free.synchronize()
        return self._host[HEAD_WORDS:]

    def copy(self, counts: list[int], amounts: list[float], stream: Any) -> tuple[Any, Any, Any]:
        """Have so many words of each update copied; words, offsets and amounts as they will be there."""
        updates, words = len(counts), sum(counts)
        self._host[: updates + 1] = list(accumulate(counts, initial=0))
        begin = BATCH_UPDATES_MAX + 1
        self._host[begin : begin + updates].view(np.float32)[:] = amounts
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(
            self._device.data.ptr,
            self._host.ctypes.data,
            4 * (HEAD_WORDS + words),
            runtime.memcpyHostToDevice,
            stream.ptr,
        )
        self._free.record(stream)
        return (
            self._device[HEAD_WORDS : HEAD_WORDS + words],
            self._device[: updates + 1],
            self._device[begin : begin + updates].view(np.float32),
        )


class DeviceWorkingCopy:
    """`weights` (P,) and `tensors`, views of it by name, on the current device."""

    def __init__(self, answer: AttachAnswer, kernels: Kernels) -> None:
        self._kernels = kernels
        self._quantum = 2.0**answer.quantum_log2
        self._dense = parse_mode(answer.mode).dense
        self.weights = cupy.empty(answer.weights, np.float32)
        self.tensors = cut(self.weights, answer.tensors)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        stages = [] if self._dense else [Stage(batch_words_max(answer.indices_max)) for _ in range(2)]
        self._stages: Iterator[Stage] = cycle(stages)
        self._numbers = cupy.empty(answer.weights if self._dense else 0, np.float32)

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica, whatever was ordered before."""
        coordinates = map_segment(replica, np.int32, self.weights.size, Access.SEALED)
        cupy.cuda.Device().synchronize()
        for begin in range(0, self.weights.size, PIECE_NUMBERS):
            piece = coordinates[begin : begin + PIECE_NUMBERS]
            if self._dense:
                numbers = piece.view(np.float32)
            else:
                numbers = np.multiply(piece, self._quantum, dtype=np.float64).astype(np.float32)
            self.weights[begin : begin + piece.size].set(numbers)
        cupy.cuda.Device().synchronize()

    def apply_sent(self, sent: Iterable[tuple[Group, Any]]) -> None:
        """Apply own words that are on the device, or where it sees them."""
        for group, words in sent:
            offsets = cupy.asarray(np.array([0, len(words)], np.uint32))
            amounts = cupy.asarray(np.array([group.step * self._quantum], np.float32))
            self._kernels.apply(self.weights, words, offsets, amounts)

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies; nothing waits for the device but for a stage of two batches ago."""
        applied = 0
        stage: Stage

        def take_stage() -> NDArray[np.uint32]:
            nonlocal stage
            stage = next(self._stages)
            return stage.take()

        for batch in decode_batches(bodies, self.weights.size, take_stage):
            self._apply(batch, stage)
            for header, _ in batch:
                note_peer(header.node, header.mini_batch)
            applied += len(batch)
        return applied

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round; the sums may change afterwards."""
        self._numbers.set(sums[: self.weights.size])
        cupy.cuda.get_current_stream().synchronize()
        self._numbers *= factor
        self.weights += self._numbers

    def _apply(self, batch: Batch, stage: Stage) -> None:
        current, stream = cupy.cuda.get_current_stream(), self._stream
        counts = [header.count for header, _ in batch]
        words, offsets, amounts = stage.copy(counts, [h.step * self._quantum for h, _ in batch], stream)
        stream.wait_event(current.record())
        self._kernels.apply(self.weights, words, offsets, amounts, stream=stream)
        current.wait_event(stream.record())
