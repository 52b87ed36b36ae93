"""The port that a node listens on: is it free, and if not, who has it?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from p2psgd.discovery.address import Address
from p2psgd.doctor.finding import Finding, note, ok, problem
from p2psgd.errors import P2psgdError
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.paths import control_path
from p2psgd.ops import numerals

CHECK: Final = "port"
STATUS_TIMEOUT_S: Final = 3.0
_LISTENING: Final = "0A"  # TCP_LISTEN in /proc/net/tcp


def describe_free(listen: Address, *, encrypted: bool) -> Finding:
    """Nothing else listens there."""
    how = "with TLS" if encrypted else "in PLAINTEXT"
    return ok(CHECK, f"{listen} is free; links are {how}")


def describe_taken(listen: Address, words: str, status: Mapping[str, Any] | None) -> Finding:
    """`words`: why it cannot be had; `status`: of a daemon of this machine, if one answers."""
    if status is not None and str(status.get("listen", "")).endswith(f":{listen.port}"):
        name, state = (str(status.get(key) or "?") for key in ("node", "state"))
        waits = str(status.get("waits") or "")
        peers = [peer for peer in status.get("peers") or () if isinstance(peer, dict)]
        linked = sum(peer.get("state") == "connected" for peer in peers)
        tail = f"; it waits: {waits}" if waits else ""
        words = f"the node {name} of this machine runs already on {listen}: {state}, linked with {linked} of "
        return note(CHECK, f"{words}{numerals.counted(len(peers), 'peer')}{tail}")
    owner = owner_of(listen.port)
    if owner is not None:
        words = f"port {listen.port} is taken by {owner}"
        mend = f"a node? sudo p2psgd status; else end it, or take another port: --listen {listen.host}:PORT"
        return problem(CHECK, words, mend)
    return problem(CHECK, words, f"sudo ss -ltnp 'sport = :{listen.port}' tells what listens there")


def daemon_status(state: Path | None) -> dict[str, Any] | None:
    """Of the daemon that commands on this machine ask; None without one that answers."""
    with (
        contextlib.suppress(P2psgdError, OSError),
        ControlClient(control_path(state), timeout_s=STATUS_TIMEOUT_S) as client,
    ):
        answer: dict[str, Any] = client.request("status")["status"]
        return answer
    return None


def owner_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """The process that listens on a TCP port, as `name (pid 123)`; None if this user may not know."""
    inodes = set(_listeners(port, proc))
    if not inodes:
        return None
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) in inodes:
                    name = (process / "comm").read_text(errors="replace").strip()
                    return f"{name} (pid {process.name})"
    return "a process of another user"


def _listeners(port: int, proc: Path) -> Iterator[str]:
    """Their sockets, as /proc/PID/fd names them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == _LISTENING and local.endswith(f":{port:04X}"):
                    yield f"socket:[{rest[5]}]"
