"""A trainer's working copy of the weights: float32, private to its process, quantum * coordinate exactly.

Received updates are applied many at a time, which passes over the weights once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import PeerError, TrainerError
from p2psgd.ipc.answers import AttachAnswer
from p2psgd.ipc.proposal import Tensors
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.update import UpdateHeader, parse_update

BATCH_UPDATES_MAX = 64  # received updates applied at a time: more gain little
BATCH_WORDS_MAX = 2**20  # of all of them: 4 MB, so that they stay in the last cache until they are applied


ADDED_NUMBERS = 1 << 18  # of a dense round at a time: 1 MiB, so that the product stays in the cache


class WorkingCopy:
    """`weights` (P,) and `tensors`, views of it by name, are read-only; they change by the methods."""

    def __init__(self, answer: AttachAnswer) -> None:
        self.quantum = 2.0**answer.quantum_log2
        self._dense = parse_mode(answer.mode).dense
        self._weights = np.empty(answer.weights, dtype=np.float32)
        self.weights = self._weights.view()
        self.weights.flags.writeable = False
        self.tensors = _cut(self.weights, answer.tensors)
        words_max = max(answer.indices_max, min(BATCH_WORDS_MAX, BATCH_UPDATES_MAX * answer.indices_max))
        self._batch_words = np.empty(words_max, dtype=np.uint32)

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica, a sealed memfd of int32 (P,), which in a
        dense ring are the bit patterns of float32.
        """
        coordinates = map_segment(replica, np.int32, self._weights.size, Access.SEALED)
        if self._dense:
            self._weights[:] = coordinates.view(np.float32)
            return
        np.multiply(coordinates, self.quantum, out=self._weights, casting="same_kind")

    def apply(self, words: NDArray[np.uint32], step: int) -> None:
        """Apply one own update."""
        codec.apply_weights(self._weights, words, step * self.quantum)

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round: weights += sums * factor, each product and each sum rounded to float32."""
        with np.errstate(all="ignore"):  # overflow is told by the next loss
            for begin in range(0, self._weights.size, ADDED_NUMBERS):
                piece = self._weights[begin : begin + ADDED_NUMBERS]
                piece += sums[begin : begin + piece.size] * factor

    def apply_received(self, bodies: Iterable[bytes], note_peer: Callable[[int, int], None]) -> int:
        """Apply UPDATE bodies; return how many they were. `note_peer(node, mini_batch)` is told of each.

        TrainerError if one does not check.
        """
        applied = 0
        batch: list[tuple[UpdateHeader, NDArray[np.uint32]]] = []
        room = self._batch_words
        for body in bodies:
            try:
                header, payload = parse_update(body, self._weights.size)
                if header.count > room.size or len(batch) == BATCH_UPDATES_MAX:
                    applied += self._apply_batch(batch, note_peer)
                    batch, room = [], self._batch_words
                words, room = room[: header.count], room[header.count :]
                batch.append((header, codec.decode_into(payload, words, self._weights.size)))
            except PeerError as error:
                raise TrainerError(
                    f"the daemon's inbox holds an update that does not check: {error}"
                ) from None
        return applied + self._apply_batch(batch, note_peer)

    def _apply_batch(
        self, batch: list[tuple[UpdateHeader, NDArray[np.uint32]]], note_peer: Callable[[int, int], None]
    ) -> int:
        codec.apply_weights_together(
            self._weights, [(words, header.step * self.quantum) for header, words in batch]
        )
        for header, _ in batch:
            note_peer(header.node, header.mini_batch)
        return len(batch)


def _cut(weights: NDArray[np.float32], tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    views, start = {}, 0
    for name, shape in tensors:
        size = math.prod(shape)
        views[name] = weights[start : start + size].reshape(shape)
        start += size
    return views
