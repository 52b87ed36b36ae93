"""Doctors on machines of their own: what firewalls and routes do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.doctor.doctors import Doctor, Report, running, write_hosts
from tests.lan import Lan

pytestmark = pytest.mark.root

PORT = 7315


def meet(lan: Lan, directory: Path, *more: str, wait: str = "20") -> list[Report]:
    """The reports of a doctor on every host; `more` are lines that lead to none of them."""
    hosts = write_hosts(directory / "hosts.txt", *lan.addresses, *more)
    doctors = [
        Doctor(
            hosts,
            directory / address,
            *("--insecure-plaintext", "--wait", wait),
            within=lan.within(number),
        )
        for number, address in enumerate(lan.addresses)
    ]
    with running(*doctors):
        return [doctor.report() for doctor in doctors]


def test_a_port_that_is_closed_to_others_is_told_on_both_sides(tmp_path: Path) -> None:
    with Lan(3, rate="100mbit") as lan:
        lan.close_port(0, PORT)
        closed, *others = meet(lan, tmp_path)
        names = [f"{address}:{PORT}" for address in lan.addresses]
    assert closed.code == 78
    assert len(closed.problems) == 2
    for problem, name in zip(closed.problems, names[1:], strict=True):
        assert problem.startswith(f"{name} (")
        assert "is reached, but its doctor has not reached this machine -> here: sudo ufw" in problem
    for report in others:
        assert report.code == 78
        (problem,) = report.problems
        assert problem.startswith(names[0])
        assert "reaches this machine, but is not reached from here: no answer within 4 s -> there:" in problem
    assert others[0].peer(names[2])["reaches_this"]
    assert others[1].peer(names[1])["reaches_this"]


def test_a_machine_that_is_off_and_one_without_a_route_are_told_apart(tmp_path: Path) -> None:
    with Lan(1, rate="100mbit") as lan:
        (report,) = meet(lan, tmp_path, "10.77.0.99", "198.51.100.7", "no.such.host.invalid", wait="12")
    assert report.code == 78
    assert report.peer("10.77.0.99:7315")["outcome"] == "away"
    assert report.peer("198.51.100.7:7315")["outcome"] == "unreachable"
    assert report.peer("no.such.host.invalid:7315")["outcome"] == "unresolved"
    assert any("the machine is off, or has another address" in each for each in report.problems)
    assert any("this machine knows no way there -> is the network up?" in each for each in report.problems)
    assert any("getent hosts no.such.host.invalid" in each for each in report.problems)


def test_listening_on_loopback_alone_is_no_use_to_others(tmp_path: Path) -> None:
    with Lan(2, rate="100mbit") as lan:
        hosts = write_hosts(tmp_path / "hosts.txt", *lan.addresses)
        listen = ("--listen", f"127.0.0.1:{PORT}", "--wait", "5")
        doctor = Doctor(hosts, tmp_path / "state", *listen, within=lan.within(0))
        with running(doctor):
            report = doctor.report()
    assert report.code == 78
    assert any(f"--listen 0.0.0.0:{PORT}, with --tls DIR" in each for each in report.problems)
