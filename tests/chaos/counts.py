"""Counts: weights beside the net's, by which a run's account is kept to the mini-batch.

Each mini-batch adds STEP quanta to one weight more. It belongs to the node and to this stretch of LENGTH of
its mini-batches, and nothing else ever changes it. So the replica says how many mini-batches of each stretch
count in it, and a trainer's notes how many there were. The counts lie in pieces between those of the net, so
that each owner has some. A node with more than STRETCHES stretches counts no further.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

PIECES: Final = 6  # of the net, and as many of the counts
NODES: Final = 16
STRETCHES: Final = 1024  # 85 minutes of a node that is never started again
LENGTH: Final = 50  # mini-batches, 5 s
STEP: Final = 400  # quanta of 2**-20
_NOTE: Final = re.compile(r"(begun|ended) (\d+)")

# How many mini-batches of a stretch may be under way at a quiet point: one that a trainer is just sending; in
# mode `owners` what an owner keeps below its threshold, or has lost with its life, too. Where owners follow a
# rule nothing counts.
UNDER_WAY_MAX: Final[Mapping[str, float]] = {"async": 1.0, "owners": 10.0, "owners-rounds": 10.0}

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a node's mini-batches: how many were given to `send`, and of how many that returned."""

    begun: int
    ended: int


def initial(net: Mapping[str, Vector]) -> dict[str, Vector]:
    """The tensors of a run that trains this net."""
    flat = np.concatenate([tensor.ravel() for tensor in net.values()])
    pieces = np.array_split(flat, PIECES)
    tensors: dict[str, Vector] = {}
    for number, piece in enumerate(pieces):
        tensors[f"net {number}"] = piece
        tensors[f"counts {number}"] = np.zeros(len(_split(np.arange(NODES * STRETCHES))[number]), np.float32)
    return tensors


def is_net(weights: int) -> NDArray[np.bool_]:
    """Which weights of a run, bool (weights,), are those of the net, in their order."""
    of_net = np.array_split(np.arange(weights - NODES * STRETCHES), PIECES)
    of_counts = _split(np.arange(NODES * STRETCHES))
    lengths = [len(piece) for pair in zip(of_net, of_counts, strict=True) for piece in pair]
    return np.repeat([True, False] * PIECES, lengths)


def places(weights: int) -> NDArray[np.int64]:
    """The weight of each node and stretch, (NODES, STRETCHES), in no order: no owner has all of one time."""
    found = np.flatnonzero(~is_net(weights))
    return np.random.default_rng(1).permutation(found).reshape(NODES, STRETCHES)


def counted(coordinates: NDArray[np.int32]) -> NDArray[np.float64]:
    """What each stretch of each node comes to in a replica, in mini-batches, (NODES, STRETCHES)."""
    return coordinates[places(len(coordinates))] / STEP


def _split(array: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.array_split(array, PIECES)


def read(notes: Iterable[str]) -> dict[int, Stretch]:
    """What a node's trainers have noted, by stretch; a kill may have torn the last line of each."""
    found = Counter((note[1], int(note[2])) for line in notes if (note := _NOTE.fullmatch(line)))
    stretches = {number for _, number in found}
    return {number: Stretch(found["begun", number], found["ended", number]) for number in sorted(stretches)}


@dataclass(frozen=True, slots=True)
class Sums:
    """The mini-batches of all nodes: begun, ended, and how many of these do not count in the replica, or of
    those too often; in mode `owners` before the end also what is under way.
    """

    begun: int = 0
    ended: int = 0
    missing: float = 0.0
    surplus: float = 0.0


def sums(noted: Mapping[int, Mapping[int, Stretch]], found: NDArray[np.float64]) -> Sums:
    """Add up all stretches: by node and number those noted, and what they come to (NODES, STRETCHES)."""
    pairs = [
        (stretch, float(found[node, number]))
        for node, stretches in noted.items()
        for number, stretch in stretches.items()
    ]
    return Sums(
        begun=sum(stretch.begun for stretch, _ in pairs),
        ended=sum(stretch.ended for stretch, _ in pairs),
        missing=sum(max(0.0, stretch.ended - count) for stretch, count in pairs),
        surplus=sum(max(0.0, count - stretch.begun) for stretch, count in pairs),
    )


def miscounted(
    noted: Mapping[int, Stretch], found: Mapping[int, float], *, under_way: float, lossy: bool
) -> list[str]:
    """Sentences on the stretches of one node that count for more or less in the replica than they may.

    `found`: what each comes to, in mini-batches. `under_way`: how many may miss or be too many for a while.
    `lossy`: a life of the node's daemon has lost what it had not passed on.
    """
    sentences = []
    for number, stretch in noted.items():
        least = 0 if lossy else stretch.ended - under_way
        if not least <= found[number] <= stretch.begun + under_way:
            words = f"{stretch.begun} mini-batches begun and {stretch.ended} ended in stretch {number}"
            sentences.append(f"{words} count {found[number]:g} times")
    return sentences
