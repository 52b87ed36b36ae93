"""Plans a local run, and checks the plan before the first process starts.

A mistake in the command line, the recipe, the data or a path is one sentence here, instead of N daemons that
each fail in a log file of their own.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from p2psgd.base.errors import UsageError
from p2psgd.cli.options import Output
from p2psgd.cli.weights_file import check_output, check_weights_place, refusing
from p2psgd.gpu.device import AUTO, find_device
from p2psgd.net.address import Address
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.initial import load_initial
from p2psgd.recipes.recipe import NOTHING_TOLD, Recipe, Told, load_recipe


@dataclass(frozen=True, kw_only=True)
class Request:
    """A local run as the command line asks for it.

    `steps`: mini-batches per node, or rounds of a ring; `seconds`: time to train; neither: as long as the
    recipe says. `trainer`: a command that attaches by itself, in the place of the built-in trainer.
    `initial`: a file of weights that the built-in one starts from. `told`: what counts in the place of the
    recipe's [run]. `http`: where the first node shows itself. `output`: whose trainers' output is shown.
    `parts`: into how many the model is cut inside each node; None: it is whole, with one daemon.
    `state`: a directory for the nodes' state and logs, kept; None: a temporary one, kept only when something
    went wrong.
    """

    nodes: int
    recipe_name: str
    steps: int | None = None
    seconds: float | None = None
    report: Path | None = None
    weights: Path | None = None
    state: Path | None = None
    trainer: str | None = None
    initial: Path | None = None
    failure_timeout_s: float = 5.0
    told: Told = NOTHING_TOLD
    device: str | None = None
    http: Address | None = None
    output: Output = Output.FIRST
    parts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """A checked local run; `recipe` is None where a `trainer` takes its place."""

    recipe: Recipe | None
    state: Path
    keep_state: bool

    @property
    def names(self) -> list[str]:
        """The nodes' names, in the order of their ranks."""
        return [f"node-{index}" for index in range(self.nodes)]

    def directory(self, index: int) -> Path:
        """The state directory of one node."""
        return self.state / f"node-{index}"

    @property
    def replicas(self) -> list[str]:
        """The names of all replicas: those of the nodes, or of each one's parts."""
        if self.parts is None:
            return self.names
        return [f"{name}.{part}" for name in self.names for part in range(self.parts)]

    def http_options(self, index: int) -> list[str]:
        """Return the options by which the first node shows itself."""
        return [] if self.http is None or index else ["--http", str(self.http)]

    def trainer_command(self, index: int) -> str:
        """Return the command that a node's daemon starts and restarts, as one line with a shell's quoting."""
        if self.trainer is not None:
            return self.trainer
        file = Path(self.recipe_name)
        lbfgs = self.recipe is not None and self.recipe.run.trains.closure
        words = [sys.executable, "-m", "p2psgd", "lbfgs" if lbfgs else "train", "--recipe"]
        words += [str(file.absolute()) if file.is_file() else self.recipe_name]
        words += [] if lbfgs else ["--rank", f"{index}/{self.nodes}"]
        words += ["--initial", str(self.initial.absolute())] if self.initial is not None else []
        words += ["--steps", str(self.steps)] if self.steps is not None else []
        if self.seconds is not None:
            words += ["--seconds", repr(self.seconds), "--started", f"{time.time():.3f}"]
        if not lbfgs:
            words += self.told.options
            words += ["--device", self.device] if self.device is not None else []
        return shlex.join(words)


def make_plan(asked: Request) -> Plan:
    """Check everything about a run that can be checked without starting a process; raises UsageError."""
    recipe = None
    if asked.trainer is None:
        recipe = _check_recipe(asked)
    else:
        _check_trainer(asked, asked.trainer)
    if asked.parts is not None and asked.trainer is None:
        raise UsageError(
            "--parts is for a script that cuts its model over the ranks of a process group: give it as"
            f' --trainer "torchrun --nproc-per-node {asked.parts} train.py"'
        )
    if asked.report is not None:
        check_output(asked.report, "report")
    if asked.weights is not None:
        check_weights_place(asked.weights)
    _check_distinct({"--report": asked.report, "--weights": asked.weights})
    state = _state_directory(asked.state)
    return Plan(**vars(asked) | {"recipe": recipe, "state": state, "keep_state": asked.state is not None})


def _check_recipe(asked: Request) -> Recipe:
    """Return the recipe for the built-in trainer."""
    if asked.seconds is not None and not math.isfinite(asked.seconds):
        raise UsageError(f"--seconds {asked.seconds:g} is no time to train for: give a number above 0")
    recipe = load_recipe(asked.recipe_name, asked.told)
    if recipe.run.trains.ring and asked.nodes == 1:
        raise UsageError("a ring needs two nodes, and this run has one: give -n 2 or more, or --mode async")
    if recipe.run.trains.closure and (asked.seconds is not None or asked.device not in (None, AUTO, "cpu")):
        raise UsageError(
            'in mode "closure" all nodes make the same iterations, on the CPU: give --steps instead of'
            " --seconds, and leave --device out"
        )
    dataset = load_data_of(recipe)
    if asked.initial is not None:
        load_initial(asked.initial, net_shape(recipe, dataset))
    device = asked.device or recipe.device
    if device != AUTO:
        find_device(device)
    return recipe


def _check_trainer(asked: Request, trainer: str) -> None:
    """Refuse what says nothing to a trainer of the user's own."""
    if asked.steps is not None or asked.seconds is not None:
        raise UsageError("--steps and --seconds are for the built-in trainer: leave them out with --trainer")
    if asked.told.given or asked.device or asked.initial:
        raise UsageError(
            "--mode, --payload, --rule, --rounds, --device and --initial are for the built-in trainer: "
            "leave them out with --trainer, whose script says mode, payload and rule when it attaches"
        )
    if not trainer.strip():
        raise UsageError("the trainer's command is empty: give a command line, or leave --trainer out")


def _check_distinct(outputs: Mapping[str, Path | None]) -> None:
    """Refuse two options that name one file, whatever the way: the later would destroy the earlier."""
    options: dict[str, str] = {}
    for option, path in outputs.items():
        if path is not None:
            other = options.setdefault(os.path.realpath(path), option)
            if other != option:
                raise UsageError(f"{other} and {option} both name {path}: give each a file of its own")


def _state_directory(state: Path | None) -> Path:
    if state is None:
        with refusing("no temporary directory for the nodes' state can be made"):
            return Path(tempfile.mkdtemp(prefix="p2psgd-local-"))
    with refusing(f"the state directory {state} cannot be used"):
        state.mkdir(parents=True, exist_ok=True)
        descriptor, trial = tempfile.mkstemp(dir=state)
        os.close(descriptor)
        os.unlink(trial)
    return state.absolute()
