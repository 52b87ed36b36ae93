"""Doctors of several machines together: processes on loopback addresses of their own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from p2psgd.cli.ca_authority import Authority, create_authority
from p2psgd.cli.doctor.greeting import doctor_hello
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import pack_message
from tests.cli.doctor.doctors import Doctor, running, write_hosts
from tests.daemons import Daemon, all_stopped, trainer, until
from tests.ports import free_ports

pytestmark = pytest.mark.long

WAIT = ("--wait", "60")


def addresses(count: int) -> list[str]:
    """Loopback addresses that are as good as machines, on one port."""
    (port,) = free_ports(1)
    return [f"127.0.0.{number}:{port}" for number in range(2, 2 + count)]


def issue(directory: Path, *names: str) -> dict[str, Path]:
    """Their TLS directories, of a CA of their own."""
    create_authority(directory, directory.name, now=datetime.now(UTC))
    authority = Authority(directory)
    return {name: authority.issue(name, days=30, now=datetime.now(UTC)).directory for name in names}


def test_three_doctors_find_that_all_is_well(tmp_path: Path) -> None:
    lines = addresses(3)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    options = ("--weights", "1000", *WAIT)
    doctors = [Doctor(hosts, tmp_path / line, "--listen", line, *options) for line in lines]
    with running(*doctors):
        reports = [doctor.report() for doctor in doctors]
    for line, report in zip(lines, reports, strict=True):
        assert report.code == 0, report.problems
        assert not report.data["refused"]
        for other in set(lines) - {line}:
            peer = report.peer(other)
            assert (peer["outcome"], peer["reaches_this"]) == ("doctor", True)


def test_a_machine_that_does_not_come_is_named_and_may_come_later(tmp_path: Path) -> None:
    lines = addresses(3)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    doctors = [Doctor(hosts, tmp_path / line, "--listen", line, "--wait", "15") for line in lines[:2]]
    with running(*doctors):
        reports = [doctor.report() for doctor in doctors]
    for report in reports:
        assert report.code == 75
        (problem,) = report.problems
        assert problem.startswith(f"{lines[2]}: connection refused, nothing listens there -> start it there")
    assert reports[0].peer(lines[1])["reaches_this"]


def test_over_tls_the_certificates_say_who_is_there(tmp_path: Path) -> None:
    """One doctor has its options from the file that its node will have."""
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    tls = issue(tmp_path / "ca", "anna", "berta")
    config = tmp_path / "node.toml"
    options = f'peers = "hosts.txt"\nlisten = "{lines[1]}"\ntls = "{tls["berta"]}"\nlog_budget = 512\n'
    config.write_text(options)
    doctors = [
        Doctor(hosts, tmp_path / "anna", "--listen", lines[0], "--tls", str(tls["anna"]), *WAIT),
        Doctor(None, tmp_path / "berta", "--config", str(config), *WAIT),
    ]
    with running(*doctors):
        reports = [doctor.report() for doctor in doctors]
    for report, name, line in zip(reports, ("berta", "anna"), reversed(lines), strict=True):
        assert report.code == 0, report.problems
        assert report.peer(line)["name"] == name
    (words,) = reports[0].of("tls", "note")
    assert words.startswith("anna of run ca, certificates until")


def test_a_certificate_of_another_ca_is_told_on_both_sides(tmp_path: Path) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    tls = [issue(tmp_path / "one", "anna")["anna"], issue(tmp_path / "two", "berta")["berta"]]
    doctors = [
        Doctor(hosts, tmp_path / line, "--listen", line, "--tls", str(mine), "--wait", "15")
        for line, mine in zip(lines, tls, strict=True)
    ]
    with running(*doctors):
        reports = [doctor.report() for doctor in doctors]
    for report in reports:
        assert report.code == 78
        (problem,) = report.problems
        assert "its certificate is not of this run's CA" in problem
        assert "certificates of one CA" in problem


def test_one_with_tls_and_one_without_are_told_so(tmp_path: Path) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    tls = issue(tmp_path / "ca", "anna")["anna"]
    doctors = [
        Doctor(hosts, tmp_path / "a", "--listen", lines[0], "--tls", str(tls), "--wait", "15"),
        Doctor(hosts, tmp_path / "b", "--listen", lines[1], "--wait", "15"),
    ]
    with running(*doctors):
        reports = [doctor.report() for doctor in doctors]
    for report in reports:
        assert report.code == 78
        (problem,) = report.problems
        assert "--tls DIR" in problem
        assert report.data["peers"][0]["outcome"] == "tls"


def test_without_tls_nobody_is_met_beyond_this_machine(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    hosts = write_hosts(tmp_path / "hosts.txt", f"127.0.0.1:{port}", "192.0.2.1")
    doctor = Doctor(hosts, tmp_path / "state", "--listen", f"0.0.0.0:{port}")
    with running(doctor):
        report = doctor.report()
    assert report.code == 78
    (problem,) = report.problems
    assert "without TLS" in problem
    assert "p2psgd ca init" in problem
    assert report.data["peers"] == []


def test_running_nodes_tell_their_run_and_go_on_undisturbed(tmp_path: Path) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    daemons = [
        Daemon(tmp_path / name, "--peers", str(hosts), "--listen", line, "--trainer", trainer())
        for name, line in zip(("anna", "berta"), lines, strict=True)
    ]
    with all_stopped(daemons):
        until(lambda: all(daemon.linked() for daemon in daemons), "both are linked")
        doctor = Doctor(hosts, tmp_path / "anna", "--listen", lines[0], *WAIT)
        with running(doctor):
            fine = doctor.report()
        assert fine.code == 0, fine.problems
        assert any("the node anna of this machine runs already" in each for each in fine.of("port", "note"))
        assert "berta runs there, run" in fine.of("reach", "ok")[0]
        status = daemons[1].status()
        assert status is not None
        assert (status["doctors"], status["dropped"]) == (1, {})
        assert "p2psgd doctor on 127.0.0.1 looked at this node" in daemons[1].words()
        assert "doctor: berta runs there" not in daemons[1].words()
        assert status["strangers"] == []
        assert daemons[1].linked() == {"anna"}


def test_a_node_that_dials_a_doctor_goes_on_and_links_once_the_node_is_there(tmp_path: Path) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    options = (
        "--peers",
        str(hosts),
        "--failure-timeout",
        "1",
        "--trainer",
        trainer("digits", "--steps", "1000000"),
    )
    anna = Daemon(tmp_path / "anna", "--listen", lines[0], *options)
    with all_stopped([anna]) as daemons:
        until(anna.run, "it has a run")
        doctor = Doctor(hosts, tmp_path / "b", "--listen", lines[1], *WAIT)
        with running(doctor):
            report = doctor.report()
        assert report.code == 0, report.problems
        reached = report.of("reach", "ok") + report.of("reach", "note")  # as anna dialled in time or not
        assert any("anna runs there, run" in words for words in reached), reached
        daemons.append(Daemon(tmp_path / "berta", "--listen", lines[1], *options))
        until(lambda: anna.linked() == {"berta"}, "they are linked")


def test_a_node_that_waits_for_its_trainer_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    anna = Daemon(tmp_path / "anna", "--peers", str(hosts), "--listen", lines[0])
    with all_stopped([anna]):
        until(anna.status, "it answers")
        doctor = Doctor(hosts, tmp_path / "b", "--listen", lines[1], "--wait", "12")
        with running(doctor):
            report = doctor.report()
    assert report.code == 75
    (problem,) = report.problems
    assert "says nothing, a node that waits for its trainer does so -> there: p2psgd status" in problem


def test_a_port_that_another_program_has_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hosts = write_hosts(tmp_path / "hosts.txt", f"127.0.0.1:{port}")
        doctor = Doctor(hosts, tmp_path / "state", "--listen", f"127.0.0.1:{port}")
        with running(doctor):
            report = doctor.report()
    assert report.code == 78
    (problem,) = report.problems
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in problem
    assert f"sudo ss -ltnp 'sport = :{port}'" in problem


def test_a_name_to_listen_on_that_is_none_is_told_and_nobody_is_met(tmp_path: Path) -> None:
    hosts = write_hosts(tmp_path / "hosts.txt", *addresses(1))
    doctor = Doctor(hosts, tmp_path / "state", "--listen", "no.such.host.invalid:7315")
    with running(doctor):
        report = doctor.report()
    assert report.code == 78
    (problem,) = report.problems
    assert "cannot listen on no.such.host.invalid:7315" in problem
    assert report.data["peers"] == []


def test_garbage_and_stalled_strangers_are_refused_and_counted_and_the_others_still_meet(
    tmp_path: Path,
) -> None:
    lines = addresses(2)
    hosts = write_hosts(tmp_path / "hosts.txt", *lines)
    first = Doctor(hosts, tmp_path / "a", "--listen", lines[0], *WAIT)
    with running(first), contextlib.ExitStack() as open_sockets:
        host, _, port = lines[0].rpartition(":")
        place = (host, int(port))
        until(lambda: _connects(place), "the first listens")
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff" * 64,
            pack_frame(FrameType.STATUS, b"\x07" * 100),
            pack_frame(FrameType.HELLO, b"\xdf\xff\xff\xff\xff"),
            pack_message(doctor_hello(1, "evil")) + pack_frame(FrameType.HELLO, b"\xff"),
        ):
            with socket.create_connection(place, timeout=10) as stranger:
                stranger.sendall(garbage)
                stranger.settimeout(20)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):
                        pass
        for _ in range(40):  # more than may wait to greet
            open_sockets.enter_context(socket.create_connection(place, timeout=10))
        second = Doctor(hosts, tmp_path / "b", "--listen", lines[1], *WAIT)
        with running(second):
            reports = [first.report(), second.report()]
    for report in reports:
        assert report.code == 0, report.problems
    refused = reports[0].data["refused"]
    assert refused["too many greetings"] >= 8
    assert refused["message"] >= 1
    assert refused["frame order"] >= 1
    assert "WARNING dropped 127.0.0.1:" in reports[0].complaints  # by the log, which escapes what peers say


def _connects(place: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(place, timeout=1):
        return True
    return False


def test_what_answers_in_another_protocol_is_told(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.3", 0)) as server:
        other = server.getsockname()[1]
        answering = threading.Thread(target=_answer_like_ssh, args=(server,), daemon=True)
        answering.start()
        hosts = write_hosts(tmp_path / "hosts.txt", f"127.0.0.2:{port}", f"127.0.0.3:{other}")
        doctor = Doctor(hosts, tmp_path / "state", "--listen", f"127.0.0.2:{port}", "--wait", "5")
        with running(doctor):
            report = doctor.report()
    assert report.code == 78
    assert report.data["peers"][0]["outcome"] == "strange"
    (problem,) = report.problems
    assert f"sudo ss -ltnp 'sport = :{other}'" in problem


def _answer_like_ssh(server: socket.socket) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while True:
            connected, _ = server.accept()
            with connected:
                connected.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                connected.recv(4096)
