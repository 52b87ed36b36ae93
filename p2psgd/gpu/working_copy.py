"""The working copy of the weights on the device.

Received updates are decoded on the host, into one of two stages; each is copied to the device and applied
there on a stream of its own, so that copying goes on beside whatever the device computes. Applying waits for
what was ordered before it on the trainer's stream, which reads the weights, and what is ordered after waits
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, cycle
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from p2psgd.client.compute import (
    BATCH_UPDATES_MAX,
    Batch,
    Group,
    NotePeer,
    batch_words_max,
    cut,
    decode_batches,
)
from p2psgd.gpu.kernels import Kernels
from p2psgd.gpu.memory import copy_in, pinned_empty
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.wire import codec
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
        """Return where the words of a batch go, once the one before is on the device."""
        self._free.synchronize()
        return self._host[HEAD_WORDS:]

    def copy(self, counts: list[int], amounts: list[float], stream: Any) -> tuple[Any, Any, Any]:
        """Have `counts[i]` words of update i copied; return words, offsets and amounts as they will be on the
        device.
        """
        updates, words = len(counts), sum(counts)
        self._host[: updates + 1] = list(accumulate(counts, initial=0))
        begin = BATCH_UPDATES_MAX + 1
        self._host[begin : begin + updates].view(np.float32)[:] = amounts
        copy_in(self._device, self._host, HEAD_WORDS + words, stream)
        self._free.record(stream)
        return (
            self._device[HEAD_WORDS : HEAD_WORDS + words],
            self._device[: updates + 1],
            self._device[begin : begin + updates].view(np.float32),
        )


class DeviceWorkingCopy:
    """`weights` (P,) and `tensors`, views of it by name, on the current device, where the shard counts lie
    behind them.
    """

    def __init__(self, answer: AttachAnswer, kernels: Kernels) -> None:
        self._kernels = kernels
        self._quantum_log2, self._quantum = answer.quantum_log2, 2.0**answer.quantum_log2
        self._dense = parse_mode(answer.mode).dense
        self._replica = cupy.empty(answer.coordinates, np.float32)  # weights, then shard counts
        self.weights = self._replica[: answer.weights]
        self.tensors = cut(self.weights, answer.tensors)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        stages = (
            []
            if self._dense
            else [Stage(batch_words_max(codec.indices_max(answer.coordinates))) for _ in range(2)]
        )
        self._stages: Iterator[Stage] = cycle(stages)
        groups_max = len(answer.tensors)
        self._heads: NDArray[np.uint32] = pinned_empty(3 * groups_max, np.uint32)  # of own updates: two
        self._device_heads = cupy.empty(3 * groups_max, np.uint32)  # offsets and an amount each
        self._numbers = cupy.empty(answer.weights if self._dense else 0, np.float32)

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica, whatever was ordered before."""
        coordinates = map_segment(replica, np.int32, self._replica.size, Access.SEALED)
        cupy.cuda.Device().synchronize()
        for begin in range(0, self._replica.size, PIECE_NUMBERS):
            piece = coordinates[begin : begin + PIECE_NUMBERS]
            if self._dense:
                numbers = piece.view(np.float32)
            else:
                numbers = np.multiply(piece, self._quantum, dtype=np.float64).astype(np.float32)
            self._replica[begin : begin + piece.size].set(numbers)
        cupy.cuda.Device().synchronize()

    def fetch_shard_counts(self) -> NDArray[np.float32]:
        """Return a copy on the host."""
        counts: NDArray[np.float32] = self._replica[self.weights.size :].get()
        return counts

    def digest(self, key: int) -> int:
        """Return the digest of the weights after all ordered work; waits for it."""
        quantum_log2 = None if self._dense else self._quantum_log2
        return self._kernels.digest(self._replica, quantum_log2=quantum_log2, key=key)

    def apply_sent(self, sent: Sequence[tuple[Group, Any]]) -> None:
        """Apply own words that are on the device, or where the device sees them.

        The device has been waited for since this was called last, as it is before every publication.
        """
        heads = self._heads[: 3 * len(sent)].reshape(-1, 3)
        heads[:, 0], heads[:, 1] = 0, [len(words) for _, words in sent]
        heads.view(np.float32)[:, 2] = [group.magnitude * self._quantum for group, _ in sent]
        copy_in(self._device_heads, self._heads, heads.size, cupy.cuda.get_current_stream())
        for begin, (_, words) in zip(range(0, heads.size, 3), sent, strict=True):
            offsets = self._device_heads[begin : begin + 2]
            amounts = self._device_heads[begin + 2 : begin + 3].view(np.float32)
            self._kernels.apply(self._replica, words, offsets, amounts)

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies; nothing waits for the device but for a stage of two batches ago."""
        applied = 0
        stage: Stage

        def take_stage() -> NDArray[np.uint32]:
            nonlocal stage
            stage = next(self._stages)
            return stage.take()

        for batch in decode_batches(bodies, self._replica.size, take_stage):
            self._apply(batch, stage)
            for header, _ in batch:
                note_peer(header.node, header.steps)
            applied += len(batch)
        return applied

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round; the sums may change afterwards."""
        self._numbers.set(sums[: self._replica.size])
        cupy.cuda.get_current_stream().synchronize()
        self._kernels.add_scaled(self._replica, self._numbers, float(factor))

    def _apply(self, batch: Batch, stage: Stage) -> None:
        current, stream = cupy.cuda.get_current_stream(), self._stream
        counts = [header.count for header, _ in batch]
        words, offsets, amounts = stage.copy(counts, [h.magnitude * self._quantum for h, _ in batch], stream)
        stream.wait_event(current.record())
        self._kernels.apply(self._replica, words, offsets, amounts, stream=stream)
        current.wait_event(stream.record())
