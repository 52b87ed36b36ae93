"""The line search of Moré and Thuente for the strong Wolfe conditions, as SciPy's L-BFGS-B has it.

[MT] is Line search algorithms with guaranteed sufficient decrease, ACM TOMS 20 (1994). The constants and the
order of the sums are those of MINPACK-2, where L-BFGS-B has them from: another search, or other constants,
makes other steps within some ten iterations, and on a net ends in another minimum. It evaluates nothing:
`step` is what to try next, and `advance` gets what was found there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

DECREASE: Final = 1e-3  # of the strong Wolfe conditions: mu, and eta [MT 1.1, 1.2], as in L-BFGS-B
CURVATURE: Final = 0.9
WIDTH_MIN: Final = 0.1  # of a bracket, relative to its end: then its best step is good enough
STEP_MAX: Final = 1e10
SHRINK: Final = 0.66  # of the bracket, at least, in two trials
GROWTH: Final = (1.1, 4.0)  # of the way from the best step to a trial that is too short: at least, at most


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A trial step of a line search: its length, the loss there, the slope along the direction, and the
    gradient (P,).
    """

    step: float
    loss: float
    slope: float
    gradient: NDArray[np.float64]


class LineSearch:
    """A search along one direction finds a step that meets the strong Wolfe conditions.

    Attributes:
        step: The step to try next.
        best: The place of the lowest loss so far; of step 0 if none is lower.
    """

    def __init__(self, start: Place, step: float) -> None:
        self.best = start
        self.step = step
        self._start = self._end = start
        self._tilt = DECREASE * start.slope  # of the line under which the loss must fall
        self._bracketed, self._first_stage = False, True
        self._widths = STEP_MAX, 2 * STEP_MAX  # of the bracket, now and a trial before
        self._bounds = 0.0, step + GROWTH[1] * step

    def accepts(self, place: Place) -> bool:
        """Return whether the strong Wolfe conditions are met there."""
        return not self._is_too_high(place) and abs(place.slope) <= CURVATURE * -self._start.slope

    def advance(self, place: Place) -> bool:
        """Choose the next step; False if there is none that is worth a trial."""
        if not (math.isfinite(place.loss) and math.isfinite(place.slope)):
            self.step = self.best.step + 0.5 * (place.step - self.best.step)
            return True
        if self._first_stage and not self._is_too_high(place) and place.slope >= 0.0:
            self._first_stage = False
        best, end = self.best, self._end
        if self._first_stage and place.loss <= best.loss and self._is_too_high(place):
            tilted = [self._tilted(each) for each in (best, end, place)]
        else:
            tilted = [best, end, place]
        step, rises, turns = trial(*tilted, bracketed=self._bracketed, bounds=self._bounds)
        if rises:
            self._end = place
        else:
            self.best, self._end = place, best if turns else end
        self._bracketed |= rises or turns
        return self._keep_within(step)

    def _keep_within(self, step: float) -> bool:
        best, end = self.best.step, self._end.step
        if not self._bracketed:
            self._bounds = step + GROWTH[0] * (step - best), step + GROWTH[1] * (step - best)
            self.step = min(max(step, 0.0), STEP_MAX)
            return best < STEP_MAX
        width = abs(end - best)
        if width >= SHRINK * self._widths[1]:
            step = best + 0.5 * (end - best)
        self._widths = width, self._widths[0]
        self._bounds = least, most = min(best, end), max(best, end)
        self.step = step
        return least < step < most and width > WIDTH_MIN * most

    def _is_too_high(self, place: Place) -> bool:
        return not place.loss <= self._start.loss + place.step * self._tilt

    def _tilted(self, place: Place) -> Place:
        """Return a place of the function that is the loss less the line: psi of [MT 2.1]."""
        return replace(place, loss=place.loss - place.step * self._tilt, slope=place.slope - self._tilt)


def trial(
    best: Place, end: Place, place: Place, *, bracketed: bool, bounds: tuple[float, float]
) -> tuple[float, bool, bool]:
    """Return the next step by the four cases of [MT, section 4]; whether the loss is higher at `place` than
    at the best; and whether the slope has turned there. `end` is the other end of a bracket.
    """
    away = best.step - place.step
    turns = place.slope * best.slope < 0.0
    far = bounds[1] if place.step > best.step else bounds[0]
    if place.loss > best.loss:
        cubic = best.step - cubic_share(best, place) * away
        chord = (best.loss - place.loss) / (place.step - best.step)
        quadratic = best.step + best.slope / (chord + best.slope) / 2.0 * (place.step - best.step)
        near = abs(cubic - best.step) <= abs(quadratic - best.step)
        return (cubic if near else cubic + (quadratic - cubic) / 2.0), True, False
    if turns:
        cubic = place.step + cubic_share(place, best) * away
        secant = place.step + place.slope / (place.slope - best.slope) * away
        return max(cubic, secant, key=lambda step: abs(step - place.step)), False, True
    if abs(place.slope) < abs(best.slope):
        share = cubic_share(place, best)
        cubic = place.step + share * away if share < 0.0 else far
        secant = place.step + place.slope / (place.slope - best.slope) * away
        if not bracketed:
            step = max(secant, cubic, key=lambda step: abs(step - place.step))
            return min(max(step, bounds[0]), bounds[1]), False, False
        step = min(secant, cubic, key=lambda step: abs(step - place.step))
        limit = place.step + SHRINK * (end.step - place.step)
        return (min if place.step > best.step else max)(limit, step), False, False
    if bracketed:
        return place.step + cubic_share(place, end) * (end.step - place.step), False, False
    return far, False, False


def cubic_share(one: Place, other: Place) -> float:
    """Return where the cubic through two places has its minimum: the share of the way from `one` to `other`;
    infinite if there is none.
    """
    theta = 3.0 * (one.loss - other.loss) / (other.step - one.step) + one.slope + other.slope
    scale = max(abs(theta), abs(one.slope), abs(other.slope))
    root = (theta / scale) ** 2 - (one.slope / scale) * (other.slope / scale) if scale else 0.0
    gamma = scale * math.sqrt(max(0.0, root))
    if other.step < one.step:
        gamma = -gamma
    below = gamma - one.slope + gamma + other.slope
    return (gamma - one.slope + theta) / below if gamma and below else math.inf
