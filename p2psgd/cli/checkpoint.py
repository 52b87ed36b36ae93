"""`p2psgd checkpoint`: what a node has on disk, whether a daemon runs there or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from p2psgd.base.errors import CheckpointError
from p2psgd.base.formatting import print_text
from p2psgd.cli.asking import StateOption

app = typer.Typer(help="Look at a node's checkpoints on disk.", rich_markup_mode=None)

NumberOption = Annotated[
    int | None, typer.Option(min=1, help="Which one, as `p2psgd checkpoint list` numbers them.")
]


@app.command("list")
def list_all(state: StateOption = None) -> None:
    """Print all checkpoints: number, time, updates applied, size, whole or damaged."""
    from p2psgd.cli.checkpoint_listing import open_store, render_list
    from p2psgd.ipc.listener import default_state_directory

    print_text(render_list(open_store(state or default_state_directory()).entries()))


@app.command()
def show(
    state: StateOption = None,
    number: NumberOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for machines.")] = False,
) -> None:
    """Print all that a checkpoint (default: the newest) says about itself."""
    from p2psgd.cli.checkpoint_listing import describe_entry, find_entry, open_store, render_entry
    from p2psgd.ipc.listener import default_state_directory

    entry = find_entry(open_store(state or default_state_directory()), number)
    print_text(json.dumps(describe_entry(entry), indent=2) if as_json else render_entry(entry))
    if entry.fault:
        raise CheckpointError(f"checkpoint {entry.number} cannot be used: {entry.fault}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The file to write: .safetensors or .npz, by its name.")],
    state: StateOption = None,
    number: NumberOption = None,
) -> None:
    """Write the weights of a checkpoint (default: the newest whole one), a float32 array for each tensor."""
    from p2psgd.base.formatting import counted
    from p2psgd.cli.checkpoint_listing import open_store, read_whole
    from p2psgd.cli.weights_file import check_weights_name, write_weights
    from p2psgd.ipc.listener import default_state_directory
    from p2psgd.wire.update import weights_of

    check_weights_name(file)
    found = read_whole(open_store(state or default_state_directory()), number)
    spec = found.spec
    values = weights_of(found.coordinates[: spec.weights], mode=spec.mode, quantum_log2=spec.quantum_log2)
    weights = write_weights(file, values, tensors=spec.tensors)
    print_text(f"{counted(weights, 'weight')} with digest {found.digest:016x} written to {file}")
