"""The state that a minimization goes on from after all nodes were stopped, agreed on by evaluations.

Nodes that were stopped have come to different iterations, and one may have lost its disk. So the first
evaluations of a run are offers: each hands out how far a node is. One that is further than the last offer
answers in its turn, the others only after a while, with what was offered before; when that is all that comes,
the offers are over, and the next evaluations hand the state out. If its last holder dies meanwhile, an answer
of a node that does not hold it says so, and all return to the offers.

Each of these is an evaluation of one portion, whose first answer counts, and all nodes get the same one: so
they take the same way here, those too that come late and replay it. What is offered are iterations and not
results: the weights at the end are the same bits from any state, and an older one only costs time.

Evaluations round to fixed point. A float64 survives as the two halves of its bits, which are whole numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.client.link import Link
from p2psgd.recipes.lbfgs import Vector

PATIENCE_S: Final = 2.0  # for which a node without a newer state leaves the answer to others,
PATIENCE_WEIGHTS: Final = 2**24  # and as long again for this many weights: they take time to answer
TURN_S: Final = 0.25  # from the answer of one node to that of the next, in which the first one is taken
POLL_S: Final = 0.1
ABSENT: Final = 1.0  # the loss of an answer without a state
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


@dataclass(frozen=True, slots=True)
class Offer:
    """A state by what nodes must know of it before it is handed out."""

    iterations: int = 0
    rows: int = 0


class SharedState:
    """The state of a run whose evaluations begin anew, as the nodes of it have kept it."""

    def __init__(self, link: Link, kept: Mapping[str, Any] | None, start: Vector) -> None:
        """`kept`: the state of L-BFGS that an earlier trainer here kept; `start`: the first point (P,)."""
        self._link = link
        self._start = start
        self._rows: Vector | None = None
        self.own = Offer()
        if kept is not None and int(kept["iterations"]):
            self._rows = pack_rows(kept, start.size)
            self.own = Offer(int(kept["iterations"]), len(self._rows))
        self._patience_s = PATIENCE_S * (1 + start.size / PATIENCE_WEIGHTS)
        self._answers_at: float | None = None  # in the present evaluation

    def fetch(self) -> dict[str, Any] | None:
        """Return the state that all nodes go on from; None if they begin at the start.

        Raises what `Link.evaluate` does, and SystemExit if the daemon wants this trainer to end.
        """
        while (newest := self._find_newest()).iterations:
            rows = self._fetch_rows(newest)
            if rows is not None:
                return unpack_rows(rows)
        return None

    def _evaluate(self, function: Callable[[], tuple[float, Vector]]) -> tuple[float, Vector]:
        self._answers_at = None
        return self._link._evaluate(lambda _, samples: function(), self._start, 1, portions=1)

    def _find_newest(self) -> Offer:
        """Return the last of offers that rise."""
        newest = Offer()
        while True:
            iterations, sizes = self._evaluate(lambda last=newest: self._offer(last))  # type: ignore[misc]
            if int(iterations) <= newest.iterations:
                return newest
            newest = Offer(int(iterations), int(sizes[0]))

    def _offer(self, last: Offer) -> tuple[float, Vector]:
        """Return what this node holds if that is newer than the last offer, else that one."""
        offer = self.own if self.own.iterations > last.iterations else last
        self._wait(self._patience_s if offer is last else self._turn_s())
        sizes = np.zeros(self._start.size)
        sizes[0] = offer.rows
        return float(offer.iterations), sizes

    def _fetch_rows(self, newest: Offer) -> Vector | None:
        """Return the rows of a state; None if nobody holds it any more."""
        rows = np.empty((newest.rows, self._start.size))
        for row in range(newest.rows):
            found = []
            for half in (0, 1):
                loss, numbers = self._evaluate(
                    lambda row=row, half=half: self._give(newest, row, half)  # type: ignore[misc]
                )
                if loss:
                    return None
                found.append(numbers)
            rows[row] = join_halves(*found)
        return rows

    def _give(self, newest: Offer, row: int, half: int) -> tuple[float, Vector]:
        """Return half of a row of that state; a node that does not hold it, that it is absent."""
        if self._rows is None or self.own != newest:
            self._wait(self._patience_s)
            return ABSENT, np.zeros(self._start.size)
        return 0.0, halves(self._rows[row])[half]

    def _turn_s(self) -> float:
        """Return for how long this node leaves the answer to others whose answer would be another: two at
        once would look as if the function were not deterministic.

        Turns go by the clock of the day, since nodes begin an evaluation at different times. Where clocks
        differ by more than a turn, two answers may still come at once, by chance.
        """
        place, size = self._link.view_rank()
        turn_s = min(TURN_S, PATIENCE_S / 2 / size)
        return (place * turn_s - time.time()) % (size * turn_s)

    def _wait(self, seconds: float) -> None:
        """Wait once in an evaluation, whose function is called again at other limits."""
        if self._answers_at is None:
            self._answers_at = time.monotonic() + seconds
        while (left_s := self._answers_at - time.monotonic()) > 0:
            if self._link.stopping:
                raise SystemExit(0)  # and no answer: it would be one of a node that holds nothing
            time.sleep(min(left_s, POLL_S))
