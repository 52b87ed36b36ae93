"""The size of the step by which a sent weight moves, and the rules that assign steps to tensors."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from p2psgd.wire.codec import STEP_MAX, indices_max

# ----------------------------------------------------------------------------
# Which tensors get their step by which rule of a recipe: a fixed tau, or a density to steer towards.
#
# `tau` or `density` is the rule for all tensors that the tables `tau_of` and `density_of` do not name. In a
# table a pattern is a tensor's name or has wildcards as in a shell (`*`, `?`, `[...]`), and of several that
# match a tensor the first counts. Every pattern is a rule of its own, so the tensors that it got are steered
# together. What a step then is at some learning rate belongs to StepSize.


Table = tuple[tuple[str, float], ...]  # (pattern, value) in the order of the file


@dataclass(frozen=True)
class StepRule:
    """Tensors that have their step in common, and exactly one of tau and density."""

    tensors: tuple[str, ...]
    tau: float | None = None
    density: float | None = None


def assign(
    names: list[str], *, tau: float | None, density: float | None, tau_of: Table, density_of: Table
) -> list[StepRule]:
    """Give every tensor its rule; a rule that no tensor is left for is not among those returned.

    Raises ValueError with a sentence if a pattern matches nothing or is never the first to match, or if a
    tensor is in both tables.
    """
    by_tau = _first_matches("tau_of", tau_of, names)
    by_density = _first_matches("density_of", density_of, names)
    for name in names:
        if name in by_tau and name in by_density:
            raise ValueError(
                f'{name} has both a tau (tau_of "{by_tau[name]}") and a density '
                f'(density_of "{by_density[name]}"): give it one'
            )
    left = tuple(name for name in names if name not in by_tau and name not in by_density)
    rules = [StepRule(left, tau=tau, density=density)] if left else []
    for pattern, value in tau_of:
        rules.append(StepRule(tuple(name for name in names if by_tau.get(name) == pattern), tau=value))
    for pattern, value in density_of:
        rules.append(
            StepRule(tuple(name for name in names if by_density.get(name) == pattern), density=value)
        )
    return rules


def _first_matches(key: str, table: Table, names: list[str]) -> dict[str, str]:
    """The pattern of this table that counts for each tensor that has one."""
    chosen: dict[str, str] = {}
    for pattern, _ in table:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(f'{key} "{pattern}" matches no tensor: there are {", ".join(names)}')
        fresh = [name for name in matches if name not in chosen]
        if not fresh:
            raise ValueError(
                f'{key} "{pattern}" has no effect: patterns before it match all its tensors '
                "and the first counts"
            )
        chosen |= dict.fromkeys(fresh, pattern)
    return chosen


# ----------------------------------------------------------------------------
# How large an update's steps are: from a fixed tau, or steered towards a density.
#
# tau is in units of the mean gradient of a mini-batch, so a weight moves by learning rate x tau, rounded to
# quanta [Strom 2015, section 3; there the gradient is summed]. As the learning rate falls the step falls
# with it, to no less than one quantum. With a target density instead, tau follows what was sent: more than
# the target raises it, less lowers it. The rule is a power law with a small exponent and a bounded factor,
# so one odd mini-batch moves tau little and no sequence of them makes it swing; it depends on the counts
# alone and is thus the same in every replay. No density is aimed at beyond half of what an update holds: one
# that is always full would have tau fall for ever.
#
# Tensors may follow rules of their own (StepRule); every rule has a tau and counts its own tensors only.


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
