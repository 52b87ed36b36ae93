"""The commands for when machines fail, against a real control socket and real files."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

import p2psgd.cli.app
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.read_model import MemberView, PeerView, ScrubView
from p2psgd.core.view import View
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.observe.digest import report_digest
from p2psgd.storage.event_log import EventLog
from p2psgd.wire.messages import FrontierRow
from tests import DEADLINE_S
from tests.daemons import P2PSGD
from tests.ipc.daemons import Daemon, wait_until
from tests.observe.replications import ME, OTHER, THIRD, replica_view, replication
from tests.observe.statuses import status

SEVENTH = Origin(7, 1)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["p2psgd", *arguments])
    with pytest.raises(SystemExit) as end:
        p2psgd.cli.app.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with a run."""
    daemon = Daemon(tmp_path, uvloop.new_event_loop)
    proposal = RunProposal((("w", (3,)),), -20, "async", "test")
    daemon.call(daemon.host.define_run, proposal, np.zeros(3, np.int32))
    yield daemon
    daemon.stop()


def test_events_are_lines_for_people_or_for_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path)
    log.write("start", "the node starts")
    log.write("link", "linked at 10.0.0.2:7315", 7)
    log.write("link", "lost: reset", 7)
    assert run(monkeypatch, "events", "--state", str(tmp_path)) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line[20:] for line in lines] == [
        "  start           the node starts",
        "  link            0000000000000007: linked at 10.0.0.2:7315",
        "  link            0000000000000007: lost: reset",
    ]
    assert (
        run(monkeypatch, "events", "--state", str(tmp_path), "--json", "--kind", "link", "-n", "1")
        == ExitCode.OK
    )
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["count"], event["words"], event["id"]) == (3, "lost: reset", "0000000000000007")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--state", "absent"), ExitCode.DATA),
        (("--state", ".", "--kind", "nonsense"), ExitCode.USAGE),
    ],
)
def test_events_that_are_not_there_are_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: ExitCode,
) -> None:
    EventLog(tmp_path).write("start", "the node starts")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "events", *arguments) == code
    words = capsys.readouterr().err
    assert words.startswith("p2psgd: no event")
    assert words.count("\n") == 1


