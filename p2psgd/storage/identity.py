"""The identity of this node: its id, name and incarnation, kept in a state directory that belongs to one
running daemon at a time.

The id is drawn once and stays; the incarnation is new, and higher, at every start, and is on disk before it
is used, so that a daemon that restarts is never taken for its former self.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2psgd.base.errors import ExitCode, UsageError, cannot
from p2psgd.core.frontier import CHANCE_BITS, INCARNATION_MAX, Origin, next_incarnation, parse_node_id
from p2psgd.storage.files import FILE_MODE, NODE_NAME, make_directory, replacing
from p2psgd.wire.messages import U64

LOCK_NAME: Final = "lock"


class _Known(BaseModel):
    """The content of node.json."""

    model_config = ConfigDict(extra="forbid", strict=True)

    node: Annotated[str, Field(pattern="^[0-9a-f]{1,16}$")]
    name: str
    incarnation: U64


@dataclass
class Identity:
    """The present incarnation of this node; holds the state directory's lock until `release`."""

    origin: Origin
    name: str
    _lock: int

    def release(self) -> None:
        """Release the state directory's lock."""
        os.close(self._lock)


def claim_identity(state: Path, *, name: str | None, node: int | None = None, above: int = 0) -> Identity:
    """Lock the state directory, read or draw the node's id, and begin a new incarnation. `node` is the id
    that its certificate gives it, if it has one; `above`: the highest incarnation that a peer knows of it.

    Raises UsageError if the directory cannot be used (TEMPORARY is its exit code while the disk is full),
    is in use by another daemon or is another node's, its node.json is damaged or leaves no higher
    incarnation, or the name has the form of an id.
    """
    lock = lock_directory(state)
    try:
        return _begin_life(state, lock, name, node, above)
    except BaseException:
        os.close(lock)
        raise


def lock_directory(state: Path) -> int:
    """Make the state directory if there is none, and lock it; return the lock, a descriptor to close.

    Raises UsageError if it cannot be used, or another process has it.
    """
    try:
        make_directory(state)
        lock = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise cannot(f"use {state} as the state directory", error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(
            f"another daemon is using the state directory {state}: give every node its own with --state",
            ExitCode.CONFIGURATION,
        ) from None
    return lock


def is_locked(state: Path) -> bool:
    """Return whether a process has the lock of this state directory."""
    try:
        descriptor = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lay_down_id(state: Path, *, node: int, name: str) -> None:
    """Choose the id of the node whose state directory this is, unless it has one already.

    For a harness that wants the same nodes in every run. OSError if the file cannot be written.
    """
    path = state / NODE_NAME
    if not path.exists():
        _write(path, {"node": f"{node:016x}", "name": name, "incarnation": 0})


def read_id(state: Path) -> int | None:
    """Return the id of the node whose state directory this is; None if it has none yet."""
    known = _read(state / NODE_NAME)
    return None if known is None else known[0]


def _begin_life(state: Path, lock: int, name: str | None, certified: int | None, above: int) -> Identity:
    path = state / NODE_NAME
    known = _read(path)
    drawn = secrets.randbits(64) if certified is None else certified
    node = drawn if known is None else known[0]
    if certified not in (None, node):
        raise UsageError(
            f"{state} belongs to the node {node:016x}, and the certificate to {certified:016x}: give this "
            f"node another --state, or issue it a certificate with --id {node:016x}",
            ExitCode.CONFIGURATION,
        )
    called = name or (known[1] if known is not None else socket.gethostname()[:64] or "node")
    if parse_node_id(called) is not None:
        raise UsageError(f"the name {called} has the form of a node's id: give another one with --name")
    highest = max(above, 0 if known is None else known[2])
    clock_ms = time.time_ns() // 1_000_000
    incarnation = next_incarnation(highest, clock_ms=clock_ms, chance=secrets.randbits(CHANCE_BITS))
    if incarnation is None:
        raise UsageError(
            f"{path} and this node's peers know its incarnation {highest}, and there is none above "
            f"{INCARNATION_MAX}: make it a new node, with another --state and, over TLS, another certificate",
            ExitCode.CONFIGURATION,
        )
    try:
        _write(path, {"node": f"{node:016x}", "name": called, "incarnation": incarnation})
    except OSError as error:
        raise cannot(f"write {path}", error) from None
    return Identity(Origin(node, incarnation), called, lock)


def _read(path: Path) -> tuple[int, str, int] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot(f"read {path}", error) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: {error}", ExitCode.CONFIGURATION) from None
    try:
        known = _Known.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        raise UsageError(
            f"{path} is damaged ({fault:.200}): remove the file to make this a new node",
            ExitCode.CONFIGURATION,
        ) from None
    return int(known.node, 16), known.name, known.incarnation


def _write(path: Path, fields: dict[str, object]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(fields).encode())
