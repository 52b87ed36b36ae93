"""The other end of a daemon's control socket, for commands and for trainers.

It waits for answers, so it is not for the daemon's loop.

One request at a time. A daemon that is not there, closes or refuses is an error with a sentence that says so.

An exchange that was interrupted (Ctrl+C) or timed out may leave its answer on the way. The next one waits for
that answer first and throws it away; numbers in requests and answers would not do instead, because the daemon
closes a connection that asks again before it has read (listener.py).
"""

from __future__ import annotations

import math
import select
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from p2psgd.base.errors import DaemonLost, ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.ipc.listener import socket_address
from p2psgd.ipc.protocol import (
    ANSWER_BYTES_MAX,
    STOPPED,
    Datagram,
    Received,
    Request,
    WaitAnswer,
    check_answer,
    close_descriptors,
    datagram_of,
    pack_request,
    parse_answer,
    parse_fields,
    receive_datagram,
    receive_into,
    rejects_contribution,
    send_datagram,
)
from p2psgd.wire.messages import Fields

TIMEOUT_S = (
    30.0  # a daemon answers within one turn of its loop; a longer silence is a stopped or hung process
)


class NoDaemon(UsageError):
    """No daemon listens at this path; one that is just starting may do so soon."""

    def __init__(self, path: Path) -> None:
        nodes = sorted(each.parent for each in path.parent.glob("*/control.sock"))  # the state of `local`
        where = nodes[0] if nodes else "DIR"
        super().__init__(
            f"no daemon answers at {path}: start one with `p2psgd node`, or name the state directory of one "
            f"that runs with --state {where}",
            ExitCode.TEMPORARY,
        )


@dataclass(slots=True)
class _Exchange:
    """The state of one request and its answer; the system calls themselves fill it in."""

    sent: list[int] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    @property
    def under_way(self) -> bool:
        """Return whether the request was sent and its answer has not arrived."""
        return bool(self.sent) and not self.received


