"""`p2psgd ca`: the certificates of a run's nodes. Done on one machine, which need not be a node."""

from __future__ import annotations

import json
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2psgd.base.errors import UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.commands import Commands
from p2psgd.cli.options import JsonOption

if TYPE_CHECKING:
    from p2psgd.cli.ca_authority import Authority

app = Commands(help="Make the certificates of a run's nodes.")

CaOption = Annotated[Path, typer.Option("--ca", metavar="DIR", help="Where `p2psgd ca init` made the CA.")]
CA_DEFAULT = Path("ca")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="A new directory.")] = CA_DEFAULT,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call the run (default: drawn).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the certificate authority of one run. Its key stays here: who has it can make nodes."""
    from p2psgd.cli.ca_authority import create_authority

    called = f"run-{secrets.token_hex(4)}" if run is None else run
    made = create_authority(directory, called, now=datetime.now(UTC))
    if as_json:
        print_text(json.dumps({"run": made.run, "directory": str(directory)}, indent=2))
        return
    print_text(
        f"the CA of run {made.run} is in {directory}; keep {directory / 'ca.key'} on this machine alone"
    )
    print_text(f"next: p2psgd ca issue{_ca_option(directory)} NODE...")


@app.command()
def issue(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="What people will call them.")],
    ca: CaOption = CA_DEFAULT,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Give nodes that have one a new one, with the same id.")
    ] = False,
    id_: Annotated[
        str | None,
        typer.Option("--id", help="The id of a node that has run without TLS, as `p2psgd status` shows it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a directory with certificate and key for each node, ready to be copied to its machine."""
    from p2psgd.core.frontier import parse_node_id

    chosen = None if id_ is None else parse_node_id(id_)
    if id_ is not None and (chosen is None or len(nodes) != 1):
        raise UsageError("--id takes 16 hexadecimal digits, and is for one node")
    if len(set(nodes)) != len(nodes):
        raise UsageError("a node is named twice: every node has its own certificate")
    authority = _open(ca)
    issued = []
    for name in nodes:
        made = authority.issue(name, now=datetime.now(UTC), days=days, node=chosen, renew=renew)
        expires, directory = made.expires.isoformat(), str(made.directory)
        issued.append(
            {"node": made.name, "id": f"{made.node:016x}", "expires": expires, "directory": directory}
        )
        if not as_json:
            until = f"{made.expires:%Y-%m-%d}"
            print_text(f"{made.name}: id {made.node:016x}, until {until}, in {directory}")
    if as_json:
        print_text(json.dumps(issued, indent=2))
        return
    print_text(f"next: p2psgd ca bundle{_ca_option(ca)} {nodes[0]}, or copy the directory, with its modes")


@app.command()
def bundle(
    node: Annotated[str, typer.Argument(help="Whose files.")],
    ca: CaOption = CA_DEFAULT,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The tar file, - for standard output (default: NODE.tar)."),
    ] = None,
) -> None:
    """Pack a node's directory into one tar file, to be unpacked on its machine. It holds the node's key."""
    from p2psgd.cli.ca_authority import pack_bundle, write_bundle

    directory = _open(ca).directory_of(node)
    if out == Path("-"):
        sys.stdout.buffer.write(pack_bundle(directory))
        return
    file = out or Path(f"{node}.tar")
    write_bundle(directory, file)
    print_text(
        f"{file} holds {node}'s key: remove it when it is unpacked, there by\n"
        f"  install -d -m 700 /etc/p2psgd/tls && tar -x --no-same-owner -C /etc/p2psgd/tls -f {file.name}"
    )


def _open(directory: Path) -> Authority:
    from p2psgd.cli.ca_authority import Authority

    return Authority(directory)


def _ca_option(directory: Path) -> str:
    return "" if directory == CA_DEFAULT else f" --ca {directory}"
