"""What a node goes on from, of real files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2psgd.base.errors import UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.view import NO_VOTES, View, Votes
from p2psgd.node.recovery import open_run, reopen_run
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.event_log import NodeLog
from p2psgd.storage.files import FOLDER, VOTES_NAME
from p2psgd.storage.votes import write_votes
from tests.storage.states import ME, SPEC, checkpoint

INITIAL = np.zeros(SPEC.weights, np.int32)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with two checkpoints and votes."""
    store = CheckpointStore(tmp_path / FOLDER)
    for updates in (5, 7):
        store.write(checkpoint(updates=updates, trainer=False))
    write_votes(tmp_path, SPEC.fingerprint, Votes(View(3, (ME,), cluster_id=5)), {ME.node: "node-0"})
    return tmp_path


def damage(state: Path, number: int) -> None:
    path = CheckpointStore(state / FOLDER).path(number)
    path.write_bytes(path.read_bytes()[:-1])


def test_a_checkpoint_tells_the_run_and_the_votes_the_members(state: Path) -> None:
    node_log = NodeLog(state)
    opened = reopen_run(state, node_log)
    assert opened is not None
    assert opened.restored is not None
    assert (opened.spec, opened.votes.view.number, opened.names) == (SPEC, 3, {ME.node: "node-0"})
    assert np.array_equal(opened.coordinates, checkpoint(updates=7).coordinates)
    assert [event["kind"] for event in node_log.events.latest] == ["restored"]


def test_a_directory_without_a_checkpoint_tells_nothing(tmp_path: Path) -> None:
    node_log = NodeLog(tmp_path)
    assert reopen_run(tmp_path, node_log) is None
    opened = open_run(tmp_path, SPEC, INITIAL, node_log)
    assert (opened.restored, opened.votes, opened.names) == (None, NO_VOTES, {})
    assert opened.coordinates is INITIAL
    assert not node_log.events.latest


def test_what_is_damaged_is_named_and_the_one_before_is_used(state: Path) -> None:
    damage(state, 2)
    node_log = NodeLog(state)
    opened = reopen_run(state, node_log)
    assert opened is not None
    assert np.array_equal(opened.coordinates, checkpoint(updates=5).coordinates)
    assert ["checkpoint-00000002" in alarm for alarm in node_log.alarms] == [True]


def test_the_next_checkpoint_takes_the_place_of_a_damaged_one(state: Path) -> None:
    """Else the whole one before it would go, and with the new one alone there would be none in reserve."""
    damage(state, 2)
    opened = reopen_run(state, NodeLog(state))
    assert opened is not None
    opened.store.write(checkpoint(updates=9, trainer=False))
    assert opened.store.numbers() == [1, 3]


def test_own_updates_that_the_file_system_has_lost_are_an_alarm_also_without_a_checkpoint(
    tmp_path: Path, state: Path
) -> None:
    for place in (state, tmp_path / "first-life"):
        (place / FOLDER).mkdir(parents=True, exist_ok=True)
        write_votes(place, SPEC.fingerprint, NO_VOTES, {})
        (place / FOLDER / "own-00000001.rec").touch()
        node_log = NodeLog(place)
        open_run(place, SPEC, INITIAL, node_log)
        assert ["own-00000001.rec is empty" in alarm for alarm in node_log.alarms] == [True]


def test_with_all_damaged_only_a_trainer_knows_the_run(state: Path) -> None:
    damage(state, 1)
    damage(state, 2)
    node_log = NodeLog(state)
    assert reopen_run(state, node_log) is None
    assert all(
        alarm.endswith("without a checkpoint this node waits for its trainer") for alarm in node_log.alarms
    )
    assert open_run(state, SPEC, INITIAL, node_log).votes.view.members == (ME,)


def test_damaged_votes_are_told_before_anything_else_is_read(tmp_path: Path) -> None:
    """Also without a checkpoint: else only the first trainer would hear of it."""
    (tmp_path / VOTES_NAME).write_text("{")
    with pytest.raises(UsageError, match=r"votes\.json is damaged, .*: `rm -rf .*` and a start make it"):
        reopen_run(tmp_path, NodeLog(tmp_path))


def test_votes_that_are_missing_beside_a_checkpoint_are_told_with_what_to_do(state: Path) -> None:
    (state / VOTES_NAME).unlink()
    with pytest.raises(UsageError, match=r"votes\.json is missing, .*: put it back .*, or: `rm -rf .*` and"):
        reopen_run(state, NodeLog(state))


def test_votes_of_another_run_are_refused(state: Path) -> None:
    write_votes(state, bytes(32), Votes(View(3, (Origin(1, 1),), cluster_id=5)), {})
    with pytest.raises(UsageError, match=r"holds the votes of run 0{16}.*--state.*: rm -rf "):
        reopen_run(state, NodeLog(state))
