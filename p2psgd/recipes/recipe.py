"""A recipe: what to train, on what, and how, as a small TOML file.

Some ship with the package (`p2psgd recipe` lists them). A recipe is strict: a key that nobody knows, a
missing one or a value out of its range is refused with one sentence, before anything is started. All nodes of
a run must train by the same recipe; its `label` is the short proof of that which goes into the run's
fingerprint.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.data.store import is_url
from p2psgd.recipes.model import Activation
from p2psgd.wire.codec import MAGNITUDE_MAX
from p2psgd.wire.fixed_point import PORTIONS_MAX
from p2psgd.wire.mode import ASYNC, CLOSURE, TERNARY, Mode, with_rule
from p2psgd.wire.rule import parse_rule

BUILT_IN_DATA = ("speech-small", "digits")
RECIPES = Path(__file__).parent


def _tuple(widths: object) -> object:
    """Return a list as a tuple, since TOML has lists only; anything else stays as it is and is refused by the
    type.
    """
    return tuple(widths) if isinstance(widths, list) else widths


Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(_tuple), Field(max_length=16)]
Tau = Annotated[float, Field(gt=0, le=1e6)]
Density = Annotated[float, Field(gt=0, le=0.25)]
TAU_RANGE = "a number above 0 and at most 1000000 (in units of the mean gradient)"
DENSITY_RANGE = "a number above 0 and at most 0.25 (the fraction of the weights that a step sends)"


FOR_CLOSURE = ("name", "seed", "hidden", "activation", "quantum_log2", "lbfgs")  # what nodes agree on there
FOR_STEPS = {"batch": 1, "epochs": 1, "learning_rate": 1.0}  # what a recipe for `p2psgd lbfgs` may leave out


class RunTable(BaseModel):
    """The settings that the nodes of a run agree on beside the training itself."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    two_nodes: Literal["stall", "lower-id"] = "stall"
    mode: Literal["async", "owners", "ring", "closure"] = "async"
    payload: Literal["sparse", "dense", "dense-float16", "ternary"] | None = None
    rule: str | None = Field(default=None, max_length=100)
    rounds: bool = False

    @property
    def trains(self) -> Mode:
        """Return mode, payload and rule as one; unless they are given, a ring's payload is sparse, and the
        rule of owners sum. ValueError for a rule that is not known or does not go with the rest.
        """
        if self.mode == "ring":
            return Mode(self.payload or "sparse")
        if self.mode == "owners":
            owners = Mode(self.payload or "", owners=True, rounds=self.rounds)
            return owners if self.rule is None else with_rule(owners, parse_rule(self.rule))
        return CLOSURE if self.mode == "closure" else ASYNC


