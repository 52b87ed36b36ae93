"""Votes on disk: what was written comes back, and damage is never taken for none."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.view import Ballot, View, Votes
from p2psgd.storage.files import VOTES_NAME
from p2psgd.storage.votes import read_cluster_id, read_votes, write_votes

RUN = bytes(range(32))
VIEW = View(3, (Origin(1, 2**64 - 1), Origin(2**64 - 1, 5)), frozenset({9, 4}), 2**64 - 7, (1, 3))
VOTES = Votes(VIEW, Ballot(7, 2**64 - 1), Ballot(6, 1), View(4, (Origin(1, 2),), frozenset(), 2**64 - 7))
NAMES = {1: "node-1", 2**64 - 1: "b\u00fccher \x1b" + 56 * "\U0001f33b"}


@pytest.mark.parametrize("votes", [Votes(), Votes(VIEW), VOTES])
def test_what_is_written_comes_back(tmp_path: Path, votes: Votes) -> None:
    write_votes(tmp_path, RUN, VOTES, NAMES)
    write_votes(tmp_path, RUN, votes, NAMES)
    read = read_votes(tmp_path, RUN)
    assert read is not None
    assert read[0] == votes
    assert read[1] == {node: name for node, name in NAMES.items() if node in votes.view.incarnations}
    assert [path.name for path in tmp_path.iterdir()] == [VOTES_NAME]


def test_of_names_only_those_of_members_are_kept_however_many_there_are(tmp_path: Path) -> None:
    worst = 64 * "\U0001f33b"
    first, second = (tuple(Origin(node, 1) for node in range(start, start + 1024)) for start in (1, 2**63))
    votes = Votes(View(3, first, cluster_id=5), value=View(4, second, cluster_id=5))
    write_votes(tmp_path, RUN, votes, dict.fromkeys(range(5000), worst) | {2**63: "far"})
    read = read_votes(tmp_path, RUN)
    assert read is not None
    assert read[1] == dict.fromkeys(range(1, 1025), worst) | {2**63: "far"}


def test_votes_written_before_there_were_names_are_read(tmp_path: Path) -> None:
    write_votes(tmp_path, RUN, VOTES, {})
    fields = json.loads((tmp_path / VOTES_NAME).read_bytes())["votes"]
    del fields["names"]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (tmp_path / VOTES_NAME).write_text(json.dumps({"sha256": digest, "votes": fields}))
    assert read_votes(tmp_path, RUN) == (VOTES, {})


@pytest.mark.parametrize("name", ["", 65 * "x", 7, None])
def test_what_is_no_name_is_damage(tmp_path: Path, name: Any) -> None:
    write_votes(tmp_path, RUN, VOTES, {1: name})
    with pytest.raises(UsageError, match="is damaged"):
        read_votes(tmp_path, RUN)


def test_a_node_that_never_voted_has_none(tmp_path: Path) -> None:
    assert read_votes(tmp_path, RUN) is None


def test_the_run_of_a_state_directory_is_read_without_its_fingerprint(tmp_path: Path) -> None:
    assert read_cluster_id(tmp_path) is None
    write_votes(tmp_path, RUN, Votes(promised=Ballot(1, 1)), NAMES)  # a run that has not begun
    assert read_cluster_id(tmp_path) is None
    write_votes(tmp_path, RUN, VOTES, NAMES)
    assert read_cluster_id(tmp_path) == VIEW.cluster_id


def test_any_damage_ends_the_node_with_what_to_do(tmp_path: Path) -> None:
    write_votes(tmp_path, RUN, VOTES, NAMES)
    whole = (tmp_path / VOTES_NAME).read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        damaged.append(bytes(flipped))
    damaged += [b"null", b"[]", b'{"sha256": "", "votes": NaN}', b"[" * 100_000, whole + b"x"]
    for data in damaged:
        (tmp_path / VOTES_NAME).write_bytes(data)
        with pytest.raises(UsageError) as refusal:
            read_votes(tmp_path, RUN)
        assert refusal.value.exit_code == ExitCode.CONFIGURATION
        assert str(refusal.value) == (
            f"{tmp_path / VOTES_NAME} is damaged, and a node that has forgotten its votes must not vote: "
            f"`rm -rf {tmp_path}/node.json {tmp_path}/run {tmp_path}/votes.json` and a start make it a new "
            "node with the weights of its peers; what of its own updates no peer has is then lost, and "
            f"without peers the weights are, unless `p2psgd checkpoint export FILE --state {tmp_path}` has "
            "saved them; `p2psgd remove NODE` on a peer takes the former node out, and with --tls the new "
            "one needs a certificate of its own"
        )


def test_another_runs_votes_are_refused(tmp_path: Path) -> None:
    write_votes(tmp_path, bytes(32), VOTES, NAMES)
    with pytest.raises(UsageError, match=r"votes of run 0{16}, this run is 0001020304050607: .*--state"):
        read_votes(tmp_path, RUN)


def test_a_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: no such file or directory"):
        write_votes(tmp_path / "gone", RUN, VOTES, NAMES)


def test_a_full_disk_is_said_to_pass_and_the_former_votes_stay(small_disk: Path) -> None:
    write_votes(small_disk, RUN, VOTES, NAMES)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(UsageError, match=r"cannot write .*: no space left on device") as caught:
        write_votes(small_disk, RUN, Votes(VIEW), NAMES)
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert read_votes(small_disk, RUN) == (VOTES, NAMES)


def test_votes_of_another_format_are_not_called_damaged(tmp_path: Path) -> None:
    write_votes(tmp_path, RUN, VOTES, {})
    fields = json.loads((tmp_path / VOTES_NAME).read_bytes())["votes"]
    fields["format"] = 1
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (tmp_path / VOTES_NAME).write_text(json.dumps({"sha256": digest, "votes": fields}))
    with pytest.raises(UsageError, match="has format 1, this p2psgd reads format 2") as caught:
        read_votes(tmp_path, RUN)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
