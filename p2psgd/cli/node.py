"""`p2psgd node`, and `p2psgd config`, which shows what a node would be started with."""

from __future__ import annotations

import contextlib
import json
import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.commands import Commands
from p2psgd.cli.configuration import CommandLineError, collect, render, words_of_click
from p2psgd.cli.options import (
    LISTEN_DEFAULT,
    ConfigOption,
    FailureTimeoutOption,
    HttpOption,
    JsonOption,
    ListenOption,
    LogFormatOption,
    PartOption,
    PartsOption,
    PeersOption,
    PlaintextOption,
    RankOption,
    StateOption,
    TlsOption,
    check_failure_timeout,
    check_finding,
    parse_http,
    parse_listen,
    parse_part_option,
    parse_rank,
    parse_source,
)
from p2psgd.observe.logs import LogFormat, begin_log

if TYPE_CHECKING:
    from p2psgd.net.address import Address
    from p2psgd.node.options import NodeOptions


# ----------------------------------------------------------------------------
# `p2psgd node`: the daemon's options, checked before anything runs. `p2psgd.cli` makes a command of it.


def node(
    context: typer.Context,
    peers: PeersOption = None,
    zeroconf: Annotated[
        bool, typer.Option("--zeroconf", help="Find nodes of this run on the local network as well (mDNS).")
    ] = False,
    bootstrap_expect: Annotated[
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
    rank: RankOption = None,
    part: PartOption = None,
    parts: PartsOption = None,
    listen: ListenOption = LISTEN_DEFAULT,
    state: StateOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="Command that trains; started, and restarted, by the daemon.")
    ] = None,
    end_with_trainer: Annotated[
        bool,
        typer.Option(
            "--end-with-trainer",
            help="End the node when that command has finished and no other node makes steps any more: for"
            " jobs of a batch system.",
        ),
    ] = False,
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
        str | None,
        typer.Option(
            help="What people call this node (default: the certificate's name with --tls, else the host's)."
        ),
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
    failure_timeout: FailureTimeoutOption = 5.0,
    log_budget: Annotated[
        int,
        typer.Option(min=1, max=1024 * 1024, help="MiB of updates kept for peers that lag or start late."),
    ] = 256,
    log_disk_budget: Annotated[
        int,
        typer.Option(min=0, max=1024 * 1024, help="MiB of them kept on disk beyond that, in --state."),
    ] = 1024,
    log_format: LogFormatOption = LogFormat.TEXT,
    config: ConfigOption = None,
) -> None:
    """Run one node's daemon until SIGTERM or Ctrl+C.

    Each option may also stand in the file of --config, as log_budget = 512, or in the environment, as
    P2PSGD_LOG_BUDGET=512 (all but --control); the command line is the strongest, then the environment.
    """
    from p2psgd.ipc.listener import default_state_directory
    from p2psgd.node.daemon import run_node
    from p2psgd.node.options import NodeOptions

    address, its_part = parse_listen(listen), parse_part_option(part)
    check_failure_timeout(failure_timeout)
    _check_parts(part, parts, zeroconf=zeroconf, control=control)
    above = 0 if its_part is None else its_part.index
    advertised, shown = _parse_advertised(advertise, address.port), parse_http(http)
    if http_exposed and http is None:
        raise UsageError("--http-exposed is for the address of --http: give both or neither")
    if end_with_trainer and trainer is None and part is None:  # a part's is started beside its daemon
        raise UsageError("--end-with-trainer is for the command of --trainer: give both or neither")
    if tls is not None and insecure_plaintext:
        raise UsageError("--tls and --insecure-plaintext exclude each other: give one of them")
    if name is not None and not 1 <= len(name) <= 64:
        raise UsageError(f"--name {name!r:.80} must have 1 to 64 characters")
    for each in (address, advertised, shown):
        if each is not None:
            each.above((parts or 1) - 1)  # refused here, before the daemons of parts start
    source = parse_source(peers)
    options = NodeOptions(
        peers=source,
        zeroconf=zeroconf,
        bootstrap_expect=bootstrap_expect,
        advertise=None if advertised is None else advertised.above(above),
        rank=None if rank is None else parse_rank(rank),
        part=its_part,
        listen=address.above(above),
        state=state or default_state_directory(),
        control=control,
        control_group=None if control_group is None else _group_id(control_group),
        name=name,
        tls=tls,
        insecure_plaintext=insecure_plaintext,
        trainer=trainer,
        end_with_trainer=end_with_trainer,
        http=None if shown is None else shown.above(above),
        http_exposed=http_exposed,
        failure_timeout_s=failure_timeout,
        log_budget_bytes=log_budget * 1024 * 1024,
        store_budget_bytes=log_disk_budget * 1024 * 1024,
    )
    if context.obj is not None:  # `p2psgd config show`, which looks at them first
        context.obj(options)
        return
    check_finding(source, zeroconf=zeroconf)
    if part is None:
        check_state(options.state, parts)
    begin_log(log_format)  # until here a refusal is for the person who has typed the command, and text
    if parts is not None:
        from p2psgd.node.parts import run_parts

        raise typer.Exit(run_parts(options, parts, log_format=log_format.value))
    raise typer.Exit(run_node(options))


