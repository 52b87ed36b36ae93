"""Ternary contributions [TernGrad 2017]: of each tensor -s, 0 or +s, so that their mean is what was given.

A tensor's numbers are clipped at CLIP_SIGMAS standard deviations. Then s is the largest of them, rounded up
to whole quanta, and a number x becomes s * sign(x) with probability |x| / s, else 0. There is no residual: no
number is kept back, and the sum over nodes and rounds is right on average. The tensors of the last layer go
in full precision, rounded up or down to a whole quantum at random, with the same mean.

Nodes do not agree on s: owners add in integers whatever it is, and what they publish is as short for any s,
since it goes through the second residual. So each node has the s with the least variance for its own
gradient, and a round needs no exchange before it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.wire import codec

CLIP_SIGMAS: Final = 2.5  # [TernGrad 2017, section 5]: held for all of their nets
COPIES_MAX: Final = 16  # of one update, where s is more than an update's magnitude can be

Words = NDArray[np.uint32]
Update = tuple[int, Words]  # a magnitude in quanta, and words


def last_layer(tensors: Tensors) -> frozenset[str]:
    """Return the names of the last tensor of two or more dimensions, and of those after it, such as its
    bias; of a model of vectors alone, of the last one.
    """
    layers = [place for place, (_, shape) in enumerate(tensors) if len(shape) > 1]
    begin = layers[-1] if layers else len(tensors) - 1
    return frozenset(name for name, _ in tensors[begin:])


class TernaryPass:
    """Makes the contributions of one node."""

    def __init__(
        self,
        tensors: Tensors,
        *,
        quantum: float,
        node: int,
        full_precision: Collection[str] | None = None,
        clip_sigmas: float = CLIP_SIGMAS,
    ) -> None:
        """`node`: random numbers follow from this number, the step and the tensor alone. `full_precision`:
        names of tensors; None: those of the last layer.

        TrainerError for a name that no tensor has.
        """
        names = [name for name, _ in tensors]
        full = last_layer(tensors) if full_precision is None else frozenset(full_precision)
        if unknown := sorted(full - set(names)):
            known = ", ".join(map(repr, names[:20]))
            raise TrainerError(f"full_precision: there is no tensor {unknown[0]!r}; there are {known}")
        self._full = [name in full for name in names]
        sizes = [math.prod(shape) for _, shape in tensors]
        self._bounds = np.cumsum([0, *sizes]).tolist()
        self._quantum = np.float32(quantum)
        self._node = node
        self._clip_sigmas = clip_sigmas

    def run(self, delta: NDArray[Any], step: int) -> list[Update]:
        """Return updates for `delta` (P,), the one of step `step`; ValueError for NaN and infinity."""
        updates: list[Update] = []
        for place, full in enumerate(self._full):
            begin, end = self._bounds[place : place + 2]
            with np.errstate(all="ignore"):  # looked at below
                quanta = delta[begin:end].astype(np.float32) / self._quantum
            largest = float(np.abs(quanta).max(initial=0))
            if not math.isfinite(largest):
                raise ValueError(f"NaN or infinity among weights {begin} to {end - 1}")
            if largest > COPIES_MAX * codec.MAGNITUDE_MAX:
                most = COPIES_MAX * codec.MAGNITUDE_MAX * float(self._quantum)
                raise ValueError(f"a number above {most:g} among weights {begin} to {end - 1}")
            if largest:
                chance = np.random.Generator(
                    np.random.Philox(key=[self._node, 0], counter=[0, place, step, 0])
                )
                uniform = chance.random(len(quanta), np.float32)
                updates += _digits(quanta, uniform, begin) if full else self._ternary(quanta, uniform, begin)
        return updates

    def _ternary(self, quanta: NDArray[np.float32], uniform: NDArray[np.float32], first: int) -> list[Update]:
        sizes = np.abs(quanta)
        bound = self._clip_sigmas * float(quanta.std(dtype=np.float64))
        largest = min(bound, float(sizes.max())) or float(sizes.max())  # all numbers equal: none is clipped
        scale = math.ceil(largest)
        copies = -(-scale // codec.MAGNITUDE_MAX)
        magnitude = -(-scale // copies)
        chosen = np.flatnonzero(
            uniform * np.float32(copies * magnitude) < np.minimum(sizes, np.float32(largest))
        )
        if not len(chosen):
            return []
        negative = quanta[chosen] < 0
        words = ((chosen + first) << 1 | negative).astype(np.uint32)
        return [(magnitude, words)] * copies


def _digits(quanta: NDArray[np.float32], uniform: NDArray[np.float32], first: int) -> list[Update]:
    """Return an update for each binary digit of numbers rounded up or down at random."""
    whole = np.floor(quanta.astype(np.float64) + uniform).astype(np.int64)
    left, words = np.abs(whole), ((np.arange(len(whole)) + first) << 1 | (whole < 0)).astype(np.uint32)
    updates: list[Update] = []
    magnitude = codec.MAGNITUDE_MAX
    while magnitude:
        chosen = np.flatnonzero(left >= magnitude)
        if len(chosen):
            left[chosen] -= magnitude
            updates.append((magnitude, words[chosen]))
        else:
            magnitude //= 2
    return updates
