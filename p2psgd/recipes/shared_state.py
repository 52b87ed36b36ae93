"""The state that a minimization goes on from after all nodes were stopped, agreed on by evaluations.

Nodes that were stopped have come to different iterations, and one may have lost its disk. So the first
evaluation of a run hands out how far the node is that computes it, and the next ones hand out its state: each
is one portion, and the first answer counts. The weights at the end are the same bits, by any answer; an
older state only costs iterations. A node that comes late replays these evaluations as all others.

Evaluations round to fixed point. A float64 survives as the two halves of its bits, which are whole numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.recipes.lbfgs import Vector

PATIENCE_S: Final = 2.0  # for which a node without a state leaves the answer to others
NUMBERS: Final = ("iterations", "evaluations", "loss", "step", "decrease")
VECTORS: Final = ("point", "gradient", "probe")
HISTORY: Final = ("s", "y")


def pack_rows(state: Mapping[str, Any], weights: int) -> Vector:
    """Return a state of L-BFGS as rows (R, P), filled up with zeros."""
    parts = [np.array([float(state[name]) for name in NUMBERS])]
    parts += [np.asarray(state[name], np.float64).reshape(-1) for name in (*VECTORS, *HISTORY)]
    numbers = np.concatenate([*parts, np.zeros(-len(NUMBERS) % weights)])
    return numbers.reshape(-1, weights)


def unpack_rows(rows: Vector) -> dict[str, Any]:
    """Return the state that `pack_rows` has made rows of."""
    weights = rows.shape[1]
    flat = rows.reshape(-1)[len(NUMBERS) :]
    pairs = (flat.size // weights - len(VECTORS)) // len(HISTORY)
    vectors = flat[: (len(VECTORS) + len(HISTORY) * pairs) * weights].reshape(-1, weights)
    state: dict[str, Any] = dict(zip(NUMBERS, map(float, rows.reshape(-1)), strict=False))
    state |= {name: int(state[name]) for name in ("iterations", "evaluations")}
    state |= dict(zip(VECTORS, vectors, strict=False))
    begin = len(VECTORS)
    return state | {"s": vectors[begin : begin + pairs], "y": vectors[begin + pairs :]}


def halves(numbers: Vector) -> tuple[Vector, Vector]:
    """Return the upper and the lower 32 bits of float64 numbers, as whole numbers."""
    bits = np.ascontiguousarray(numbers).view(np.uint64)
    return (bits >> np.uint64(32)).astype(np.float64), (bits & np.uint64(2**32 - 1)).astype(np.float64)


def join_halves(upper: Vector, lower: Vector) -> Vector:
    """Return the numbers that `halves` has cut."""
    bits = (upper.astype(np.uint64) << np.uint64(32)) | lower.astype(np.uint64)
    joined: NDArray[np.float64] = bits.view(np.float64)
    return joined


class SharedState:
    """The state of a run whose evaluations begin anew, as the nodes of it have kept it."""

    def __init__(self, link: Link, kept: Mapping[str, Any] | None, start: Vector) -> None:
        """`kept`: the state of L-BFGS that an earlier trainer here kept; `start`: the first point (P,)."""
        self._link = link
        self._start = start
        self._iterations = 0 if kept is None else int(kept["iterations"])
        self._rows = None if kept is None or not self._iterations else pack_rows(kept, start.size)
        self._answers_at = time.monotonic() + PATIENCE_S

    def fetch(self) -> dict[str, Any] | None:
        """Return the state that all nodes go on from; None if they begin at the start.

        Raises what `Link.evaluate` does.
        """
        iterations, sizes = self._link._evaluate(self._offer, self._start, 1, portions=1)
        if not iterations:
            return None
        rows = [self._fetch_row(row, int(iterations)) for row in range(int(sizes[0]))]
        return unpack_rows(np.array(rows))

    def _offer(self, _: Any, samples: range) -> tuple[float, Vector]:
        """Return how far this node was, and how many rows that are."""
        sizes = np.zeros(self._start.size)
        if self._rows is None:
            time.sleep(max(0.0, self._answers_at - time.monotonic()))
        else:
            sizes[0] = len(self._rows)
        return float(self._iterations), sizes

    def _fetch_row(self, row: int, iterations: int) -> Vector:
        found = []
        for half in (0, 1):

            def give(_: Any, samples: range, half: int = half) -> tuple[float, Vector]:
                if self._rows is None or iterations != self._iterations:
                    raise TrainerError(f"this node does not hold the state after iteration {iterations}")
                return 0.0, halves(self._rows[row])[half]

            found.append(self._link._evaluate(give, self._start, 1, portions=1)[1])
        return join_halves(*found)
