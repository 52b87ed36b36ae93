"""The mode of a run: how its nodes train together, as one word of its specification.

"async": no node waits for another. "owners": nor there, and each node adds up what all others contribute to
its own range of the weights. "owners-rounds": the same in rounds, all in step. "owners-rounds-ternary": what
nodes contribute there has three values in a tensor [TernGrad 2017]. "closure": no updates; nodes add up loss
and gradient over all data, exactly. A rule (wire/rule.py) may follow each of
them, such as "owners-adagrad(epsilon=1e-10, initial=0.0)". "ring-sparse", "ring-dense" and
"ring-dense-float16": in rounds around a ring; the last sends float16 and adds in float32. Another payload is
another word here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from p2psgd.wire.rule import SUM, Rule, parse_rule

PAYLOADS: Final = ("sparse", "dense", "dense-float16")  # of a ring
TERNARY: Final = "ternary"  # of owners in rounds
WORD_MAX: Final = 200  # characters: those of a rule with all settings, none of them a round number, are 160


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of training: `payload` is one of PAYLOADS in a ring, TERNARY or empty in rounds of owners, else
    empty; `owners`: ranges of the weights have owners, which follow `rule`; `rounds`: all nodes are in step,
    as they always are in a ring; `closure`: they evaluate loss and gradient over all data.

    `ring`: what nodes give goes around a ring. `dense`: there in rounds that sum float32 arrays: the weights
    are float32 numbers, not multiples of a quantum. `half`: sums travel as float16. `ternary`: contributions
    are. These four follow from the payload.
    """

    payload: str = ""
    owners: bool = False
    rule: Rule = SUM
    rounds: bool = False
    closure: bool = False
    ring: bool = field(init=False, repr=False, compare=False)
    dense: bool = field(init=False, repr=False, compare=False)
    half: bool = field(init=False, repr=False, compare=False)
    ternary: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ternary", self.payload == TERNARY)
        object.__setattr__(self, "ring", bool(self.payload) and not self.ternary)
        object.__setattr__(self, "rounds", self.rounds or self.ring)
        object.__setattr__(self, "dense", self.payload.startswith("dense"))
        object.__setattr__(self, "half", self.payload == "dense-float16")

    @property
    def word(self) -> str:
        """Return the mode as it stands in the run's specification."""
        if self.ring:
            return f"ring-{self.payload}"
        if not self.owners:
            return "closure" if self.closure else "async"
        words = ("owners", "rounds" * self.rounds, self.payload, "" if self.rule == SUM else self.rule.word)
        return "-".join(filter(None, words))

    @property
    def settled_s(self) -> float:
        """Return the seconds without an update after which no more comes of what was made before: without
        rounds an owner publishes what is left half a second, and a tick, after the last time. On a machine
        with seven processes for each processor 1.2 s were too short.
        """
        return 2.5 if self.owners and not self.rounds else 0.0

    def __str__(self) -> str:
        """Return the word, for people."""
        return self.word


ASYNC: Final = Mode()
CLOSURE: Final = Mode(closure=True)
OWNERS: Final = Mode(owners=True)
OWNERS_ROUNDS: Final = Mode(owners=True, rounds=True)
OWNERS_TERNARY: Final = Mode(TERNARY, owners=True, rounds=True)
_OWNERS: Final = (OWNERS_TERNARY, OWNERS_ROUNDS, OWNERS)  # each before those whose word begins its own
_MODES: Final = {mode.word: mode for mode in (ASYNC, *reversed(_OWNERS), *map(Mode, PAYLOADS), CLOSURE)}


def parse_mode(word: str) -> Mode:
    """Parse a mode from its word; ValueError with the words there are."""
    if (mode := _MODES.get(word)) is not None:
        return mode
    for mode in _OWNERS:
        rest = word.removeprefix(f"{mode.word}-")
        if rest not in ("", word):
            return with_rule(mode, parse_rule(rest))
    raise ValueError(f"mode {word!r:.100} is not known; the modes are {', '.join(_MODES)}")


def with_rule(mode: Mode, rule: Rule) -> Mode:
    """Return this mode of owners with a rule; ValueError if the two do not go together."""
    if mode.ternary and rule.name == "adagrad":
        raise ValueError(
            "rule adagrad does not go with payload ternary: it squares each contribution by itself, and there"
            " a tensor in full precision comes in several; take adamw, or leave the payload out"
        )
    if rule.name == "nesterov" and not mode.rounds:
        raise ValueError(
            "rule nesterov is for rounds, in which one step is made of what all nodes contribute: train in"
            " rounds (rounds=True, --rounds), or take the rule sum, adagrad or adamw"
        )
    return replace(mode, rule=rule)
