"""Where a daemon keeps its state, and how its control socket in there is addressed.

AF_UNIX addresses hold 107 bytes, state directories may be deeper: such a socket is bound and connected to
through /proc/self/fd/N/control.sock, N being the opened directory. Nothing here creates a directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

SOCKET_NAME = "control.sock"
SERVICE_DIRECTORY = Path("/run/p2psgd")  # systemd makes it for p2psgd.service, and removes it
ADDRESS_BYTES_MAX = 107  # sizeof(sockaddr_un.sun_path) - 1


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """$P2PSGD_STATE, else systemd's $STATE_DIRECTORY, $XDG_STATE_HOME/p2psgd or ~/.local/state/p2psgd."""
    if own := environment.get("P2PSGD_STATE"):
        return Path(own)
    if given := environment.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])  # systemd separates several by colons
    if home := environment.get("XDG_STATE_HOME"):
        return Path(home) / "p2psgd"
    return Path.home() / ".local" / "state" / "p2psgd"


def control_path(control: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a control socket, from that path or from the state directory that holds it.

    Without `control`: $P2PSGD_CONTROL, else the default state directory, or, if no daemon was started there,
    that of this machine's service if it runs. The socket need not exist yet.
    """
    chosen = control if control is not None else environment.get("P2PSGD_CONTROL")
    if not chosen and _service_alone(environment):
        return SERVICE_DIRECTORY / SOCKET_NAME
    path = Path(chosen) if chosen else default_state_directory(environment)
    names_socket = path.suffix == ".sock" or path.is_socket()
    return path if names_socket and not path.is_dir() else path / SOCKET_NAME


def _service_alone(environment: Mapping[str, str]) -> bool:
    """Nobody has named a node, the service runs, and no other of this user's."""
    named = environment.get("P2PSGD_STATE") or environment.get("STATE_DIRECTORY")
    if named or not os.path.isdir(SERVICE_DIRECTORY):
        return False
    return not os.path.lexists(default_state_directory(environment) / SOCKET_NAME)


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address of at most 107 bytes for the socket at `path`, valid inside the with block.

    OSError when the path is too long and its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
