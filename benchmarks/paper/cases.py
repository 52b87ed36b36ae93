"""List the trainings that are run: the recipe of examples/strom2015, changed in what a table is about."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from examples.strom2015.pretrain import Pretraining
from p2psgd.recipes.recipe import LbfgsTable, Recipe, parse_recipe

RECIPE: Final = Path(__file__).parents[2] / "examples/strom2015/speech-paper.toml"
RECIPE_TEXT: Final = RECIPE.read_text(encoding="utf-8")
PAPER: Final = parse_recipe(tomllib.loads(RECIPE_TEXT), where=f"recipe {RECIPE.name}")
# In units of the summed gradient: half of those in the paper's table 3, which compress about as much here.
SUM_TAUS: Final = (1, 2, 3, 4.5, 6, 7.5)
SUM_TAU: Final = 2  # of all other cases, and of the recipe
NODE_COUNTS: Final = (1, 2, 4, 8)
SIZES: Final = {  # name -> widths; weights relative to the first about as in the paper's table 4
    "5 hidden layers": (384,) * 5,
    "8 hidden layers": (384,) * 8,
    "5 layers, 1.7 x size": (512,) * 5,
    "5 layers, 3.5 x size": (768,) * 5,
}
SEEDS: Final = (1, 2, 3)
OWN_RESIDUAL: Final = ((4, 2), (4, 3), (4, 4.5), (8, 2), (8, 3))  # nodes, tau: measured with and without
# Keys younger than some kept figures, with the values by which those were trained. A key with this value is
# left out of the digest. A key that is missing here makes all kept figures stale: test_paper.py says so.
YOUNGER_KEYS: Final = {
    "own_residual": False,
    "push_every": 1,
    "fetch_every": 1,
    "rule": None,
    "rounds": False,
    "lbfgs": LbfgsTable().model_dump(mode="json"),
}


def _old_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if (key, value) not in YOUNGER_KEYS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training. `nodes` 0: plain SGD in one process, which `sum_tau` and `own_residual` mean nothing to."""

    nodes: int
    sum_tau: float = SUM_TAU
    hidden: tuple[int, ...] = PAPER.hidden
    seed: int = 1
    epochs: int = PAPER.epochs
    own_residual: bool = False

    @property
    def name(self) -> str:
        """For people and as a key: nodes-4-tau-2-5x384-seed-1, and -own behind it with the own residual."""
        net = f"{len(self.hidden)}x{self.hidden[0]}"
        how = f"nodes-{self.nodes}-tau-{self.sum_tau:g}" if self.nodes else "sgd"
        return f"{how}-{net}-seed-{self.seed}{'-own' if self.own_residual else ''}"

    @property
    def plain_sgd(self) -> Case:
        """Return plain SGD with the same net, seed and length."""
        return replace(self, nodes=0, sum_tau=SUM_TAU, own_residual=False)

    @property
    def recipe_text(self) -> str:
        """Return the recipe's file: that of the example with a few lines changed."""
        changes = {
            "seed": f"{self.seed}",
            "hidden": f"{list(self.hidden)}",
            "epochs": f"{self.epochs}",
            "tau": f"{self.sum_tau / PAPER.batch!r}",
        }
        text = RECIPE_TEXT
        for key, value in changes.items():
            text, count = re.subn(rf"(?m)^{key} = [^#\n]*", f"{key} = {value} ", text)
            assert count == 1, f"{key} stands {count} times in the recipe"
        # Said in both cases, so that another default changes no case.
        return f"{text}own_residual = {json.dumps(self.own_residual)}\n"

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of this case."""
        return parse_recipe(tomllib.loads(self.recipe_text), where=f"case {self.name}")

    @property
    def pretraining(self) -> Pretraining:
        """Return how the initial weights of this case are made."""
        return Pretraining()

    @property
    def digest(self) -> str:
        """Return a digest of the recipe; kept figures count only while it is equal."""
        keys = self.recipe.model_dump(mode="json") | {"pretrain": asdict(self.pretraining)}
        return _digest(_old_keys(keys | {"run": _old_keys(keys["run"])}))

    @property
    def start(self) -> str:
        """Name of the weights that it starts from, whatever its nodes, tau and length."""
        keys = {"data", "seed", "hidden", "activation", "batch"}
        made_by = self.recipe.model_dump(mode="json", include=keys) | {"pretrain": asdict(self.pretraining)}
        return f"{len(self.hidden)}x{self.hidden[0]}-{_digest(made_by)}"


def _digest(keys: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=4).hexdigest()


def _cases() -> Sequence[Case]:
    """Each once, the most telling ones first."""
    nodes = [Case(nodes=nodes) for nodes in (4, 0, *NODE_COUNTS)]
    taus = [Case(nodes=4, sum_tau=sum_tau) for sum_tau in SUM_TAUS]
    sizes = [Case(nodes=nodes, hidden=hidden) for hidden in SIZES.values() for nodes in (4, 0)]
    again = [replace(case, seed=seed) for seed in SEEDS[1:] for case in (*nodes, *taus)]
    own = [
        Case(nodes=nodes, sum_tau=sum_tau, seed=seed, own_residual=own)
        for nodes, sum_tau in OWN_RESIDUAL
        for own in (False, True)
        for seed in SEEDS
    ]
    return list(dict.fromkeys([*nodes, *taus, *sizes, *again, *own]))


CASES: Final = tuple(_cases())
