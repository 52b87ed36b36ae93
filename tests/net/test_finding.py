"""Nodes on machines of their own find each other: by one address that all know, by the local network alone,
and by an address that stands for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.daemons import P2PSGD, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.lan import Lan

STEPS = 40


def start(
    tmp_path: Path,
    lan: Lan,
    number: int,
    shares: int,
    *options: str,
    environment: dict[str, str] | None = None,
) -> Daemon:
    training = trainer("digits", "--steps", str(STEPS), "--rank", f"{number}/{shares}")
    return Daemon(
        tmp_path / f"host-{number}",
        *("--listen", "0.0.0.0:7315", "--failure-timeout", "2", "--trainer", training),
        *(options if "--tls" in options else ("--insecure-plaintext", *options)),
        within=lan.within(number),
        environment=environment,
    )


@contextlib.contextmanager
def called(lan: Lan, name: str) -> Iterator[None]:
    """For every host of the LAN the name has the addresses of all."""
    folders = [Path("/etc/netns", host) for host in lan.hosts]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("".join(f"{address} {name}\n" for address in lan.addresses))
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()


def is_linked(daemon: Daemon, names: set[str]) -> bool:
    return daemon.linked() == names


def all_linked(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        others = {other.state.name for other in daemons if other is not daemon}
        until(functools.partial(is_linked, daemon, others), f"{daemon.state.name} is linked with all others")


def all_finished_alike(daemons: list[Daemon]) -> dict[str, int]:
    for daemon in daemons:
        until(daemon.finished, "the trainer has finished")
    return assert_replicas_identical(daemons)


@pytest.mark.root
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_two_nodes_find_each_other_by_the_local_network_alone(tmp_path: Path, loop: str) -> None:
    environment = {"P2PSGD_LOOP": loop}
    with Lan(2, rate="100mbit") as lan, all_stopped([]) as daemons:
        for number in range(2):
            daemons.append(start(tmp_path, lan, number, 2, "--zeroconf", environment=environment))
        all_linked(daemons)
        assert len(all_finished_alike(daemons)) == 2
        assert [daemon.stop() for daemon in daemons] == [0, 0]


@pytest.mark.root
def test_two_nodes_find_each_other_by_one_address_that_both_know_and_without_it_later(tmp_path: Path) -> None:
    hosts, certificates = tmp_path / "hosts.txt", Certificates(tmp_path)
    options = [("--peers", str(hosts), *certificates.options(f"host-{number}")) for number in range(3)]
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        hosts.write_text(f"{lan.addresses[0]}\n")
        daemons += [start(tmp_path, lan, number, 3, *options[number]) for number in range(3)]
        all_linked(daemons)
        assert len(all_finished_alike(daemons)) == 3
        daemons[2].kill()
        daemons[0].kill()
        again = start(tmp_path, lan, 2, 3, *options[2])  # the address that it is given is gone
        daemons[2] = again
        until(lambda: "host-1" in again.linked(), "the node that was told of is found without it")


@pytest.mark.root
def test_three_nodes_find_each_other_by_one_name_that_has_the_addresses_of_all(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("nodes.example:7315\n")
    with Lan(3, rate="100mbit") as lan, called(lan, "nodes.example"), all_stopped([]) as daemons:
        for number in range(3):
            daemons.append(start(tmp_path, lan, number, 3, "--peers", str(hosts), "--bootstrap-expect", "3"))
            until(daemons[-1].run, "the run is known")
        all_linked(daemons)
        assert len(all_finished_alike(daemons)) == 3
        assert [len((daemon.status() or {})["peers"]) for daemon in daemons] == [2, 2, 2]
        assert [daemon.stop() for daemon in daemons] == [0, 0, 0]


@pytest.mark.root
def test_two_nodes_that_cannot_reach_each_other_say_who_brings_them_each_others_updates(
    tmp_path: Path,
) -> None:
    hosts = tmp_path / "hosts.txt"
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        hosts.write_text(f"{lan.addresses[0]}\n")
        lan.set_way(1, 2, open=False)
        lan.set_way(2, 1, open=False)
        daemons += [start(tmp_path, lan, number, 3, "--peers", str(hosts)) for number in range(3)]
        assert len(all_finished_alike(daemons)) == 3
        for one, other in ((1, 2), (2, 1)):
            node = (daemons[other].status() or {})["id"]

            def brought(daemon: Daemon = daemons[one], node: str = node) -> bool:
                rows = (daemon.status() or {}).get("peers", [])
                return [
                    row["through"] for row in rows if row["id"] == node and "no answer" in row["error"]
                ] == ["host-0"]

            until(brought, f"host-{one} says how it gets the updates of host-{other}")
        words = subprocess.run(
            [*P2PSGD, "status", "--state", str(daemons[1].state)], capture_output=True, text=True, check=True
        ).stdout
        assert "not reached directly (no answer within 10 s" in words
        assert "its updates come through host-0" in words


@pytest.mark.root
def test_fault_30_what_a_stranger_announces_is_named_skipped_or_refused(tmp_path: Path) -> None:
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        daemons.append(start(tmp_path, lan, 0, 2, "--zeroconf"))
        run = until(daemons[0].run, "the run is known")
        stranger = [sys.executable, "-m", "tests.net.announcer", lan.addresses[2], run["fingerprint"]]
        with subprocess.Popen([*lan.within(2), *stranger], stdout=subprocess.PIPE) as announcing:
            try:
                assert announcing.stdout is not None
                assert announcing.stdout.readline() == b"done\n"

                def dropped() -> dict[str, int]:
                    counted: dict[str, int] = (daemons[0].status() or {}).get("dropped", {})
                    return counted

                until(lambda: "announcement of another run" in dropped(), "another run is counted")
                until(lambda: "announcement that is no node's" in dropped(), "nonsense is counted")
                daemons.append(start(tmp_path, lan, 1, 2, "--zeroconf"))
                all_linked(daemons)
                assert len(all_finished_alike(daemons)) == 2
            finally:
                announcing.kill()
        said = [line for line in daemons[0].words().splitlines() if "announces another run" in line]
        assert 1 <= len(said) <= 16
        assert "abababababababab" in daemons[0].words()
        rows = {row["id"]: row for row in (daemons[0].status() or {})["peers"]}
        assert "00000000000000aa" not in rows
        assert rows["00000000000000bb"]["state"] == "dialling"
        assert [daemon.stop() for daemon in daemons] == [0, 0]
