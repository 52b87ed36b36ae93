"""Evaluations: what the trainers of a run in mode `closure` note of each, and what must hold of the notes.

Each evaluation must give the same bits to all trainers, whichever nodes are there, in each life of theirs.
One that was started again runs from the first evaluation, and so notes the same results a second time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

BEGAN: Final = "began"  # the line of each life of a trainer
_NOTE: Final = re.compile(r"evaluated (\d+) ([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a node's trainers have noted: the digests of each evaluation's results, and the last evaluation of
    the one that was started last.
    """

    digests: Mapping[int, frozenset[str]]
    last: int


def note(number: int, loss: float, gradient: NDArray[np.float64]) -> str:
    """Return the line for an evaluation."""
    bits = np.float64(loss).tobytes() + gradient.tobytes()
    return f"evaluated {number} {hashlib.blake2b(bits, digest_size=8).hexdigest()}"


def read(notes: Iterable[str]) -> Evaluated:
    """Read all lines of a node; a kill may have torn the last one of each life."""
    digests: dict[int, frozenset[str]] = {}
    last = 0
    for line in notes:
        if line == BEGAN:
            last = 0
        elif found := _NOTE.fullmatch(line):
            last = int(found[1])
            digests[last] = digests.get(last, frozenset()) | {found[2]}
    return Evaluated(digests, last)


def differing(by_node: Mapping[str, Evaluated]) -> list[str]:
    """Return a sentence for each evaluation that gave two results, the first three of them."""
    everywhere: dict[int, dict[str, set[str]]] = {}
    for node, evaluated in by_node.items():
        for number, digests in evaluated.digests.items():
            for digest in digests:
                everywhere.setdefault(number, {}).setdefault(digest, set()).add(node)
    return [
        f"evaluation {number} gave "
        + " and ".join(f"{digest} on {', '.join(sorted(nodes))}" for digest, nodes in sorted(found.items()))
        for number, found in sorted(everywhere.items())
        if len(found) > 1
    ][:3]


def behind(by_node: Mapping[str, Evaluated], wanted: int) -> list[str]:
    """Return a sentence for each node whose trainer has not come as far."""
    return [
        f"the trainer of {node} has evaluated {evaluated.last} times, and not {wanted}"
        for node, evaluated in by_node.items()
        if evaluated.last < wanted
    ]
