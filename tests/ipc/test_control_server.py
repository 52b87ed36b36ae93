"""The control socket, with real sockets, against good and bad clients."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost, UsageError
from p2psgd.client.attach import attach
from p2psgd.ipc import listener
from p2psgd.ipc.client import ControlClient, NoDaemon
from p2psgd.ipc.listener import CONNECTIONS_MAX, socket_address
from p2psgd.ipc.protocol import VERSION, close_descriptors, send_datagram
from p2psgd.ipc.segments import Access, map_segment, sealed_copy
from p2psgd.ipc.tensor_table import pack_tensors
from tests import DEADLINE_S
from tests.ipc.daemons import Daemon, LoopFactory, wait_until

INITIAL = np.linspace(-1, 1, 2000, dtype=np.float32)
ATTACH = {
    "op": "attach",
    "version": VERSION,
    "pid": 1,
    "run": {"tensors": pack_tensors((("w", (2000,)),)), "quantum_log2": -20, "mode": "async", "label": ""},
}


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[socket.socket]:
    """A connection without any manners."""
    with connect(daemon) as end:
        yield end


def connect(daemon: Daemon) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(DEADLINE_S)
    end.connect(str(daemon.path))
    return end


def ask(end: socket.socket, fields: Any, descriptors: list[int] | None = None) -> dict[str, Any]:
    send_datagram(end, msgpack.packb(fields), descriptors or [], wait=True)
    answer: dict[str, Any] = msgpack.unpackb(end.recv(200_000))
    return answer


def test_status_compression_and_finish_are_answered(daemon: Daemon) -> None:
    with ControlClient(daemon.path) as client:
        assert client.request("status") == {"status": {"node": "node-1"}}
        assert client.request("compression") == {"compression": {"total": {"updates": 0}}}
        assert client.request("finish") == {}
        assert client.request("status")["status"] == {"node": "node-1"}


def test_digest_and_remove_reach_the_host_once_there_is_a_run(daemon: Daemon) -> None:
    with ControlClient(daemon.path) as client:
        for op, fields in (("digest", {"scrub": True}), ("remove", {"node": "node-7", "forbid": True})):
            with pytest.raises(UsageError, match="knows no run yet"):
                client.request(op, **fields)
        with attach(INITIAL, control=daemon.path):
            assert client.request("digest", scrub=True) == {"digest": {"scrub": {"count": 1}}}
            assert client.request("digest", scrub=False) == {"digest": {"scrub": {"count": 1}}}
            assert client.request("remove", node="node-7", forbid=True) == {"id": "0000000000000007"}
            standing = client.request("member", id="0000000000000007")["member"]
            assert (standing["node"], standing["since"], standing["forbidden"]) == ("node-7", 0, False)
            with pytest.raises(UsageError, match="no node is called 'node-8'"):
                client.request("remove", node="node-8", forbid=False)
    assert daemon.host.removed == [("node-7", True)]


def test_a_replica_comes_as_bytes_that_nobody_can_change(daemon: Daemon) -> None:
    with ControlClient(daemon.path) as client:
        with pytest.raises(UsageError, match="knows no run yet"):
            client.request("replica")
        with attach(INITIAL, control=daemon.path):
            answer, [copy] = client.request_with_fds("replica")
        coordinates = map_segment(copy, np.int32, 2000, Access.SEALED)
        with pytest.raises(PermissionError):
            os.pwrite(copy, b"x", 0)
        os.close(copy)
    np.testing.assert_array_equal(coordinates, daemon.host.coordinates)
    digest = daemon.call(daemon.host.replica_digest)
    assert daemon.host.proposal is not None
    run = {"mode": "async", "quantum_log2": -20, "tensors": pack_tensors(daemon.host.proposal.tensors)}
    assert answer == {"weights": 2000, "coordinates": 2000, **run, "digest": digest}


def test_the_socket_is_for_user_and_group_and_goes_with_the_daemon(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o660
    daemon.stop()
    assert not daemon.path.exists()


def test_a_socket_left_by_a_dead_daemon_is_replaced_and_a_living_one_is_not(
    tmp_path: Path, loop_factory: LoopFactory
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
        left_behind.bind(str(tmp_path / "control.sock"))
    daemon = Daemon(tmp_path, loop_factory)
    with pytest.raises(UsageError, match=r"another daemon answers at .*control\.sock"):
        Daemon(tmp_path, loop_factory)
    with ControlClient(daemon.path) as client:
        client.request("status")
    daemon.stop()


def test_a_state_directory_that_is_not_there_is_named(tmp_path: Path, loop_factory: LoopFactory) -> None:
    with pytest.raises(
        UsageError, match=r"control socket .*/none/control\.sock cannot be made: No such file"
    ):
        Daemon(tmp_path / "none", loop_factory)


def test_a_state_directory_deeper_than_an_address_works(tmp_path: Path, loop_factory: LoopFactory) -> None:
    state = tmp_path / ("deep" * 30)
    state.mkdir()
    daemon = Daemon(state, loop_factory)
    with attach(INITIAL, control=state) as link:
        assert link.node == "node-1"
    with ControlClient(daemon.path) as client:
        client.request("status")
    daemon.stop()
    assert os.listdir(state) == []


def test_without_a_daemon_the_sentence_says_how_to_start_one(tmp_path: Path) -> None:
    for path in (tmp_path / "control.sock", tmp_path / "none" / "control.sock"):
        with pytest.raises(NoDaemon, match=r"no daemon answers at .*: start one with `p2psgd node`"):
            ControlClient(path)
    (tmp_path / "control.sock").write_text("a file")
    with pytest.raises(NoDaemon):
        ControlClient(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()
        with pytest.raises(UsageError, match=r"cannot connect to .*other\.sock: Protocol wrong type"):
            ControlClient(tmp_path / "other.sock")


@pytest.mark.parametrize(
    ("datagram", "words"),
    [
        (b"\xc1", "no MessagePack map"),
        (b"\x81\xa2op" + b"\x91" * 60_000, "no MessagePack map"),
        (bytes(131_073), "larger than a request may be"),
        (msgpack.packb({"op": "stop"}), "malformed request"),
        (msgpack.packb({"op": "reload"}), "only the attached trainer"),
        (msgpack.packb({"op": "report", "loss": 1.0}), "only the attached trainer"),
        (msgpack.packb({"op": "detach", "finished": True}), "only the attached trainer"),
        (msgpack.packb({"op": "state", "steps": 0, "outbox": 0}), "only the attached trainer"),
        (
            msgpack.packb({**ATTACH, "version": 1}),
            f"speaks version {VERSION} of the control protocol, the trainer version 1",
        ),
        (msgpack.packb({**ATTACH, "run": None}), "knows no run yet"),
        (msgpack.packb(ATTACH), "comes with one descriptor, not with 0"),
    ],
)
def test_a_bad_request_is_answered_and_counted_and_changes_nothing(
    daemon: Daemon, raw: socket.socket, datagram: bytes, words: str
) -> None:
    raw.send(datagram)
    answer = msgpack.unpackb(raw.recv(200_000))
    assert answer["ok"] is False
    assert words in answer["error"]
    assert daemon.trainer_status()["refused_requests"] == 1
    assert ask(raw, {"op": "status"})["ok"]
    assert (daemon.host.attached, daemon.host.left, daemon.host.proposal) == ([], [], None)


def test_initial_coordinates_that_will_not_do_are_refused(daemon: Daemon, raw: socket.socket) -> None:
    pipe = os.pipe()
    good = sealed_copy("p2psgd-test", np.zeros(2000, dtype=np.int32))
    short = sealed_copy("p2psgd-test", np.zeros(1999, dtype=np.int32))
    far = sealed_copy("p2psgd-test", np.full(2000, -(2**31), dtype=np.int32))
    for descriptors, words in (
        ([pipe[0]], "must come in a memfd"),
        ([short], "take 7996 bytes; 2000 of them take 8000"),
        ([far], "an initial coordinate is beyond +-16777216"),
        ([good, good], "comes with one descriptor, not with 2"),
        ([good] * 30, "larger than a request may be"),
    ):
        assert words in ask(raw, ATTACH, descriptors)["error"]
    assert daemon.host.proposal is None
    assert ask(raw, ATTACH, [good])["ok"]
    close_descriptors([*pipe, good, short, far])


def test_descriptors_that_nobody_asked_for_are_closed(daemon: Daemon, raw: socket.socket) -> None:
    assert ask(raw, {"op": "status"})["ok"]
    before = len(os.listdir("/proc/self/fd"))
    extra = sealed_copy("p2psgd-test", np.zeros(10, dtype=np.int32))
    for _ in range(20):
        assert ask(raw, {"op": "status"}, [extra] * 5)["ok"]
        assert not ask(raw, {"op": "nothing"}, [extra] * 30)["ok"]
    os.close(extra)
    daemon.call(lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_asks_again_before_reading_the_answer_is_closed(daemon: Daemon, raw: socket.socket) -> None:
    raw.send(msgpack.packb({"op": "status"}))
    wait_until(lambda: len(raw.recv(200_000, socket.MSG_PEEK)) > 0, "an answer")
    raw.send(msgpack.packb({"op": "status"}))
    daemon.until(lambda: daemon.server.session.status()["refused_requests"] == 1, "the request is refused")
    assert msgpack.unpackb(raw.recv(200_000))["ok"]
    assert raw.recv(200_000) == b""


def test_connections_over_the_limit_are_refused_in_a_sentence_and_room_is_given_back(daemon: Daemon) -> None:
    silent = [connect(daemon) for _ in range(CONNECTIONS_MAX)]
    with (
        ControlClient(daemon.path) as late,
        pytest.raises(UsageError, match="64 connections are open already"),
    ):
        late.request("status")
    silent.pop().close()
    daemon.call(lambda: None)
    with ControlClient(daemon.path) as client:
        client.request("status")
    for end in silent:
        end.close()


def test_connections_leave_descriptors_for_the_daemons_own_files(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "is_reserved", lambda _, local: local)
    with (
        ControlClient(daemon.path) as late,
        pytest.raises(UsageError, match="the daemon has too many files open for one more connection: close"),
    ):
        late.request("status")
    monkeypatch.undo()
    with ControlClient(daemon.path) as client:
        client.request("status")


def test_a_status_that_is_too_long_is_refused_in_a_sentence(daemon: Daemon) -> None:
    daemon.host.status_value = {"alarms": ["x" * 200_000]}
    with ControlClient(daemon.path) as client:
        with pytest.raises(UsageError, match="at most 163840 are possible"):
            client.request("status")
        daemon.host.status_value = {"alarms": ["x" * 150_000]}
        assert client.request("status") == {"status": daemon.host.status_value}


def test_a_daemon_that_stops_tells_its_clients(daemon: Daemon) -> None:
    with ControlClient(daemon.path) as client:
        client.request("status")
        client.check_daemon()
        daemon.stop()
        with pytest.raises(DaemonLost, match="closed this connection: the daemon has stopped"):
            client.check_daemon()
        for ask in (client.check_daemon, lambda: client.request("status")):  # not only the first who asks
            with pytest.raises(DaemonLost, match="closed this connection: the daemon has stopped"):
                ask()


def test_accepting_goes_on_after_running_out_of_descriptors(daemon: Daemon) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    fillers: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012
            while True:
                fillers.append(os.dup(clients[0].fileno()))
        for client in clients:
            client.connect(str(daemon.path))
        daemon.call(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        close_descriptors(fillers)
    for client in clients:
        assert ask(client, {"op": "status"})["ok"]
        client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_refused_even_where_the_file_would_let_it_in(
    start_daemon: Callable[..., Daemon],
) -> None:
    daemon = start_daemon()
    daemon.path.chmod(0o666)
    script = (
        "import os, socket, sys\n"
        "end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "end.connect(sys.argv[1])\n"
        "sys.stdout.buffer.write(end.recv(10_000))\n"
    )
    directory = os.open(
        daemon.path.parent, os.O_PATH | os.O_DIRECTORY
    )  # open: its parents are closed to others
    daemon.path.parent.chmod(0o755)
    address = f"/proc/self/fd/{directory}/{daemon.path.name}"
    finished = subprocess.run(
        [sys.executable, "-I", "-c", script, address], pass_fds=[directory], capture_output=True, check=False
    )
    os.close(directory)
    assert finished.returncode == 0, finished.stderr
    assert msgpack.unpackb(finished.stdout)["error"] == "user 65534 may not control a daemon of user 0"
    assert daemon.trainer_status()["refused_requests"] == 1
    with socket_address(daemon.path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(name)
        assert ask(end, {"op": "status"})["ok"]
