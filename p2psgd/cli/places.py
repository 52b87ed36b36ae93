"""The node that a command is about: the one that --state or a variable names, else this user's own, else that
of this machine's systemd service.

Where this user's own and the service's are both there, a sentence on standard error says which it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from p2psgd.base.errors import UsageError
from p2psgd.base.formatting import say

PlaceOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="State directory of the node (default: $P2PSGD_STATE, else ~/.local/state/p2psgd, else that of "
        "this machine's systemd service).",
    ),
]
_NAMING: Final = ("P2PSGD_CONTROL", "P2PSGD_STATE", "STATE_DIRECTORY")


def find_control(state: Path | None) -> Path:
    """Return the control socket of the node to ask; a node that runs comes before one that does not."""
    from p2psgd.ipc import listener

    path = listener.control_path(state)
    if _is_named(state):
        return path
    own, service = listener.default_state_directory(), listener.SERVICE_STATE
    if path.parent == listener.SERVICE_DIRECTORY:
        if own.is_dir():
            say(f"asks this machine's service, as no node runs in {own}")
        return path
    if not own.is_dir() and os.path.lexists(service):  # the service is stopped, and its last words are there
        return service / listener.SOCKET_NAME
    _tell_apart(own, listener.SERVICE_DIRECTORY, service)
    return path


def find_parts(state: Path | None) -> list[Path]:
    """Return the state directories of all parts, if the node trains a model in parts; else none.

    While they run, those of an earlier run in more parts are left out.
    """
    from p2psgd.ipc import listener
    from p2psgd.ipc.part import part_directories, part_directory
    from p2psgd.node.parts import read_parts

    path = listener.control_path(state)
    if os.path.lexists(path):
        return []
    if (running := read_parts(path.parent)) is not None:
        return [part_directory(path.parent, index) for index in range(running.parts)]
    return part_directories(path.parent)


def refuse_parts(state: Path | None, command: str) -> None:
    """Raise UsageError, with the directory to give, if `command` is about one part of a node with several.

    A node without parts may have left its state beside theirs: it is meant, unless parts run there now.
    """
    from p2psgd.node.parts import read_parts
    from p2psgd.storage.event_log import EVENTS_NAME

    parts = find_parts(state)
    if not parts:
        return
    place = parts[0].parent
    if (place / EVENTS_NAME).exists() and read_parts(place) is None:
        return
    last = "" if len(parts) == 1 else f", up to {parts[-1].name}"
    raise UsageError(
        f"{place} is of a node that trains a model in parts, and `p2psgd {command}` looks at one of them:"
        f" give --state {parts[0]}{last}; `p2psgd status` shows all"
    )


def find_state(state: Path | None) -> Path:
    """Return the state directory to read; a node need not run there."""
    from p2psgd.ipc import listener

    if _is_named(state):
        return listener.control_path(state).parent  # --state may name the socket as well
    own, service = listener.default_state_directory(), listener.SERVICE_STATE
    if not own.is_dir() and os.path.lexists(service):
        return service
    _tell_apart(own, service)
    return own


def _is_named(state: Path | None) -> bool:
    return state is not None or any(map(os.environ.get, _NAMING))


def _tell_apart(own: Path, *places: Path) -> None:
    there = next(filter(os.path.lexists, places), None)
    if there is not None and own.is_dir():
        say(f"the node is that of {own}; --state {there} is this machine's service")
