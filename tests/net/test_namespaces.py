"""Three machines on 100 Mbit/s links, each with its own hosts.txt, started by hand in any order; and that the
network's own faults are what they say.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import DEADLINE_S
from tests.certificates import Certificates
from tests.daemons import PACED, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.lan import Lan

STEPS = 60
ORDERS = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]  # each host at each place, and of each two each before the other


def is_linked_with(daemon: Daemon, names: set[str]) -> bool:
    return daemon.linked() == names


@pytest.mark.root
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(map(str, order)))
def test_three_hosts_find_each_other_in_any_starting_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    hosts, certificates = tmp_path / "hosts.txt", Certificates(tmp_path)
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        hosts.write_text("# three machines\n" + "\n".join(lan.addresses) + "\n")
        for number in order:
            daemon = Daemon(
                tmp_path / f"host-{number}",
                *("--peers", str(hosts), "--listen", "0.0.0.0:7315"),
                *certificates.options(f"host-{number}"),
                *("--trainer", trainer("digits", "--steps", str(STEPS))),
                within=lan.within(number),
            )
            daemons.append(daemon)
            until(daemon.run, "the run is known")
        for daemon in daemons:
            others = {other.state.name for other in daemons if other is not daemon}
            until(functools.partial(is_linked_with, daemon, others), "linked with both others")
            until(daemon.finished, "the trainer has finished")
        frontier = assert_replicas_identical(daemons)
        assert len(frontier) == 3
        assert [daemon.stop() for daemon in daemons] == [0, 0, 0]


@pytest.mark.root
def test_a_host_whose_cable_was_cut_catches_up(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    recipe = tmp_path / "calm.toml"  # so small a rate that three nodes apart do not add up to too much
    settings = (
        'name = "calm"',
        'data = "digits"',
        "hidden = [32]",
        "learning_rate = 0.001",
        "tau = 0.05",
        "epochs = 4",
    )
    recipe.write_text("\n".join(settings) + "\nbatch = 16\n")
    with Lan(3, rate="100mbit") as lan, all_stopped([]) as daemons:
        hosts.write_text("\n".join(lan.addresses) + "\n")
        for number in range(3):
            daemons.append(
                Daemon(
                    tmp_path / f"host-{number}",
                    *("--peers", str(hosts), "--listen", "0.0.0.0:7315", "--failure-timeout", "1"),
                    "--insecure-plaintext",
                    *("--trainer", trainer(str(recipe), "--seconds", "10", program=PACED)),
                    within=lan.within(number),
                )
            )
        for daemon in daemons:
            others = {other.state.name for other in daemons if other is not daemon}
            until(functools.partial(is_linked_with, daemon, others), "linked with both others")
        lan.set_link(2, up=False)
        until(lambda: not daemons[2].linked(), "the cut host notices")
        assert daemons[0].linked() == {"host-1"} or until(
            lambda: daemons[0].linked() == {"host-1"}, "so do others"
        )
        lan.set_link(2, up=True)
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert_replicas_identical(daemons)


def sent(lan: Lan, source: int, target: int, *, listen: str, send: str) -> bool:
    """Run two lines of Python on two hosts, `send` once the other has said that it listens."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(
        [*lan.within(target), *python, f"import socket; {listen}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as listening:
        assert listening.stdout is not None
        listening.stdout.readline()
        subprocess.run([*lan.within(source), *python, f"import socket; {send}"], check=True)
        return listening.wait(DEADLINE_S) == 0


def datagram_arrives(lan: Lan, source: int, target: int) -> bool:
    end = "s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(2); "
    return sent(
        *(lan, source, target),
        listen=f"{end} s.bind(('', 7)); print(flush=True); s.recv(9)",
        send=f"{end} s.sendto(b'hello', ('{lan.addresses[target]}', 7))",
    )


def seconds_for(lan: Lan, source: int, target: int, size: int) -> float:
    """How long so many bytes take over TCP, the start of both ends included."""
    began = time.monotonic()
    assert sent(
        *(lan, source, target),
        listen=f"s = socket.create_server(('', 7)); print(flush=True); "
        f"s.accept()[0].recv({size}, socket.MSG_WAITALL)",
        send=f"socket.create_connection(('{lan.addresses[target]}', 7)).sendall(bytes({size}))",
    )
    return time.monotonic() - began


@pytest.mark.root
def test_a_closed_way_loses_what_goes_one_way_until_it_is_open_again() -> None:
    with Lan(3, rate="100mbit") as lan:
        lan.set_way(0, 1, open=False)
        assert not datagram_arrives(lan, 0, 1)
        assert datagram_arrives(lan, 1, 0)
        assert datagram_arrives(lan, 0, 2)
        assert datagram_arrives(lan, 2, 1)
        lan.set_way(0, 1, open=True)
        assert datagram_arrives(lan, 0, 1)


@pytest.mark.root
def test_a_cable_that_was_made_slow_is_slow_until_it_is_made_fast_again() -> None:
    with Lan(2, rate="100mbit") as lan:
        lan.set_rate(0, "1mbit")
        assert seconds_for(lan, 0, 1, 500_000) > 3  # 4 s, less what goes at once
        assert seconds_for(lan, 1, 0, 500_000) > 3
        lan.set_rate(0, "100mbit")
        assert seconds_for(lan, 0, 1, 500_000) < 3


@pytest.mark.root
def test_the_way_between_two_hosts_is_slow_both_ways_and_no_other() -> None:
    with Lan(3, rate="100mbit") as lan:
        lan.set_pair(0, 1, "1mbit")
        assert seconds_for(lan, 0, 1, 500_000) > 3
        assert seconds_for(lan, 1, 0, 500_000) > 3
        assert seconds_for(lan, 0, 2, 500_000) < 3
        assert seconds_for(lan, 2, 1, 500_000) < 3
        lan.set_rate(0, "100mbit")
        assert seconds_for(lan, 0, 1, 500_000) < 3
        assert seconds_for(lan, 1, 0, 500_000) > 3
