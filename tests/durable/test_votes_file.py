"""Votes on disk: what was written comes back, and damage is never taken for none."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.core.votes import Ballot, Votes
from p2psgd.durable.votes_file import NAME, read_votes, write_votes
from p2psgd.errors import ExitCode, UsageError

RUN = bytes(range(32))
VIEW = View(3, (Origin(1, 2**64 - 1), Origin(2**64 - 1, 5)), frozenset({9, 4}), 2**64 - 7, (1, 3))
VOTES = Votes(VIEW, Ballot(7, 2**64 - 1), Ballot(6, 1), View(4, (Origin(1, 2),), frozenset(), 2**64 - 7))


@pytest.mark.parametrize("votes", [Votes(), Votes(VIEW), VOTES])
def test_what_is_written_comes_back(tmp_path: Path, votes: Votes) -> None:
    write_votes(tmp_path, RUN, VOTES)
    write_votes(tmp_path, RUN, votes)
    assert read_votes(tmp_path, RUN) == votes
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_node_that_never_voted_has_none(tmp_path: Path) -> None:
    assert read_votes(tmp_path, RUN) is None


def test_any_damage_ends_the_node_with_what_to_do(tmp_path: Path) -> None:
    write_votes(tmp_path, RUN, VOTES)
    whole = (tmp_path / NAME).read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        damaged.append(bytes(flipped))
    damaged += [b"null", b"[]", b'{"sha256": "", "votes": NaN}', b"[" * 100_000, whole + b"x"]
    for data in damaged:
        (tmp_path / NAME).write_bytes(data)
        with pytest.raises(UsageError) as refusal:
            read_votes(tmp_path, RUN)
        assert refusal.value.exit_code == ExitCode.CONFIGURATION
        assert str(refusal.value) == (
            f"{tmp_path / NAME} is damaged, and a node that has forgotten its votes must not vote: "
            f"remove the whole state directory {tmp_path} to join as a new node"
        )


def test_another_runs_votes_are_refused(tmp_path: Path) -> None:
    write_votes(tmp_path, bytes(32), VOTES)
    with pytest.raises(UsageError, match=r"votes of run 0{16}, this run is 0001020304050607: .*--state"):
        read_votes(tmp_path, RUN)


def test_a_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: no such file or directory"):
        write_votes(tmp_path / "gone", RUN, VOTES)


def test_a_full_disk_is_said_to_pass_and_the_former_votes_stay(small_disk: Path) -> None:
    write_votes(small_disk, RUN, VOTES)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(UsageError, match=r"cannot write .*: no space left on device") as caught:
        write_votes(small_disk, RUN, Votes(VIEW))
    assert caught.value.exit_code is ExitCode.TEMPORARY
    assert read_votes(small_disk, RUN) == VOTES
