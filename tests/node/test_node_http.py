"""Real daemons with --http: what they answer, whom they refuse, and that nobody who asks holds them up."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from p2psgd.node.http_server import CONNECTIONS_MAX
from tests import DEADLINE_S
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place, calm, ended, endless, steps
from tests.ports import free_ports


def get(port: int, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _further(daemon: Daemon, count: int) -> bool:
    return steps(daemon) > count + 20


class Shown:
    """Two nodes that train together, the first of which shows itself."""

    def __init__(self, daemons: list[Daemon], port: int) -> None:
        self.daemons = daemons
        self.port = port

    def status(self) -> dict[str, Any]:
        code, body = get(self.port, "/status.json")
        assert code == 200
        status: dict[str, Any] = json.loads(body)
        return status

    @contextlib.contextmanager
    def unaffected(self) -> Iterator[None]:
        """Meanwhile both train on, their link stays, and afterwards a question is answered."""
        before, began = [steps(daemon) for daemon in self.daemons], time.monotonic()
        yield
        until(lambda: all(map(_further, self.daemons, before)), "training goes on")
        (peer,) = self.status()["peers"]
        assert (peer["state"], peer["since_s"] > time.monotonic() - began) == ("connected", True)
        assert self.daemons[0].process.poll() is None


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    path: Path = tmp_path_factory.mktemp("shown")
    place = Place(path, 2)
    (port,) = free_ports(1)
    options = (("--http", f"127.0.0.1:{port}"), ())
    patient = ("--failure-timeout", "30")  # a link that stays must not depend on how busy the machine is
    daemons = [place.start(number, *endless(calm(path)), *options[number], *patient) for number in range(2)]
    with all_stopped(daemons):
        until(lambda: min(map(steps, daemons)) > 50, "both train")
        yield Shown(daemons, port)


def test_status_json_is_what_the_command_prints_with_the_last_events_and_words(shown: Shown) -> None:
    asked, answered = shown.daemons[0].status(), shown.status()
    assert asked is not None
    assert answered.keys() - asked.keys() == {"latest_events", "lines", "compression_text"}
    for key in ("node", "id", "incarnation", "pid", "run", "listen", "ready", "failure_timeout_s"):
        assert answered[key] == asked[key], key
    assert answered["compression"]["tensors"][0]["name"] == "layer1.weight"
    assert answered["latest_events"][0]["kind"] == "start"
    assert answered["lines"][0] == ["state", answered["state"], ""]
    assert answered["http"]["address"] == f"127.0.0.1:{shown.port}"


def test_metrics_are_read_by_prometheus_own_parser_and_count(shown: Shown) -> None:
    def values() -> dict[str, float]:
        families = text_string_to_metric_families(get(shown.port, "/metrics")[1])
        return {sample.name: sample.value for family in families for sample in family.samples}

    first = values()
    assert first["p2psgd_ready"] == 1
    assert first["process_resident_memory_bytes"] > 10e6
    names = ("p2psgd_steps_total", "p2psgd_updates_applied_total", "p2psgd_network_sent_bytes_total")
    until(lambda: all(values()[name] > first[name] for name in names), "they grow")


def test_a_node_that_trains_is_live_and_ready(shown: Shown) -> None:
    assert get(shown.port, "/livez") == (200, "the loop turns\n")
    assert get(shown.port, "/readyz") == (200, "ready\n")
    assert get(shown.port, "/readyz", method="HEAD") == (200, "")


def test_the_page_allows_nothing_but_itself(shown: Shown) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shown.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        answer = connection.getresponse()
        policy, body = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert "unsafe" not in policy
    outside = [word for word in ("https://", "//cdn", "@import", "url(", "src=") if word in body]
    assert outside == []


def test_other_names_and_methods_are_refused(shown: Shown) -> None:
    assert get(shown.port, "/status.json", host="evil.example")[0] == 421
    assert get(shown.port, "/status.json", method="POST")[0] == 405
    assert get(shown.port, "/status.json", method="DELETE")[0] == 405
    assert get(shown.port, "/etc/passwd")[0] == 404


def crowd(port: int, count: int, first: bytes) -> Iterator[socket.socket]:
    for _ in range(count):
        connected = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        connected.sendall(first)
        connected.setblocking(False)
        yield connected


@pytest.mark.parametrize(
    "first",
    [b"", b"GET /status.json HTTP/1.1\r\nHost: 127", b"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
    ids=["silent", "half a request", "never reads the answer"],
)
def test_two_hundred_connections_are_capped_and_nobody_else_notices(shown: Shown, first: bytes) -> None:
    files = len(os.listdir(f"/proc/{shown.daemons[0].process.pid}/fd"))
    with shown.unaffected(), contextlib.ExitStack() as stack:
        for connected in crowd(shown.port, 200, first):
            stack.enter_context(connected)
        assert get(shown.port, "/livez")[0] == 200
        assert len(os.listdir(f"/proc/{shown.daemons[0].process.pid}/fd")) < files + 2 * CONNECTIONS_MAX


def test_hostile_requests_in_a_row_leave_it_training(shown: Shown) -> None:
    hostile = [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"\x16\x03\x01" + os.urandom(500),
        os.urandom(4096) + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\r\n" * 5000,
    ]
    with shown.unaffected():
        for data in hostile:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", shown.port), timeout=DEADLINE_S) as connected,
            ):
                connected.sendall(data)
                while received := connected.recv(65536):
                    assert not received.startswith(b"HTTP/1.1 200")
    assert sum(shown.status()["http"]["answered"].values()) > 0


def test_as_many_questions_as_can_be_asked_leave_it_training(shown: Shown) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                get(shown.port, "/status.json")

    askers = [threading.Thread(target=ask) for _ in range(8)]
    for asker in askers:
        asker.start()
    try:
        with shown.unaffected():
            pass
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def test_who_waits_for_a_trainer_is_live_and_says_what_it_waits_for(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    (port,) = free_ports(1)
    with all_stopped([place.start(0, "--http", f"127.0.0.1:{port}")]) as daemons:
        until(daemons[0].status, "it answers")
        assert get(port, "/livez")[0] == 200
        code, words = get(port, "/readyz")
        assert code == 503
        assert words.startswith("not ready: no trainer is attached; start one with P2PSGD_CONTROL=")
        assert "p2psgd_ready " not in get(port, "/metrics")[1]
        assert daemons[0].stop() == 0


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--http", "0.0.0.0:0"), 78, "--http 0.0.0.0:0 is not a loopback address"),
        (("--http", "[::]:0"), 78, "--http [::]:0 is not a loopback address"),
        (("--http", "9400"), 64, "--http: '9400' lacks a port; give 127.0.0.1:9400"),
        (("--http", "127.0.0.1:99999"), 64, "port 99999 in '127.0.0.1:99999' is not within 1 to 65535"),
    ],
)
def test_an_address_that_is_no_loopback_or_none_at_all_is_refused(
    tmp_path: Path, options: tuple[str, ...], code: int, sentence: str
) -> None:
    with all_stopped([Place(tmp_path, 1).start(0, *options)]) as daemons:
        ended_with, words = ended(daemons[0])
    assert ended_with == code
    assert sentence in words


def test_told_to_it_shows_itself_to_other_machines(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ("--http", f"0.0.0.0:{port}", "--http-exposed")
    with all_stopped([Place(tmp_path, 1).start(0, *options)]) as daemons:
        until(daemons[0].status, "it answers")
        assert get(port, "/livez")[0] == 200
        assert daemons[0].stop() == 0


def test_a_port_in_use_is_named_with_the_option_that_takes_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with all_stopped([Place(tmp_path, 1).start(0, "--http", f"127.0.0.1:{port}")]) as daemons:
            code, words = ended(daemons[0])
    assert code == 78
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in words
    assert "--http takes another address or port" in words


def test_on_the_standard_loop_it_answers_as_well(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    (port,) = free_ports(1)
    options = ("--peers", str(place.hosts), "--listen", f"127.0.0.1:{place.ports[0]}")
    daemon = Daemon(
        tmp_path / "node", *options, "--http", f"127.0.0.1:{port}", environment={"P2PSGD_LOOP": "asyncio"}
    )
    with all_stopped([daemon]):
        until(daemon.status, "it answers")
        assert [get(port, path)[0] for path in ("/", "/livez", "/metrics", "/status.json")] == [200] * 4
        assert daemon.stop() == 0
