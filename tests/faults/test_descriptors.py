"""Fault 29: a node that may have no more than 64 files open, and 200 strangers that connect again and again.

Accepting pauses before the node's own files run out of descriptors: it votes, writes its checkpoint, lets its
trainer in, answers and trains on.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.storage.files import FOLDER, VOTES_NAME
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello, pack_message
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import calm, endless, steps
from tests.ports import free_ports
from tests.stranger import Stranger
from tests.wide import widely

pytestmark = pytest.mark.long

LIMIT = 64
CROWD = 200
COMMANDS = 14  # with those that wait to greet more than there are descriptors for, whatever the loop has open
LIMITED = ["sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh"]  # the hard limit too: it cannot be raised


@contextlib.contextmanager
def crowd(port: int, say: Callable[[int], bytes]) -> Iterator[None]:
    """So many connections all the time, a tenth of them new every tenth of a second; each says something."""
    over, numbers = threading.Event(), itertools.count(1000)

    def press() -> None:
        ends = collections.deque[socket.socket]()
        while not over.wait(0.1):
            while len(ends) > CROWD * 9 // 10:
                ends.popleft().close()
            fresh = [socket.socket() for _ in range(CROWD - len(ends))]
            for end in fresh:
                end.setblocking(False)
                end.connect_ex(("127.0.0.1", port))
            for end in fresh:
                with contextlib.suppress(OSError):
                    end.send(say(next(numbers)))
            ends.extend(fresh)
        for end in ends:
            end.close()

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def start(path: Path, port: int, loop: str) -> Daemon:
    (path / "hosts.txt").write_text(f"127.0.0.1:{port}\n")
    return Daemon(
        path / "node-0",
        *("--peers", str(path / "hosts.txt"), "--listen", f"127.0.0.1:{port}", "--failure-timeout", "1"),
        *endless(calm(path)),
        within=LIMITED,
        environment={"P2PSGD_LOOP": loop},
    )


def has_its_files(daemon: Daemon) -> bool:
    """It has voted, written a checkpoint, and trains."""
    files = [daemon.state / VOTES_NAME, *(daemon.state / FOLDER).glob("checkpoint-*.safetensors")]
    return len(files) > 1 and files[0].exists() and steps(daemon) > 20


def refused_for_want(daemon: Daemon) -> bool:
    """Connections were closed because only the node's own descriptors were left."""
    return bool((daemon.status() or {"dropped": {}})["dropped"].get("descriptors"))


def let_in(daemon: Daemon, port: int) -> Stranger | None:
    """A peer that behaves; like every other it tries again when it was sent away."""
    with contextlib.suppress(OSError, AssertionError):
        return Stranger(daemon, port, source="127.0.0.2")
    return None


@pytest.mark.parametrize("loop", widely(["uvloop"], ["asyncio"]))
def test_fault_29_a_node_keeps_descriptors_for_its_own_files(tmp_path: Path, loop: str) -> None:
    [port] = free_ports(1)
    with all_stopped([start(tmp_path, port, loop)]) as [daemon]:
        until(daemon.status, "it listens")
        with (
            contextlib.ExitStack() as commands,
            crowd(port, lambda number: b""),
        ):  # before the trainer is there
            for _ in range(COMMANDS):
                commands.enter_context(ControlClient(control_path(daemon.state)))
            until(lambda: daemon.process.poll() is not None or has_its_files(daemon), "its files are written")
            assert daemon.process.poll() is None
            stranger = until(lambda: let_in(daemon, port), "a peer that behaves is let in")
            made = steps(daemon)
            until(lambda: steps(daemon) > made + 20, "it trains on")
            stranger.close()
            until(lambda: refused_for_want(daemon), "connections are refused")
            status = until(daemon.status, "it answers")
        [alarm] = status["alarms"]
        assert alarm.startswith(
            "all of the first 40 descriptors are taken, and the last 24 of 64 are kept for "
        )
        assert daemon.stop() == 0


def test_fault_29_also_if_the_strangers_are_linked(tmp_path: Path) -> None:
    """Each is a node of its own that greets as it should, and then says nothing."""
    [port] = free_ports(1)
    with all_stopped([start(tmp_path, port, "uvloop")]) as [daemon]:
        run = until(daemon.run, "the run is known")

        def hello(node: int) -> bytes:
            greeting = Hello(
                protocol=PROTOCOL_VERSION,
                node=node,
                incarnation=1,
                name=f"stranger-{node}",
                run=bytes.fromhex(run["fingerprint"]),
                weights=run["weights"],
                quantum_log2=run["quantum_log2"],
                mode=run["mode"],
                label=run["label"],
                rank="",
            )
            return pack_message(greeting)

        with crowd(port, hello):
            until(lambda: len(daemon.linked()) > 4, "some are linked")
            until(lambda: daemon.process.poll() is not None or has_its_files(daemon), "its files are written")
            until(lambda: refused_for_want(daemon), "connections are refused")
        until(lambda: not daemon.linked(), "they are gone")
        until(lambda: let_in(daemon, port), "a peer that behaves is let in").close()
        assert daemon.stop() == 0
