"""The command line: reads options, calls what does the work, turns errors into one sentence and an exit
code.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

import p2psgd
from p2psgd.cli_asking import StateOption, digest, events, export, remove, status, top
from p2psgd.cli_ca import app as ca
from p2psgd.cli_checkpoint import app as checkpoint
from p2psgd.cli_config import app as config
from p2psgd.cli_doctor import doctor
from p2psgd.cli_options import (
    ConfigOption,
    DeviceOption,
    HttpOption,
    LogFormatOption,
    ModeOption,
    OrderOption,
    OverlapOption,
    PatienceOption,
    PayloadOption,
    PlaintextOption,
    PresetOption,
    RecipeOption,
    RecordBytesOption,
    RecordOption,
    SecondsOption,
    ShareOption,
    StepsOption,
    TlsOption,
    TraceOption,
)
from p2psgd.configuration.command import (
    FROM_ENVIRONMENT,
    CommandLineError,
    ConfiguredCommand,
    option_variables,
    words_of,
)
from p2psgd.errors import DaemonLost, ExitCode, P2psgdError, RecordingError, TrainerError, UsageError
from p2psgd.ops.logs import LogFormat, begin_log, say_bug, say_last
from p2psgd.ops.printing import print_text

if TYPE_CHECKING:
    from p2psgd.discovery.hosts import Address

app = typer.Typer(
    name="p2psgd",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure this machine.", rich_markup_mode=None)
app.add_typer(bench, name="bench")
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(ca, name="ca")
app.add_typer(config, name="config")


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train one neural network on many ordinary machines over an ordinary network."""
    if version:
        print_text(f"p2psgd {p2psgd.__version__}")
        raise typer.Exit


@app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)
def node(
    context: typer.Context,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="File with one host[:port] a line; may name this node too. One that can be reached is "
            "enough. Read again on SIGHUP."
        ),
    ] = None,
    zeroconf: Annotated[
        bool, typer.Option("--zeroconf", help="Find nodes of this run on the local network as well (mDNS).")
    ] = False,
    founders: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="How many nodes begin the run; the same on all of them (default: as many as --peers names).",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Where others can dial this node, if not at the address that they see, as behind NAT.",
        ),
    ] = None,
    share: ShareOption = None,
    listen: Annotated[str, typer.Option(help="Address and port to accept peers on.")] = "0.0.0.0:7315",
    state: StateOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="Command that trains; started, and restarted, by the daemon.")
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            help="The control socket (default: control.sock in --state).",
            allow_from_autoenv=False,  # P2PSGD_CONTROL tells others where it is
        ),
    ] = None,
    control_group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Group that may attach trainers and control this node, beside this user and root.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What people call this node (default: the host's name).")
    ] = None,
    tls: TlsOption = None,
    insecure_plaintext: PlaintextOption = False,
    http: HttpOption = None,
    http_exposed: Annotated[
        bool,
        typer.Option(
            "--http-exposed", help="Let --http be an address that others reach: they can read all of it."
        ),
    ] = False,
    patience: PatienceOption = 5.0,
    log_budget: Annotated[
        int,
        typer.Option(min=1, max=1024 * 1024, help="MiB of updates kept for peers that lag or start late."),
    ] = 256,
    log_disk_budget: Annotated[
        int,
        typer.Option(min=0, max=1024 * 1024, help="MiB of them kept on disk beyond that, in --state."),
    ] = 1024,
    record: RecordOption = None,
    record_bytes: RecordBytesOption = None,
    log_format: LogFormatOption = LogFormat.AUTO,
    config: ConfigOption = None,
    preset: PresetOption = None,
) -> None:
    """Run one node's daemon until SIGTERM or Ctrl+C.

    Each option may also stand in the file of --config, as log_budget = 512, or in the environment, as
    P2PSGD_LOG_BUDGET=512 (all but --control); the command line is the strongest, then the environment.
    """
    if context.obj is None:
        begin_log(log_format)
    from p2psgd.discovery.hosts import parse_address
    from p2psgd.ipc.paths import default_state_directory
    from p2psgd.node import run_node
    from p2psgd.node_options import NodeOptions

    try:
        address = parse_address(listen, port_default=None)
    except ValueError as error:
        raise UsageError(f"--listen: {error}", ExitCode.CONFIGURATION) from None
    if peers is None and not zeroconf:
        raise UsageError("how does this node find others? give --peers FILE, --zeroconf, or both")
    _check_patience(patience)
    if http_exposed and http is None:
        raise UsageError("--http-exposed is for the address of --http: give both or neither")
    if tls is not None and insecure_plaintext:
        raise UsageError("--tls and --insecure-plaintext exclude each other: give one of them")
    limit = _record_limit(record, record_bytes)
    if name is not None and not 1 <= len(name) <= 64:
        raise UsageError(f"--name {name!r:.80} must have 1 to 64 characters")
    options = NodeOptions(
        peers=peers,
        zeroconf=zeroconf,
        founders=founders,
        advertise=_parse_advertised(advertise, address.port),
        share=None if share is None else parse_share(share),
        listen=address,
        state=state or default_state_directory(),
        control=control,
        control_group=None if control_group is None else _group_id(control_group),
        name=name,
        tls=tls,
        insecure_plaintext=insecure_plaintext,
        trainer=trainer,
        http=parse_http(http),
        http_exposed=http_exposed,
        patience_s=patience,
        log_budget_bytes=log_budget * 1024 * 1024,
        store_budget_bytes=log_disk_budget * 1024 * 1024,
        record=record,
        record_bytes_max=limit,
    )
    act = context.obj or run_node  # `p2psgd config show` only looks at them
    raise typer.Exit(act(options))


