"""Real daemons: who may listen where, and who a certificate says that a node is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place, ended
from tests.ports import free_ports


def exposed(tmp_path: Path, *options: str) -> Daemon:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("")
    (port,) = free_ports(1)
    return Daemon(tmp_path / "node-0", "--peers", str(hosts), "--listen", f"0.0.0.0:{port}", *options)


def test_beyond_loopback_a_node_without_tls_does_not_start_and_says_what_to_run(tmp_path: Path) -> None:
    with all_stopped([exposed(tmp_path)]) as daemons:
        code, words = ended(daemons[0])
    assert code == 78
    for command in ("`p2psgd ca init`", "`p2psgd ca issue NODE...`", "--tls DIR", "--insecure-plaintext"):
        assert command in words


def test_a_node_that_may_do_so_shows_it_everywhere(tmp_path: Path) -> None:
    with all_stopped([exposed(tmp_path, "--insecure-plaintext")]) as daemons:
        status = until(daemons[0].status, "it answers")
        assert status["plaintext"] is status["insecure_plaintext"] is True
        assert status["tls"] is None
        assert "PLAINTEXT, as --insecure-plaintext says" in daemons[0].words()
        events = (daemons[0].state / "events.jsonl").read_text()
        assert "in PLAINTEXT (--insecure-plaintext)" in events
        assert daemons[0].stop() == 0


def test_with_tls_it_listens_everywhere_as_the_node_that_its_certificate_names(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path, run="speech-7")
    tls = certificates.directory("node-0", node=0xABCDEF)
    with all_stopped([exposed(tmp_path, "--tls", str(tls))]) as daemons:
        status = until(daemons[0].status, "it answers")
        assert (status["node"], status["id"]) == ("node-0", "0000000000abcdef")
        assert status["plaintext"] is status["insecure_plaintext"] is False
        assert status["tls"]["run"] == "speech-7"
        assert status["tls"]["trouble"] == ""
        assert daemons[0].stop() == 0


def test_the_state_of_another_node_is_refused(tmp_path: Path) -> None:
    place, certificates = Place(tmp_path, 1), Certificates(tmp_path)
    with all_stopped([place.start(0)]) as daemons:
        known = until(daemons[0].status, "it answers")["id"]
        assert daemons[0].stop() == 0
        daemons.append(place.start(0, *certificates.options("node-0")))
        code, words = ended(daemons[1])
        assert code == 78
        assert f"issue it a certificate with --id {known}" in words
        certificates.authority.issue(
            "node-0",
            now=certificates.authority.certificate.not_valid_before_utc,
            node=int(known, 16),
            renew=True,
        )
        daemons.append(place.start(0, *certificates.options("node-0")))
        assert until(daemons[2].status, "it answers")["id"] == known


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--tls", "absent"), 78, "there is no absent/ca.pem: `p2psgd ca issue` makes"),
        (("--tls", "absent", "--insecure-plaintext"), 64, "exclude each other"),
    ],
)
def test_options_of_no_use_are_refused(
    tmp_path: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    with all_stopped([Place(tmp_path, 1).start(0, *options)]) as daemons:
        assert ended(daemons[0])[0] == code
        assert words in daemons[0].words()


def test_a_name_that_the_certificate_does_not_have_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    place = Place(tmp_path, 1)
    with all_stopped([place.start(0, *certificates.options("somebody"))]) as daemons:
        code, words = ended(daemons[0])
    assert code == 64
    assert "leave it out, and it is called somebody" in words
