"""What a node that starts again gets back, and what its trainer's residual must not send twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.core.frontier import Origin
from p2psgd.core.state import QuantizedWeights
from p2psgd.storage.checkpoint import Checkpoint, TrainerCheckpoint
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.restore import FoundOnDisk, _take_back, abandon, restore
from p2psgd.storage.update_wal import UpdateWal, own_paths
from p2psgd.wire import codec
from p2psgd.wire.contribution import encode_words
from p2psgd.wire.cover import NEW, CoverRow
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update
from tests.storage.states import ME, PEER, SPEC, Life, assert_same, checkpoint, trainer_state

NEXT = ME._replace(incarnation=ME.incarnation + 1)


class Node:
    """Lives of one node with the real files of a state directory, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CheckpointStore(folder)
        self.errors: list[str] = []

    def begin(self, origin: Origin, lattice: QuantizedWeights | None = None) -> None:
        self.life = Life(origin, lattice=lattice)
        self.peer = Life(PEER, lattice=self.life.lattice)
        self.own = UpdateWal(self.folder, SPEC, on_error=self.errors.append, sync_s=0.01)

    def make(self, count: int) -> list[bytes]:
        return self.keep(self.life.update() for _ in range(count))

    def keep(self, updates: Iterable[bytes]) -> list[bytes]:
        frames = list(updates)
        for frame in frames:
            self.own.add(frame)
        return frames

    def save(self, trainer: TrainerCheckpoint | None, tail: list[bytes] | None = None) -> Checkpoint:
        rows = [life.row() for life in (self.peer, self.life) if life.sequence]
        state = Checkpoint(
            spec=SPEC,
            origin=self.life.origin,
            coordinates=self.life.lattice.coordinates.copy(),
            rows=sorted(rows),
            digest=self.life.lattice.digest,
            tail=tail or [],
            trainer=trainer,
            written_at=1.0,
        )
        self.own.rotate(self.store.write(state).kept)
        return state

    def end(self) -> FoundOnDisk | None:
        self.own.close()
        assert not self.errors
        return restore(self.folder, SPEC)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    node.begin(ME)
    yield node
    node.own.close()


def left_of(residual: NDArray[np.float32], frames: list[bytes]) -> NDArray[np.float32]:
    """What of a residual these updates do not hold: one float32 subtraction for each weight that has the
    sign sent, and 0 instead of a change of sign.
    """
    left = residual.copy()
    for frame in frames:
        header, payload = parse_update(frame[PREFIX.size :], SPEC.weights)
        threshold = header.magnitude * SPEC.quantum
        for word in codec.decode(payload, header.count, SPEC.weights).tolist():
            before, sign = float(left[word >> 1]), -1 if word & 1 else 1
            if np.sign(before) == sign:
                left[word >> 1] = 0 if abs(before) <= threshold else np.float32(before - sign * threshold)
    return left


def residual_after(state: Checkpoint, found: FoundOnDisk | None) -> tuple[NDArray[np.float32], ...]:
    """The residual in a checkpoint and the one that was restored from it."""
    assert state.trainer is not None
    assert found is not None
    assert found.checkpoint is not None
    assert found.checkpoint.trainer is not None
    return state.trainer.residual, found.checkpoint.trainer.residual


def test_an_empty_folder_gives_nothing(tmp_path: Path) -> None:
    assert restore(tmp_path / "run", SPEC) is None


def test_a_checkpoint_alone_comes_back_as_it_was(tmp_path: Path) -> None:
    state = dataclasses.replace(checkpoint(), tail=[])
    CheckpointStore(tmp_path).write(state)
    found = restore(tmp_path, SPEC)
    assert found is not None
    assert_same(found.checkpoint, state)
    assert (found.own, found.previous, found.warnings) == ([], ME, [])


def test_own_updates_beyond_the_checkpoint_come_in_order_and_leave_the_residual(node: Node) -> None:
    node.make(3)
    state = node.save(trainer_state(3))
    later = node.make(4)
    found = node.end()
    assert found is not None
    assert found.checkpoint is not None
    assert np.array_equal(found.checkpoint.coordinates, state.coordinates)
    assert found.own == later
    before, after = residual_after(state, found)
    assert np.array_equal(after, left_of(before, later))
    assert 0 < np.count_nonzero(after == 0) < np.count_nonzero(after != before)  # some to zero, some not


