"""The commands `p2psgd up` and `p2psgd down`, and their options."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2psgd.cli.up.fleet import Row
    from p2psgd.net.address import Address

HostsArgument = Annotated[
    Path, typer.Argument(metavar="HOSTS", help="The list of hosts; ssh must know each by its name there.")
]
SshOption = Annotated[
    str, typer.Option(metavar="COMMAND", help="ssh and its options, such as 'ssh -i key -l operator'.")
]
ParallelOption = Annotated[int, typer.Option(min=1, max=64, help="How many machines at once.")]


def up(
    hosts: HostsArgument,
    trainer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Start p2psgd-trainer@NAME too, which trains this recipe."),
    ] = "",
    trainer_env: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its options, as in systemd/trainer.env.example.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="p2psgd's wheel, or a folder with it and the wheels of all that it needs, for machines "
            "without an index (default: that in dist/)."
        ),
    ] = None,
    units: Annotated[Path, typer.Option(help="The folder with the units.")] = Path("systemd"),
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes' node.toml (default: node.toml.example of --units)."),
    ] = None,
    ca: Annotated[Path, typer.Option(metavar="DIR", help="Where `p2psgd ca init` made the CA.")] = Path("ca"),
    ssh: SshOption = "ssh",
    parallel: ParallelOption = 8,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, max=3600.0, help="How long to wait until all are ready."),
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Install and start a node on every machine of a list, by ssh, and wait until all are ready.

    Copies wheel, units, options, list and certificate, which it issues for a machine that has none. What is
    there already stays as it is: a second `up` changes nothing. Exit code 75: some are not ready, and the
    table says why.
    """
    from p2psgd.cli.ca_authority import Authority
    from p2psgd.cli.configuration import kinds_of, read_file
    from p2psgd.cli.node import node
    from p2psgd.cli.up.fleet import Machine, bring_up, default_wheel, node_name
    from p2psgd.cli.up.payload import Payload
    from p2psgd.cli.up.ssh import Remote

    if trainer and not trainer.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(f"--trainer {trainer!r:.80}: give a name of letters, digits, dots and dashes")
    if trainer_env is not None and not trainer:
        raise UsageError("--trainer-env is for the trainer that --trainer names: give both or neither")
    addresses = _read(hosts)
    program = _program(ssh)
    if config is not None:
        read_file(config, kinds_of(node))  # a node would refuse it on every machine
    payload = Payload.read(
        wheel or default_wheel(), units, hosts, config=config, trainer=trainer, trainer_env=trainer_env
    )
    authority = Authority(ca)
    machines = []
    for address in addresses:
        name = node_name(address)
        try:
            place = authority.directory_of(name)
        except UsageError:
            place = authority.issue(name, now=datetime.now(UTC)).directory
        machines.append(Machine(address, Remote(address.host, program), payload.of_node(address, place)))
    _end(bring_up(machines, payload, parallel=parallel, wait_s=wait, say=_say), as_json=as_json)


def down(
    hosts: HostsArgument, ssh: SshOption = "ssh", parallel: ParallelOption = 8, as_json: JsonOption = False
) -> None:
    """Stop the node on every machine of a list, by ssh; its state stays there, and `up` goes on with it.

    Each hands over what it has made and writes a checkpoint first. Exit code 75: some were not reached.
    """
    from p2psgd.cli.up.fleet import take_down
    from p2psgd.cli.up.ssh import Remote

    program = _program(ssh)
    remotes = [Remote(address.host, program) for address in _read(hosts)]
    _end(take_down(remotes, parallel=parallel, say=_say), as_json=as_json)


def _read(hosts: Path) -> tuple[Address, ...]:
    from p2psgd.net.peer_sources.hosts_file import read_hosts

    addresses = read_hosts(hosts)
    if not addresses:
        raise UsageError(f"{hosts} names no host", ExitCode.CONFIGURATION)
    twice = [each.host for each in addresses]
    if again := next((host for host in twice if twice.count(host) > 1), ""):
        words = f"{hosts} names {again} with several ports, and up installs one node on a machine"
        raise UsageError(words, ExitCode.CONFIGURATION)
    return addresses


def _program(ssh: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(ssh))
    except ValueError as error:
        raise UsageError(f"--ssh {ssh!r:.80}: {error}") from None
    if not words:
        raise UsageError("--ssh is empty: give 'ssh' and its options")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--ssh {ssh!r:.80}: there is no command {words[0]}", ExitCode.CONFIGURATION)
    return words


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _end(rows: Sequence[Row], *, as_json: bool) -> None:
    from p2psgd.cli.up.fleet import exit_code, render

    print_text(json.dumps([asdict(row) for row in rows], indent=2) if as_json else render(rows))
    raise typer.Exit(exit_code(rows))
