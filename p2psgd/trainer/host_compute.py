"""Weights and residual in the host's memory, worked on by the native core: what a link has unless it is told
otherwise.

The working copy of the weights is private to this process; the residual lies in memory shared with the
daemon, and so outlives it. Received updates are applied many at a time, which passes over the weights once
for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc.answers import AttachAnswer
from p2psgd.ipc.proposal import count_weights, own_tensors
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.trainer.compute import NotePeer, cut
from p2psgd.trainer.received import batch_words_max, decode_batches
from p2psgd.trainer.sweep import Chain, Found, Group, Words, words_max
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode

ADDED_NUMBERS = 1 << 18  # of a dense round at a time: 1 MiB, so that the product stays in the cache
DIGEST_WEIGHTS = 1 << 16  # of a digest at a time, for which there are five arrays of as many
NO_COORDINATE = -(2**31)


class HostCompute:
    """A link's weights and residual; both are read-only to others."""

    def __init__(self, answer: AttachAnswer, memory: TrainerMemory[Any]) -> None:
        self._memory = memory
        self._quantum = 2.0**answer.quantum_log2
        self._dense = parse_mode(answer.mode).dense
        self._weights = np.empty(answer.weights, np.float32)
        tensors = own_tensors(answer.tensors)
        self.weights = _read_only(self._weights[: count_weights(tensors)])
        self.tensors = cut(self.weights, tensors)
        self._batch_words = np.empty(batch_words_max(answer.indices_max), np.uint32)
        self._words = np.empty(words_max(answer.indices_max, answer.tensors), np.uint32)

    @property
    def residual(self) -> NDArray[np.float32]:
        """(P,), as of the last publication."""
        return _read_only(self._memory.residual[: self.weights.size])

    def fetch(self, begin: int, end: int) -> NDArray[np.float32]:
        """These weights."""
        return _read_only(self._weights[begin:end])

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica."""
        coordinates = map_segment(replica, np.int32, self._weights.size, Access.SEALED)
        if self._dense:
            self._weights[:] = coordinates.view(np.float32)
            return
        np.multiply(coordinates, self._quantum, out=self._weights, casting="same_kind")

    def digest(self, key: int) -> int:
        """Of the weights' coordinates; about 5 ns each."""
        total = 0
        for begin in range(0, self._weights.size, DIGEST_WEIGHTS):
            piece = self._weights[begin : begin + DIGEST_WEIGHTS]
            coordinates = piece.view(np.int32) if self._dense else coordinates_of(piece, self._quantum)
            total += codec.digest_coordinates(coordinates, key, begin)
        return total % 2**64

    def check(self, delta: Any) -> NDArray[Any]:
        """The delta, contiguous."""
        if (
            not isinstance(delta, np.ndarray)
            or delta.dtype.name not in codec.DELTA_TYPES
            or not delta.dtype.isnative
            or delta.shape != self.weights.shape
        ):
            found = f"{delta.dtype} {delta.shape}" if isinstance(delta, np.ndarray) else type(delta).__name__
            raise TrainerError(
                f"delta must be a numpy array {self.weights.shape} of {', '.join(codec.DELTA_TYPES)};"
                f" it is {found}"
            )
        return np.ascontiguousarray(delta)

    def pass_over(
        self, delta: NDArray[Any], chains: Sequence[Chain], meanwhile: Callable[[], None]
    ) -> list[Found]:
        """The residual of the next publication, and what is to be sent; the host does not wait for it."""
        return pass_over(self._memory.residual, delta, self._memory.next_residual, chains, words=self._words)

    def apply_sent(self, sent: Sequence[tuple[Group, Words]]) -> None:
        """Apply what came of it."""
        for group, words in sent:
            codec.apply_weights(self._weights, words, group.step * self._quantum)

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies."""
        applied = 0
        for batch in decode_batches(bodies, self._weights.size, lambda: self._batch_words):
            codec.apply_weights_together(
                self._weights, [(words, header.step * self._quantum) for header, words in batch]
            )
            for header, _ in batch:
                note_peer(header.node, header.mini_batch)
            applied += len(batch)
        return applied

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round."""
        with np.errstate(all="ignore"):  # overflow is told by the next loss
            for begin in range(0, self._weights.size, ADDED_NUMBERS):
                piece = self._weights[begin : begin + ADDED_NUMBERS]
                piece += sums[begin : begin + piece.size] * factor

    def place_shares(self, shares: Mapping[str, NDArray[np.float32]]) -> Mapping[str, NDArray[np.float32]]:
        """They are written where the daemon reads them."""
        return shares

    def fetch_share(self, name: str) -> None:
        """It is there."""

    def fetch_delta(self, delta: NDArray[Any]) -> NDArray[Any]:
        """It is there."""
        return delta

    def rest(self) -> None:
        """Nothing is due."""

    def keep_residual(self) -> None:
        """Copy it."""
        self._memory.keep_residual(self._memory.residual)

    def close(self) -> None:
        """The residual is where the next trainer finds it."""


def coordinates_of(weights: NDArray[np.float32], quantum: float) -> NDArray[np.int32]:
    """weights / quantum, (n,) both; NO_COORDINATE for what is no multiple of it, bit for bit."""
    with np.errstate(all="ignore"):  # whatever a changed bit has made
        nearest = np.rint(weights * np.float32(1 / quantum))
        coordinates: NDArray[np.int32] = nearest.astype(np.int32)
    exact = coordinates.astype(np.float32)
    exact *= np.float32(quantum)
    wrong = exact.view(np.uint32) != weights.view(np.uint32)
    if wrong.any():
        coordinates[wrong] = NO_COORDINATE
    return coordinates


def pass_over(
    source: NDArray[np.float32],
    delta: NDArray[Any],
    target: NDArray[np.float32],
    chains: Sequence[Chain],
    *,
    words: Words,
) -> list[Found]:
    """target = source + delta less what is to be sent, all (P,), in the ranges of these chains.

    The words found lie in `words` (sweep.words_max(),). ValueError, with `target` undefined and all else
    unchanged, if a sum is NaN or infinite.
    """
    found = []
    for chain in chains:
        room = words[: chain.room]
        counts: list[int] = []
        used, first_missed = 0, None
        for begin, end in chain.ranges:
            count, missed = codec.residual_pass(
                source[begin:end],
                delta[begin:end],
                target[begin:end],
                room[used:],
                threshold=chain.threshold,
                first=begin,
            )
            counts.append(count)
            used += count
            if missed is not None and first_missed is None:
                first_missed = begin + missed
        found.append(Found(room[:used], counts, first_missed))
        words = words[used:]
    return found


def _read_only(array: NDArray[np.float32]) -> NDArray[np.float32]:
    view = array.view()
    view.flags.writeable = False
    return view
