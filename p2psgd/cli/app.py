"""The command line: reads options, calls what does the work, turns errors into one sentence and an exit
code.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

import p2psgd
from p2psgd.base.errors import DaemonLost, ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.base.formatting import counted, print_text
from p2psgd.cli.asking import checkpoint, digest, events, export, remove, status, top
from p2psgd.cli.ca import app as ca
from p2psgd.cli.commands import Commands
from p2psgd.cli.configuration import (
    FROM_ENVIRONMENT,
    CommandLineError,
    ConfiguredCommand,
    option_variables,
    origin_of,
    words_of_click,
)
from p2psgd.cli.doctor.command import doctor
from p2psgd.cli.node import app as config
from p2psgd.cli.node import node
from p2psgd.cli.options import (
    DeviceOption,
    FailureTimeoutOption,
    HttpOption,
    InitialOption,
    JsonOption,
    ModeOption,
    Output,
    OutputOption,
    PartsOption,
    PayloadOption,
    RankOption,
    RecipeOption,
    RoundsOption,
    RuleOption,
    SecondsOption,
    StepsOption,
    check_device,
    check_failure_timeout,
    parse_http,
    parse_rank,
)
from p2psgd.cli.up.command import down, up
from p2psgd.observe.logs import say_bug, say_last

app = Commands(name="p2psgd", context_settings={"help_option_names": ["-h", "--help"]})
# Headings of the help, in its order: Typer lists commands before groups, both as they are registered here.
TRAIN: Final = "Train"
PREPARE: Final = "Prepare"
LOOK: Final = "Look at a node"
USE: Final = "Use a node"


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train one neural network on many ordinary machines over an ordinary network."""
    if version:
        print_text(f"p2psgd {p2psgd.__version__}")
        raise typer.Exit


def train(
    recipe: RecipeOption = "speech",
    rank: RankOption = None,
    steps: StepsOption = None,
    seconds: SecondsOption = None,
    initial: InitialOption = None,
    started: Annotated[
        float | None,
        typer.Option(help="Unix time at which --seconds began (for a restart)."),
    ] = None,
    mode: ModeOption = None,
    payload: PayloadOption = None,
    rule: RuleOption = None,
    rounds: RoundsOption = None,
    device: DeviceOption = None,
) -> None:
    """Train with the built-in trainer, on the CPU or a GPU, on this machine's daemon."""
    from p2psgd.gpu import find_backend
    from p2psgd.recipes.main import train as run_trainer
    from p2psgd.recipes.recipe import Told, load_recipe

    _exclusive(steps, seconds)
    check_device(device)
    loaded = load_recipe(recipe, Told(mode, payload, rule, rounds))
    if loaded.run.trains.closure:
        raise UsageError(f'recipe {loaded.name} is for mode "closure": train it with p2psgd lbfgs')
    run_trainer(
        loaded,
        backend=find_backend(device or loaded.device),
        rank=None if rank is None else parse_rank(rank),
        steps=steps,
        seconds=seconds,
        initial=initial,
        started=started,
    )


def lbfgs(recipe: RecipeOption = "digits", steps: StepsOption = None, initial: InitialOption = None) -> None:
    """Minimize a recipe's loss over all data by L-BFGS, in lockstep with all nodes, on this machine's
    daemon.
    """
    from p2psgd.recipes.full_batch import minimize
    from p2psgd.recipes.recipe import Told, load_recipe

    minimize(load_recipe(recipe, Told(mode="closure")), initial=initial, steps=steps, say=print_text)


def local(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=64, help="How many nodes.")] = 4,
    recipe: RecipeOption = "speech",
    steps: StepsOption = None,
    seconds: SecondsOption = None,
    initial: InitialOption = None,
    report: Annotated[Path | None, typer.Option(help="Write a JSON report here.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Write the trained weights here, .npz or .safetensors.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Keep the nodes' state and logs here (default: a temporary directory).",
            allow_from_autoenv=False,  # P2PSGD_STATE is one node's
        ),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="Your own training command instead of the built-in trainer.")
    ] = None,
    parts: PartsOption = None,
    output: OutputOption = Output.FIRST,
    http: HttpOption = None,
    failure_timeout: FailureTimeoutOption = 5.0,
    mode: ModeOption = None,
    payload: PayloadOption = None,
    rule: RuleOption = None,
    rounds: RoundsOption = None,
    device: DeviceOption = None,
) -> None:
    """Run a whole cluster of real daemons and trainers on this machine, and prove its replicas equal."""
    from p2psgd.cli.local import Request, make_plan, run_local
    from p2psgd.recipes.recipe import Told

    _exclusive(steps, seconds)
    check_device(device)
    if trainer is not None and origin_of(context, "recipe")[0] != "default":
        raise UsageError("--recipe is for the built-in trainer, and --trainer is your own: leave one out")
    check_failure_timeout(failure_timeout)
    request = Request(
        nodes=nodes,
        recipe_name=recipe,
        steps=steps,
        seconds=seconds,
        report=report,
        weights=weights,
        state=state,
        trainer=trainer,
        initial=initial,
        failure_timeout_s=failure_timeout,
        told=Told(mode, payload, rule, rounds),
        device=device,
        http=parse_http(http),
        output=output,
        parts=parts,
    )
    plan = make_plan(request)
    for variable in option_variables(context):  # the plan has it, for all nodes or for the first alone
        os.environ.pop(variable, None)
    raise typer.Exit(run_local(plan, Console()))