class LbfgsTable(BaseModel):
    """The settings of `p2psgd lbfgs`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    iterations: int = Field(default=500, ge=1, le=1_000_000)
    history: int = Field(default=10, ge=1, le=100)
    l2: float = Field(default=1e-4, ge=0, le=1e6)
    gradient_tolerance: float = Field(default=1e-5, ge=0, le=1e6)
    loss_tolerance: float = Field(default=2.2e-9, ge=0, le=1)
    portions: int = Field(default=64, ge=1, le=PORTIONS_MAX)


@dataclass(frozen=True, slots=True)
class Told:
    """The values that the command line gives in the place of a recipe's [run]; None: nothing."""

    mode: str | None = None
    payload: str | None = None
    rule: str | None = None
    rounds: bool | None = None

    @property
    def given(self) -> dict[str, str | bool]:
        """Return the values given, by key."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return {key: value if isinstance(value, bool) else str(value) for key, value in given.items()}

    @property
    def options(self) -> list[str]:
        """Return the values given as words of a command line."""
        words = []
        for key, value in self.given.items():
            if isinstance(value, bool):
                words.append(f"--{key}" if value else f"--no-{key}")
            else:
                words += [f"--{key}", value]
        return words


NOTHING_TOLD = Told()


class Recipe(BaseModel):
    """A training; each description states, for the refusal of a bad value, what a good one is."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$",
        description="1 to 40 letters, digits, dots, dashes and underscores",
    )
    data: str = Field(
        min_length=1,
        description='"speech-small", "digits", the path of a .npz file or of a folder, a URL of shards',
    )
    seed: int = Field(default=1, ge=0, lt=2**32, description="a whole number from 0 to 4294967295")
    hidden: Widths = Field(description="a list of at most 16 layer widths from 1 to 65536")
    activation: Activation = Field(default=Activation.RELU, strict=False, description='"relu" or "sigmoid"')
    batch: int = Field(
        ge=1, le=65_536, description="a whole number from 1 to 65536 (samples in a mini-batch)"
    )
    epochs: int = Field(ge=1, le=10_000, description="a whole number from 1 to 10000")
    learning_rate: float = Field(gt=0, le=100, description="a number above 0 and at most 100")
    hold_epochs: float = Field(default=1.0, ge=0, le=10_000, description="a number from 0 to 10000")
    halve_every_epochs: float = Field(
        default=1.0, ge=0.01, le=10_000, description="a number from 0.01 to 10000"
    )
    warm_start: float = Field(
        default=0.1,
        ge=0,
        le=0.5,
        description="a number from 0 to 0.5 (the fraction of all samples that rank 0 trains alone)",
    )
    tau: Tau | None = Field(default=None, description=TAU_RANGE)
    density: Density | None = Field(default=None, description=DENSITY_RANGE)
    own_residual: bool | None = Field(
        default=None,
        description="true or false (the gradient is taken at the weights plus what this node has not sent)",
    )
    push_every: int = Field(
        default=1,
        ge=1,
        le=1_000,
        description="a whole number from 1 to 1000 (mini-batches whose gradients are sent as one)",
    )
    fetch_every: int = Field(
        default=1,
        ge=1,
        le=1_000,
        description="a whole number from 1 to 1000 (mini-batches after each of which updates are applied)",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
        description='"auto", "cpu", "cuda" or "cuda:0", "cuda:1" and so on',
    )
    quantum_log2: int = Field(default=-20, ge=-30, le=0, description="a whole number from -30 to 0")
    lbfgs: LbfgsTable = Field(
        default=LbfgsTable(),
        description="a table with iterations from 1 to 1000000, history from 1 to 100, l2 of 0 or more, "
        "gradient_tolerance and loss_tolerance of 0 or more, and portions from 1 to 4096",
    )
    run: RunTable = Field(
        default=RunTable(),
        description='a table with two_nodes = "stall" (of two nodes that lose each other, both wait) or '
        '"lower-id" (the one with the lower node id goes on), mode = "async", "owners", "ring" or "closure", '
        'of a ring payload = "sparse", "dense" or "dense-float16", of owners rule = "sum", "adagrad", '
        '"adamw" or, in rounds, "nesterov", and rounds = true or false, and of these payload = "ternary"',
    )

    _mode_told: bool = PrivateAttr(default=False)

    @property
    def quantum(self) -> float:
        """Return the power of two that all weights are whole multiples of."""
        return 2.0**self.quantum_log2

    @property
    def unused(self) -> str:
        """Return a sentence on which of its keys mean nothing in its mode and why; empty if all mean
        something, or if another mode than the recipe's own was asked for, which they may be for.
        """
        if self._mode_told:
            return ""
        if self.own_residual and (self.run.trains.rounds or self.run.trains.rule.gradients):
            where = "rounds" if self.run.trains.rounds else "a run whose owners are given gradients"
            return f"recipe {self.name}: own_residual means nothing in {where}"
        if self.run.trains.rounds and (self.push_every > 1 or self.fetch_every > 1):
            return f"recipe {self.name}: push_every and fetch_every mean nothing in rounds"
        words, why = {"tau": self.tau, "density": self.density}, ""
        if self.run.trains.dense:
            words["warm_start"] = self.warm_start
            why = "in a dense ring: every gradient goes around whole, and the mean of all is one step"
        elif self.run.trains.ternary:
            why = "where contributions are ternary: each has all weights"
        idle = [key for key, value in words.items() if value]
        return f"recipe {self.name}: {' and '.join(idle)} mean nothing {why}" if why and idle else ""

    @property
    def label(self) -> str:
        """The name and a hash of all that must be equal on every node.

        The data's place, the device, own_residual, push_every and fetch_every are left out: they may differ
        between machines. So is what `p2psgd lbfgs` does without, or what it alone needs. The table `run` is
        part of the fingerprint itself, and so are the initial weights.
        """
        own = {"data", "device", "own_residual", "push_every", "fetch_every"}
        agreed = self.model_dump(mode="json", exclude={*own, "run"})
        if self.run.trains.closure:
            agreed = {key: agreed[key] for key in FOR_CLOSURE}
        else:
            del agreed["lbfgs"]
        if self.data in BUILT_IN_DATA:
            agreed["data"] = self.data
        text = json.dumps(agreed, sort_keys=True)
        return f"{self.name}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def built_in_recipes() -> list[str]:
    """Return the names of the recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def built_in_recipe_text(name: str) -> str:
    """Return the text of a recipe that ships with the package; UsageError if none of that name does."""
    if name not in built_in_recipes():
        known = ", ".join(built_in_recipes())
        _refuse(f"{name!r} is no built-in recipe: there are {known}")
    return (RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def load_recipe(name_or_path: str | Path, told: Told = NOTHING_TOLD) -> Recipe:
    """Read a built-in recipe by its name, or a TOML file; a relative `data` path counts from that file's
    folder.

    The values in `told` take the place of the recipe's below [run]; another mode also takes the place of a
    ring's payload, or of the rounds of owners. Raises UsageError with one sentence when the recipe cannot be
    read or is not valid.
    """
    built_in = str(name_or_path) in built_in_recipes()
    path = RECIPES / f"{name_or_path}.toml" if built_in else Path(name_or_path)
    try:
        keys = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        known = ", ".join(built_in_recipes())
        _refuse(f"there is no recipe {str(name_or_path)!r}: it is neither a file nor one of {known}")
    except OSError as error:
        _refuse(f"recipe {path} cannot be read: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        _refuse(f"recipe {path} is not valid TOML: {error}")
    _tell_run(keys, told.given)
    recipe = parse_recipe(keys, where=f"recipe {path.name}", told=told)
    if recipe.data in BUILT_IN_DATA or is_url(recipe.data):
        return recipe
    return recipe.model_copy(update={"data": str(path.parent.absolute() / Path(recipe.data).expanduser())})


Keys = dict[str, Any]  # as TOML has them


def parse_recipe(keys: Keys, *, where: str, told: Told = NOTHING_TOLD) -> Recipe:
    """Make a recipe of keys and values, `told` among them; `where` begins the sentence of a UsageError."""
    fields = Recipe.model_fields
    below = keys.get("run")
    lost = [key for key in below if key in fields] if isinstance(below, dict) else []
    if lost:
        _refuse(f"{where}: {lost[0]} stands below [run] and so belongs to it: move it above the table")
    for key in keys:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            guess = f"do you mean {near[0]!r}? " if near else ""
            _refuse(f"{where}: unknown key {key!r}: {guess}the known ones are {', '.join(fields)}")
    if isinstance(below, dict) and below.get("mode") == "closure":
        keys = FOR_STEPS | keys
    try:
        recipe = Recipe.model_validate(keys)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        wanted = fields[key].description
        if isinstance(keys.get(key), dict) and len(first["loc"]) > 1:
            inner, said = str(first["loc"][1]), first["msg"][:1].lower() + first["msg"][1:]
            if first["type"] == "extra_forbidden":
                _refuse(f"{where}: unknown key {inner!r} below [{key}], which is {wanted}")
            _refuse(f"{where}: {inner} = {_written(first['input'])} below [{key}] is refused: {said}")
        if key not in keys:
            _refuse(f"{where}: the key {key!r} is missing; it is {wanted}")
        _refuse(f"{where}: {key} = {_written(keys[key])} is refused: it must be {wanted}")
    recipe._mode_told = bool(told.given)
    _check_ring(recipe.run, where, told.given)
    _check_rule(recipe.run, where, told.given)
    _check_step(recipe, where)
    return recipe


def _tell_run(keys: Keys, told: Mapping[str, str | bool]) -> None:
    """Put what the command line gave in the place of the values in `keys` as they were read from the file."""
    run = keys.get("run", {})
    if not told or not isinstance(run, dict):
        return
    belongs = {"payload": "ring", "rule": "owners", "rounds": "owners"}
    if run.get("payload") == TERNARY:
        belongs["payload"] = "owners"
    mode = told.get("mode")
    run = {key: value for key, value in run.items() if mode in (None, belongs.get(key, mode))}
    keys["run"] = run | dict(told)


def _check_ring(run: RunTable, where: str, told: Mapping[str, str | bool]) -> None:
    """Refuse what only a ring, or only owners, have in a run of another mode."""
    if run.rounds and run.mode != "owners":
        what = "--rounds" if told.get("rounds") else f"{where}: rounds = true"
        words = f'{what} is for mode "owners", and the mode is "{run.mode}"'
        again = 'give mode = "owners" too (--mode owners), or leave rounds out'
        _refuse(f"{words}: {again}", ExitCode.USAGE if told.get("rounds") else ExitCode.CONFIGURATION)
    ternary = run.payload == TERNARY
    if run.payload is None or (run.rounds if ternary else run.mode == "ring"):
        return
    if ternary:
        why = f'is for owners in rounds, and the mode is "{run.mode}"' + " without" * (run.mode == "owners")
        options, keys = "--mode owners --rounds", 'mode = "owners" and rounds = true'
    else:
        why, options, keys = f'is for a ring, and the mode is "{run.mode}"', "--mode ring", 'mode = "ring"'
    if "payload" in told:
        _refuse(f"--payload {run.payload} {why}: give {options} too, or leave --payload out", ExitCode.USAGE)
    _refuse(f'{where}: payload = "{run.payload}" {why}: give {keys} too ({options}), or leave payload out')


def _check_rule(run: RunTable, where: str, told: Mapping[str, str | bool]) -> None:
    """Refuse a rule that is not known, without owners, or that does not go with their mode."""
    if run.rule is None:
        return
    if run.mode != "owners":
        option = "--rule " if "rule" in told else "rule = "
        words = f'{option}{run.rule} is for owners, and the mode is "{run.mode}"'
        _refuse(
            f"{words}: give --mode owners too, or leave --rule out"
            if "rule" in told
            else f'{where}: {words}: give mode = "owners" too (--mode owners), or leave rule out',
            ExitCode.USAGE if "rule" in told else ExitCode.CONFIGURATION,
        )
    try:
        _ = run.trains
    except ValueError as error:
        if "rule" in told:
            _refuse(f"--rule: {error}", ExitCode.USAGE)
        _refuse(f"{where}: {error}")


def _check_step(recipe: Recipe, where: str) -> None:
    """Refuse a recipe that does not say how large its updates are, or says it out of range.

    A dense ring and ternary contributions have no use for tau and density and so need neither; a recipe that
    has them may be trained in any mode.
    """
    trains = recipe.run.trains
    if trains.closure:
        return
    if (trains.dense or trains.ternary) and recipe.tau is None and recipe.density is None:
        return
    if (recipe.tau is None) == (recipe.density is None):
        _refuse(f"{where}: give one of tau and density, {'not both' if recipe.tau else 'such as tau = 0.05'}")
    if recipe.tau is None:
        return
    gradients = recipe.run.trains.rule.gradients
    step = round((1 if gradients else recipe.learning_rate) * recipe.tau / recipe.quantum)
    if not 1 <= step <= MAGNITUDE_MAX:
        change = "lower" if step < 1 else "raise"
        moves = "is" if gradients else f"at learning_rate = {recipe.learning_rate:g} moves a weight by"
        _refuse(
            f"{where}: tau = {recipe.tau:g} {moves} "
            f"{step} quanta of 2^{recipe.quantum_log2}, which must be 1 to {MAGNITUDE_MAX}: "
            f"{change} quantum_log2, or change tau"
        )


def _written(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(words: str, code: ExitCode = ExitCode.CONFIGURATION) -> NoReturn:
    raise UsageError(words, code)
