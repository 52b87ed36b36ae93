"""The command `p2psgd doctor` and its options."""

from __future__ import annotations

from typing import Annotated

import typer

from p2psgd.base.errors import UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.options import (
    LISTEN_DEFAULT,
    ConfigOption,
    JsonOption,
    ListenOption,
    PeersOption,
    PlaintextOption,
    StateOption,
    TlsOption,
    parse_listen,
    parse_source,
)
from p2psgd.observe.logs import LogFormat, begin_log


def doctor(
    peers: PeersOption = None,
    listen: ListenOption = LISTEN_DEFAULT,
    tls: TlsOption = None,
    insecure_plaintext: PlaintextOption = False,
    state: StateOption = None,
    weights: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**31, help="How many weights the net has: is there room?", allow_from_autoenv=False
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            max=3600.0,
            help="How long to wait for the others.",
            allow_from_autoenv=False,
        ),
    ] = 30.0,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Find what would keep this machine from a run, and name the remedy.

    Run it on all machines at about the same time, before their nodes are started. It reads the --config and
    the environment of `p2psgd node` too, for the options that both have. Exit code 0: no problem; 75:
    machines have not been reached in time; 78: a person must act.
    """
    import asyncio
    import json

    begin_log(LogFormat.TEXT)
    from p2psgd.cli.doctor.examination import Examination
    from p2psgd.cli.doctor.findings import exit_code, render, summarise
    from p2psgd.ipc.listener import default_state_directory

    address = parse_listen(listen)
    source = parse_source(peers)
    if source is None:
        raise UsageError("which machines? give --peers FILE, or the --config that names it")
    if tls is not None and insecure_plaintext:
        raise UsageError("--tls and --insecure-plaintext exclude each other: give one of them")
    examination = Examination(
        hosts=source,
        listen=address,
        state=state or default_state_directory(),
        wait_s=wait,
        weights=weights,
        tls=tls,
        insecure_plaintext=insecure_plaintext,
        show=lambda finding: as_json or print_text(render(finding)),
    )
    asyncio.run(examination.run())
    print_text(json.dumps(examination.describe(), indent=2) if as_json else summarise(examination.findings))
    raise typer.Exit(exit_code(examination.findings))
