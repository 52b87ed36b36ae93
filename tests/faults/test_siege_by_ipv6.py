"""An attacker that has an IPv6 /64, and so more addresses than anybody can count."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.net.admission import UNKNOWN_BURST
from tests.daemons import Daemon, all_stopped, trainer, until
from tests.lan import command
from tests.node.test_node import calm

PREFIX = "fd70:3270::/32"
ATTACKER = [f"fd70:3270:0:1:{number:x}::1" for number in range(1, 241)]


@contextlib.contextmanager
def one_host() -> Iterator[list[str]]:
    """What to put before a command to run it on a host that has a whole IPv6 prefix."""
    name = f"p2psgd{os.getpid()}six"
    command("ip", "netns", "add", name)
    try:
        command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", name, "-6", "route", "add", "local", PREFIX, "dev", "lo")
        yield ["ip", "netns", "exec", name]
    finally:
        command("ip", "netns", "delete", name)


@contextlib.contextmanager
def besieged(within: list[str], target: str, sources: list[str]) -> Iterator[None]:
    siege = [*within, sys.executable, "-m", "tests.siege", target, *sources]
    with subprocess.Popen(siege, stdin=subprocess.PIPE) as process:
        yield
        process.communicate(timeout=30)
    assert process.returncode == 0


def dropped(daemon: Daemon, reason: str) -> int:
    status = daemon.status()
    return 0 if status is None else int(status["dropped"].get(reason, 0))


@pytest.mark.root
@pytest.mark.parametrize("newcomer", ["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
def test_fault_24_all_addresses_of_an_ipv6_64_count_as_one_host(tmp_path: Path, newcomer: str) -> None:
    target = "[::1]:7315" if ":" in newcomer else f"{newcomer}:7315"
    with one_host() as within, all_stopped([]) as daemons:

        def start(number: int, peers: str) -> Daemon:
            hosts = tmp_path / f"hosts-{number}.txt"
            hosts.write_text(f"{peers}\n")
            return Daemon(
                tmp_path / f"node-{number}",
                *("--peers", str(hosts), "--listen", f"[::]:{7315 + number}", "--failure-timeout", "1"),
                *("--insecure-plaintext", "--trainer", trainer(calm(tmp_path), "--steps", "5")),
                within=within,
            )

        daemons.append(start(0, "127.0.0.2:7315"))  # itself
        until(daemons[0].run, "the run is known")
        with besieged(within, "[::1]:7315", ATTACKER):
            until(lambda: dropped(daemons[0], "greeting rate") > len(ATTACKER), "the attacker is turned away")
            daemons.append(start(1, target))
            until(daemons[1].status, "it has started")
            until(lambda: daemons[0].linked() == {"node-1"}, "a newcomer is let in")
        assert dropped(daemons[0], "displaced") < UNKNOWN_BURST  # one host does not displace itself
