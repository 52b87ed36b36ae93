"""The listener of the control socket, and the path of that socket in a state directory."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from p2psgd.base.aio import is_reserved
from p2psgd.base.errors import ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.ipc.part import Part, count_parts, part_directories, part_directory
from p2psgd.ipc.protocol import (
    REQUEST_BYTES_MAX,
    STOPPED,
    Datagram,
    close_descriptors,
    pack_refusal,
    receive_datagram,
    send_datagram,
)

# ----------------------------------------------------------------------------
# Where a daemon keeps its state, and how its control socket in there is addressed.
#
# AF_UNIX addresses hold 107 bytes, state directories may be deeper: such a socket is bound and connected to
# through /proc/self/fd/N/control.sock, N being the opened directory. Nothing here creates a directory.


SOCKET_NAME = "control.sock"
SERVICE_DIRECTORY = Path("/run/p2psgd")  # systemd makes it for p2psgd.service, and removes it
SERVICE_STATE = Path("/var/lib/p2psgd")  # the service's state directory, which stays
ADDRESS_BYTES_MAX = 107  # sizeof(sockaddr_un.sun_path) - 1


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $P2PSGD_STATE, else systemd's $STATE_DIRECTORY, $XDG_STATE_HOME/p2psgd or
    ~/.local/state/p2psgd.
    """
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


def part_control(control: str | Path | None, part: Part) -> str | Path | None:
    """Return the control socket of one part of a model, if `control` or what stands for it is the state
    directory of all parts; else `control`. TrainerError if that node has other parts.
    """
    state = control_path(control).parent
    count = count_parts(state)
    if count is not None and count != part.count:
        raise TrainerError(
            f"the node in {state} has {count} parts, and this group has {part.count} ranks: start as many"
            " ranks as the node has parts (torchrun --nproc-per-node, and p2psgd node --parts)"
        )
    if count is None and not part_directories(state):
        return control
    return part_directory(state, part.index) / SOCKET_NAME


def refuse_parts(path: Path) -> None:
    """Raise TrainerError if there is no daemon at this socket, as the node there trains a model in parts."""
    there = [each for each in part_directories(path.parent) if os.path.lexists(each / SOCKET_NAME)]
    if there and not os.path.lexists(path):
        raise TrainerError(
            f"the node in {path.parent} trains a model in parts, and this script attaches a"
            " whole one: cut it by fully_shard or parallelize_module before p2psgd.torch.attach, or give that"
            " part=(rank, ranks), as for the stages of a pipeline; a node for a whole model has no --parts"
        )


def _service_alone(environment: Mapping[str, str]) -> bool:
    """Return whether nobody has named a node, the service runs, and no other of this user's."""
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


# ----------------------------------------------------------------------------
# Who may talk to the daemon over its control socket: accepting, counting and closing connections.
#
# AF_UNIX, SOCK_SEQPACKET: one datagram is one request. The socket file has mode 0660 and the other process
# must be of the daemon's user, of the group that was chosen for it if one was, or root. At most 64
# connections, and none on a descriptor that is kept for the daemon's files; each may have one request under
# way: a peer that sends the next before it has read the last answer is closed, so nothing piles up in the
# kernel either. What requests mean is server.py's.


CONNECTIONS_MAX = 64
SOCKET_MODE = 0o660
ACCEPT_PAUSE_S = 1.0  # after running out of file descriptors or memory
SETTLE_DATAGRAMS_MAX = 1000  # more than the kernel queues on one connection
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
SO_PEERGROUPS = 59  # on x86-64 and ARM; the supplementary groups of who has connected
GROUPS_BYTES_MAX = 1024  # the most that Python asks for: who is in more than 256 groups counts as in none


class Connection:
    """An accepted connection; `pid` is 0 if its process is in a foreign pid namespace."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        self.pid, self.uid, self._gid = CREDENTIALS.unpack(credentials)

    def is_of_group(self, group: int) -> bool:
        """Return whether the other process was in this group (its id) when it connected."""
        if self._gid == group:
            return True
        try:
            packed = self.end.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES_MAX)
        except OSError:
            return False
        return (group,) in struct.iter_unpack("I", packed)

    def receive(self) -> Datagram:
        """Return the next datagram; no data: the other side has closed. BlockingIOError if there is none
        yet.
        """
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
        """Return whether the other side has not yet read what was sent last."""
        unread = fcntl.ioctl(self.end, termios.TIOCOUTQ, bytes(4))
        return any(unread)

    def has_closed(self) -> bool:
        """Return whether the other side has closed its end, even if requests of its still wait to be read."""
        poll = select.poll()
        poll.register(self.end, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


class Listener:
    """The socket file and all connections through it.

    `also` is a link to it for those who know only that place; `group` (an id): its users are let in as well.
    `on_datagram(connection, datagram)` gets every datagram and closes its descriptors; `on_close(connection)`
    is called for a connection that the other side closed, after which it is gone. `refused_requests` counts
    requests that were refused, and connections that were not let in.
    """

    def __init__(
        self,
        path: Path,
        *,
        also: Path | None,
        group: int | None,
        on_datagram: Callable[[Connection, Datagram], None],
    ) -> None:
        self.refused_requests = 0
        self.on_close: Callable[[Connection], None] = lambda connection: None
        self._path = path
        self._also = also if also != path else None
        self._group = group
        self._on_datagram = on_datagram
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

    def send(self, connection: Connection, answer: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send an answer; a connection that cannot take it is closed, and the result False."""
        if connection.send(answer, descriptors):
            return True
        self.on_close(connection)
        self.close_connection(connection)
        return False

    def guard(self, connection: Connection, work: Callable[[], None]) -> None:
        """Do what a connection asked for; what keeps that from being done becomes the answer, and counts."""
        try:
            work()
        except P2psgdError as error:
            self.refused_requests += 1
            self.send(connection, pack_refusal(str(error)))
        except (OSError, MemoryError) as error:
            words = (
                os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "out of memory"
            )
            self.refused_requests += 1
            self.send(connection, pack_refusal(f"the daemon cannot do that now: {words}"))

    def settle(self, connection: Connection) -> None:
        """Read what a connection whose other side has ended still holds, its end included if it has come."""
        for _ in range(SETTLE_DATAGRAMS_MAX):
            if connection not in self._connections or not self._read(connection):
                return

    def close(self) -> None:
        """Close all connections and remove the socket file."""
        for connection in list(self._connections):
            self.close_connection(connection, pack_refusal(STOPPED))
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
            self.refused_requests += 1
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
            self.on_close(connection)
            self.close_connection(connection)
        elif connection.is_owed_a_read():
            close_descriptors(datagram.descriptors)
            self.refused_requests += 1
            self.on_close(connection)
            self.close_connection(connection)
        else:
            self._on_datagram(connection, datagram)
        return True
