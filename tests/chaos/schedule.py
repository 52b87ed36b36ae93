"""What goes wrong in each round, drawn from a seed. Pure: the same seed gives the same rounds.

A round lasts ROUND_S, then all is healed and the replicas are compared. Kinds are dealt from a shuffled deck,
so that each occurs before the deck is dealt again: also a short run sees them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tests.chaos.faults import (
    CleanStop,
    Cut,
    Fault,
    FlippedBit,
    FullDisk,
    KilledDaemon,
    KilledTrainer,
    PowerCut,
    SlowCable,
    Stopped,
)

ROUND_S: Final = 20.0
FAULTS: Final = (6, 10)  # of a round, least and most
LASTS_S: Final = (0.5, 20.0)
BACK_AFTER_S_MAX: Final = 10.0
POWER_CUT_EVERY_ROUNDS: Final = 6  # two minutes, without the quiet points in between
DECK: Final = (
    *("kill", "kill", "kill", "trainer", "trainer", "pause", "pause"),
    *("stop", "cut", "cut", "one way", "slow", "full", "flip"),
)

SPARED: Final = frozenset({"kill", "flip"})  # with power cuts: what loses what only one daemon has

Round = tuple[Fault, ...]


def draw_rounds(seed: int, nodes: int, *, spare: bool = False) -> Iterator[Round]:
    """The faults of one round after the other, without an end, each sorted by time; nodes >= 2. `spare`: no
    daemon loses its memory.
    """
    cards = [card for card in DECK if not (spare and card in SPARED)]
    chance = Random(f"{seed} chaos")
    deck: list[str] = []
    number = 0
    while True:
        faults: list[Fault] = []
        for _ in range(chance.randint(*FAULTS)):
            if not deck:
                deck = chance.sample(cards, len(cards))
            faults.append(_draw(chance, deck.pop(), nodes))
        if number % POWER_CUT_EVERY_ROUNDS == 1 and not spare:
            at = round(chance.uniform(0.5, 0.5 * ROUND_S), 2)
            back = tuple(round(chance.uniform(0.0, BACK_AFTER_S_MAX), 2) for _ in range(nodes))
            faults.append(PowerCut(at, back))
        yield tuple(sorted(faults, key=lambda fault: fault.at))
        number += 1


def _draw(chance: Random, card: str, nodes: int) -> Fault:
    at = round(chance.uniform(0.5, 0.8 * ROUND_S), 2)
    a, b = chance.sample(range(nodes), 2)
    shortest, longest = LASTS_S
    lasts_s = shortest + (longest - shortest) * chance.random() ** 2  # most are short
    for_s = round(min(lasts_s, ROUND_S - at), 2)
    back_after_s = round(chance.uniform(0.0, BACK_AFTER_S_MAX), 2)
    draws: dict[str, Callable[[], Fault]] = {
        "kill": lambda: KilledDaemon(at, a, back_after_s),
        "trainer": lambda: KilledTrainer(at, a),
        "pause": lambda: Stopped(at, a, for_s),
        "stop": lambda: CleanStop(at, a, back_after_s),
        "cut": lambda: Cut(at, a, b, for_s, both=True),
        "one way": lambda: Cut(at, a, b, for_s, both=False),
        "slow": lambda: SlowCable(at, a, for_s),
        "full": lambda: FullDisk(at, a, for_s),
        "flip": lambda: FlippedBit(at, a, chance.random()),
    }
    return draws[card]()
