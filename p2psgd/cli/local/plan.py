"""What one local run is to do, checked before the first process starts.

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

from p2psgd.cli.weights_file import check_output, check_weights_place, refusing
from p2psgd.errors import UsageError
from p2psgd.gpu.device import AUTO, find_device
from p2psgd.net.address import Address
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.initial import load_initial
from p2psgd.recipes.recipe import NOTHING_TOLD, Recipe, Told, load_recipe
from p2psgd.storage.recorder import RECORD_BYTES_MAX

NODES_MAX = 64  # every node holds N - 1 connections, and one machine all of them


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A checked local run; `trainer` is a command of the user's own, in whose place `recipe` is None."""

    nodes: int
    recipe_name: str
    recipe: Recipe | None
    steps: int | None
    seconds: float | None
    report: Path | None
    weights: Path | None
    state: Path
    keep_state: bool
    trainer: str | None
    initial: Path | None = None
    patience_s: float = 5.0
    record: Path | None = None
    record_bytes: int = RECORD_BYTES_MAX
    told: Told = NOTHING_TOLD
    overlap: bool = True
    device: str | None = None
    http: Address | None = None

    @property
    def names(self) -> list[str]:
        """The nodes' names, in the order of their shares."""
        return [f"node-{index}" for index in range(self.nodes)]

    def directory(self, index: int) -> Path:
        """The state directory of one node."""
        return self.state / f"node-{index}"

    def record_options(self, index: int) -> list[str]:
        """The first node's daemon records: like all it applies every update of the run once."""
        if self.record is None or index:
            return []
        return ["--record", str(self.record), "--record-bytes", str(self.record_bytes)]

    def http_options(self, index: int) -> list[str]:
        """The first node shows itself."""
        return [] if self.http is None or index else ["--http", str(self.http)]

    def trainer_command(self, index: int) -> str:
        """The command that a node's daemon starts and restarts, as one line with a shell's quoting."""
        if self.trainer is not None:
            return self.trainer
        words = [sys.executable, "-m", "p2psgd", "train", "--recipe", self.recipe_name]
        words += ["--share", f"{index}/{self.nodes}"]
        if self.initial is not None:
            words += ["--initial", str(self.initial)]
        if self.steps is not None:
            words += ["--steps", str(self.steps)]
        if self.seconds is not None:
            words += ["--seconds", repr(self.seconds), "--started", f"{time.time():.3f}"]
        words += self.told.options
        words += [] if self.overlap else ["--no-overlap"]
        words += ["--device", self.device] if self.device is not None else []
        return shlex.join(words)


def make_plan(
    nodes: int,
    *,
    recipe: str,
    steps: int | None,
    seconds: float | None,
    report: Path | None,
    weights: Path | None = None,
    state: Path | None,
    trainer: str | None,
    initial: Path | None = None,
    patience_s: float = 5.0,
    record: Path | None = None,
    record_bytes: int = RECORD_BYTES_MAX,
    told: Told = NOTHING_TOLD,
    overlap: bool = True,
    device: str | None = None,
    http: Address | None = None,
) -> Plan:
    """Plan `nodes` daemons with trainers on this machine, and check everything that can be checked without
    starting a process; raises UsageError.

    `steps`: mini-batches per node, or rounds of a ring; `seconds`: time to train; neither: as long as the
    recipe says. `trainer`: a command that attaches by itself, in the place of the built-in trainer.
    `initial`: a file of weights that the built-in one starts from. `record`: a new file for every update of
    the run, of at most `record_bytes`. `told`: what counts in the place of the recipe's [run]. `overlap`:
    whether a dense ring adds up layers while others are computed. `http`: where the first node shows itself.
    `state`: a directory for the nodes' state and logs, kept; None: a temporary one, made here, kept only when
    something went wrong.
    """
    _check_amounts(nodes, steps, seconds, trainer)
    loaded = None
    if trainer is None:
        loaded = load_recipe(recipe, told)
        _check_ring(loaded, nodes, overlap=overlap)
        dataset = load_data_of(loaded)
        if initial is not None:
            load_initial(initial, net_shape(loaded, dataset))
        if (device or loaded.device) != AUTO:
            find_device(device or loaded.device)
    elif told.given or (device, initial) != (None, None) or not overlap:
        raise UsageError(
            "--mode, --payload, --order, --no-overlap, --device and --initial are for the built-in trainer: "
            "leave them out with --trainer, whose script says mode, payload and order when it attaches"
        )
    elif not trainer.strip():
        raise UsageError("the trainer's command is empty: give a command line, or leave --trainer out")
    if report is not None:
        check_output(report, "report")
    if record is not None:
        check_output(record, "recording")
        if os.path.lexists(record):
            raise UsageError(f"{record} exists already: a recording never replaces a file; name another one")
    if weights is not None:
        check_weights_place(weights)
    _check_distinct({"--record": record, "--report": report, "--weights": weights})
    return Plan(
        nodes=nodes,
        recipe_name=str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe,
        recipe=loaded,
        steps=steps,
        seconds=seconds,
        report=report,
        weights=weights,
        state=_state_directory(state),
        keep_state=state is not None,
        trainer=trainer,
        initial=None if initial is None else initial.absolute(),
        patience_s=patience_s,
        record=None if record is None else record.absolute(),
        record_bytes=record_bytes,
        told=told,
        overlap=overlap,
        device=device,
        http=http,
    )


def _check_ring(recipe: Recipe, nodes: int, *, overlap: bool) -> None:
    if recipe.run.trains.ring and nodes == 1:
        raise UsageError("a ring needs two nodes, and this run has one: give -n 2 or more, or --mode async")
    if not overlap and not recipe.run.trains.dense:
        raise UsageError("--no-overlap is for a dense ring: give --mode ring --payload dense too")


def _check_amounts(nodes: int, steps: int | None, seconds: float | None, trainer: str | None) -> None:
    if not 1 <= nodes <= NODES_MAX:
        raise UsageError(f"cannot run {nodes} nodes on one machine: give a number from 1 to {NODES_MAX}")
    if steps is not None and seconds is not None:
        raise UsageError("--steps and --seconds both say when to stop: give one of them")
    if trainer is not None and (steps is not None or seconds is not None):
        raise UsageError("--steps and --seconds are for the built-in trainer: leave them out with --trainer")
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps} trains nothing: give at least 1 mini-batch per node")
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds {seconds:g} is no time to train for: give a number above 0")


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
