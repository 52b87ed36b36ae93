"""The node that a command is about: the one that --state or a variable names, else this user's own, else that
of this machine's systemd service.

Where this user's own and the service's are both there, a sentence on standard error says which it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

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

    While they run, those of an earlier run in more parts are left out. If nothing runs, and a node without
    parts has been in the same directory as well, the one with the latest event is meant.
    """
    from p2psgd.ipc import listener
    from p2psgd.ipc.part import part_directories, part_directory
    from p2psgd.node.parts import read_parts

    path = listener.control_path(state)
    if (running := read_parts(path.parent)) is not None:
        return [part_directory(path.parent, index) for index in range(running.parts)]
    if os.path.lexists(path):
        return []
    parts = part_directories(path.parent)
    return parts if _last_event_at(path.parent) <= max(map(_last_event_at, parts), default=0.0) else []


def _last_event_at(state: Path) -> float:
    """Return when a node has written its last event, in seconds since the epoch; 0 if never."""
    from p2psgd.storage.event_log import EVENTS_NAME

    try:
        return (state / EVENTS_NAME).stat().st_mtime
    except OSError:
        return 0.0


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
