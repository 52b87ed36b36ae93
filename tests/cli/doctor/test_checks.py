"""The checks as functions of what was found."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest

from p2psgd.base.aio import DESCRIPTORS_MIN, connections_end
from p2psgd.base.errors import ExitCode
from p2psgd.cli.doctor.findings import Grade, exit_code, note, ok, problem, render, summarise
from p2psgd.cli.doctor.greeting import Outcome, Peer
from p2psgd.cli.doctor.local_checks import (
    Available,
    bytes_needed,
    check_descriptors,
    check_hosts,
    check_memory,
    check_state_directory,
    describe_taken,
    descriptors_needed,
    find_available,
    load_credentials,
)
from p2psgd.cli.doctor.local_checks import disk_bytes_needed as disk_needed
from p2psgd.cli.doctor.peer_checks import check_listening, check_peer, check_twins
from p2psgd.core.view import Ballot, View, Votes
from p2psgd.net.address import Address
from p2psgd.net.hosts import Hosts
from p2psgd.net.peer_sources.hosts_file import from_file
from p2psgd.net.peer_sources.parse import parse_peers
from p2psgd.observe.status import read_status
from p2psgd.storage.votes import write_votes

LISTEN = Address("0.0.0.0", 7315)


def test_the_exit_code_says_whether_a_person_must_act() -> None:
    away = problem("reach", "away", "start it", passing=True)
    assert exit_code([ok("a", ""), note("b", "")]) is ExitCode.OK
    assert exit_code([away, ok("a", "")]) is ExitCode.TEMPORARY
    assert exit_code([away, problem("c", "wrong", "mend it")]) is ExitCode.CONFIGURATION
    assert summarise([away]) == "1 problem, 0 notes; exit code 75"


def test_what_others_have_written_is_escaped() -> None:
    assert render(ok("reach", "evil\x1b[2J\nok")) == r"ok       reach          evil\x1b[2J\nok"


def test_memory_grows_with_the_weights_and_is_compared_with_what_is_there() -> None:
    million = bytes_needed(2_000_000) - bytes_needed(1_000_000)
    assert 40e6 <= million < 49e6
    needed = bytes_needed(10**6)
    assert check_memory(10**6, Available(needed, "of a test")).grade is Grade.OK
    assert check_memory(10**6, Available(needed - 1, "of a test")).grade is Grade.PROBLEM
    assert check_memory(None, None).grade is Grade.NOTE


def test_the_memory_that_is_there_is_that_of_the_machine_or_of_the_narrowest_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    group = groups / "jobs" / "one"
    group.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/jobs/one\n")
    assert find_available(proc, groups) == Available(4000 * 1024, "of the machine")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("400\n")
    assert find_available(proc, groups) == Available(600, "of the control group's limit")


def test_descriptors_for_every_peer_by_the_limits_that_a_daemon_goes_by() -> None:
    assert check_descriptors(3, 1024).grade is Grade.OK
    assert check_descriptors(3, DESCRIPTORS_MIN).grade is Grade.OK
    assert check_descriptors(0, DESCRIPTORS_MIN - 1).grade is Grade.PROBLEM
    assert check_descriptors(1000, 4096).grade is Grade.OK
    short = check_descriptors(1000, 2048)
    assert short.grade is Grade.PROBLEM
    assert short.words == "only 2,048 files may be open (hard limit), 1,000 peers may take 2,088"
    assert f"limits.conf, or LimitNOFILE={descriptors_needed(1000)} in the unit" in short.mend
    assert check_descriptors(1023, -1).grade is Grade.OK


def test_a_limit_that_the_doctor_names_is_enough() -> None:
    for peers in (0, 1, 20, 100, 1023):
        assert check_descriptors(peers, descriptors_needed(peers)).grade is Grade.OK
        assert connections_end(descriptors_needed(peers)) >= 2 * peers


def test_descriptors_are_counted_by_the_limit_to_which_a_daemon_raises_its_own() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        assert f"{hard:,} files may be open" in check_descriptors(3).words
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_list_of_hosts_names_this_machine_or_says_what_follows(tmp_path: Path) -> None:
    path = from_file(tmp_path / "hosts.txt")
    one, two = Address("10.0.0.1", 7315), Address("10.0.0.2", 7315)
    assert (
        "10.0.0.2:7315 is this machine: rank 1/2"
        in check_hosts(path, [one, two], Hosts((one,), (1, 2)), LISTEN).words
    )
    assert check_hosts(path, [one], Hosts((one,), None), LISTEN).grade is Grade.NOTE
    near = Address("10.0.0.2", 7000)
    missed = check_hosts(path, [one, near], Hosts((one, near), None, (near,)), LISTEN)
    assert missed.grade is Grade.PROBLEM
    assert "--listen 0.0.0.0:7000" in missed.mend
    assert check_hosts(path, [], Hosts((), None), LISTEN).grade is Grade.PROBLEM


def test_a_list_without_an_order_gives_no_rank_which_is_no_problem() -> None:
    one = Address("10.0.0.1", 7315)
    found = check_hosts(parse_peers("dns:nodes.example"), [one], Hosts((one,), None), LISTEN)
    assert found.grade is Grade.OK
    assert "dns:nodes.example: 1 address; members may come and go" in found.words
    assert "echo" not in check_hosts(parse_peers("exec:true"), [], Hosts((), None), LISTEN).mend


def test_a_state_directory_is_tried_and_nothing_stays(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    found = check_state_directory(state, 1000)
    assert found.grade is Grade.OK
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    found = check_state_directory(file / "state", 1000)
    assert found.grade is Grade.PROBLEM
    assert "--state DIR" in found.mend


def test_a_disk_must_hold_the_checkpoints_and_should_hold_the_log(tmp_path: Path) -> None:
    grades = [
        check_state_directory(tmp_path, 10**6, free_bytes=free).grade
        for free in (disk_needed(10**6), disk_needed(10**6) - 1, 24 * 10**6 - 1)
    ]
    assert grades == [Grade.OK, Grade.NOTE, Grade.PROBLEM]


def test_a_full_disk_is_a_problem(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(10**6))
    found = check_state_directory(small_disk, None)
    assert found.grade is Grade.PROBLEM
    assert "no space left" in found.words


def test_votes_that_are_damaged_are_a_problem(tmp_path: Path) -> None:
    write_votes(tmp_path, bytes(32), Votes(View(0, ()), Ballot(0, 0), Ballot(0, 0), None), {})
    assert check_state_directory(tmp_path, None).grade is Grade.OK
    (tmp_path / "votes.json").write_text("{}")
    found = check_state_directory(tmp_path, None)
    assert found.grade is Grade.PROBLEM
    assert f"{tmp_path / 'votes.json'} is damaged" in found.words
    assert "a whole copy" in found.mend


def test_a_port_is_taken_by_a_node_of_this_machine_or_by_another_program() -> None:
    fields = {
        "listen": "0.0.0.0:7315",
        "node": "anna",
        "state": "training",
        "peers": [{"state": "connected"}],
    }
    status = read_status(fields)
    found, is_node = describe_taken(LISTEN, "in use", status)
    assert is_node
    assert found.grade is Grade.NOTE
    assert found.words.endswith("runs already on 0.0.0.0:7315: training, linked with 1 of 1 peer")
    found, is_node = describe_taken(Address("127.0.0.1", 7000), "in use", status)
    assert not is_node
    assert found.grade is Grade.PROBLEM
    assert "sudo ss -ltnp 'sport = :7000'" in found.mend


def test_listening_on_loopback_alone_is_no_use_to_others() -> None:
    there, here = (
        Peer(Address("b", 7315), hosts=("10.0.0.2",)),
        Peer(Address("c", 7315), hosts=("127.0.0.3",)),
    )
    (found,) = check_listening([here, there], Address("127.0.0.1", 7315))
    assert found.words.startswith("this node listens on 127.0.0.1:7315, which b:7315 cannot reach")
    assert not list(check_listening([here], Address("127.0.0.1", 7315)))
    assert not list(check_listening([here, there], LISTEN))


@pytest.mark.parametrize(
    ("outcome", "passing"),
    [
        (Outcome.REFUSED, True),
        (Outcome.SILENT, True),
        (Outcome.AWAY, True),
        (Outcome.MUTE, True),
        (Outcome.UNTRIED, True),
        (Outcome.UNREACHABLE, False),
        (Outcome.UNRESOLVED, False),
        (Outcome.TLS, False),
        (Outcome.VERSION, False),
        (Outcome.STRANGE, False),
    ],
)
def test_every_way_not_to_be_reached_has_something_that_mends_it(outcome: Outcome, passing: bool) -> None:
    peer = Peer(Address("10.0.0.2", 7315))
    peer.failed(outcome, "some words")
    found = check_peer(peer, LISTEN, daemon_here=False)
    assert found.grade is Grade.PROBLEM
    assert found.mend
    assert found.passing is passing


def test_a_node_whose_dials_were_not_seen_leaves_open_whether_it_reaches_this_machine() -> None:
    peer = Peer(Address("10.0.0.2", 7315), outcome=Outcome.NODE, words="berta runs there")
    found = check_peer(peer, LISTEN, daemon_here=False)
    assert found.grade is Grade.NOTE
    assert "whether it reaches this machine was not shown" in found.words
    assert "7315/tcp" in found.mend
    with_daemon = check_peer(peer, LISTEN, daemon_here=True)
    peer.visited = True
    heard = check_peer(peer, LISTEN, daemon_here=False)
    assert with_daemon.grade is heard.grade is Grade.OK


def test_a_doctor_that_has_not_dialled_says_that_this_port_is_closed() -> None:
    peer = Peer(Address("10.0.0.2", 7315), outcome=Outcome.DOCTOR)
    closed = check_peer(peer, LISTEN, daemon_here=False)
    assert closed.grade is Grade.PROBLEM
    assert closed.mend.startswith("here: sudo ufw allow 7315/tcp")
    assert check_peer(peer, LISTEN, daemon_here=True).grade is Grade.OK
    peer.visited = True
    assert check_peer(peer, LISTEN, daemon_here=False).grade is Grade.OK
    peer.failed(Outcome.SILENT, "no answer")
    behind = check_peer(peer, LISTEN, daemon_here=False)
    assert behind.words == "10.0.0.2:7315 reaches this machine, but is not reached from here: no answer"
    assert behind.mend.startswith("there: sudo ufw allow 7315/tcp")
    assert not behind.passing


def test_two_lines_of_one_node_are_told() -> None:
    peers = [Peer(Address("10.0.0.2", 7315), node=7), Peer(Address("b.example", 7315), node=7)]
    (found,) = check_twins(peers)
    assert found.words == "10.0.0.2:7315 and b.example:7315 are one node"


def test_a_later_silence_does_not_hide_why_it_was_refused_before() -> None:
    peer = Peer(Address("10.0.0.2", 7315))
    peer.failed(Outcome.TLS, "wrong CA")
    peer.failed(Outcome.REFUSED, "connection refused")
    assert (peer.outcome, peer.words) == (Outcome.TLS, "wrong CA")


def test_a_tls_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    credentials, found = load_credentials(tmp_path, datetime.now(UTC))
    assert credentials is None
    assert found.grade is Grade.PROBLEM
    assert (
        f"p2psgd ca issue on the machine that holds the CA, then copy the node's files to {tmp_path}"
        in found.mend
    )
