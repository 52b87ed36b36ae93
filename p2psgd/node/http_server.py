"""A small HTTP server on the daemon's own loop: GET and HEAD, one request a connection, all of it bounded.

h11 parses, this file only moves bytes and refuses. However much is asked, the daemon goes on: at most
`CONNECTIONS_MAX` are open, or as many as descriptors are left for, a newcomer takes the place of the oldest,
each is open for `DEADLINE_S` at most, and the number taken in a second is limited so that they cost the loop
a few per cent. There is no keep-alive and no body is read. A request by any other name than an address or
localhost is refused: else a web page whose name is made to lead here (DNS rebinding) could read what this
machine's browser may.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, cast

import h11

from p2psgd.net.listen import accept_on

CONNECTIONS_MAX: Final = 32
DEADLINE_S: Final = 10.0  # from the connection's first byte to its last
REQUEST_BYTES_MAX: Final = 8 * 1024
IGNORED_BYTES_MAX: Final = 64 * 1024  # after the request, which is answered and not read on
WORDS_MAX: Final = 200  # of a refusal that quotes the request
PACE_S: Final = 0.005  # between two connections taken in
FAULTS_LOGGED: Final = 10

TEXT: Final = "text/plain; charset=utf-8"
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]\s]+))(?::\d{1,5})?")

log = logging.getLogger("p2psgd.http")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to a request; `headers` come beside those that every answer has."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Routes = Mapping[str, Callable[[], Response]]


class HttpServer:
    """A server that answers the paths in `routes`, which must take a few milliseconds at most.

    `names`: its names beside localhost and any IP address. `answered` counts answers by status, `cut` the
    connections that got none by the reason.
    """

    def __init__(self, routes: Routes, *, names: frozenset[str] = frozenset()) -> None:
        self.answered: Counter[int] = Counter()
        self.cut: Counter[str] = Counter()
        self._routes = routes
        self._names = names | {"localhost"}
        self._open: dict[_Connection, None] = {}  # oldest first
        self._faults = 0
        self._task: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept on this non-blocking socket, which is the server's from now on, until `close`."""
        self._listening = listening
        accepting = accept_on(
            listening, partial(_Connection, self), refused=self._short_of_descriptors, pace_s=PACE_S
        )
        self._task = asyncio.get_running_loop().create_task(accepting)

    async def close(self) -> None:
        """Cut all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for connection in list(self._open):
            connection.cut("closing")
        if self._listening is not None:
            self._listening.close()

    # -- of its connections

    def opened(self, connection: _Connection) -> None:
        """Register a connection, and make room for it."""
        if len(self._open) >= CONNECTIONS_MAX:
            self._cut_oldest()
        self._open[connection] = None

    def _short_of_descriptors(self, _host: str) -> None:
        self.cut["descriptors"] += 1
        self._cut_oldest()

    def _cut_oldest(self) -> None:
        if self._open:
            next(iter(self._open)).cut("displaced")

    def ended(self, connection: _Connection) -> None:
        """Forget a connection that is gone."""
        self._open.pop(connection, None)

    def answer(self, request: h11.Request) -> Response:
        """Return the answer to a request."""
        if request.method not in (b"GET", b"HEAD"):
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", {"Allow": "GET, HEAD"})
        host = next((value for name, value in request.headers if name == b"host"), b"")
        if not self._known(host.decode("ascii", "replace")):
            words = "ask for this server by its IP address or as localhost"
            return refusal(HTTPStatus.MISDIRECTED_REQUEST, words)
        path = request.target.split(b"?", 1)[0].decode("ascii", "replace")
        route = self._routes.get(path)
        if route is None:
            return refusal(HTTPStatus.NOT_FOUND, f"there are: {' '.join(sorted(self._routes))}")
        try:
            return route()
        except Exception:
            self.log_fault(path)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug, see the daemon's log")

    def log_fault(self, what: str) -> None:
        """Count a bug, and log the first few."""
        self._faults += 1
        if self._faults <= FAULTS_LOGGED:
            log.exception("no answer for %s", what)

    def _known(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(match["v6"] or match["name"]))
        return match["v6"] is None and match["name"].lower().rstrip(".") in self._names


def refusal(status: HTTPStatus, words: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build an answer that gives the reason why there is no other."""
    return Response(f"{status.phrase.lower()}: {words}\n".encode(), status=status, headers=headers or {})


class _Connection(asyncio.Protocol):
    """A connection of one client, until the end of the answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER)
        self._received = 0
        self._done = False
        self._deadline: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._deadline = asyncio.get_running_loop().call_later(DEADLINE_S, self.cut, "late")
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.ended(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception:  # whatever a client can bring about ends its connection and not the daemon
            self._server.log_fault("a connection")
            self.cut("fault")

    def _take(self, data: bytes) -> None:
        self._received += len(data)
        if self._done:
            if self._received > IGNORED_BYTES_MAX:
                self.cut("too much")
            return
        if self._received > REQUEST_BYTES_MAX:
            self._answer(refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{REQUEST_BYTES_MAX} bytes"))
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._answer(refusal(HTTPStatus(error.error_status_hint), str(error)[:WORDS_MAX]))
            return
        if isinstance(event, h11.Request):
            self._answer(self._server.answer(event), head=event.method == b"HEAD")

    def cut(self, reason: str) -> None:
        """End the connection now; a client that has been answered has had the time to read."""
        if not self._done:
            self._server.cut[reason] += 1
        self._server.ended(self)
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, response: Response, *, head: bool = False) -> None:
        """Send the answer and no more; then wait for the client to hang up, so that nothing of it is lost."""
        assert self._transport is not None
        self._done = True
        self._server.answered[int(response.status)] += 1
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Connection": "close",
            **response.headers,
        }
        phrase = response.status.phrase.encode()
        start = h11.Response(status_code=response.status, headers=list(headers.items()), reason=phrase)
        events: list[h11.Event] = [start, h11.EndOfMessage()]
        if not head:
            events.insert(1, h11.Data(data=response.body))
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        if self._transport.can_write_eof():
            self._transport.write_eof()
