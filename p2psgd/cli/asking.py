"""The commands that ask a node of this machine, or read what it has left: how is it, what happened, are the
replicas equal. `p2psgd.cli` makes commands of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import p2psgd
from p2psgd.base.errors import CheckpointError, ExitCode, UsageError
from p2psgd.base.formatting import print_text, printable
from p2psgd.cli.commands import Commands
from p2psgd.cli.options import JsonOption
from p2psgd.cli.places import PlaceOption, find_control, find_parts, find_state

if TYPE_CHECKING:
    from p2psgd.cli.weights_file import Written
    from p2psgd.ipc.client import ControlClient


def status(
    state: PlaceOption = None,
    compression: Annotated[
        bool, typer.Option("--compression", help="Print what to look at to choose tau instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the status of a node of this machine."""
    if parts := find_parts(state):
        from p2psgd.cli.parts import print_status

        print_status(parts, lambda place: _print_status(place, compression=compression), as_json=as_json)
        return
    _print_status(state, compression=compression, as_json=as_json)


def _print_status(state: Path | None, *, compression: bool = False, as_json: bool = False) -> None:
    from p2psgd.observe.compression import render_compression
    from p2psgd.observe.status import read_status
    from p2psgd.observe.text import render_status

    with _client(state) as client:
        answer = read_status(client.request("status")["status"])
        if compression or as_json:
            try:
                fields = {"node": answer.node, "compression": client.request("compression")["compression"]}
            except UsageError:  # the request has no fields that could be wrong: the daemon does not know it
                if not as_json:
                    raise UsageError(_other_version(answer.version), ExitCode.CONFIGURATION) from None
            else:
                whole = read_status(fields).compression if fields["compression"] else answer.compression
                answer = answer.model_copy(update={"compression": whole})
    if as_json:
        print_text(answer.model_dump_json(indent=2, exclude_unset=True))
    else:
        print_text(render_compression(answer.compression) if compression else render_status(answer))


def top(
    state: PlaceOption = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask where --http shows a node instead: http://127.0.0.1:9400."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, after two questions.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=60.0, help="Seconds from each question to the next.")
    ] = 1.0,
) -> None:
    """Watch a node of this machine, and what it knows of the others, until q or Ctrl+C.

    Of a node that trains a model in parts all parts are shown, a row for each.
    """
    from rich.console import Console

    from p2psgd.cli.top import HttpSource, Watching, ask_over_control, draw_node
    from p2psgd.cli.top_parts import draw_parts

    if url is not None and state is not None:
        raise UsageError("--url and --state both say which node to ask: give one of them")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names may have letters that a terminal lacks
    console = Console()
    bars = (console.encoding or "").lower().startswith("utf")
    if parts := find_parts(state) if url is None else []:
        sources = [partial(ask_over_control, place / "control.sock") for place in parts]
        watching = Watching(sources, console, every_s=interval, draw=partial(draw_parts, parts))
    else:
        source = partial(ask_over_control, find_control(state)) if url is None else HttpSource(url)
        watching = Watching([source], console, every_s=interval, draw=partial(draw_node, bars=bars))
    if once:
        watching.once()
    elif console.is_terminal and not console.is_dumb_terminal:
        watching.screen()
    else:
        watching.lines()


def events(
    state: PlaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for machines.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Then go on with those that come.")] = False,
    kind: Annotated[str | None, typer.Option(help="Only events of this kind.")] = None,
    last: Annotated[int | None, typer.Option("-n", min=1, help="Only the last so many until now.")] = None,
) -> None:
    """Print what happened to a node, and to each of its parts if it has some, whether it runs or not."""
    from p2psgd.cli.events import print_events

    print_events(
        find_parts(state), lambda: find_state(state), as_json=as_json, follows=follow, kind=kind, last=last
    )


