"""What systemd is told, through real datagram sockets."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from p2psgd.node.systemd import Notifier, Supervision, sentence_of
from p2psgd.observe.status import read_status
from tests.service_manager import ServiceManager


def environment(manager: ServiceManager, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, "PATH": "/bin", **more}


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_told_arrives_at_a_path_and_at_a_name_without_a_file(tmp_path: Path, abstract: bool) -> None:
    with ServiceManager(f"@p2psgd-{os.getpid()}" if abstract else tmp_path / "notify") as manager:
        Notifier(manager.address).tell(READY=1, STATUS="all is well")
        assert manager.next() == {"READY": "1", "STATUS": "all is well"}


def test_no_words_of_a_peer_become_an_assignment_of_their_own(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        Notifier(manager.address).tell(STATUS="no peer is linked; trying evil\nMAINPID=1\nSTOPPING=1")
        assert manager.next() == {"STATUS": r"no peer is linked; trying evil\nMAINPID=1\nSTOPPING=1"}


def test_what_finds_no_room_is_told_with_what_comes_next(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
            full = 0
            while True:
                try:
                    end.sendto(b"X=1\n", manager.address)
                except BlockingIOError:
                    break
                full += 1
        notifier = Notifier(manager.address)
        notifier.tell(READY=1, STATUS="one")
        for _ in range(full):
            assert manager.next() == {"X": "1"}
        notifier.tell(STATUS="two")
        assert manager.next() == {"READY": "1", "STATUS": "two"}


def test_without_a_service_manager_nothing_is_sent_and_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier("").tell(READY=1)
    assert not caplog.records
    notifier = Notifier(str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notifier.tell(READY=1)
        notifier.tell(STATUS="still here")
    assert [record.message for record in caplog.records] == [
        "cannot notify the service manager: No such file or directory"
    ]


def test_without_a_service_manager_no_sentence_is_made() -> None:
    Supervision({}).beat(1000.0, lambda: pytest.fail("it reads the status of all peers for nobody"))


def test_a_child_finds_nothing_in_the_environment_that_it_could_speak_through(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        given = environment(manager, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid()))
        Supervision(given)
        assert given == {"PATH": "/bin"}


def test_the_watchdog_is_fed_four_times_in_its_time_however_often_progress_is_made(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        supervision = Supervision(environment(manager, WATCHDOG_USEC="4000000"))
        assert supervision.interval_s == 0.5
        for hundredth in range(400):
            supervision.beat(1000 + hundredth / 100, lambda: "training")
        manager.empty()
    assert manager.told == [{"WATCHDOG": "1", "STATUS": "training"}, *3 * [{"WATCHDOG": "1"}]]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getppid())},
    ],
)
def test_a_watchdog_of_nobody_or_of_another_process_is_not_fed(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        supervision = Supervision(environment(manager, **settings))
        assert supervision.interval_s == float("inf")
        supervision.beat(1000.0, lambda: "training")
        assert manager.next() == {"STATUS": "training"}


def test_a_sentence_is_told_when_it_is_new_and_not_too_often(tmp_path: Path) -> None:
    with ServiceManager(tmp_path / "notify") as manager:
        supervision = Supervision(environment(manager))
        for tenth in range(125):
            supervision.beat(tenth / 10, lambda tenth=tenth: f"{tenth // 75}")  # type: ignore[misc]
        supervision.stopping("stopped by SIGTERM")
        supervision.beat(12.5, lambda: "draining")
        manager.empty()
    stopping = {"STOPPING": "1", "STATUS": "stopped by SIGTERM"}
    assert manager.told == [{"STATUS": "0"}, {"STATUS": "1"}, stopping, {"STATUS": "draining"}]


def test_a_sentence_says_state_links_what_is_waited_for_and_what_the_disk_is_at() -> None:
    peers = [{"state": "connected"}, {"state": "lost"}]
    status = {"node": "a", "state": "training", "waits": "", "peers": peers, "peers_total": 2}
    assert sentence_of(read_status(status)) == "training, 1 of 2 peers linked"
    told = {
        **status,
        "trainer": {"steps": 1234},
        "waits": "the trainer waits",
        "checkpoint": {"trouble": "the disk has been at votes for 61 s"},
    }
    assert (
        sentence_of(read_status(told)) == "training, step 1,234, 1 of 2 peers linked; the trainer waits; "
        "the disk has been at votes for 61 s"
    )
    assert sentence_of(
        read_status({**status, "not_ready": "looking for the other nodes of the run"})
    ).endswith("; looking for the other nodes of the run")
