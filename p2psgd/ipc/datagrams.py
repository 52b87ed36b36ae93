"""Datagrams with file descriptors on a SOCK_SEQPACKET socket, both ways.

Like socket.send_fds and recv_fds, which in Python 3.11 ignore their flags: descriptors that come in must not
leak into programs that the daemon starts, and no call may block where the caller says so.

`sent` and `received` are lists that a system call's result is put into with nothing in between: `extend` over
a `map` runs no bytecode there, and only between bytecodes can a signal's handler raise. However a caller is
interrupted, they tell what has happened.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

DESCRIPTORS_MAX = 16  # more than any message carries


Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]  # what recvmsg returns


@dataclass(frozen=True, slots=True)
class Datagram:
    """One datagram; its descriptors belong to whoever received it. `truncated`: it was too large."""

    data: bytes
    descriptors: list[int]
    truncated: bool


def send_datagram(
    connection: socket.socket,
    data: bytes,
    descriptors: Sequence[int] = (),
    *,
    wait: bool = False,
    sent: list[int] | None = None,
) -> None:
    """Send one datagram; `sent` gets its length.

    BlockingIOError if it would have to wait and may not, OSError if the connection is gone.
    """
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    flags = 0 if wait else socket.MSG_DONTWAIT
    lengths = [] if sent is None else sent
    lengths.extend(map(connection.sendmsg, ([data],), (ancillary,), (flags,)))


def receive_datagram(connection: socket.socket, bytes_max: int) -> Datagram:
    """Receive one datagram of at most `bytes_max` bytes; no data: the other side has closed.

    BlockingIOError if none is there, OSError if the connection was reset.
    """
    received: list[Received] = []
    receive_into(received, connection, bytes_max)
    return datagram_of(received[0])


def receive_into(received: list[Received], connection: socket.socket, bytes_max: int) -> None:
    """The same, with what came put into `received`, for `datagram_of`."""
    room = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    received.extend(map(connection.recvmsg, (bytes_max,), (room,), (flags,)))


def datagram_of(received: Received) -> Datagram:
    """What was received, with its descriptors taken out of it."""
    data, ancillary, found, _ = received
    descriptors = array.array("i")
    for level, kind, contents in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(contents[: len(contents) // descriptors.itemsize * descriptors.itemsize])
    return Datagram(data, list(descriptors), bool(found & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))


def close_descriptors(descriptors: Iterable[int]) -> None:
    """Close each of them."""
    for descriptor in descriptors:
        os.close(descriptor)