def digest(
    state: PlaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a node's replica with its peers' now.

    It also checks the memory that it lies in. Exit code 0: all members have the same; 1: not, or not all
    could be compared.
    """
    from p2psgd.cli.digest import Scrub, find_fault, render_digest

    if parts := find_parts(state):
        from p2psgd.cli.parts import print_digest

        print_digest(parts, _client, as_json=as_json)
        return
    with _client(state) as client:
        report = Scrub(client).report()
    print_text(report.model_dump_json(indent=2) if as_json else render_digest(report))
    if fault := find_fault(report):
        raise UsageError(f"equal replicas are not proved: {fault}", ExitCode.FAILED)


def remove(
    member: Annotated[
        str, typer.Argument(metavar="NODE", help="The node's name, or its id as `p2psgd status` shows it.")
    ],
    state: PlaceOption = None,
    forbid: Annotated[
        bool, typer.Option("--forbid", help="Remove it for good, even if it still runs: its daemon ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove another node from the run.

    Run it on any machine whose node is a member; it returns when a majority of the members has agreed.
    Without --forbid the node must have stopped, and is admitted again if it comes back. With --forbid no node
    with its id is ever admitted again, whatever its name.
    """
    from p2psgd.cli.remove import remove_node

    places: list[Path | None] = [*find_parts(state)]
    for place in places or [state]:
        with _client(place) as client:
            standing, words = remove_node(client, member, forbid=forbid)
        print_text(standing.model_dump_json(indent=2) if as_json else words)


def export(
    file: Annotated[Path, typer.Argument(help="The file to write: .safetensors or .npz, by its name.")],
    state: PlaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the weights of a running node of this machine to a file."""
    from p2psgd.cli.weights_file import check_weights_name, export_weights

    check_weights_name(file)
    if parts := find_parts(state):
        from p2psgd.cli.parts import export_parts

        with contextlib.ExitStack() as stack:
            written = export_parts([stack.enter_context(_client(place)) for place in parts], file)
    else:
        with _client(state) as client:
            written = export_weights(client, file)
    _print_written(file, written, as_json=as_json)


def _print_written(file: Path, written: Written, *, as_json: bool, trouble: str = "") -> None:
    if as_json:
        print_text(json.dumps({"file": str(file), **written._asdict()}, indent=2))
    else:
        print_text(f"{written} written to {file}{trouble}")


def _client(state: Path | None) -> ControlClient:
    """Connect to the node's daemon; if none answers and the last one has said why it ended, say that."""
    from p2psgd.ipc.client import ControlClient, NoDaemon
    from p2psgd.storage.event_log import EVENTS_NAME, last_event

    path = find_control(state)
    try:
        return ControlClient(path)
    except NoDaemon:
        event = last_event(path.parent / EVENTS_NAME)
        if event is None or event["kind"] != "stop":
            raise
        ended = f"the last one ended at {event['time'][:19]}Z: {printable(event['words'])}"
        words = f"no daemon answers at {path}: {ended}; --state DIR names another node"
        raise UsageError(words, ExitCode.TEMPORARY) from None


def _other_version(version: str) -> str:
    return (
        f"the daemon is of another version ({version or 'unknown'}, this is "
        f"{p2psgd.__version__}) and does not tell its compression: ask with its own p2psgd"
    )


# ----------------------------------------------------------------------------
# `p2psgd checkpoint`: what a node has on disk, whether a daemon runs there or not.


checkpoint = Commands(help="Look at a node's checkpoints on disk.")


@checkpoint.command("list")
def list_all(state: PlaceOption = None, as_json: JsonOption = False) -> None:
    """Print all checkpoints: number, time, updates applied, size, whole or damaged."""
    from p2psgd.cli.checkpoint_listing import describe, open_store, render_list

    if parts := find_parts(state):
        from p2psgd.cli.parts import print_checkpoints

        print_checkpoints(parts, as_json=as_json)
        return
    entries = open_store(find_state(state)).entries()
    print_text(json.dumps([*map(describe, entries)], indent=2) if as_json else render_list(entries))


@checkpoint.command("export")
def export_checkpoint(
    file: Annotated[Path, typer.Argument(help="The file to write: .safetensors or .npz, by its name.")],
    state: PlaceOption = None,
    number: Annotated[
        int | None, typer.Option(min=1, help="Which one, as `p2psgd checkpoint list` numbers them.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the weights of a checkpoint (default: the newest whole one), a float32 array for each tensor."""
    from p2psgd.cli.checkpoint_listing import open_store, read_whole
    from p2psgd.cli.parts import put_together
    from p2psgd.cli.weights_file import check_weights_name, make_arrays, write_arrays
    from p2psgd.node.recovery import unpack_trainer
    from p2psgd.wire.update import weights_of

    check_weights_name(file)
    made, trouble = [], ""
    parts = find_parts(state)
    if parts and number is not None:
        raise UsageError("--number is of one part's checkpoints: give --state of that part as well")
    for place in parts or [find_state(state)]:
        found = read_whole(open_store(place), number)
        spec, script = found.spec, None
        values = weights_of(found.coordinates[: spec.weights], mode=spec.mode, quantum_log2=spec.quantum_log2)
        try:
            trainer = unpack_trainer(found.trainer)
            script = trainer.script if trainer else None
        except CheckpointError as error:
            trouble = f", without what the script kept: {error}"
        its = make_arrays(values, tensors=spec.tensors, digest=found.digest, script=script)
        made.append(its._replace(label=spec.label))
    written = write_arrays(file, put_together(made) if parts else made[0])
    _print_written(file, written, as_json=as_json, trouble=trouble)
