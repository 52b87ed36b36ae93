"""A CA and what it issues: ids that stay, keys that nobody else can read, nothing replaced unasked."""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.cli.ca_authority import (
    CA_KEY_FILE,
    Authority,
    create_authority,
    node_id_of,
    pack_bundle,
    read_certificate,
    write_bundle,
)
from p2psgd.net.tls import CERTIFICATE_FILE, KEY_FILE
from tests.certificates import LONG_AGO, NOW


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_authority(tmp_path / "ca", "tested", now=NOW)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_keys_are_their_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        authority = create_authority(tmp_path / "ca", "tested", now=NOW)
        issued = authority.issue("node-1", now=NOW)
        write_bundle(issued.directory, tmp_path / "node-1.tar")
    finally:
        os.umask(before)
    for path in (authority.directory / CA_KEY_FILE, issued.directory / KEY_FILE, tmp_path / "node-1.tar"):
        assert mode(path) == 0o600
    assert mode(issued.directory) & 0o077 == 0


def test_a_renewed_certificate_has_the_same_id_and_another_key(authority: Authority) -> None:
    first = authority.issue("node-1", now=NOW)
    key = (first.directory / KEY_FILE).read_bytes()
    with pytest.raises(UsageError, match=r"issued a certificate before: --renew gives it a new one"):
        authority.issue("node-1", now=NOW)
    assert (first.directory / KEY_FILE).read_bytes() == key
    again = Authority(authority.directory).issue("node-1", now=NOW, renew=True)
    assert again.node == first.node
    assert (again.directory / KEY_FILE).read_bytes() != key
    assert node_id_of(read_certificate(again.directory / CERTIFICATE_FILE)) == first.node
    assert not [path for path in authority.directory.rglob("*") if path.name.startswith(".")]


def test_what_was_never_issued_cannot_be_renewed(authority: Authority) -> None:
    authority.issue("node-1", now=NOW)
    with pytest.raises(UsageError, match=r"node-7 has been issued no certificate .*; issued are: node-1;"):
        authority.issue("node-7", now=NOW, renew=True)
    assert authority.issue("node-7", now=NOW).name == "node-7"


def test_an_id_survives_the_loss_of_the_nodes_own_files(authority: Authority) -> None:
    first = authority.issue("node-1", now=NOW)
    for path in first.directory.iterdir():
        path.unlink()
    first.directory.rmdir()
    assert authority.issue("node-1", now=NOW, renew=True).node == first.node


def test_a_node_that_ran_without_tls_keeps_its_id_and_no_two_have_one(authority: Authority) -> None:
    assert authority.issue("node-1", now=NOW, node=7).node == 7
    with pytest.raises(UsageError, match="0000000000000007 is the id of node-1"):
        authority.issue("node-2", now=NOW, node=7)
    assert authority.issue("node-2", now=NOW).node != 7


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-rf", "a/b", "../ca", "a b", "x" * 65, "0123456789abcdef", "knöten"]
)
def test_a_name_that_is_no_good_is_refused_before_anything_is_written(
    authority: Authority, name: str
) -> None:
    with pytest.raises(UsageError, match="invalid node name"):
        authority.issue(name, now=NOW)
    assert sorted(path.name for path in authority.directory.iterdir()) == ["ca.key", "ca.pem"]


def test_a_directory_in_use_is_left_alone(authority: Authority, tmp_path: Path) -> None:
    key = (authority.directory / CA_KEY_FILE).read_bytes()
    with pytest.raises(UsageError, match="holds something already"):
        create_authority(authority.directory, "other", now=NOW)
    assert (authority.directory / CA_KEY_FILE).read_bytes() == key
    empty = tmp_path / "empty"
    empty.mkdir()
    assert create_authority(empty, "other", now=NOW).run == "other"


def test_a_ca_whose_key_others_can_read_issues_nothing(authority: Authority) -> None:
    (authority.directory / CA_KEY_FILE).chmod(0o640 if os.geteuid() else 0o644)
    with pytest.raises(UsageError, match="others can read or change"):
        Authority(authority.directory)


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "ca", "old", now=LONG_AGO)
    end = authority.certificate.not_valid_after_utc
    assert authority.issue("node-1", now=end - timedelta(days=10)).expires == end
    with pytest.raises(UsageError, match="has expired"):
        authority.issue("node-2", now=end + timedelta(seconds=1))


def test_without_a_ca_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`p2psgd ca init .*` makes one"):
        Authority(tmp_path)


def test_a_bundle_never_replaces_a_file(authority: Authority, tmp_path: Path) -> None:
    place = authority.issue("node-1", now=NOW).directory
    (tmp_path / "taken.tar").write_text("mine")
    with pytest.raises(UsageError, match="exists: name another with --out"):
        write_bundle(place, tmp_path / "taken.tar")
    assert (tmp_path / "taken.tar").read_text() == "mine"
    assert pack_bundle(place) == pack_bundle(place)
