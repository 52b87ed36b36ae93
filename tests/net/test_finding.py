"""Nodes on machines of their own find each other: by one address that all know, by the local network alone,
and by an address that stands for all of them.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest

from tests.daemons import P2PSGD, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.lan import Lan

STEPS = 40


def start(tmp_path: Path, lan: Lan, number: int, shares: int, *options: str) -> Daemon:
    training = trainer("digits", "--steps", str(STEPS), "--share", f"{number}/{shares}")
    return Daemon(
        tmp_path / f"host-{number}",
        *("--listen", "0.0.0.0:7315", "--patience", "2", "--trainer", training, *options),
        within=lan.within(number),
    )


def is_linked(daemon: Daemon, names: set[str]) -> bool:
    return daemon.linked() == names


def all_linked(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        others = {other.state.name for other in daemons if other is not daemon}
        until(functools.partial(is_linked, daemon, others), f"{daemon.state.name} is linked with all others")


def all_finished_alike(daemons: list[Daemon]) -> dict[str, int]:
    for daemon in daemons:
        until(daemon.finished, "the trainer has finished", timeout_s=120)
    return assert_replicas_identical(daemons)


@pytest.mark.root
@pytest.mark.timeout(300)
def test_two_nodes_find_each_other_by_the_local_network_alone(tmp_path: Path) -> None:
    with Lan(2, rate="100mbit") as lan, all_stopped([]) as daemons:
        daemons += [start(tmp_path, lan, number, 2, "--zeroconf") for number in range(2)]
        all_linked(daemons)
        assert len(all_finished_alike(daemons)) == 2
        assert [daemon.stop() for daemon in daemons] == [0, 0]


@pytest.mark.root
@pytest.mark.timeout(300)
def test_two_nodes_find_each_other_by_one_address_that_both_know_and_without_it_later(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        hosts.write_text(f"{lan.addresses[0]}\n")
        daemons += [start(tmp_path, lan, number, 3, "--peers", str(hosts)) for number in range(3)]
        all_linked(daemons)
        assert len(all_finished_alike(daemons)) == 3
        daemons[2].kill()
        daemons[0].kill()
        again = start(tmp_path, lan, 2, 3, "--peers", str(hosts))  # the address that it is given is gone
        daemons[2] = again
        until(lambda: "host-1" in again.linked(), "the node that was told of is found without it")


@pytest.mark.root
@pytest.mark.timeout(300)
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