def check_state(state: Path, parts: int | None) -> None:
    """Raise UsageError if a run in that directory was in another number of parts: its checkpoints would seem
    to be gone.
    """
    from p2psgd.ipc.part import count_parts, part_directories
    from p2psgd.storage.files import FOLDER

    trained = any(os.path.exists(each / FOLDER) for each in part_directories(state))
    had = (count_parts(state) or len(part_directories(state))) if trained else None
    if had == parts or trained == os.path.exists(state / FOLDER):  # neither, or both of old
        return
    words = f"{state} is the state of a node " + ("without parts" if had is None else f"of {had} parts")
    again = "leave --parts out" if had is None else f"give --parts {had}"
    raise UsageError(f"{words}: {again} to go on with it, or name another --state for another run")


def _check_parts(part: str | None, parts: int | None, *, zeroconf: bool, control: Path | None) -> None:
    """Raise UsageError for options that do not go together with parts of a model."""
    if part is not None and parts is not None:
        raise UsageError("--part is for the daemon of one part, and --parts starts all of them: give one")
    if zeroconf and (part is not None or parts is not None):
        raise UsageError("daemons of parts find others by --peers alone: leave --zeroconf out")
    if parts is not None and control is not None:
        raise UsageError("--control is the socket of one daemon, and --parts starts several: leave it out")


def _parse_advertised(text: str | None, port: int) -> Address | None:
    from p2psgd.net.address import PORT_DEFAULT, is_numeric, parse_address

    if text is None:
        return None
    try:
        address = parse_address(text, port_default=port or PORT_DEFAULT)
    except ValueError as error:
        raise UsageError(f"--advertise: {error}") from None
    if not is_numeric(address) or address.host in ("0.0.0.0", "::"):
        raise UsageError(f"--advertise: {address.host} is not the IP address of one machine")
    return address


def _group_id(name: str) -> int:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        words = f"--control-group: this machine has no group {name!r:.80}; groupadd --system makes one"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


# ----------------------------------------------------------------------------
# `p2psgd config`: what a node would be started with, and why.


app = Commands(help="Look at the configuration of a node.")


@app.callback()
def group() -> None:
    """Look at the configuration of a node."""


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def show(
    context: typer.Context,
    as_json: JsonOption = False,
) -> None:
    """Print what `p2psgd node` would be started with, and where each value comes from.

    Takes the options of `p2psgd node`, --config among them, and reads the same environment. What `p2psgd
    node` would refuse is refused in the same words, last, and with the same exit code.
    """
    found: list[NodeOptions] = []
    root = context.find_root()
    node = cast(Any, root.command).commands["node"]
    try:
        with node.make_context("node", list(context.args), parent=root, obj=found.append) as ready:
            node.invoke(ready)
            (options,) = found
            shown = collect(ready, options)
            print_text(json.dumps(shown, indent=2) if as_json else render(shown))
            _check(options)
    except CommandLineError as error:
        raise UsageError(f"{words_of_click(error)} (see p2psgd node --help)") from None


def _check(options: NodeOptions) -> None:
    """Check what a node checks before it listens; raises UsageError as the node does."""
    from p2psgd.net.listen import check_exposure
    from p2psgd.node.tls import NodeTls

    check_finding(options.peers, zeroconf=options.zeroconf)
    if options.peers is not None:
        options.peers.ask()
    NodeTls(options)
    with contextlib.suppress(ValueError):  # a name, whose address is looked up when it listens
        ip_address(options.listen.host)
        check_exposure(options.listen, encrypted=options.tls is not None, insecure=options.insecure_plaintext)
