"""Who may talk to the daemon over its control socket: accepting, counting and closing connections.

AF_UNIX, SOCK_SEQPACKET: one datagram is one request. The socket file has mode 0660 and the other process must
be of the daemon's user, of the group that was chosen for it if one was, or root. At most 64 connections, and
none on a descriptor that is kept for the daemon's files; each may have one request under way: whoever sends
the next before it has read the last answer is closed, so nothing piles up in the kernel either. What requests
mean is control_server.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

from p2psgd.descriptors import is_reserved
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ipc.answers import pack_refusal
from p2psgd.ipc.datagrams import Datagram, close_descriptors, receive_datagram, send_datagram
from p2psgd.ipc.paths import socket_address
from p2psgd.ipc.requests import REQUEST_BYTES_MAX

CONNECTIONS_MAX = 64
SOCKET_MODE = 0o660
ACCEPT_PAUSE_S = 1.0  # after running out of file descriptors or memory
SETTLE_DATAGRAMS_MAX = 1000  # more than the kernel queues on one connection
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
SO_PEERGROUPS = 59  # on x86-64 and ARM; the supplementary groups of who has connected
GROUPS_BYTES_MAX = 1024  # the most that Python asks for: who is in more than 256 groups counts as in none


class Connection:
    """One accepted connection; `pid` is 0 if its process is in a foreign pid namespace."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        self.pid, self.uid, self._gid = CREDENTIALS.unpack(credentials)

    def is_of_group(self, group: int) -> bool:
        """Whether the other process was of this group (its id) when it connected."""
        if self._gid == group:
            return True
        try:
            packed = self.end.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES_MAX)
        except OSError:
            return False
        return (group,) in struct.iter_unpack("I", packed)

    def receive(self) -> Datagram:
        """The next datagram; no data: the other side has closed. BlockingIOError if there is none yet."""
        try:
            return receive_datagram(self.end, REQUEST_BYTES_MAX)
        except BlockingIOError:
            raise
        except OSError:  # reset: it closed with our last answer unread
            return Datagram(b"", [], truncated=False)

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send one datagram without waiting; False if it could not be sent."""
        try:
            send_datagram(self.end, data, descriptors)
        except OSError:
            return False
        return True

    def is_owed_a_read(self) -> bool:
        """Whether the other side has not yet read what was sent last."""
        unread = fcntl.ioctl(self.end, termios.TIOCOUTQ, bytes(4))
        return any(unread)

    def has_closed(self) -> bool:
        """Whether the other side has closed its end, even if requests of its still wait to be read."""
        poll = select.poll()
        poll.register(self.end, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


class Listener:
    """The socket file and all connections through it.

    `also` is a link to it for those who know only that place; `group` (an id): its users are let in as well.
    `on_datagram(connection, datagram)` gets every datagram and closes its descriptors; `on_close(connection)`
    hears of a connection that the other side closed, after which it is gone; `on_refused()` counts those not
    let in.
    """

    def __init__(
        self,
        path: Path,
        *,
        also: Path | None,
        group: int | None,
        on_datagram: Callable[[Connection, Datagram], None],
        on_close: Callable[[Connection], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._path = path
        self._also = also if also != path else None
        self._group = group
        self._on_datagram = on_datagram
        self._on_close = on_close
        self._on_refused = on_refused
        self._connections: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: socket.socket | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind and listen; UsageError if another daemon answers at this path or it cannot be bound."""
        self._loop = loop
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            with socket_address(self._path) as address:
                self._remove_stale(address)
                mask = os.umask(0o777 & ~SOCKET_MODE)
                try:
                    end.bind(address)
                finally:
                    os.umask(mask)
                # where it is this process's own group, a sandbox may forbid what would change nothing
                if self._group is not None and os.stat(address).st_gid != self._group:
                    os.chown(address, -1, self._group)
            self._link()
            end.listen(CONNECTIONS_MAX)
        except OSError as error:
            end.close()
            raise UsageError(
                f"the control socket {self._path} cannot be made: {error.strerror}", ExitCode.CONFIGURATION
            ) from None
        except UsageError:
            end.close()
            raise
        self._end = end
        loop.add_reader(end.fileno(), self._accept)

    def close_connection(self, connection: Connection, farewell: bytes = b"") -> None:
        """Close a connection, after a last datagram if one is given; may be called twice."""
        if connection not in self._connections:
            return
        assert self._loop is not None
        if farewell:
            connection.send(farewell)
        self._connections.remove(connection)
        self._loop.remove_reader(connection.end.fileno())
        connection.end.close()

    def settle(self, connection: Connection) -> None:
        """Read what a connection whose other side has ended still holds, its end included if it has come."""
        for _ in range(SETTLE_DATAGRAMS_MAX):
            if connection not in self._connections or not self._read(connection):
                return

    def close(self) -> None:
        """Close all connections and remove the socket file."""
        for connection in list(self._connections):
            self.close_connection(connection, pack_refusal("the daemon has stopped"))
        if self._end is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._end.fileno())
            self._end.close()
            self._end = None
            for path in (self._path, self._also):
                if path is not None:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _may_connect(self, connection: Connection) -> bool:
        if connection.uid in (os.geteuid(), 0):
            return True
        return self._group is not None and connection.is_of_group(self._group)

    def _link(self) -> None:
        if self._also is not None:
            self._also.unlink(missing_ok=True)
            self._also.symlink_to(self._path.absolute())

    def _remove_stale(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(address)
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError):  # or a link of an earlier life to nowhere
                    os.unlink(address)
                return
            except ConnectionRefusedError:
                os.unlink(address)
                return
            except BlockingIOError:
                pass  # somebody listens, with a full backlog
        raise UsageError(f"another daemon answers at {self._path}: stop it or give this one another --state")

    def _accept(self) -> None:
        assert self._loop is not None
        assert self._end is not None
        try:
            end, _ = self._end.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._loop.remove_reader(self._end.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
            return
        connection = Connection(end)
        refusal = ""
        if not self._may_connect(connection):
            members = "" if self._group is None else f", nor is it of the group {self._group} that may"
            refusal = f"user {connection.uid} may not control a daemon of user {os.geteuid()}{members}"
        elif len(self._connections) >= CONNECTIONS_MAX:
            refusal = f"{CONNECTIONS_MAX} connections are open already: close one first"
        elif is_reserved(end.fileno(), local=True):
            refusal = "the daemon has too many files open for one more connection: close one first"
        if refusal:
            connection.send(pack_refusal(refusal))
            end.close()
            self._on_refused()
            return
        end.setblocking(False)
        self._connections.add(connection)
        self._loop.add_reader(end.fileno(), self._read, connection)

    def _resume(self) -> None:
        if self._end is not None:
            assert self._loop is not None
            self._loop.add_reader(self._end.fileno(), self._accept)

    def _read(self, connection: Connection) -> bool:
        """Read one datagram, if one is there."""
        if connection not in self._connections:
            return False
        try:
            datagram = connection.receive()
        except BlockingIOError:
            return False
        if not datagram.data:
            close_descriptors(datagram.descriptors)
            self._on_close(connection)
            self.close_connection(connection)
        elif connection.is_owed_a_read():
            close_descriptors(datagram.descriptors)
            self._on_refused()
            self._on_close(connection)
            self.close_connection(connection)
        else:
            self._on_datagram(connection, datagram)
        return True
