"""A node's id stays, its incarnation never comes back, its state directory has one owner."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.storage.identity import claim_identity, lay_down_id
from tests.storage.syncs import Syncs


def test_the_id_and_name_stay_and_the_incarnation_grows(tmp_path: Path) -> None:
    first = claim_identity(tmp_path / "state", name="alpha")
    first.release()
    second = claim_identity(tmp_path / "state", name=None)
    second.release()
    assert second.origin.node == first.origin.node
    assert second.origin.incarnation > first.origin.incarnation
    assert second.name == "alpha"


def test_the_incarnation_grows_also_when_the_clock_has_stepped_back(tmp_path: Path) -> None:
    claim_identity(tmp_path, name=None).release()
    path = tmp_path / "node.json"
    fields = json.loads(path.read_text())
    fields["incarnation"] = 2**59
    path.write_text(json.dumps(fields))
    identity = claim_identity(tmp_path, name=None)
    identity.release()
    assert identity.origin.incarnation > 2**59


def test_the_incarnation_is_above_what_a_peer_knows_and_on_disk_before_it_is_used(tmp_path: Path) -> None:
    lay_down_id(tmp_path, node=7, name="seventh")
    identity = claim_identity(tmp_path, name=None, above=2**59)
    identity.release()
    kept = json.loads((tmp_path / "node.json").read_text())["incarnation"]
    assert kept == identity.origin.incarnation > 2**59
    again = claim_identity(tmp_path, name=None)
    again.release()
    assert again.origin.incarnation > kept


def test_an_incarnation_above_which_there_is_none_is_named_and_nothing_wraps_around(tmp_path: Path) -> None:
    lay_down_id(tmp_path, node=7, name="seventh")
    path = tmp_path / "node.json"
    text = path.read_text().replace('"incarnation": 0', f'"incarnation": {2**64 - 1}')
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{2**64 - 1}, and there is none .*another --state") as caught:
        claim_identity(tmp_path, name=None)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert path.read_text() == text


def test_two_daemons_cannot_share_a_state_directory(tmp_path: Path) -> None:
    identity = claim_identity(tmp_path, name=None)
    with pytest.raises(UsageError, match=r"another daemon is using the state directory .*--state") as caught:
        claim_identity(tmp_path, name=None)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    identity.release()
    claim_identity(tmp_path, name=None).release()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"node": "x", "name": "a", "incarnation": 1}',
        '{"node": "1", "name": "a", "incarnation": true}',
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"node\.json is damaged"):
        claim_identity(tmp_path, name=None)
    assert path.read_text() == text


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot use .*file"):
        claim_identity(tmp_path / "file", name=None)


def test_a_full_disk_is_said_to_pass_and_the_life_before_stays(small_disk: Path) -> None:
    claim_identity(small_disk, name="alpha").release()
    before = (small_disk / "node.json").read_bytes()
    _fill(small_disk)
    with pytest.raises(UsageError, match=r"cannot write .*node\.json: no space left on device") as caught:
        claim_identity(small_disk, name=None)
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert (small_disk / "node.json").read_bytes() == before
    (small_disk / "ballast").unlink()
    identity = claim_identity(small_disk, name=None)
    identity.release()
    assert identity.name == "alpha"


def test_a_disk_that_is_full_from_the_start_is_said_to_pass(small_disk: Path) -> None:
    _fill(small_disk)
    with pytest.raises(UsageError, match=r"no space left on device") as caught:
        claim_identity(small_disk / "state", name=None)
    assert caught.value.exit_code is ExitCode.TEMPORARY


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_refused_claim_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(UsageError):
            claim_identity(tmp_path, name=None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_life_is_on_disk_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after it must not bring the life before back, nor lose the id with the whole directory."""
    syncs, state = Syncs(monkeypatch), tmp_path / "nodes" / "alpha"
    claim_identity(state, name=None).release()
    assert syncs.held(state) == {"lock", "node.json"}
    assert (syncs.held(tmp_path), syncs.held(state.parent)) == ({"nodes"}, {"alpha"})
    again = Syncs(monkeypatch)
    claim_identity(state, name=None).release()
    assert again.held(state) == {"lock", "node.json"}
    laid = Syncs(monkeypatch)
    lay_down_id(tmp_path, node=7, name="seventh")
    assert "node.json" in laid.held(tmp_path)


@pytest.mark.parametrize("name", ["0123456789abcdef", "ABCDEF0123456789"])
def test_a_name_with_the_form_of_an_id_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has the form of a node's id: give another one with --name"):
        claim_identity(tmp_path, name=name)
    claim_identity(tmp_path, name=f"{name}0").release()


def test_an_id_can_be_chosen_for_a_new_node_and_stays_with_an_old_one(tmp_path: Path) -> None:
    lay_down_id(tmp_path, node=7, name="seventh")
    first = claim_identity(tmp_path, name=None)
    first.release()
    assert (first.origin.node, first.name) == (7, "seventh")
    assert first.origin.incarnation > 0
    lay_down_id(tmp_path, node=8, name="eighth")
    second = claim_identity(tmp_path, name=None)
    second.release()
    assert (second.origin.node, second.name) == (7, "seventh")
    assert second.origin.incarnation > first.origin.incarnation
