"""Which tensors get their step by which rule of a recipe: a fixed tau, or a density to steer towards.

`tau` or `density` is the rule for all tensors that the tables `tau_of` and `density_of` do not name. In a
table a pattern is a tensor's name or has wildcards as in a shell (`*`, `?`, `[...]`), and of several that
match a tensor the first counts. Every pattern is a rule of its own, so the tensors that it got are steered
together. What a step then is at some learning rate belongs to step_size.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

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
