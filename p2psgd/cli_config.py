"""`p2psgd config`: what a node would be started with, and why."""

from __future__ import annotations

import contextlib
import json
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from p2psgd.cli_options import check_finding
from p2psgd.configuration.command import CommandLineError, words_of
from p2psgd.configuration.showing import collect, describe, render
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ops.printing import print_text

if TYPE_CHECKING:
    from p2psgd.node_options import NodeOptions

app = typer.Typer(help="Look at the configuration of a node.", rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Look at the configuration of a node."""


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for machines.")] = False,
) -> None:
    """Print what `p2psgd node` would be started with, and where each value comes from.

    Takes the options of `p2psgd node`, --config and --preset among them, and reads the same environment. Exit
    code 78 for what `p2psgd node` would refuse, and the reason last.
    """
    found: list[NodeOptions] = []
    root = context.find_root()
    node = cast(Any, root.command).commands["node"]
    try:
        with node.make_context("node", list(context.args), parent=root, obj=found.append) as ready:
            node.invoke(ready)
            (options,) = found
            shown = collect(ready, options)
            print_text(json.dumps(describe(shown), indent=2) if as_json else render(shown))
            _check(options)
    except CommandLineError as error:
        raise UsageError(f"{words_of(error)} (see p2psgd node --help)", ExitCode.CONFIGURATION) from None
    except UsageError as error:
        raise UsageError(str(error), ExitCode.CONFIGURATION) from None


def _check(options: NodeOptions) -> None:
    """What a node looks at before it listens; UsageError as from there."""
    from p2psgd.discovery.hosts import read_hosts
    from p2psgd.net.listening import check_exposure
    from p2psgd.node_tls import NodeTls

    check_finding(options.peers, zeroconf=options.zeroconf)
    if options.peers is not None:
        read_hosts(options.peers)
    NodeTls(options)
    with contextlib.suppress(ValueError):  # a name, whose address is looked up when it listens
        ip_address(options.listen.host)
        check_exposure(options.listen, encrypted=options.tls is not None, insecure=options.insecure_plaintext)