def test_followed_events_come_as_they_happen_until_nobody_reads(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("start", "the node starts")
    command = [*P2PSGD, "events", "--state", str(tmp_path), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["count"] == 1
        log.write("view", "view 2 is decided")
        assert json.loads(process.stdout.readline())["words"] == "view 2 is decided"
        process.stdout.close()
        log.write("view", "view 3 is decided")
        assert process.wait(DEADLINE_S) == 0


def digest_report(*, digest: int | None, quarantines: int = 0) -> dict[str, Any]:
    linked = PeerView(
        OTHER,
        "node-2",
        ready=True,
        barred=False,
        view=6,
        silent_s=0.1,
        lag=0,
        frontier={ME: FrontierRow(*ME, 5, digest or 0)},
    )
    away = MemberView(OTHER, "node-2", linked=False, ready=False, heard_s=None, lag=None)
    scrub = ScrubView(count=0, quarantines=quarantines, running=False, clean=True, age_s=0.0)
    view = replica_view(
        frontier=(FrontierRow(*ME, 5, 7),),
        scrub=scrub,
        members=() if digest else (away,),
        peers={OTHER: linked} if digest else {},
    )
    return report_digest(view).model_dump()


@pytest.mark.parametrize(
    "case",
    [
        (digest_report(digest=7), "node-2: identical", ""),
        (
            digest_report(digest=8),
            "node-2: DIFFERS at update 5 of 0000000000000001/10",
            "node-2: another replica",
        ),
        (
            digest_report(digest=7, quarantines=1),
            "NOT CLEAN",
            "the weights in memory are not what the digest says",
        ),
        (digest_report(digest=None), "node-2: not compared", "node-2: not compared"),
    ],
)
def test_digest_fails_unless_all_is_equal_and_memory_is_sound(
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[dict[str, Any], str, str],
) -> None:
    report, words, fault = case
    daemon.host.digest_value = digest_report(digest=7)

    def end() -> None:
        daemon.host.digest_value = report
        daemon.host.scrubs += 1

    def scrub() -> None:
        wait_until(lambda: daemon.host.scrubs > 0, "the request")  # whose answer tells how things were before
        daemon.call(end)

    scrubbing = threading.Thread(target=scrub)
    scrubbing.start()
    code = run(monkeypatch, "digest", "--state", str(daemon.path.parent))
    scrubbing.join()
    told = capsys.readouterr()
    assert words in told.out
    assert told.err == (f"p2psgd: equal replicas are not proved: {fault}\n" if fault else "")
    assert code == (ExitCode.FAILED if fault else ExitCode.OK)


def show(daemon: Daemon, view: View, **changes: Any) -> None:
    daemon.host.view = view
    daemon.host.status_value = status(**replication(view=view, **changes)).model_dump(exclude_unset=True)


def test_remove_waits_for_the_view_without_the_node(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(daemon, View(6, (ME, OTHER, SEVENTH)))

    def decide() -> None:
        wait_until(lambda: bool(daemon.host.removed), "the request")
        show(daemon, View(7, (ME, OTHER), frozenset({7})))

    member = threading.Thread(target=decide)
    member.start()
    assert run(monkeypatch, "remove", "node-7", "--state", str(daemon.path.parent), "--forbid") == ExitCode.OK
    member.join()
    assert capsys.readouterr().out == (
        "view 7 with 2 members is decided: node-7 is removed, ends if it still runs, "
        "and is never admitted again\n"
    )


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ("node-2 has yet to answer", "node-2 has yet to answer"),
        ("", "2 of 4 members are linked, 3 are needed"),
    ],
)
def test_remove_says_what_is_missing(
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    waits: str,
    words: str,
) -> None:
    show(daemon, View(6, (ME, OTHER, THIRD, SEVENTH)), failure_timeout_s=0.05, view_waits=waits)
    assert run(monkeypatch, "remove", "node-7", "--state", str(daemon.path.parent)) == ExitCode.TEMPORARY
    told = capsys.readouterr().err
    assert told.startswith("p2psgd: node-7 is still a member after 1 s: ")
    assert words in told


def test_remove_of_a_node_that_still_runs_says_that_it_is_back(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    members = (ME, OTHER, SEVENTH)
    show(daemon, View(6, members))

    def decide() -> None:
        wait_until(lambda: bool(daemon.host.removed), "the request")
        show(daemon, View(8, members, since=(6, 6, 8)))

    member = threading.Thread(target=decide)
    member.start()
    assert run(monkeypatch, "remove", "node-7", "--state", str(daemon.path.parent)) == ExitCode.USAGE
    member.join()
    assert capsys.readouterr().err == (
        "p2psgd: node-7 still runs, and view 8 has admitted it again: stop it first, or give --forbid\n"
    )


def test_weights_go_to_a_file_whose_name_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "export", "weights.txt", "--state", str(tmp_path)) == ExitCode.USAGE
    assert "weights.txt ends in neither .safetensors nor .npz" in capsys.readouterr().err


def test_what_a_peer_is_called_is_no_command_to_a_terminal(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(node: str, *, forbid: bool) -> int:
        raise UsageError("\x1b[31mred\n is away")

    monkeypatch.setattr(daemon.host, "remove", refuse)
    assert run(monkeypatch, "remove", "node-7", "--state", str(daemon.path.parent)) == ExitCode.USAGE
    assert capsys.readouterr().err == "p2psgd: \\x1b[31mred\\n is away\n"


@pytest.mark.parametrize(
    "case",
    [
        (
            (),
            View(6, (ME, OTHER)),
            "view 6 has 2 members: node-7 is no member now, and there is nothing to remove",
        ),
        (
            ("--forbid",),
            View(6, (ME,), frozenset({7})),
            "view 6 has 1 member: node-7 is forbidden already, and there is nothing to remove",
        ),
        (
            (),
            View(6, (ME,), frozenset({7})),
            "view 6 has 1 member: node-7 is forbidden already, and there is nothing to remove",
        ),
    ],
)
def test_remove_of_a_node_that_is_out_already_is_done(
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[tuple[str, ...], View, str],
) -> None:
    options, view, words = case
    show(daemon, view)
    asked = ("remove", "node-7", "--state", str(daemon.path.parent), *options)
    assert run(monkeypatch, *asked) == ExitCode.OK
    assert capsys.readouterr().out == f"{words}\n"
    assert run(monkeypatch, *asked, "--json") == ExitCode.OK
    standing = json.loads(capsys.readouterr().out)
    assert (standing["node"], standing["view"], standing["since"]) == ("node-7", 6, 0)


@pytest.mark.parametrize("name", ["", "n" * 65])
def test_remove_of_what_can_be_no_name_is_refused(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(monkeypatch, "remove", name, "--state", str(daemon.path.parent)) == ExitCode.USAGE
    assert capsys.readouterr().err == f"p2psgd: no node is called {name!r}: names have 1 to 64 characters\n"


def test_remove_of_a_node_that_nobody_knows_is_refused(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "remove", "node-8", "--state", str(daemon.path.parent)) == ExitCode.USAGE
    assert capsys.readouterr().err == "p2psgd: no node is called 'node-8'\n"


@pytest.mark.parametrize("command", [["node", "--peers", "absent"], ["local", "-n", "1"]])
@pytest.mark.parametrize("failure_timeout", ["0.1", "601", "-5", "nan", "inf"])
def test_a_failure_timeout_out_of_range_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    failure_timeout: str,
) -> None:
    assert run(monkeypatch, *command, "--failure-timeout", failure_timeout) == ExitCode.USAGE
    assert (
        capsys.readouterr().err
        == f"p2psgd: --failure-timeout: the failure timeout must be 0.2 to 600 s, not {failure_timeout}\n"
    )