def test_an_update_between_the_residual_and_the_coordinates_leaves_the_residual_once(node: Node) -> None:
    frames = node.make(5)
    state = node.save(trainer_state(3), tail=frames[2:])  # 4 and 5 are in the tail and in the own file
    later = node.make(1)
    found = node.end()
    assert found is not None
    assert found.own == later
    assert found.checkpoint is not None
    assert found.checkpoint.tail == frames[2:]
    before, after = residual_after(state, found)
    assert np.array_equal(after, left_of(before, [*frames[3:], *later]))


def test_what_the_residual_held_and_sent_leaves_it_as_the_residual_pass_takes_it(node: Node) -> None:
    node.make(1)
    state = node.save(trainer_state(1))
    assert state.trainer is not None
    source, magnitude = state.trainer.residual, 1234
    target, words = np.empty_like(source), np.empty(SPEC.weights, np.uint32)
    count, _ = codec.residual_pass(
        source, np.zeros_like(source), target, words, threshold=magnitude * SPEC.quantum
    )
    assert 0 < count < SPEC.weights
    node.keep([node.life.send(words[:count], magnitude)])
    _, after = residual_after(state, node.end())
    assert after.tobytes() == target.tobytes()


def test_in_mode_owners_a_residual_of_which_nobody_knows_what_was_sent_is_dropped(node: Node) -> None:
    node.make(1)
    state = dataclasses.replace(node.save(trainer_state(1)), spec=dataclasses.replace(SPEC, mode="owners"))
    assert state.trainer is not None
    before = state.trainer.residual.copy()
    _take_back(state, {})
    assert np.array_equal(state.trainer.residual, before)
    frame = node.life.update()
    _take_back(state, {(ME, node.life.sequence): frame})
    assert not state.trainer.residual.any()


def test_the_residual_never_goes_past_zero_and_only_towards_it(node: Node) -> None:
    threshold = np.float32(2**10 * SPEC.quantum)
    #       more than was sent, as much, less; nothing there; of the other sign
    before = threshold * np.array([3, -3, 2, -2, 1, -1, 0, 0, 1, -1], np.float32)
    sent = "+-+-+-+--+"
    left = threshold * np.array([1, -1, 0, 0, 0, 0, 0, 0, 1, -1], np.float32)
    residual = np.full(SPEC.weights, 5, np.float32)
    residual[: len(before)] = before
    words = np.array([index << 1 | (sign == "-") for index, sign in enumerate(sent)], np.uint32)
    node.make(1)
    state = node.save(TrainerCheckpoint(sequence=1, residual=residual, arrays={}, text=""))
    node.keep(node.life.send(words, 2**10) for _ in range(2))
    _, after = residual_after(state, node.end())
    assert after[: len(left)].tolist() == left.tolist()
    assert (after[len(left) :] == 5).all()


def test_with_the_newest_damaged_the_one_before_and_all_own_updates_since_serve(node: Node) -> None:
    node.make(2)
    first = node.save(trainer_state(2))
    between = node.make(3)
    node.save(trainer_state(5))
    later = node.make(2)
    node.own.close()
    newest = node.store.path(2)
    newest.write_bytes(newest.read_bytes()[:-1])
    found = restore(node.folder, SPEC)
    assert found is not None
    assert found.own == [*between, *later]
    assert found.checkpoint is not None
    assert found.checkpoint.digest == first.digest
    assert [str(newest) in warning for warning in found.warnings] == [True]


def test_own_updates_without_any_checkpoint_come_back(node: Node) -> None:
    frames = node.make(4)
    found = node.end()
    assert found is not None
    assert (found.checkpoint, found.own, found.previous) == (None, frames, ME)


def test_several_lives_without_a_checkpoint_between_them_come_back(node: Node) -> None:
    node.make(2)
    state = node.save(trainer_state(2))
    first = node.make(3)
    node.end()
    node.begin(NEXT, node.life.lattice)
    second = node.make(2)
    found = node.end()
    assert found is not None
    assert (found.own, found.previous) == ([*first, *second], NEXT)
    before, after = residual_after(state, found)
    assert np.array_equal(after, left_of(before, [*first, *second]))


def test_updates_after_a_hole_are_counted_and_left_out(node: Node) -> None:
    frames = node.make(1)
    node.life.update()  # never reached the disk
    node.make(2)
    found = node.end()
    assert found is not None
    assert found.own == frames
    assert found.warnings == [
        f"2 of this node's own updates in {node.folder} cannot be used: others before them are missing"
    ]