def _parse_advertised(text: str | None, port: int) -> Address | None:
    from p2psgd.discovery.hosts import PORT_DEFAULT, parse_address
    from p2psgd.discovery.naming import is_numeric

    if text is None:
        return None
    try:
        address = parse_address(text, port_default=port or PORT_DEFAULT)
    except ValueError as error:
        raise UsageError(f"--advertise: {error}", ExitCode.CONFIGURATION) from None
    if not is_numeric(address) or address.host in ("0.0.0.0", "::"):
        words = f"--advertise: {address.host} is not the IP address of one machine"
        raise UsageError(words, ExitCode.CONFIGURATION)
    return address


@app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)
def train(
    recipe: RecipeOption = "speech",
    share: ShareOption = None,
    steps: StepsOption = None,
    seconds: SecondsOption = None,
    started: Annotated[
        float | None,
        typer.Option(help="Unix time at which --seconds began (for a restart)."),
    ] = None,
    mode: ModeOption = None,
    payload: PayloadOption = None,
    order: OrderOption = None,
    overlap: OverlapOption = True,
    device: DeviceOption = None,
    trace: TraceOption = None,
) -> None:
    """Train with the built-in trainer, on the CPU or a GPU, on this machine's daemon."""
    from p2psgd.gpu import find_backend
    from p2psgd.trainer.loop import train as run_trainer
    from p2psgd.trainer.recipe import Told, load_recipe

    _exclusive(steps, seconds)
    loaded = load_recipe(recipe, Told(mode, payload, order))
    run_trainer(
        loaded,
        backend=find_backend(device or loaded.device),
        share=None if share is None else parse_share(share),
        steps=steps,
        seconds=seconds,
        started=started,
        trace=trace,
        overlap=overlap,
    )


