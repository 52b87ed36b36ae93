"""A daemon and its list of hosts: what SIGHUP reads again, what a list may say, IPv6, and a wrong start."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.net.address import Address
from p2psgd.net.hosts import Hosts, find_hosts
from p2psgd.net.peer_sources.hosts_file import from_file
from p2psgd.net.peer_sources.source import PeerSource
from p2psgd.node import daemon as node_module
from p2psgd.node.daemon import Node
from p2psgd.node.options import NodeOptions
from p2psgd.storage.event_log import EVENTS_NAME, parse_event
from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.ports import free_ports

pytestmark = pytest.mark.long

TRAINING = ("--failure-timeout", "1", "--trainer", trainer("digits", "--steps", "30", "--rank", "0/1"))


def reload(daemon: Daemon) -> str:
    """SIGHUP, and what the node says of it."""
    before = len(reloads(daemon))
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: len(reloads(daemon)) > before, "the list was read again")
    return reloads(daemon)[-1]


def reloads(daemon: Daemon) -> list[str]:
    events = map(parse_event, (daemon.state / EVENTS_NAME).read_bytes().splitlines())
    return [event["words"] for event in events if event is not None and event["kind"] == "reload"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*P2PSGD, *words], capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def alarms(daemon: Daemon) -> list[str]:
    told: list[str] = (daemon.status() or {"alarms": []})["alarms"]
    return told


def is_linked_with(daemon: Daemon, names: set[str]) -> bool:
    return daemon.linked() == names


def dialled(daemon: Daemon) -> set[str]:
    return {row["address"] for row in (daemon.status() or {}).get("peers", [])}


def test_a_list_is_read_again_on_sighup_and_a_bad_one_changes_nothing_and_an_equal_share_is_told(
    tmp_path: Path,
) -> None:
    one, two = free_ports(2)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"127.0.0.1:{one}\n")
    with all_stopped([]) as daemons:
        options = ("--peers", str(hosts), "--listen", f"127.0.0.1:{one}", "--rank", "0/2")
        first = Daemon(tmp_path / "a", *options, *TRAINING)
        daemons.append(first)
        until(first.finished, "it trains alone")
        alone = tmp_path / "alone.txt"
        alone.write_text(f"127.0.0.1:{two}\n127.0.0.1:{one}\n")
        hosts.write_text(f"127.0.0.1:{two}\n127.0.0.1:{one}\n")
        assert f"dials 127.0.0.1:{two}" in reload(first)
        until(lambda: dialled(first) == {f"127.0.0.1:{two}"}, "the new line is dialled")
        hosts.write_text(f"# another order\n127.0.0.1:{one}\n\n127.0.0.1:{two}\n127.0.0.1:{two}\n")
        assert "the same hosts" in reload(first)
        hosts.write_text(f"127.0.0.1:{two}\nga mma\n")
        words = reload(first)
        assert "line 2: 'ga mma'" in words
        assert "as it was" in words
        assert words in first.words()
        hosts.unlink()
        assert "no such file" in reload(first)
        assert dialled(first) == {f"127.0.0.1:{two}"}
        second = Daemon(tmp_path / "b", "--peers", str(alone), "--listen", f"127.0.0.1:{two}", *TRAINING)
        daemons.append(second)
        until(lambda: first.linked() == {"b"}, "linked")
        hosts.write_text(f"127.0.0.1:{one}\n")
        assert f"no longer dials 127.0.0.1:{two}" in reload(first)
        until(second.finished, "the second has trained as well")
        assert first.linked() == {"b"}
        assert len(assert_replicas_identical(daemons)) == 2
        clash = "has rank 0/2, and so has this node"  # each list begins with its own node
        assert [f"b {clash}" in alarm for alarm in alarms(first)] == [True]
        assert [f"a {clash}" in alarm for alarm in alarms(second)] == [True]
        assert second.stop() == 0
        until(lambda: not alarms(first), "nobody takes its share any more")
        assert first.stop() == 0


def test_a_program_that_lists_no_host_any_more_changes_nothing(tmp_path: Path) -> None:
    own, other = free_ports(2)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"127.0.0.1:{own}\n127.0.0.1:{other}\n")
    options = ("--listen", f"127.0.0.1:{own}", "--peers", f"exec:cat {hosts}", "--rank", "0/1")
    with all_stopped([Daemon(tmp_path / "a", *options, *TRAINING)]) as (daemon,):
        until(lambda: dialled(daemon) == {f"127.0.0.1:{other}"}, "it dials the other one")
        hosts.write_text("")
        words = reload(daemon)
        assert words == "exec:cat ... names no host any more; this node goes on with the list as it was"
        assert dialled(daemon) == {f"127.0.0.1:{other}"}


def test_fault_30_a_list_with_itself_duplicates_and_a_thousand_names_that_lead_nowhere(
    tmp_path: Path,
) -> None:
    one, two = free_ports(2)
    nowhere = [f"127.1.{n // 250}.{n % 250 + 1}:9" for n in range(900)]
    unknown = [f"host-{n}.invalid" for n in range(98)]
    lines = [f"127.0.0.1:{one}", f"127.0.0.1:{two}  # me", f"127.0.0.1:{two}", "", *nowhere, *unknown]
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("\n".join(lines) + "\n")
    with all_stopped([]) as daemons:
        for name, port in (("a", one), ("b", two)):
            options = ("--peers", str(hosts), "--bootstrap-expect", "2", "--listen", f"127.0.0.1:{port}")
            daemons.append(Daemon(tmp_path / name, *options, *TRAINING))
        until(lambda: daemons[0].linked() == {"b"}, "found among 1,000 lines")
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert len(assert_replicas_identical(daemons)) == 2
        status = daemons[1].status()
        assert status is not None
        assert status["peers_total"] == 999
        hosts.write_text("no/nsense\n" * 1000)
        assert "line 1: 'no/nsense'" in reload(daemons[1])
        hosts.write_text("host\n" * 10**6)
        assert "larger than" in reload(daemons[1])
        assert daemons[1].linked() == {"a"}


def test_a_list_that_changes_while_the_node_starts_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("192.0.2.1:1\n")

    async def scenario() -> None:
        looked_up, calls = asyncio.Event(), 0

        async def find_slowly(path: PeerSource, *listen: Address, **options: Any) -> Hosts:
            nonlocal calls
            calls += 1
            first, found = calls == 1, await find_hosts(path, *listen, **options)
            if first:
                await looked_up.wait()  # as a name server may let a node wait
            return found

        monkeypatch.setattr(node_module, "find_hosts", find_slowly)
        node = Node(
            NodeOptions(peers=from_file(hosts), listen=Address("127.0.0.1", 0), state=tmp_path / "state")
        )
        serving = asyncio.create_task(node.serve())
        while calls == 0:
            await asyncio.sleep(0.01)
        hosts.write_text("192.0.2.2:2\n")
        signal.raise_signal(signal.SIGHUP)
        for _ in range(20):
            await asyncio.sleep(0.01)
        looked_up.set()
        while not (tmp_path / "state" / "control.sock").exists() or calls < 2:
            await asyncio.sleep(0.01)
        while node._reloading:
            await asyncio.sleep(0.01)
        assert node.hosts.peers == (Address("192.0.2.2", 2),)
        signal.raise_signal(signal.SIGTERM)
        assert await serving is ExitCode.OK

    asyncio.run(scenario())


def test_a_list_is_not_read_again_by_a_node_that_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("192.0.2.1:1\n")
    calls = 0

    async def find_and_count(path: PeerSource, *listen: Address, **options: Any) -> Hosts:
        nonlocal calls
        calls += 1
        return await find_hosts(path, *listen, **options)

    async def scenario() -> None:
        node = Node(
            NodeOptions(peers=from_file(hosts), listen=Address("127.0.0.1", 0), state=tmp_path / "state")
        )
        close = node._control.trainer.close

        async def close_while_asked_to_reload() -> None:
            signal.raise_signal(signal.SIGHUP)
            await close()
            for _ in range(20):
                await asyncio.sleep(0.01)

        monkeypatch.setattr(node._control.trainer, "close", close_while_asked_to_reload)
        serving = asyncio.create_task(node.serve())
        while not (tmp_path / "state" / "control.sock").exists() or node._reloading:
            await asyncio.sleep(0.01)
        assert calls == 1
        signal.raise_signal(signal.SIGTERM)
        assert await serving is ExitCode.OK
        assert calls == 1

    monkeypatch.setattr(node_module, "find_hosts", find_and_count)
    asyncio.run(scenario())


@pytest.mark.parametrize("listen", ["[::1]", "[::]"])
def test_nodes_find_each_other_by_ipv6_and_by_both_kinds_at_once(tmp_path: Path, listen: str) -> None:
    ports = free_ports(3)
    hosts = tmp_path / "hosts.txt"
    kinds = ("[::1]", "[::1]", "[::1]" if listen == "[::1]" else "127.0.0.1")
    hosts.write_text("".join(f"{kind}:{port}\n" for kind, port in zip(kinds, ports, strict=True)))
    with all_stopped([]) as daemons:
        for name, port in zip("abc", ports, strict=True):
            options = ("--peers", str(hosts), "--listen", f"{listen}:{port}", "--insecure-plaintext")
            daemons.append(Daemon(tmp_path / name, *options, *TRAINING))
        for daemon in daemons:
            others = {other.state.name for other in daemons if other is not daemon}
            until(functools.partial(is_linked_with, daemon, others), "all are linked")
            until(daemon.finished, "the trainer has finished")
        assert len(assert_replicas_identical(daemons)) == 3
        for daemon in daemons:  # what --listen says itself is no news
            assert ("names this node itself" in daemon.words()) == (listen == "[::]")


def test_a_node_must_be_told_how_to_find_others(tmp_path: Path) -> None:
    done = command("node", "--state", str(tmp_path))
    assert done.returncode == 64
    assert "give --peers FILE, --zeroconf, or both" in done.stderr


@pytest.mark.parametrize("advertised", ["alpha", "0.0.0.0", "10.0.0.1:0", "[::]:7315", "fe80::1"])
def test_what_is_advertised_is_the_address_of_one_machine(tmp_path: Path, advertised: str) -> None:
    done = command("node", "--zeroconf", "--state", str(tmp_path), "--advertise", advertised)
    assert done.returncode == 64
    assert "--advertise: " in done.stderr


def test_a_command_is_asked_again_and_one_that_fails_later_changes_nothing(tmp_path: Path) -> None:
    one, two = free_ports(2)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"127.0.0.1:{one}\n127.0.0.1:{two}\n")
    training = ("--failure-timeout", "0.5", "--trainer", trainer("digits", "--steps", "30", "--rank", "0/1"))
    with all_stopped([]) as daemons:
        for name, port in (("a", one), ("b", two)):
            options = ("--peers", f"exec:cat {hosts}", "--listen", f"127.0.0.1:{port}")
            daemons.append(Daemon(tmp_path / name, *options, *training))
        first = daemons[0]
        until(lambda: first.linked() == {"b"}, "found by what a command prints")
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert len(assert_replicas_identical(daemons)) == 2
        hosts.rename(tmp_path / "away")
        until(lambda: "exit code 1: cat: " in "".join(reloads(first)), "it was asked again, and failed")
        assert reloads(first)[-1].endswith("this node goes on with the list as it was")
        assert first.linked() == {"b"}
        hosts.write_text(f"127.0.0.1:{one}\n127.0.0.1:9\n")
        until(lambda: dialled(first) >= {"127.0.0.1:9"}, "it was asked again, and has an answer")
        words = f"exec:cat ... was asked again: dials 127.0.0.1:9; no longer dials 127.0.0.1:{two}"
        assert reloads(first)[-1] == words
        assert first.linked() == {"b"}
        assert sum("cat: " in each for each in reloads(first)) == 1  # once for each reason
        assert "the same hosts" in reload(first)


def test_nodes_of_a_list_in_a_variable_have_ranks_and_those_of_one_name_have_none(tmp_path: Path) -> None:
    ports = free_ports(2)
    nodes = {"NODES": ",".join(f"127.0.0.1:{port}" for port in ports)}
    training = ("--failure-timeout", "0.5", "--trainer", trainer("digits", "--steps", "30"))
    with all_stopped([]) as daemons:
        for name, port in zip("ab", ports, strict=True):
            options = ("--peers", "env:NODES", "--listen", f"127.0.0.1:{port}")
            daemons.append(Daemon(tmp_path / name, *options, *training, environment=nodes))
        for daemon in daemons:
            until(daemon.finished, "the trainer has finished")
        assert len(assert_replicas_identical(daemons)) == 2
    with all_stopped([]) as daemons:
        options = ("--peers", f"dns:localhost:{ports[0]}", "--listen", f"127.0.0.1:{ports[0]}")
        daemons.append(Daemon(tmp_path / "c", *options, *training))
        until(lambda: "does not know its rank" in daemons[0].words(), "it asks for its rank")


SCRIPT = """
import time
import numpy
import p2psgd

