"""Ternary contributions [TernGrad 2017]: of each tensor -s, 0 or +s, so that their mean is what was given.

A tensor's numbers are clipped at CLIP_SIGMAS times the root of their mean square, which is their standard
deviation where their mean is 0. Then s is the largest of them, rounded up to whole quanta, and a number x
becomes s * sign(x) with probability |x| / s, else 0. There is no residual: no number is kept back, and the
sum over nodes and rounds is right on average. The tensors of the last layer go in full precision, rounded up
or down to a whole quantum at random, with the same mean.

Nodes do not agree on s: owners add in integers whatever it is, and what they publish is as short for any s,
since it goes through the second residual. So each node has the s with the least variance for its own
gradient, and a round needs no exchange before it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.wire import codec
from p2psgd.wire.update import by_digits

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
    """Makes the contributions of one node; tensors share updates of the same magnitude."""

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
        if isinstance(full_precision, str):
            raise TrainerError(f"full_precision={full_precision!r:.100}: give a list of names")
        names = [name for name, _ in tensors]
        full = last_layer(tensors) if full_precision is None else frozenset(full_precision)
        if unknown := sorted(full - set(names)):
            known = ", ".join(map(repr, names[:20]))
            raise TrainerError(f"full_precision: there is no tensor {unknown[0]!r}; there are {known}")
        self._full = [name in full for name in names]
        sizes = [math.prod(shape) for _, shape in tensors]
        self._bounds = np.cumsum([0, *sizes]).tolist()
        self._quantum = np.float32(quantum)
        self._key = np.array([node, 0], np.uint64)
        self._clip_sigmas = clip_sigmas

    def run(self, delta: NDArray[Any], step: int) -> list[Update]:
        """Return updates for `delta` (P,), the one of step `step`; ValueError, with what to do, for numbers
        that cannot be sent.
        """
        updates: defaultdict[tuple[int, int], list[Words]] = defaultdict(list)
        for place, full in enumerate(self._full):
            begin, end = self._bounds[place : place + 2]
            with np.errstate(all="ignore"):  # looked at below
                quanta = delta[begin:end].astype(np.float32) / self._quantum
            if not np.isfinite(quanta).all():
                where = f"weights {begin} to {end - 1}"
                raise ValueError(f"NaN or infinity among {where}: look in the script for what makes it")
            if not full:
                bound = self._clip_sigmas * math.sqrt(np.mean(quanta**2, dtype=np.float64))
                np.clip(quanta, -bound, bound, out=quanta)
            largest = float(np.abs(quanta).max(initial=0))
            if largest > COPIES_MAX * codec.MAGNITUDE_MAX:
                most = COPIES_MAX * codec.MAGNITUDE_MAX * float(self._quantum)
                raise ValueError(
                    f"a number above {most:g} among weights {begin} to {end - 1}: lower the learning rate,"
                    " clip the gradients, or attach with a larger quantum"
                )
            if largest:
                chance = np.random.Generator(np.random.Philox(key=self._key, counter=[0, place, step, 0]))
                uniform = chance.random(len(quanta), np.float32)
                words = ((np.arange(begin, end) << 1) | (quanta < 0)).astype(np.uint32)
                make = _whole if full else _ternary
                copies: Counter[int] = Counter()
                for magnitude, chosen in make(words, np.abs(quanta), uniform):
                    updates[magnitude, copies[magnitude]].append(chosen)
                    copies[magnitude] += 1
        return [(magnitude, np.concatenate(words)) for (magnitude, _), words in updates.items()]


def _ternary(words: Words, sizes: NDArray[np.float32], uniform: NDArray[np.float32]) -> list[Update]:
    """Return weights that move by the largest size, each with the chance that its size is of it."""
    scale = math.ceil(float(sizes.max()))
    copies = -(-scale // codec.MAGNITUDE_MAX)
    magnitude = -(-scale // copies)
    chosen = words[uniform * np.float32(copies * magnitude) < sizes]
    return [(magnitude, chosen)] * (copies if len(chosen) else 0)


def _whole(words: Words, sizes: NDArray[np.float32], uniform: NDArray[np.float32]) -> list[Update]:
    """Return weights that move by their sizes, rounded up or down at random."""
    return by_digits(words, np.floor(sizes.astype(np.float64) + uniform).astype(np.int64))
