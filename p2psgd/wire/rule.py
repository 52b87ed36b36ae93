"""The rule by which owners turn what nodes contribute into changes, as one word of a run's mode.

"sum": contributions are changes, and owners add them up. Of the others contributions are gradients, and each
owner keeps the state of an optimizer for its range: "adagrad" [Duchi 2011; DistBelief 2012], "adamw"
[Loshchilov and Hutter 2019], "nesterov" [Sutskever 2013; DiLoCo 2023], which is for rounds. Settings stand in
brackets, such as "adamw(beta2=0.95, weight_decay=0.1)".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_BELOW_1: Final = "from 0 to below 1"
_NORMAL: Final = "from 1e-37 to 1"  # what is much smaller is 0 in float32
_TO_1: Final = "from 0 to 1"
_RANGES: Final[Mapping[str, tuple[str, Callable[[float], bool]]]] = {  # of a setting: in words, and as a test
    "beta1": (_BELOW_1, lambda value: 0 <= value < 1),
    "beta2": (_BELOW_1, lambda value: 0 <= value < 1),
    "epsilon": (_NORMAL, lambda value: 1e-37 <= value <= 1),
    "initial": (_TO_1, lambda value: 0 <= value <= 1),
    "momentum": (_BELOW_1, lambda value: 0 <= value < 1),
    "weight_decay": (_TO_1, lambda value: 0 <= value <= 1),
}
RULES: Final[Mapping[str, Mapping[str, float]]] = {  # settings with their defaults: PyTorch's, and DiLoCo's
    "sum": {},
    "adagrad": {"epsilon": 1e-10, "initial": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9},
}
RATE_MAX: Final = 100.0  # learning rate of a gradient
_TEXT: Final = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9][0-9.eE+-]{0,30}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with all of its settings, in the order of RULES."""

    name: str = "sum"
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def gradients(self) -> bool:
        """Return whether contributions are gradients, with a learning rate each, and not changes."""
        return self.name != "sum"

    @property
    def word(self) -> str:
        """Return the rule as all nodes write it, with every setting."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings)
        return f"{self.name}({settings})" if settings else self.name


SUM: Final = Rule()


def parse_rule(text: str) -> Rule:
    """Parse a rule from its word, which may leave settings out; ValueError with what would do."""
    match = _TEXT.fullmatch(text)
    if match is None or match[1] not in RULES:
        known = ", ".join(RULES)
        raise ValueError(
            f"rule {text!r:.100} is not known: the rules are {known}, with settings as in 'adamw(beta2=0.95)'"
        )
    name, defaults = match[1], RULES[match[1]]
    given: dict[str, float] = {}
    for part in filter(str.strip, (match[2] or "").split(",")):
        key, equals, number = map(str.strip, part.partition("="))
        if not equals or key not in defaults or key in given:
            has = ", ".join(defaults) or "none"
            raise ValueError(
                f"rule {name}: {part.strip()!r:.60} is refused: give {has}, each once, as NAME=NUMBER"
            )
        given[key] = _number(name, key, number)
    return Rule(name, tuple({**defaults, **given}.items()))


def _number(rule: str, setting: str, text: str) -> float:
    words, fits = _RANGES[setting]
    try:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
    except ValueError:
        value = math.nan
    if not fits(value):
        raise ValueError(f"rule {rule}: {setting}={text:.40} is refused: it must be a number {words}")
    return value