class ControlClient:
    """A connection to the daemon whose control socket is at `path`.

    Raises NoDaemon (a UsageError) if none listens, UsageError if this user may not connect. Requests raise
    UsageError with the daemon's sentence when it refuses, and DaemonLost when it goes away or is silent for
    `timeout_s` (None: waits on).
    """

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self.timeout_s: float | None = timeout_s
        self._closed: TrainerError | None = None  # why the daemon has closed, once it has said so
        self._exchange = _Exchange()  # the last one, until its answer's descriptors have found an owner
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", math.ceil(timeout_s), 0)
        )
        try:
            with socket_address(path) as address:
                self._end.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, BlockingIOError):
            self._end.close()
            raise NoDaemon(path) from None
        except OSError as error:
            self._end.close()
            raise UsageError(f"cannot connect to {path}: {error.strerror}", ExitCode.PERMISSION) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor to poll: readable out of turn means that the daemon is going away."""
        return self._end.fileno()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._forget_exchange()
        self._end.close()

    def request(self, op: str, **fields: Any) -> Fields:
        """Ask and return the fields of the answer."""
        answer, descriptors = self.request_with_fds(op, **fields)
        close_descriptors(descriptors)
        return answer

    def request_with_fds(
        self, op: str, *, fds: Sequence[int] = (), **fields: Any
    ) -> tuple[Fields, list[int]]:
        """Ask, handing over descriptors; return the answer's fields and the descriptors with it, now ours."""
        return self.exchange(parse_fields({"op": op, **fields}), fds, lists=True)

    def exchange(
        self,
        request: Request,
        fds: Sequence[int] = (),
        *,
        lists: bool = False,
        on_wait: Callable[[str], None] | None = None,
    ) -> tuple[Fields, list[int]]:
        """Send a request that is made already and return the answer and its descriptors; arrays in the answer
        are tuples unless `lists`.

        `on_wait` gets each sentence with which the daemon says why the answer is still to come; from the
        first on it may take as long as it likes.
        """
        packed = pack_request(request)
        self.settle()
        self._forget_exchange()
        exchange = self._exchange
        try:
            send_datagram(self._end, packed, fds, wait=True, sent=exchange.sent)
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed, perhaps with a refusal that can be read
        except BlockingIOError:
            raise DaemonLost(f"the daemon at {self.path} takes no requests") from None
        while True:
            self._await_answer()
            datagram = datagram_of(exchange.received[0])
            if not datagram.data:
                raise self._gone()
            try:
                fields, refusal = parse_answer(datagram.data, lists=lists)
                if refusal is not None:
                    if self._has_ended():
                        self._keep_last_words(refusal, contribution=rejects_contribution(datagram.data))
                    raise UsageError(refusal, ExitCode.TEMPORARY if refusal == STOPPED else ExitCode.USAGE)
                words = check_answer(WaitAnswer, fields).waits if on_wait and "waits" in fields else ""
            except P2psgdError:
                self._forget_exchange()
                raise
            if not words or on_wait is None:
                self._exchange = _Exchange()  # from here on the descriptors are the caller's
                return fields, datagram.descriptors
            close_descriptors(datagram.descriptors)
            exchange.received.clear()
            self.timeout_s = None
            on_wait(words)

    def settle(self) -> None:
        """Wait for the answer to an exchange that was interrupted, if there is one."""
        if self._exchange.under_way:
            self._await_answer()

    def tell(self, request: Request) -> bool:
        """Send a request that gets no answer; False if the daemon is too busy to take it or gone."""
        try:
            send_datagram(self._end, pack_request(request))
        except OSError:
            return False
        return True

    def check_daemon(self) -> None:
        """Raise DaemonLost, with its last words if there are any, if the daemon has closed; one system call.
        TrainerError with them if they reject the trainer's contribution to a round. A second call raises the
        same.

        The answer to a request that was interrupted is thrown away; then they are two.
        """
        try:
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass  # its last words may still be there
        if self._exchange.under_way:
            self._receive_answer()
            self._forget_exchange()
            if not self._has_come():
                return
        datagram = self._read()
        close_descriptors(datagram.descriptors)
        _, words = parse_answer(datagram.data) if datagram.data else ({}, None)
        if words is not None:
            self._keep_last_words(words, contribution=rejects_contribution(datagram.data))
        raise self._gone()

    def _keep_last_words(self, words: str, *, contribution: bool) -> None:
        """Keep the daemon's reason for closing; every later request raises it."""
        lost = f"the daemon at {self.path} closed this connection: {words}"
        self._closed = TrainerError(words) if contribution else DaemonLost(lost)

    def _gone(self) -> TrainerError:
        """Return the error to raise for a connection that the daemon has closed."""
        if self._closed is None:
            return DaemonLost(f"the daemon at {self.path} is gone")
        return type(self._closed)(str(self._closed))

    def _await_answer(self) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if not poll.poll(None if self.timeout_s is None else math.ceil(1000 * self.timeout_s)):
            raise DaemonLost(f"the daemon at {self.path} has not answered for {self.timeout_s:g} s")
        self._receive_answer()

    def _receive_answer(self) -> None:
        """Receive the answer of the exchange under way, or the end of the connection."""
        try:
            receive_into(self._exchange.received, self._end, ANSWER_BYTES_MAX)
        except ConnectionResetError:  # see `_read`
            receive_into(self._exchange.received, self._end, ANSWER_BYTES_MAX)

    def _forget_exchange(self) -> None:
        """Close the descriptors of an answer that nobody has taken; interrupted, it leaves one at most."""
        forgotten, self._exchange = self._exchange, _Exchange()
        for received in forgotten.received:
            close_descriptors(datagram_of(received).descriptors)

    def _has_ended(self) -> bool:
        """Return whether the daemon has closed, and all that it had sent is read."""
        try:
            return not self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def _has_come(self) -> bool:
        try:
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass  # its last words may still be there
        return True

    def _read(self) -> Datagram:
        """Return the next datagram; no data if the daemon has closed.

        A reset is reported once, before data that was sent earlier can be read.
        """
        try:
            return receive_datagram(self._end, ANSWER_BYTES_MAX)
        except ConnectionResetError:
            return receive_datagram(self._end, ANSWER_BYTES_MAX)
