"""How large an update's steps are: from a fixed tau, or steered towards a density.

tau is in units of the mean gradient of a mini-batch, so a weight moves by learning rate x tau, rounded to
quanta [Strom 2015, section 3; there the gradient is summed]. As the learning rate falls the step falls with
it, to no less than one quantum. With a target density instead, tau follows what was sent: more than the
target raises it, less lowers it. The rule is a power law with a small exponent and a bounded factor, so one
odd mini-batch moves tau little and no sequence of them makes it swing; it depends on the counts alone and is
thus the same in every replay. No density is aimed at beyond half of what an update holds: one that is always
full would have tau fall for ever.

Tensors may follow rules of their own (step_rules.py); every rule has a tau and counts its own tensors only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.step_rules import StepRule
from p2psgd.wire.codec import STEP_MAX, indices_max

TAU_START = (
    0.03  # mid-range for nets of a million weights; the controller leaves it within tens of mini-batches
)
EXPONENT = 0.05  # twice the target count raises tau by 3.5 %; with 0.2 the counts swung tenfold
FACTOR_MAX = 1.1  # per mini-batch, either way
TAU_MIN, TAU_MAX = 1e-9, 1e6


class StepSize:
    """The step in quanta for each mini-batch of one trainer, for the tensors of one rule. `density`: the part
    of their weights that is aimed at; None: tau is fixed.
    """

    def __init__(self, rule: StepRule, weights: int, quantum: float, *, of: int) -> None:
        """`weights`: how many the rule's tensors hold together; `of`: all tensors."""
        self._quantum = quantum
        half = indices_max(of) / 2 / of
        self.density = None if rule.density is None else min(rule.density, half)
        least = min(1.0, max(0.5, half * weights))  # where one index is all there is room for, less than that
        self._target = None if self.density is None else max(least, self.density * weights)
        self._tau = TAU_START if rule.tau is None else rule.tau

    @property
    def tau(self) -> float:
        """The threshold in units of the mean gradient."""
        return self._tau

    def restore(self, tau: float) -> None:
        """Go on from an earlier life's threshold; a fixed one stays as the rule says."""
        if self._target is not None:
            self._tau = min(TAU_MAX, max(TAU_MIN, tau))

    def step(self, learning_rate: float) -> int:
        """Quanta that a weight moves by at this learning rate, 1 to STEP_MAX."""
        return min(STEP_MAX, max(1, round(learning_rate * self._tau / self._quantum)))

    def sent(self, count: int) -> None:
        """Learn how many indices of the rule's tensors the last mini-batch sent."""
        if self._target is None:
            return
        factor = ((count + 1) / (self._target + 1)) ** EXPONENT
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, factor))
        self._tau = min(TAU_MAX, max(TAU_MIN, self._tau * factor))


class StepSizes:
    """The steps of all tensors of one trainer, rule by rule."""

    def __init__(self, recipe: Recipe, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
        """`tensors`: name and shape of each, as the recipe's net has them."""
        sizes = {name: math.prod(shape) for name, shape in tensors}
        of = sum(sizes.values())
        self._rules = [
            (rule, StepSize(rule, sum(sizes[name] for name in rule.tensors), recipe.quantum, of=of))
            for rule in recipe.step_rules
        ]

    @property
    def taus(self) -> list[float]:
        """The thresholds, one for each rule, in units of the mean gradient."""
        return [size.tau for _, size in self._rules]

    def restore(self, taus: Sequence[float]) -> None:
        """Go on from what `taus` was in an earlier life."""
        for (_, size), tau in zip(self._rules, taus, strict=True):
            size.restore(tau)

    def step(self, learning_rate: float) -> int | dict[str, int]:
        """What a link's send() takes: one step if all tensors have the same, else each tensor's by name."""
        steps = [(rule, size.step(learning_rate)) for rule, size in self._rules]
        if len({step for _, step in steps}) == 1:
            return steps[0][1]
        return {name: step for rule, step in steps for name in rule.tensors}

    def sent(self, counts: Mapping[str, int]) -> None:
        """Learn how many indices of each tensor the last mini-batch sent."""
        for rule, size in self._rules:
            size.sent(sum(counts[name] for name in rule.tensors))