@app.command(cls=ConfiguredCommand, context_settings=FROM_ENVIRONMENT)
def local(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=64, help="How many nodes.")] = 4,
    recipe: RecipeOption = "speech",
    steps: StepsOption = None,
    seconds: SecondsOption = None,
    report: Annotated[Path | None, typer.Option(help="Write a JSON report here.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Write the trained weights here, as .npz.")] = None,
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
    http: HttpOption = None,
    patience: PatienceOption = 5.0,
    record: RecordOption = None,
    record_bytes: RecordBytesOption = None,
    mode: ModeOption = None,
    payload: PayloadOption = None,
    order: OrderOption = None,
    overlap: OverlapOption = True,
    device: DeviceOption = None,
    trace: TraceOption = None,
) -> None:
    """Run a whole cluster of real daemons and trainers on this machine, and prove its replicas equal."""
    from p2psgd.local import make_plan, run_local
    from p2psgd.trainer.recipe import Told

    _exclusive(steps, seconds)
    _check_patience(patience)
    plan = make_plan(
        nodes,
        recipe=recipe,
        steps=steps,
        seconds=seconds,
        report=report,
        weights=weights,
        state=state,
        trainer=trainer,
        patience_s=patience,
        record=record,
        record_bytes=_record_limit(record, record_bytes),
        told=Told(mode, payload, order),
        trace=trace,
        overlap=overlap,
        device=device,
        http=parse_http(http),
    )
    for variable in option_variables(context):  # the plan has it, for all nodes or for the first alone
        os.environ.pop(variable, None)
    raise typer.Exit(run_local(plan, Console()))


for asking in (status, top, events, digest, remove, export, doctor):
    app.command()(asking)


@app.command()
def recording(
    file: Annotated[Path, typer.Argument(help="A file that `--record` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for machines.")] = False,
) -> None:
    """Print how the updates of a recorded run compress: as a whole, over time, and by tensor."""
    from p2psgd.ops.recording import describe_recording, render_recording

    description = describe_recording(file)
    print_text(json.dumps(description, indent=2) if as_json else render_recording(description))
    if description["fault"]:
        raise RecordingError(description["fault"])


@bench.command()
def cpu() -> None:
    """Print which instructions the native core uses here and why, and how fast each choice is."""
    from p2psgd.ops.cpu_bench import report

    print_text(report())


def parse_share(text: str) -> tuple[int, int]:
    """`i/n` as (i, n) with 0 <= i < n; UsageError otherwise."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= 1024):
        raise UsageError(
            f"--share {text!r:.40} is not i/n with 0 <= i < n, such as 0/4 for the first of four"
        )
    return int(index), int(count)


def parse_http(text: str | None) -> Address | None:
    """--http; UsageError if it is no address with a port."""
    from p2psgd.discovery.hosts import parse_address

    if text is None:
        return None
    try:
        return parse_address(text, port_default=None)
    except ValueError as error:
        raise UsageError(f"--http: {error}; give 127.0.0.1:9400", ExitCode.CONFIGURATION) from None


def _exclusive(steps: int | None, seconds: float | None) -> None:
    if steps is not None and seconds is not None:
        raise UsageError("--steps and --seconds exclude each other: give one of them")


def _check_patience(patience: float) -> None:
    from p2psgd.core.timing import Timing

    try:
        Timing(patience)
    except ValueError as error:
        raise UsageError(f"--patience: {error}") from None


def _group_id(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        words = f"--control-group: this machine has no group {name!r:.80}; groupadd --system makes one"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def _record_limit(record: Path | None, record_bytes: int | None) -> int:
    """--record-bytes or its default; UsageError if it is of no use."""
    from p2psgd.ops.recorder import RECORD_BYTES_MAX, RECORD_BYTES_RANGE

    if record_bytes is None:
        return RECORD_BYTES_MAX
    if record is None:
        raise UsageError("--record-bytes limits the file of --record: give both or neither")
    least, most = RECORD_BYTES_RANGE
    if not least <= record_bytes <= most:
        raise UsageError(f"--record-bytes {record_bytes} is no limit for a recording: give {least} to {most}")
    return record_bytes


def main() -> NoReturn:
    """Entry point: one sentence on standard error and an exit code for everything a person can mend."""
    try:
        code = ExitCode(int(app(args=sys.argv[1:] or ["--help"], standalone_mode=False) or 0))
    except CommandLineError as error:
        code = _complain(f"{words_of(error)} (see --help)", ExitCode.USAGE)
    except typer.Abort:
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
