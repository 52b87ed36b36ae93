"""The mode of a run: how its nodes train together, as one word of its specification.

"async": no node waits for another. "owners": nor there, and each node adds up what all others contribute to
its own range of the weights. "owners-rounds": the same in rounds, all in step. A rule (wire/rule.py) may
follow both, such as "owners-adagrad(epsilon=1e-10, initial=0.0)". "ring-sparse", "ring-dense" and
"ring-dense-float16": in rounds around a ring; the last sends float16 and adds in float32. Another payload is
another word here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from p2psgd.wire.rule import SUM, Rule, parse_rule

PAYLOADS: Final = ("sparse", "dense", "dense-float16")
WORD_MAX: Final = 200  # characters: those of a rule with all settings, none of them a round number, are 160


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of training: `payload` is one of PAYLOADS in a ring, else empty; `owners`: ranges of the weights
    have owners, which follow `rule`; `rounds`: all nodes are in step, as they always are in a ring.

    `ring`: what nodes give goes around a ring. `dense`: there in rounds that sum float32 arrays: the weights
    are float32 numbers, not multiples of a quantum. `half`: sums travel as float16. These three follow from
    the payload.
    """

    payload: str = ""
    owners: bool = False
    rule: Rule = SUM
    rounds: bool = False
    ring: bool = field(init=False, repr=False, compare=False)
    dense: bool = field(init=False, repr=False, compare=False)
    half: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ring", bool(self.payload))
        object.__setattr__(self, "rounds", self.rounds or self.ring)
        object.__setattr__(self, "dense", self.payload.startswith("dense"))
        object.__setattr__(self, "half", self.payload == "dense-float16")

    @property
    def word(self) -> str:
        """Return the mode as it stands in the run's specification."""
        if self.ring:
            return f"ring-{self.payload}"
        if not self.owners:
            return "async"
        words = ("owners", "rounds" * self.rounds, "" if self.rule == SUM else self.rule.word)
        return "-".join(filter(None, words))


ASYNC: Final = Mode()
OWNERS: Final = Mode(owners=True)
OWNERS_ROUNDS: Final = Mode(owners=True, rounds=True)
_MODES: Final = {mode.word: mode for mode in (ASYNC, OWNERS, OWNERS_ROUNDS, *map(Mode, PAYLOADS))}


def parse_mode(word: str) -> Mode:
    """Parse a mode from its word; ValueError with the words there are."""
    mode = _MODES.get(word)
    rest = word.removeprefix("owners-")
    if mode is None and rest not in ("", word):
        rule = parse_rule(rest.removeprefix("rounds-"))
        return Mode(owners=True, rounds=rest.startswith("rounds-"), rule=rule)
    if mode is None:
        raise ValueError(f"mode {word!r:.100} is not known; the modes are {', '.join(_MODES)}")
    return mode
