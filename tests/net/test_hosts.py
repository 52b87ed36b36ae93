"""hosts.txt: what a line may be, and which line is the node's own."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net import hosts as hosts_module
from p2psgd.net.address import HOSTS_MAX, Address, parse_address
from p2psgd.net.hosts import Hosts, describe_change, find_hosts, split_own
from p2psgd.net.peer_sources.hosts_file import from_file, read_hosts
from tests import DEADLINE_S


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", Address("10.0.0.1", 7315)),
        ("10.0.0.1:9", Address("10.0.0.1", 9)),
        ("node-1.example.org:7000", Address("node-1.example.org", 7000)),
        ("[::1]", Address("::1", 7315)),
        ("[fe80::2]:80", Address("fe80::2", 80)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":7000",
        "a:b",
        "a:70000",
        "a:0",
        "a b",
        "10.0.0.256",
        "1.2.3",
        "-a",
        "a..b",
        "::1",
        "[::1",
        "[1.2.3.4]:7",
        "a:1:2",
        "x" * 300,
    ],
)
def test_what_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_address(text)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    return path


def test_comments_blank_lines_and_duplicates(tmp_path: Path) -> None:
    path = write(tmp_path, "# three machines\n\nalpha\nbeta:7000  # the fast one\nalpha:7315\n")
    assert read_hosts(path) == (Address("alpha", 7315), Address("beta", 7000))


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hosts\.txt line 3: 'ga mma'") as caught:
        read_hosts(write(tmp_path, "alpha\nbeta\nga mma\n"))
    assert caught.value.exit_code is ExitCode.CONFIGURATION


def test_a_missing_binary_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file"):
        read_hosts(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"not a text file"):
        read_hosts(tmp_path / "binary")
    with pytest.raises(UsageError, match=r"larger than"):
        read_hosts(write(tmp_path, "host\n" * 10**6))
    with pytest.raises(UsageError, match=rf"more than {HOSTS_MAX} hosts"):
        read_hosts(write(tmp_path, "".join(f"h{number}\n" for number in range(2000))))


def test_a_list_that_is_not_there_is_named_by_the_whole_path_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=re.escape(f"the list of hosts {tmp_path / 'none.txt'}: no such file")
    ):
        read_hosts(Path("none.txt"))


def split(listening: Address, *addresses: Address) -> Hosts:
    return asyncio.run(split_own(addresses, listening, timeout_s=DEADLINE_S))


def test_the_nodes_own_line_is_told_from_its_peers() -> None:
    one, two, three = (Address("127.0.0.1", port) for port in (7001, 7002, 7003))
    assert split(two, one, two, three) == Hosts((one, three), (1, 3))
    assert split(Address("0.0.0.0", 7003), one, two, three) == Hosts((one, two), (2, 3))
    assert split(Address("127.0.0.1", 9), one, two) == Hosts((one, two), None)


def test_another_machine_with_the_same_port_is_a_peer() -> None:
    elsewhere = Address("192.0.2.1", 7001)
    assert split(Address("0.0.0.0", 7001), elsewhere) == Hosts((elsewhere,), None)


def test_a_name_that_does_not_resolve_is_a_peer_that_may_resolve_later() -> None:
    unknown = Address("no-such-host.invalid", 7001)
    assert split(Address("127.0.0.1", 7001), unknown) == Hosts((unknown,), None)


def test_the_own_machine_by_two_names_counts_once() -> None:
    by_name, by_number, peer = (
        Address("localhost", 7001),
        Address("127.0.0.1", 7001),
        Address("192.0.2.1", 7001),
    )
    assert split(Address("127.0.0.1", 7001), peer, by_name, by_number) == Hosts((peer,), (1, 2))


def test_a_list_without_hosts_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "hosts.txt"
    for text, warnings in (("# nobody yet\n", 1), ("192.0.2.1\n", 0)):
        caplog.clear()
        path.write_text(text)
        asyncio.run(find_hosts(from_file(path), Address("127.0.0.1", 7001), timeout_s=DEADLINE_S))
        assert sum("names no host" in record.getMessage() for record in caplog.records) == warnings


def test_a_line_for_this_machine_with_another_port_is_warned_of_unless_it_is_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look_up(address: Address, *, timeout_s: float) -> tuple[Address, ...]:
        return (Address("127.0.1.1" if address.host == "this-machine" else "127.0.0.1", address.port),)

    monkeypatch.setattr(hosts_module, "look_up", look_up)
    for host, warnings in (("this-machine", 1), ("127.0.0.1", 0), ("localhost", 0)):
        caplog.clear()
        path = write(tmp_path, f"{host}:7401\n")
        hosts = asyncio.run(find_hosts(from_file(path), Address("0.0.0.0", 7404), timeout_s=DEADLINE_S))
        assert hosts.near_misses == (Address(host, 7401),) * warnings
        assert sum("names this machine" in record.getMessage() for record in caplog.records) == warnings


def test_a_name_for_several_hosts_gives_no_share_and_counts_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, line = Address("nodes.example", 7001), Address("192.0.2.7", 7001)
    found = {name: tuple(Address(f"127.0.0.{n}", 7001) for n in (1, 2, 3)), line: (line,)}

    async def look_up(address: Address, *, timeout_s: float) -> tuple[Address, ...]:
        return found[address]

    monkeypatch.setattr(hosts_module, "look_up", look_up)
    here = split(Address("127.0.0.2", 7001), name, line)
    assert (here.rank, here.others, here.several, here.lines) == (None, 3, (name,), (name, line))
    elsewhere = split(Address("127.0.0.9", 7001), name, line)
    assert (elsewhere.rank, elsewhere.others) == (None, 4)
    found[name] = found[name][1:2]
    alone = split(Address("127.0.0.2", 7001), name)
    assert (alone.rank, alone.others, alone.peers, alone.lines) == ((0, 1), 0, (), (name,))


def test_a_node_knows_its_line_by_where_it_is_dialled_from_outside() -> None:
    outside, other = Address("192.0.2.1", 7000), Address("192.0.2.2", 7000)
    own = (Address("127.0.0.1", 7001), outside)
    hosts = asyncio.run(split_own((other, outside), *own, timeout_s=DEADLINE_S))
    assert hosts == Hosts((other,), (1, 2))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("ab", "ba", "it names the same hosts"),
        ("ab", "bc", "dials c:1; no longer dials a:1"),
        ("", "abcdefghij", "dials a:1, b:1, c:1, d:1, e:1, f:1, g:1, h:1 and others"),
    ],
)
def test_what_is_different_in_a_list_is_said(before: str, after: str, words: str) -> None:
    lists = [[Address(host, 1) for host in hosts] for hosts in (before, after)]
    assert describe_change(*lists) == words


def test_its_own_line_is_news_only_under_another_name_than_its_options_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "127.0.0.1:7001\n192.0.2.1:7001\n")
    with caplog.at_level(logging.INFO, "p2psgd.discovery"):
        for listening, lines in ((Address("127.0.0.1", 7001), 0), (Address("0.0.0.0", 7001), 1)):
            caplog.clear()
            hosts = asyncio.run(find_hosts(from_file(path), listening, timeout_s=DEADLINE_S))
            assert hosts.rank == (0, 2)
            assert sum("names this node itself" in each.getMessage() for each in caplog.records) == lines
