"""Where a link keeps the weights and the residual, and what works on them there: in the host's memory
(host_compute.py), or in a GPU's (p2psgd.gpu).

Links decide what happens when; whoever is behind this does it, and gives the same bits wherever that is.
Arrays of P numbers are of its own kind, numpy's or CuPy's; words are always numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.ipc.answers import AttachAnswer
from p2psgd.ipc.proposal import Tensors
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.trainer.sweep import Chain, Found, Group, Words

NotePeer = Callable[[int, int], None]  # node, mini-batch


class Compute(Protocol):
    """One link's. Not safe for several threads. P: as many weights as the model has; where shards are counted
    (shard_counts.py), the counts lie behind them.
    """

    @property
    def weights(self) -> Any:
        """(P,) float32, the working copy; for reading."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Views of the weights by name, in their shapes."""

    def fetch(self, begin: int, end: int) -> NDArray[np.float32]:
        """These of the weights, those that count shards among them, as numpy's; for reading, at once."""

    @property
    def residual(self) -> Any:
        """(P,) float32, as of the last publication; for reading."""

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica, a sealed memfd of int32 (P,), which in a
        dense ring are the bit patterns of float32.
        """

    def digest(self, key: int) -> int:
        """Of the weights' coordinates, as the daemon has it of its replica (wire/native/digest.hpp).

        A weight that is no multiple of the quantum counts as coordinate -2**31, which no replica has.
        """

    def check(self, delta: Any) -> Any:
        """The delta as `pass_over` takes it; TrainerError if it is no delta of P numbers."""

    def pass_over(self, delta: Any, chains: Sequence[Chain], meanwhile: Callable[[], None]) -> list[Found]:
        """Accumulate, threshold, subtract: the residual, and what is to be sent of it.

        The residual becomes current with the next publication; nothing else changes. Words are valid until
        the next call. ValueError if a sum is NaN or infinite. Where the host would only wait for it,
        `meanwhile` is called while it is under way.
        """

    def apply_sent(self, sent: Sequence[tuple[Group, Words]]) -> None:
        """Apply what came of the last `pass_over`."""

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies; return how many they were. `note_peer(node, mini_batch)` is told of each.

        TrainerError if one does not check.
        """

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round: weights += sums * factor, each product and each sum rounded to float32."""

    def place_shares(self, shares: Mapping[str, NDArray[np.float32]]) -> Mapping[str, Any]:
        """In a dense ring: arrays for a share to be written to, by tensor; `shares` is where the daemon reads
        it.
        """

    def fetch_share(self, name: str) -> None:
        """This tensor of the share is written: it must be where the daemon reads it."""

    def fetch_delta(self, delta: Any) -> NDArray[Any]:
        """A checked delta in the host's memory."""

    def rest(self) -> None:
        """Between two mini-batches: do what is due now and then, if it is."""

    def keep_residual(self) -> None:
        """Copy the residual to where the daemon looks for it when it is told of a state."""

    def close(self) -> None:
        """Leave the residual where the next trainer finds it; nothing is called after this."""


MakeCompute = Callable[[AttachAnswer, TrainerMemory[Any]], Compute]


def cut(weights: Any, tensors: Tensors) -> dict[str, Any]:
    """Views of a flat array (P,) by the tensors' names, in their shapes."""
    views, start = {}, 0
    for name, shape in tensors:
        size = math.prod(shape)
        views[name] = weights[start : start + size].reshape(shape)
        start += size
    return views
