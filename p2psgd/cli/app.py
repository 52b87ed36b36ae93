"""The command line: reads options, calls what does the work, turns errors into one sentence and an exit
code.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

import p2psgd
from p2psgd.base.errors import DaemonLost, ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.base.formatting import counted, print_text
from p2psgd.cli.asking import checkpoint, digest, events, export, remove, status, top
from p2psgd.cli.ca import app as ca
from p2psgd.cli.configuration import (
    FROM_ENVIRONMENT,
    CommandLineError,
    ConfiguredCommand,
    option_variables,
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
    ModeOption,
    Output,
    OutputOption,
    PayloadOption,
    RankOption,
    RecipeOption,
    SecondsOption,
    StepsOption,
    check_failure_timeout,
    parse_http,
    parse_rank,
)
from p2psgd.observe.logs import say_bug, say_last

app = typer.Typer(
    name="p2psgd",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(ca, name="ca")
app.add_typer(config, name="config")


app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)(node)


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train one neural network on many ordinary machines over an ordinary network."""
    if version:
        print_text(f"p2psgd {p2psgd.__version__}")
        raise typer.Exit


@app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)
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
    device: DeviceOption = None,
) -> None:
    """Train with the built-in trainer, on the CPU or a GPU, on this machine's daemon."""
    from p2psgd.gpu import find_backend
    from p2psgd.recipes.main import train as run_trainer
    from p2psgd.recipes.recipe import Told, load_recipe

    _exclusive(steps, seconds)
    loaded = load_recipe(recipe, Told(mode, payload))
    run_trainer(
        loaded,
        backend=find_backend(device or loaded.device),
        rank=None if rank is None else parse_rank(rank),
        steps=steps,
        seconds=seconds,
        initial=initial,
        started=started,
    )


@app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)
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
    output: OutputOption = Output.FIRST,
    http: HttpOption = None,
    failure_timeout: FailureTimeoutOption = 5.0,
    mode: ModeOption = None,
    payload: PayloadOption = None,
    device: DeviceOption = None,
) -> None:
    """Run a whole cluster of real daemons and trainers on this machine, and prove its replicas equal."""
    from p2psgd.cli.local import Request, make_plan, run_local
    from p2psgd.recipes.recipe import Told

    _exclusive(steps, seconds)
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
        told=Told(mode, payload),
        device=device,
        http=parse_http(http),
        output=output,
    )
    plan = make_plan(request)
    for variable in option_variables(context):  # the plan has it, for all nodes or for the first alone
        os.environ.pop(variable, None)
    raise typer.Exit(run_local(plan, Console()))


def recipe(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The recipe to print.")] = None,
) -> None:
    """Print a built-in recipe, to copy and change; without a name, list them."""
    from p2psgd.recipes.recipe import built_in_recipe_text, built_in_recipes

    if name is not None:
        print_text(built_in_recipe_text(name).rstrip("\n"))
        return
    names = built_in_recipes()
    for each in names:
        about = built_in_recipe_text(each).partition("\n")[0].removeprefix("# ")
        print_text(f"{each:<{max(map(len, names))}}  {about}")


# ----------------------------------------------------------------------------
# `p2psgd data`: data in shards, in a folder or wherever a URL leads.


data = typer.Typer(help="Prepare data that nodes share out among them.", rich_markup_mode=None)


@data.callback()
def group() -> None:
    """Prepare data that nodes share out among them."""


@data.command()
def index(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder, or a URL such as s3://bucket/prefix.")
    ],
) -> None:
    """Read all shards there (.npz, .npy, .safetensors), and write the list of them, shards.json."""
    from p2psgd.data.index import make_list

    made = make_list(place, _say)
    size = sum(shard.bytes for shard in made.shards)
    print_text(
        f"{counted(len(made.shards), 'shard')} with {counted(made.samples, 'sample')}, {size:,} bytes, "
        f"digest {made.digest}: listed in {place.rstrip('/')}/shards.json"
    )


def _say(words: str) -> None:
    print(words, flush=True)


app.add_typer(data, name="data")
for asking in (status, top, events, digest, remove, export, recipe):
    app.command()(asking)
app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)(doctor)


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
        code = _complain(f"{words_of_click(error)} (see --help)", ExitCode.USAGE)
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