def test_a_torn_own_file_gives_what_is_whole(node: Node) -> None:
    frames = node.make(3)
    node.end()
    (path,) = own_paths(node.folder)
    path.write_bytes(path.read_bytes()[:-1])
    found = restore(node.folder, SPEC)
    assert found is not None
    assert (found.own, found.warnings) == (frames[:2], [])


def test_an_own_file_damaged_before_its_end_is_told(node: Node) -> None:
    frames = node.make(3)
    node.end()
    (path,) = own_paths(node.folder)
    data = bytearray(path.read_bytes())
    data[-len(frames[2]) - 1] ^= 1
    path.write_bytes(data)
    found = restore(node.folder, SPEC)
    assert found is not None
    assert found.own == frames[:1]
    assert found.warnings == [
        f"{path} is damaged: of this node's own updates in it, only the first 1 can be read"
    ]


def test_own_updates_with_covers_come_back_and_damage_among_them_is_told(tmp_path: Path) -> None:
    """A whole update behind the damaged one shows that this is no torn end, also if it is only a cover."""
    spec, errors = dataclasses.replace(SPEC, mode="owners"), list[str]()
    own = UpdateWal(tmp_path, spec, on_error=errors.append, sync_s=0.01)
    base, payload = encode_words(np.array([900 << 1, 901 << 1 | 1], np.uint32), spec.weights)
    first = UpdateHeader(*ME, 1, 7, 1, 5, 2, base=base, cover=(CoverRow(NEW, 1, *PEER),))
    second = dataclasses.replace(first, sequence=2, cover=())
    third = UpdateHeader(*ME, 3, 7, 1, 1, 0, cover=(CoverRow(0, 1),))
    bodies = [pack_update(first, payload), pack_update(second, payload), pack_update(third, b"")]
    frames = [pack_frame(FrameType.UPDATE, body) for body in bodies]
    for frame in frames:
        own.add(frame)
    own.close()
    assert not errors
    found = restore(tmp_path, spec)
    assert found is not None
    assert (found.own, found.warnings) == (frames, [])
    (path,) = own_paths(tmp_path)
    data = bytearray(path.read_bytes())
    data[-len(frames[2]) - 1] ^= 1
    path.write_bytes(data)
    found = restore(tmp_path, spec)
    assert found is not None
    assert found.own == frames[:1]
    assert found.warnings == [
        f"{path} is damaged: of this node's own updates in it, only the first 1 can be read"
    ]


def test_an_own_file_that_is_empty_is_told(node: Node) -> None:
    node.save(trainer_state(0))
    node.make(3)
    node.end()
    path = own_paths(node.folder)[-1]
    path.write_bytes(b"")
    restored = restore(node.folder, SPEC)
    assert restored is not None
    [warning] = restored.warnings
    assert warning.startswith(f"{path} is empty, and was not when it was written: the file system has lost ")
    assert restored.own == []


def test_everything_damaged_is_told(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(checkpoint())
    store.path(1).write_bytes(b"")
    found = restore(tmp_path, SPEC)
    assert found is not None
    assert (found.checkpoint, found.own, found.previous) == (None, [], None)
    assert len(found.warnings) == 1


@pytest.mark.parametrize("which", ["checkpoint", "own file"])
def test_another_runs_state_is_refused_with_what_to_do(node: Node, which: str) -> None:
    node.make(1)
    if which == "checkpoint":
        node.save(None)
    node.end()
    other = dataclasses.replace(SPEC, label="speech")
    with pytest.raises(UsageError) as refusal:
        restore(node.folder, other)
    assert refusal.value.exit_code == ExitCode.CONFIGURATION
    words = str(refusal.value)
    assert f"is of run {SPEC.fingerprint.hex()[:16]} (digits, async mode)" in words
    assert f"this node is to train run {other.fingerprint.hex()[:16]} (speech, async mode)" in words
    assert "another directory with --state" in words
    assert words.endswith(f": rm -rf {node.folder} {node.folder.parent / 'votes.json'}")


def test_abandoned_files_are_out_of_the_way_and_only_the_latest_are_kept(node: Node) -> None:
    state = node.folder.parent
    (state / "votes.json").write_text("stays")
    node.make(1)
    node.end()
    assert abandon(node.folder) == state / "abandoned-1"
    assert restore(node.folder, SPEC) is None
    assert len(own_paths(state / "abandoned-1")) == 1
    assert abandon(node.folder) is None
    node.begin(NEXT)
    node.end()
    assert abandon(node.folder) == state / "abandoned-2"
    assert sorted(path.name for path in state.iterdir()) == ["abandoned-2", "votes.json"]
