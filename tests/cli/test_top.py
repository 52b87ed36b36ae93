"""`p2psgd top` with real daemons, on a real terminal and into pipes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, until
from tests.node.test_node import calm, endless
from tests.ports import free_ports
from tests.terminal import Terminal

TOP = [*P2PSGD, "top"]


class Pair:
    """Two nodes that train until they are stopped; the first shows itself at `url`."""

    def __init__(self, place: Path) -> None:
        *self._ports, http = free_ports(3)
        self._hosts = place / "hosts.txt"
        self._hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in self._ports))
        self._place = place
        self._http = http
        self.url = f"http://127.0.0.1:{http}"
        self.daemons = [self.start(0), self.start(1)]
        self.state = str(self.daemons[0].state)

    def start(self, number: int) -> Daemon:
        places = ["--peers", str(self._hosts), "--listen", f"127.0.0.1:{self._ports[number]}"]
        places += ["--http", f"127.0.0.1:{self._http}"] if number == 0 else []
        trained = endless(calm(self._place))
        return Daemon(self._place / f"node-{number}", *places, "--failure-timeout", "1", *trained)

    def kill(self) -> None:
        """Both: of two that are stopped one would wait for the other."""
        for daemon in self.daemons:
            daemon.kill()

    def training(self) -> bool:
        """The second waits for the warm start of the first."""
        statuses = [daemon.status() or {} for daemon in self.daemons]
        ready = all(status.get("ready") for status in statuses)
        return ready and statuses[0]["trainer"]["steps"] > 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    with all_stopped(pair.daemons):
        until(pair.training, "both train")
        yield pair
        pair.kill()


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, **environment},
    )


def test_the_whole_terminal_is_used_and_left_as_it_was(pair: Pair) -> None:
    with Terminal([*TOP, "--state", pair.state], columns=80, rows=24) as terminal:
        terminal.until("steps/s")
        terminal.until("node-1")
        lines = terminal.frame()
        assert len(lines) == 24
        assert all(len(line) <= 80 for line in lines)
        assert lines[0].startswith(" node-0: training")
        assert "q ends" in lines[0]
        terminal.resize(130, 40)
        terminal.until("node-1: connected")
        assert len(terminal.frame()) in (24, 40)
        terminal.type(b"xyz")  # of no meaning
        terminal.type(b"q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.parametrize(
    ("end", "code"),
    [(b"\x03", 0), (b"Q", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_the_terminal_is_restored_however_it_ends(pair: Pair, end: bytes | signal.Signals, code: int) -> None:
    with Terminal([*TOP, "--state", pair.state, "--interval", "0.2"]) as terminal:
        terminal.until("node-1")
        assert not terminal.is_restored()
        if isinstance(end, bytes):
            terminal.type(end)
        else:
            os.kill(terminal.pid, end)
        assert terminal.wait() == code
        assert terminal.is_restored()
        assert "Traceback" not in terminal.text


def test_a_daemon_that_is_started_again_is_told_and_watched_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with all_stopped(pair.daemons) as daemons:
        until(pair.training, "both train")
        with Terminal([*TOP, "--state", pair.state]) as terminal:
            terminal.until("node-0: training")
            daemons[0].kill()
            terminal.until("node-0: the daemon is gone since")
            terminal.until("trying again")
            daemons[0] = pair.daemons[0] = pair.start(0)
            terminal.until("node-0: training")
            daemons[1].process.send_signal(signal.SIGSTOP)
            terminal.until("node-1: suspect for")
            daemons[1].process.send_signal(signal.SIGCONT)
            daemons[0].process.send_signal(signal.SIGSTOP)
            terminal.until("the daemon has not answered for")
            terminal.type(b"q")  # is answered also while the daemon is silent
            assert terminal.wait() == 0
            assert terminal.is_restored()
        pair.kill()


@pytest.mark.parametrize("way", ["state", "url"])
def test_once_prints_one_picture_with_rates_as_plain_text(pair: Pair, way: str) -> None:
    asked = ("--state", pair.state) if way == "state" else ("--url", pair.url)
    done = run(*asked, "--once", "--interval", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("node-0: training, ready, plaintext") == 1
    assert "\x1b" not in done.stdout
    assert "steps/s" in done.stdout
    (row,) = (line for line in done.stdout.splitlines() if "node-1: connected" in line)
    assert "B/s" in row
    assert "round trip" in " ".join(
        done.stdout.split()
    )  # the kernel knows the round trip of a connection that is used


def test_into_a_pipe_go_pictures_until_nobody_reads_on(pair: Pair) -> None:
    command = [*TOP, "--state", pair.state, "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith(" node-0: training")
            if seen == 3:
                break
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == ""


def test_on_a_terminal_that_cannot_be_drawn_on_pictures_go_one_under_the_other(pair: Pair) -> None:
    with Terminal([*TOP, "--state", pair.state, "--interval", "0.2"], columns=80, TERM="dumb") as terminal:
        for _ in range(2):
            terminal.until(" node-0: training")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.wait() == 0
    assert "\x1b" not in terminal.text


def test_a_terminal_that_knows_only_ascii_gets_a_picture(pair: Pair) -> None:
    done = run("--state", pair.state, "--once", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--state", "/nonexistent"), 75, "no daemon answers at /nonexistent/control.sock"),
        (("--url", "http://127.0.0.1:1"), 75, "no node answers at http://127.0.0.1:1/status.json"),
        (("--url", "127.0.0.1:9400"), 64, "give http://127.0.0.1:9400"),
        (("--url", "http://[::1"), 64, "give http://127.0.0.1:9400"),
        (("--url", "http://127.0.0.1:http"), 64, "give http://127.0.0.1:9400"),
        (("--url", "http://h:1", "--state", "x"), 64, "give one of them"),
        (("--interval", "0"), 64, "0.2"),
    ],
)
@pytest.mark.parametrize("once", [True, False])
def test_whoever_cannot_be_asked_is_named_in_one_sentence(
    options: tuple[str, ...], code: int, words: str, once: bool
) -> None:
    done = run(*options, *(["--once"] if once else []))
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("once", [True, False])
def test_what_answers_and_is_no_web_server_is_named_in_one_sentence(once: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greet, args=(server,), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = run("--url", url, *(["--once"] if once else []))
    assert done.returncode == 65
    assert done.stderr == f"p2psgd: what answers at {url}/status.json is no p2psgd node\n"


def greet(server: socket.socket) -> None:
    """As a mail server does."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"220 mail.example ready\r\n")
        while connection.recv(4096):
            pass


def test_on_a_terminal_too_a_node_that_is_not_there_is_told_without_a_screen() -> None:
    with Terminal([*TOP, "--state", "/nonexistent"]) as terminal:
        assert terminal.wait() == 75
        assert "no daemon answers at" in terminal.text
        assert "\x1b[?1049h" not in terminal.text
