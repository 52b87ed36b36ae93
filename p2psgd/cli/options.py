"""Options that several commands have, the words that they take and what checks them."""

from __future__ import annotations

import enum
import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from p2psgd.base.errors import UsageError
from p2psgd.cli.configuration import PeersText, take_file
from p2psgd.observe.logs import LogFormat

if TYPE_CHECKING:
    from p2psgd.ipc.part import Part
    from p2psgd.net.address import Address
    from p2psgd.net.peer_sources.source import PeerSource


class Output(enum.StrEnum):
    """The values of --output: the nodes whose trainers' output `p2psgd local` shows."""

    FIRST = "first"
    ALL = "all"
    NONE = "none"


class ModeWord(enum.StrEnum):
    """--mode"""

    ASYNC = "async"
    OWNERS = "owners"
    RING = "ring"
    CLOSURE = "closure"


class PayloadWord(enum.StrEnum):
    """--payload"""

    SPARSE = "sparse"
    DENSE = "dense"
    DENSE_FLOAT16 = "dense-float16"
    TERNARY = "ternary"


ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", is_eager=True, callback=take_file, help="TOML file with options."),
]
FailureTimeoutOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Silence after which a peer is suspect, 0.2 to 600; all other times follow from it.",
    ),
]


def complete_recipe(incomplete: str) -> list[str]:
    """Return what the beginning of a recipe's name may become: built-in ones, and TOML files."""
    from p2psgd.recipes.recipe import built_in_recipes

    names = [name for name in built_in_recipes() if name.startswith(incomplete)]
    return names + sorted(glob.glob(f"{glob.escape(incomplete)}*.toml"))


RecipeOption = Annotated[
    str,
    typer.Option(
        help="Built-in recipe (`p2psgd recipe` lists them) or a TOML file.", autocompletion=complete_recipe
    ),
]
InitialOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Start from these weights, .npz or .safetensors, the same on all nodes, such as `p2psgd export` "
        "wrote.",
    ),
]
PeersOption = Annotated[
    PeersText | None,
    typer.Option(
        parser=PeersText,
        metavar="SOURCE",
        help="Where peers are: a file with one host[:port] a line, which may name this node too, or "
        "dns:NAME[:PORT], slurm:[PORT], env:VARIABLE, exec:COMMAND. One that can be reached is enough. "
        "Asked again on SIGHUP.",
    ),
]
RankOption = Annotated[
    str | None,
    typer.Option(
        help="Which part of the data this node takes, and of how many: i/n, with i from 0 (default: its "
        "place in hosts.txt)."
    ),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        metavar="k/K",
        help="Which part of a model this node trains that is cut over K ranks, k from 0. All ports, those in "
        "--peers too, are k higher than they say.",
    ),
]
PartsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="The parts of a model that is cut over the devices of a node: one daemon for each, and one "
        "trainer command, such as torchrun, for all.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Steps of each node, rounds of a ring, or iterations of L-BFGS; default: as the recipe says.",
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        help="Train for this many seconds instead, counted from the start of the run, or in rounds from the "
        "first one. Each node stops by its own clock, so no two such runs are the same.",
    ),
]
ModeOption = Annotated[
    ModeWord | None,
    typer.Option(
        help="async: nobody waits; owners: nor there, each node adds up a part of the weights; ring: in "
        "rounds, all in step; closure: L-BFGS on all data, in `p2psgd local` alone: elsewhere give `p2psgd "
        "lbfgs` (default: as the recipe says, else async)."
    ),
]
PayloadOption = Annotated[
    PayloadWord | None,
    typer.Option(
        help="What goes around the ring: coded updates, or whole gradients as float32 or float16 "
        "(default: sparse). With --mode owners --rounds, ternary: whole gradients in three values."
    ),
]
RuleOption = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="What owners make of what nodes send: sum, adagrad, adamw or, in rounds, nesterov; settings may "
        "follow in brackets: 'adamw(beta2=0.95)' (default: as the recipe says, else sum).",
    ),
]
RoundsOption = Annotated[
    bool | None,
    typer.Option(
        "--rounds/--no-rounds",
        help="In mode owners: in rounds, all in step (default: as the recipe says, else not).",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="auto, cpu, cuda or cuda:N; auto is a CUDA device if there is one (default: as the recipe says, "
        "else auto).",
    ),
]
TlsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Encrypt all links, with the certificate in this directory, which `p2psgd ca issue` makes.",
    ),
]
PlaintextOption = Annotated[
    bool,
    typer.Option(
        "--insecure-plaintext",
        help="Let others reach a node without --tls: whoever can reads and alters the run. For closed labs.",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(help="The log on standard error: text, or a JSON object a line."),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="State directory of the node (default: $P2PSGD_STATE, else ~/.local/state/p2psgd).",
    ),
]
OutputOption = Annotated[
    Output,
    typer.Option(help="Whose trainer's output is shown: the first node's, all with their names, or none."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print everything, for machines.", allow_from_autoenv=False)
]
ListenOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS[:PORT]", help="Address to accept peers on; without a port, the default one."
    ),
]
LISTEN_DEFAULT: Final = "0.0.0.0:7315"
HttpOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS:PORT",
        help="Serve the status (`local`: of the first node): page, /status.json, /metrics, /livez, /readyz "
        "(default: nowhere).",
    ),
]


def parse_listen(text: str) -> Address:
    """Parse --listen; UsageError if it is not an address."""
    from p2psgd.net.address import parse_address

    try:
        return parse_address(text, to_listen=True)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None


def parse_http(text: str | None) -> Address | None:
    """Parse --http; UsageError if it lacks an address or a port."""
    from p2psgd.net.address import parse_address

    if text is None:
        return None
    try:
        return parse_address(text, port_default=None, to_listen=True)
    except ValueError as error:
        raise UsageError(f"--http: {error}; give 127.0.0.1:9400") from None


def check_finding(peers: PeerSource | None, *, zeroconf: bool) -> None:
    """Raise UsageError if a node has no way to find others."""
    if peers is None and not zeroconf:
        raise UsageError("how does this node find others? give --peers FILE, --zeroconf, or both")


def parse_source(text: str | None) -> PeerSource | None:
    """Parse --peers; UsageError if a scheme's argument is wrong."""
    from p2psgd.net.peer_sources.parse import parse_peers

    return None if text is None else parse_peers(text)


def check_failure_timeout(failure_timeout: float) -> None:
    """Check --failure-timeout; UsageError if no times follow from it."""
    from p2psgd.core.timing import Timing

    try:
        Timing(failure_timeout)
    except ValueError as error:
        raise UsageError(f"--failure-timeout: {error}") from None


def check_device(device: str | None) -> None:
    """Check the form of --device; UsageError if no machine could have such a device."""
    from p2psgd.gpu.device import WORDS, is_device

    if device is not None and not is_device(device):
        raise UsageError(f"--device {device!r:.40} is not known: give {WORDS}")


def parse_part_option(text: str | None) -> Part | None:
    """Parse --part; UsageError if it is not k/K."""
    from p2psgd.ipc.part import parse_part

    try:
        return None if text is None else parse_part(text)
    except ValueError as error:
        raise UsageError(f"--part: {error}") from None


def parse_rank(text: str) -> tuple[int, int]:
    """Return `i/n` as (i, n) with 0 <= i < n; UsageError otherwise."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count) <= 1024):
        raise UsageError(f"--rank {text!r:.40} is not i/n with 0 <= i < n, such as 0/4 for the first of four")
    return int(index), int(count)
