"""`p2psgd ca` as an operator types it."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from p2psgd.net.tls import Credentials
from tests.daemons import P2PSGD


def ca(place: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*P2PSGD, "ca", *arguments], cwd=place, capture_output=True, check=False)


def said(place: Path, *arguments: str) -> str:
    done = ca(place, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_from_nothing_to_a_machine_in_three_commands(tmp_path: Path) -> None:
    words = said(tmp_path, "init", "--run", "speech-7")
    assert "the CA of run speech-7 is in ca" in words
    words = said(tmp_path, "issue", "node-1", "node-2")
    assert len(
        re.findall(r"^node-\d: id [0-9a-f]{16}, until 20\d\d-\d\d-\d\d, in ca/nodes/node-\d$", words, re.M)
    )
    words = said(tmp_path, "bundle", "node-2")
    command = words.splitlines()[1].replace("/etc/p2psgd/tls", str(tmp_path / "tls"))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert Credentials.load(tmp_path / "tls").name == "node-2"
    packed = ca(tmp_path, "bundle", "node-2", "--out", "-").stdout
    assert packed == (tmp_path / "node-2.tar").read_bytes()


def test_what_is_made_is_described_for_machines(tmp_path: Path) -> None:
    assert json.loads(said(tmp_path, "init", "--run", "speech-7", "--json")) == {
        "run": "speech-7",
        "directory": "ca",
    }
    (made,) = json.loads(said(tmp_path, "issue", "node-1", "--json"))
    credentials = Credentials.load(tmp_path / made["directory"])
    assert (made["node"], made["id"]) == (credentials.name, f"{credentials.node:016x}")
    assert datetime.fromisoformat(made["expires"]) > datetime.now(UTC)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["issue", "node-1"], 78, "ca holds no CA: `p2psgd ca init ca` makes one"),
        (["init", "--run", ""], 64, "--run: give 1 to 64 printable characters"),
        (["issue", "a", "a"], 64, "a node is named twice"),
        (["issue", "a", "--id", "12"], 64, "--id takes 16 hexadecimal digits, and is for one node"),
        (["issue", "a", "b", "--id", "0" * 16], 64, "--id takes 16 hexadecimal digits, and is for one node"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = ca(tmp_path, *arguments)
    assert done.returncode == code
    assert words in done.stderr.decode()
    assert not list(tmp_path.iterdir())
