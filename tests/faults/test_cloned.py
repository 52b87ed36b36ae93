"""Fault 16: a machine is cloned, state directory and certificate and all, while it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p2psgd.storage.identity import lay_down_id
from tests.certificates import Certificates
from tests.daemons import Daemon, all_stopped, clock_behind, until
from tests.node.test_node import Place, calm, ended, endless
from tests.ports import free_ports

pytestmark = pytest.mark.long


@pytest.mark.parametrize("encrypted", [False, True], ids=["plaintext", "TLS"])
def test_fault_16_of_two_with_one_id_the_newer_wins_and_the_older_ends_with_the_reason(
    tmp_path: Path, encrypted: bool
) -> None:
    place, certificates = Place(tmp_path, 2), Certificates(tmp_path)

    def options(number: int) -> tuple[str, ...]:
        trained = endless(calm(tmp_path), "--rank", f"{number}/2")
        return *trained, *(certificates.options(f"node-{number}") if encrypted else ())

    with all_stopped([place.start(number, *options(number)) for number in range(2)]) as daemons:
        until(lambda: daemons[0].linked() == {"node-1"}, "linked")
        before = until(daemons[1].status, "it answers")
        shutil.copytree(
            daemons[1].state,
            tmp_path / "clone" / "node-1",
            ignore=lambda _, names: [name for name in names if name.endswith((".sock", "lock", ".new"))],
        )
        port = free_ports(1)[0]
        peers = ("--peers", str(place.hosts), "--listen", f"127.0.0.1:{port}", "--failure-timeout", "1")
        daemons.append(Daemon(tmp_path / "clone" / "node-1", *peers, *options(1)))
        code, words = ended(daemons[1])
        assert code == 78
        assert "this node has been started again elsewhere, so this life of it ends" in words
        after = until(daemons[2].status, "it answers")
        assert after["id"] == before["id"]
        assert after["incarnation"] > before["incarnation"]
        until(lambda: daemons[0].linked() == {"node-1"} and daemons[2].linked() == {"node-0"}, "linked again")
        assert (daemons[0].status() or {})["dropped"]["superseded"] >= 1


def test_fault_16_a_clone_whose_clock_is_behind_ends_while_the_other_is_linked(tmp_path: Path) -> None:
    """As a node that has lost its disk it was never a member, but must not begin a race."""
    place = Place(tmp_path, 2)
    options = [endless(calm(tmp_path), "--rank", f"{number}/2") for number in range(2)]
    with all_stopped([place.start(number, *options[number]) for number in range(2)]) as daemons:
        until(lambda: daemons[0].linked() == {"node-1"}, "linked")
        before = until(daemons[1].status, "it answers")
        clone = tmp_path / "clone" / "node-1"
        clone.mkdir(parents=True)
        lay_down_id(clone, node=int(before["id"], 16), name="node-1")  # copied before it was ever started
        port = free_ports(1)[0]
        peers = ("--peers", str(place.hosts), "--listen", f"127.0.0.1:{port}", "--failure-timeout", "1")
        daemons.append(Daemon(clone, *peers, *options[1], environment=clock_behind(tmp_path)))
        code, words = ended(daemons[2])
        assert code == 78
        assert "this node has been started again elsewhere, so this life of it ends" in words
        assert "another begins" not in daemons[2].words()
        after = until(daemons[1].status, "it answers")
        assert after["incarnation"] == before["incarnation"]
        until(lambda: daemons[0].linked() == {"node-1"}, "still linked")
