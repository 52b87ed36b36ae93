"""A node's read-only HTTP pages, for anybody who can reach the address.

`/` is the page, `/status.json` what it and `p2psgd status --json` are drawn from, `/history.json` its curves,
`/metrics` for Prometheus, `/livez` says that the loop turns, `/readyz` whether this node is READY. A status
is made anew at most every `FRESH_S`, however many ask.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address
from p2psgd.net.listen import bind
from p2psgd.node.http_server import HttpServer, Response
from p2psgd.observe.compression import render_compression
from p2psgd.observe.history import History
from p2psgd.observe.metrics import CONTENT_TYPE, Metrics
from p2psgd.observe.page import load_page
from p2psgd.observe.status import Compression, EventStatus, HttpStatus, NodeState, NodeStatus
from p2psgd.observe.text import status_lines
from p2psgd.storage.event_log import EventLog

EVENTS_SHOWN: Final = 50
FRESH_S: Final = 0.2
JSON: Final = "application/json"

log = logging.getLogger("p2psgd.http")


class NodeHttp:
    """The HTTP pages of one node; `status` and `compression` give what its control socket answers."""

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        compression: Callable[[], Compression | None],
        events: EventLog,
    ) -> None:
        self._ask_status = status
        self._ask_compression = compression
        self._events = events
        self._latest: NodeStatus | None = None
        self._made = float("-inf")
        self._metrics = Metrics(self._status)
        self._history = History()
        self._curves, self._curves_of = b"[]", 0  # points, as they were when it had so many
        page, policy = load_page()
        self._page = Response(page, "text/html; charset=utf-8", headers={"Content-Security-Policy": policy})
        self._server: HttpServer | None = None
        self._address = ""

    async def start(self, address: Address, *, exposed: bool) -> None:
        """Serve on `address`; UsageError if it cannot be had, or if machines other than this can reach it and
        it is not `exposed`.
        """
        listening, found = await bind(address, option="--http")
        if not (exposed or ipaddress.ip_address(found.host).is_loopback):
            listening.close()
            raise UsageError(
                f"--http {address} is not a loopback address, and whoever reached it could read all about "
                "this node: give 127.0.0.1 and reach it through ssh -L, or add --http-exposed",
                ExitCode.CONFIGURATION,
            )
        routes = {
            "/": lambda: self._page,
            "/status.json": self._status_json,
            "/history.json": self._history_json,
            "/metrics": lambda: Response(self._metrics.text(), CONTENT_TYPE),
            "/livez": lambda: Response(b"the loop turns\n"),
            "/readyz": self._readyz,
        }
        self._server = HttpServer(routes, names=frozenset({address.host.lower()}))
        self._server.start(listening)
        self._address = str(found)
        log.info("http://%s shows this node", found)

    def status(self) -> HttpStatus | None:
        """Return the HTTP part of the node's status: answers by status code, and connections cut
        without one.
        """
        if self._server is None:
            return None
        answered = {str(int(code)): count for code, count in self._server.answered.items()}
        return HttpStatus(address=self._address, answered=answered, cut=dict(self._server.cut))

    async def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            await self._server.close()

    def _status(self) -> NodeStatus:
        """Return the status with the whole compression, the last events, oldest first, and both in words."""
        if self._latest is None or time.monotonic() - self._made >= FRESH_S:
            status = self._ask_status()
            whole = self._ask_compression() or status.compression
            events = [EventStatus(**event) for event in list(self._events.latest)[-EVENTS_SHOWN:]]
            self._latest = status.model_copy(
                update={
                    "compression": whole,
                    "latest_events": events,
                    "lines": status_lines(status),
                    "compression_text": render_compression(whole) if whole and whole.total.updates else "",
                }
            )
            self._made = time.monotonic()
        return self._latest

    def tick(self) -> None:
        """Look at the run, for its history."""
        self._history.look(time.monotonic(), self._ask_status, moment=time.time())

    def _history_json(self) -> Response:
        if self._history.added != self._curves_of:
            self._curves_of = self._history.added
            self._curves = json.dumps(self._history.points).encode()
        return Response(self._curves, JSON)

    def _status_json(self) -> Response:
        return Response(self._status().model_dump_json(exclude_unset=True).encode(), JSON)

    def _readyz(self) -> Response:
        status = self._status()
        if status.ready and status.state is not NodeState.DRAINING:
            return Response(b"ready\n")
        why = status.not_ready or status.waits or status.state
        return Response(f"not ready: {why}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