def recipe(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The recipe to print.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a built-in recipe, to copy and change; without a name, list them."""
    from p2psgd.recipes.recipe import built_in_recipe_text, built_in_recipes

    if name is not None:
        text = built_in_recipe_text(name).rstrip("\n")
        print_text(json.dumps(tomllib.loads(text), indent=2) if as_json else text)
        return
    texts = {each: built_in_recipe_text(each) for each in built_in_recipes()}
    abouts = {each: text.partition("\n")[0].removeprefix("# ") for each, text in texts.items()}
    if as_json:
        print_text(json.dumps([{"name": each, "about": about} for each, about in abouts.items()], indent=2))
        return
    for each, about in abouts.items():
        print_text(f"{each:<{max(map(len, abouts))}}  {about}")


# ----------------------------------------------------------------------------
# `p2psgd data`: data in shards, in a folder or wherever a URL leads.


data = Commands(help="Prepare data that nodes share out among them.")


@data.callback()
def group() -> None:
    """Prepare data that nodes share out among them."""


@data.command()
def index(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder, or a URL such as s3://bucket/prefix.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Read all shards there (.npz, .npy, .safetensors), and write the list of them, shards.json."""
    from p2psgd.data.index import make_list

    made = make_list(place, lambda words: print(words, file=sys.stderr if as_json else None, flush=True))
    size, listed = sum(shard.bytes for shard in made.shards), f"{place.rstrip('/')}/shards.json"
    if as_json:
        counts = {"shards": len(made.shards), "samples": made.samples, "bytes": size}
        print_text(json.dumps({"file": listed, **counts, "digest": made.digest}, indent=2))
        return
    print_text(
        f"{counted(len(made.shards), 'shard')} with {counted(made.samples, 'sample')}, {size:,} bytes, "
        f"digest {made.digest}: listed in {listed}"
    )


# ----------------------------------------------------------------------------
# All commands, as `p2psgd --help` lists them.


for configured, heading in (
    (local, TRAIN),
    (node, TRAIN),
    (train, TRAIN),
    (lbfgs, TRAIN),
    (doctor, PREPARE),
):
    app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT, rich_help_panel=heading)(configured)
app.command(rich_help_panel=TRAIN)(recipe)
for asking in (status, top, events, digest):
    app.command(rich_help_panel=LOOK)(asking)
for using in (export, remove):
    app.command(rich_help_panel=USE)(using)
for everywhere in (up, down):
    app.command(rich_help_panel=TRAIN)(everywhere)
app.add_typer(ca, name="ca", rich_help_panel=PREPARE)
app.add_typer(config, name="config", rich_help_panel=PREPARE)
app.add_typer(data, name="data", rich_help_panel=PREPARE)
app.add_typer(checkpoint, name="checkpoint", rich_help_panel=LOOK)


def _exclusive(steps: int | None, seconds: float | None) -> None:
    if steps is not None and seconds is not None:
        raise UsageError("--steps and --seconds exclude each other: give one of them")


TYPER_INTERRUPTED: Final = 130  # what it makes of Ctrl+C in a command that does not see to it itself


def main() -> NoReturn:
    """Run the command line: one sentence on standard error and an exit code for everything a person can
    fix.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: names may have any letters
    try:
        result = int(app(args=sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
        if result == TYPER_INTERRUPTED:
            raise KeyboardInterrupt
        code = ExitCode(result)
    except CommandLineError as error:
        words = words_of_click(error)
        if sys.argv[1:2] == ["local"] and "extra argument" in words:
            words += ': a script of your own is one text, such as --trainer "python train.py"'
        code = _complain(f"{words} (see --help)", ExitCode.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        code = _complain("interrupted", ExitCode.FAILED)
    except UsageError as error:
        code = _complain(str(error), error.exit_code)
    except DaemonLost as error:
        code = _complain(str(error), ExitCode.TEMPORARY)
    except TrainerError as error:
        code = _complain(str(error), ExitCode.CONFIGURATION)
    except P2psgdError as error:
        code = _complain(str(error), ExitCode.FAILED)
    except Exception:  # a bug of ours: not to be mixed up with FAILED, which Python's own exit code would be
        say_bug()
        code = ExitCode.INTERNAL
    sys.exit(code)


def _complain(words: str, code: ExitCode) -> ExitCode:
    sys.stdout.flush()
    say_last(words)
    return code
