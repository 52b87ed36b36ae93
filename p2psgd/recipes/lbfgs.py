"""L-BFGS with the line search of line_search.py, float64 throughout.

The formulas are those of Nocedal and Wright, Numerical Optimization, 2nd edition [NW]. The method is a
function of what its evaluations give, to the bit: on unlike processors, too, as no sum is left to a library
that splits it by threads or by the width of registers. So all members of a run that evaluate together stay
together. What L-BFGS-B of SciPy has by default is the default here: the history, the line search with its
first step, how many evaluations it may take, and the two stopping rules.

It knows no data, no network and no files; `state` is all that it goes on from.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from p2psgd.recipes.line_search import LineSearch, Place

Vector = NDArray[np.float64]
Function = Callable[[Vector], tuple[float, Vector]]

SEARCH_EVALUATIONS_MAX: Final = 20  # of one line search
BLOCK: Final = 2**16  # numbers whose products are summed at a time
EPSILON: Final = float(np.finfo(np.float64).eps)


def dot(one: Vector, other: Vector) -> float:
    """Return the inner product of two vectors (P,), the same bits on every machine.

    Products are summed in pairs within fixed blocks, then block after block. BLAS cuts long vectors by its
    number of threads.
    """
    total = 0.0
    for begin in range(0, one.size, BLOCK):
        total += float(np.add.reduce(one[begin : begin + BLOCK] * other[begin : begin + BLOCK]))
    return total


class NoProgress(Exception):
    """No step along the direction makes the loss smaller: float64, or the sums, are not exact enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A difference of two points, s = x_{k+1} - x_k, and of their gradients, y = g_{k+1} - g_k, each (P,)."""

    s: Vector
    y: Vector
    rho: float  # 1 / (y . s)


class Lbfgs:
    """A minimization by L-BFGS, at one point.

    Attributes:
        point: Where it is, (P,).
        loss: The loss there.
        gradient: The gradient there, (P,).
        iterations: How many were made.
        evaluations: How many times the function was called.
        step: The length of the last step, in units of its direction; 0 before the first.
        decrease: How much the loss fell in it, relative to the larger of the two magnitudes and 1.
    """

    def __init__(self, function: Function, point: Vector, *, history: int = 10) -> None:
        """Evaluate the function at the start. `history`: how many pairs (s, y) are kept."""
        self._begin(function, history)
        self.point = np.array(point, np.float64)
        self.loss, self.gradient = self._evaluate(self.point)
        self._settle()

    def _begin(self, function: Function, history: int) -> None:
        self._function = function
        self._pairs: deque[Pair] = deque(maxlen=history)
        self._settled: tuple[Pair, ...] = ()  # the pairs at the end of the last iteration
        self.iterations = self.evaluations = self._evaluations_then = 0
        self._probe = self._probe_then = np.zeros(0)  # the point of the last evaluation
        self.step = self.decrease = 0.0

    @property
    def gradient_max(self) -> float:
        """Return the largest magnitude in the gradient."""
        return float(np.abs(self.gradient).max())

    @property
    def state(self) -> dict[str, Any]:
        """Return all that `resume` needs, as it was at the end of the last iteration: arrays, which nobody
        changes later, and numbers.
        """
        return {
            "point": self.point,
            "gradient": self.gradient,
            "probe": self._probe_then,
            "s": np.array([pair.s for pair in self._settled]).reshape(-1, self.point.size),
            "y": np.array([pair.y for pair in self._settled]).reshape(-1, self.point.size),
            "loss": self.loss,
            "step": self.step,
            "decrease": self.decrease,
            "iterations": self.iterations,
            "evaluations": self._evaluations_then,
        }

    @classmethod
    def resume(cls, function: Function, state: Mapping[str, Any], *, history: int = 10) -> Self:
        """Return the minimization that had this `state`; it goes on with the same bits.

        It evaluates the point that was evaluated last, and drops the result: what rounds the next one's may
        follow from that.
        """
        found = cls.__new__(cls)
        found._begin(function, history)
        for name in ("point", "gradient", "loss", "step", "decrease", "iterations", "evaluations"):
            setattr(found, name, state[name])
        for s, y in zip(state["s"], state["y"], strict=True):
            found._pairs.append(Pair(s, y, 1.0 / dot(y, s)))
        function(state["probe"])
        found._probe = state["probe"]
        found._settle()
        return found

    def _settle(self) -> None:
        self._settled, self._evaluations_then = tuple(self._pairs), self.evaluations
        self._probe_then = self._probe

    def iterate(self) -> None:
        """Make one iteration [NW, algorithm 7.5].

        If a line search along the quasi-Newton direction fails, the history is dropped and the gradient's own
        direction is tried. Raises NoProgress if that fails too; the point is then as before. What the
        function raises passes through.
        """
        try:
            place, direction = self._search(self._direction())
        except NoProgress:
            if not self._pairs:
                raise
            self._pairs.clear()
            place, direction = self._search(self._direction())
        self._move(place, direction)

    def _move(self, place: Place, direction: Vector) -> None:
        s = place.step * direction
        y = place.gradient - self.gradient
        curvature = dot(y, s)
        if curvature > EPSILON * dot(y, y):  # else the step was cut short where the function is concave
            self._pairs.append(Pair(s, y, 1.0 / curvature))
        scale = max(abs(self.loss), abs(place.loss), 1.0)
        self.decrease = (self.loss - place.loss) / scale
        self.point, self.loss, self.gradient = self.point + s, place.loss, place.gradient
        self.step = place.step
        self.iterations += 1
        self._settle()

    def _direction(self) -> Vector:
        """Return minus the inverse Hessian's approximation times the gradient: the two-loop recursion [NW,
        algorithm 7.4], with the first matrix gamma I of [NW 7.20].
        """
        q = self.gradient.copy()
        if not self._pairs:
            return -q
        alphas = []
        for pair in reversed(self._pairs):
            alpha = pair.rho * dot(pair.s, q)
            q -= alpha * pair.y
            alphas.append(alpha)
        last = self._pairs[-1]
        q *= 1.0 / (last.rho * dot(last.y, last.y))  # gamma = s . y / y . y
        for pair, alpha in zip(self._pairs, reversed(alphas), strict=True):
            beta = pair.rho * dot(pair.y, q)
            q += (alpha - beta) * pair.s
        return -q

    # -- the line search

    def _search(self, direction: Vector) -> tuple[Place, Vector]:
        """Return a step that meets the strong Wolfe conditions, and its direction.

        A quasi-Newton step is tried at its full length first, the very first step at length 1, and one
        after the history was dropped at length 1, or that of the gradient if it is shorter.
        """
        start = Place(0.0, self.loss, dot(self.gradient, direction), self.gradient)
        if not start.slope < 0.0:
            raise NoProgress
        step = 1.0
        if not self._pairs:
            unit = 1.0 / math.sqrt(-start.slope)
            step = min(1.0, unit) if self.iterations else unit
        search = LineSearch(start, step)
        for _ in range(SEARCH_EVALUATIONS_MAX):
            place = self._try(search.step, direction)
            if search.accepts(place):
                return place, direction
            if not search.advance(place):
                break
        if not search.best.loss < start.loss:
            raise NoProgress
        return search.best, direction  # as far as it went the loss has fallen

    def _try(self, step: float, direction: Vector) -> Place:
        loss, gradient = self._evaluate(self.point + step * direction)
        return Place(step, loss, dot(gradient, direction), gradient)

    def _evaluate(self, point: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        self._probe = point
        return self._function(point)