with p2psgd.attach(numpy.zeros(10, numpy.float32)) as link:
    print("share", link.rank, link.world_size, flush=True)
    while not link.stopping:
        link.receive()
        link.send(numpy.full(10, 1e-3, numpy.float32), threshold=100)
        time.sleep(0.01)
"""


def test_a_list_of_one_other_node_needs_the_share_and_a_lone_node_says_that_it_trains_alone(
    tmp_path: Path,
) -> None:
    """Its script, which reports nothing, is killed once, and stopped with its node."""
    hosts, script = tmp_path / "hosts.txt", tmp_path / "train.py"
    one, two = free_ports(2)
    hosts.write_text(f"127.0.0.1:{one}\n")
    script.write_text(SCRIPT)
    places = ("--peers", str(hosts), "--listen", f"127.0.0.1:{two}", "--failure-timeout", "1")
    options = (*places, "--trainer", f"{sys.executable} {script}")
    with all_stopped([Daemon(tmp_path / "a", *options)]) as daemons:
        until(lambda: "does not know its rank" in daemons[0].words(), "it asks for its share")
        assert daemons[0].stop() == 0
        daemons.append(Daemon(tmp_path / "b", *options, "--rank", "1/2"))
        b = daemons[1]
        until(lambda: "share 1 2" in b.words(), "the script was told it")
        until(lambda: (b.status() or {"trainer": {}})["trainer"].get("steps_per_s"), "its pace is known")
        shown = command("status", "--state", str(b.state)).stdout
        alone = (
            "but the cluster has not formed: 1 of 2 nodes are here, 2 are needed; until then it trains alone"
        )
        assert alone in shown
        assert "steps/s" in shown
        assert "samples" not in shown
        os.kill((b.status() or {})["trainer"]["pid"], signal.SIGKILL)
        until(lambda: len(re.findall(r"trainer \d+ attached", b.words())) == 2, "it was started again")
        b.process.terminate()
        until(lambda: "trainer left: has finished" in b.words(), "the script was asked to end")
        said = command("events", "--state", str(b.state)).stdout
        b.kill()  # it would wait for peers
    assert alone in said
    assert "the trainer crashed (killed by signal 9)" in said
    assert "the trainer left: has finished" in said
