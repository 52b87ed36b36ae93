"""One checkpoint file: what is written comes back, and nothing else ever does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from p2psgd.base.errors import CheckpointError
from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.update_log import UnreadableTailError
from p2psgd.ipc.tensor_table import TENSORS_MAX
from p2psgd.storage.checkpoint import (
    TrainerCheckpoint,
    read_checkpoint,
    read_meta,
    write_checkpoint,
)
from p2psgd.wire import codec
from p2psgd.wire.cover import pack_table
from p2psgd.wire.frames import COVER_BYTES_MAX
from p2psgd.wire.messages import FrontierRow
from tests.storage.states import (
    ME,
    PEER,
    SPEC,
    Life,
    assert_same,
    checkpoint,
    owners_checkpoint,
    trainer_state,
)

COVER = pack_table(PEER, [(ME, 3)])
NOT_FINITE = (np.nan, np.inf, -np.inf)


def residual_with(value: float) -> NDArray[np.float32]:
    residual = trainer_state(0).residual
    residual[7] = value
    return residual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.safetensors"


@pytest.mark.parametrize("updates", [0, 1, 5])
@pytest.mark.parametrize("trainer", [True, False])
def test_what_is_written_comes_back(path: Path, updates: int, trainer: bool) -> None:
    state = checkpoint(updates=updates, trainer=trainer)
    meta = write_checkpoint(path, state)
    assert_same(read_checkpoint(path), state)
    assert read_meta(path) == meta
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_run_of_the_most_tensors_with_long_names_comes_back(path: Path) -> None:
    plain = checkpoint()
    many = [(f"\u20ac{number:019}", (1,)) for number in range(TENSORS_MAX)]
    coordinates = np.zeros(TENSORS_MAX, np.int32)
    spec = RunSpec(tuple(many), -20, "async", "", hash_coordinates(coordinates), "stall")
    state = dataclasses.replace(plain, spec=spec, coordinates=coordinates, digest=0, trainer=None, tail=[])
    write_checkpoint(path, state)
    assert_same(read_checkpoint(path), state)


def test_rounds_are_kept_and_stand_there_only_if_there_are_some(path: Path) -> None:
    state = dataclasses.replace(checkpoint(), rounds=7)
    write_checkpoint(path, state)
    found = read_checkpoint(path)
    assert_same(found, state)
    assert found.rounds == 7
    write_checkpoint(path, dataclasses.replace(state, rounds=0))
    assert b"rounds" not in path.read_bytes()  # so that what was written before there was this field is read
    assert read_checkpoint(path).rounds == 0


def test_covers_of_owners_are_a_tensor_of_their_own_and_come_back(path: Path) -> None:
    state = owners_checkpoint()
    meta = write_checkpoint(path, state)
    assert meta.owners == (40, 64)
    assert_same(read_checkpoint(path), state)
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("covers").tobytes() == b"".join(state.covers)


def test_without_covers_nothing_is_said_of_owners(path: Path) -> None:
    state = dataclasses.replace(owners_checkpoint(), covers=[])
    write_checkpoint(path, state)
    assert_same(read_checkpoint(path), state)
    data = path.read_bytes()
    assert b"covers" not in data
    assert b'owners\\":[' not in data


@pytest.mark.parametrize(
    ("covers", "words"),
    [
        ([COVER, COVER], "its covers are not valid: the cover of owner 0000000000000007 came twice"),
        ([COVER[:-1]], "its covers are not valid: .* a table of 39 bytes is not whole"),
        ([COVER[:16]], "its covers are not valid: .* a table of 16 bytes is not whole"),
        ([COVER[:-8] + bytes(8)], "its covers are not valid: .* a table has a row that cannot be"),
        ([pack_table(Origin(7, 9), [(ME, 1)])], "it has the cover of an owner of which it has no update"),
    ],
)
def test_covers_that_cannot_be_are_refused(path: Path, covers: list[bytes], words: str) -> None:
    write_checkpoint(path, dataclasses.replace(owners_checkpoint(), covers=covers))
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"covers": [COVER, b""]}, "owners.1: Input should be greater than or equal to 1"),
        ({"covers": [bytes(COVER_BYTES_MAX + 1)]}, "owners.0: Input should be less than or equal to 32768"),
        ({"spec": SPEC, "covers": [COVER]}, "it has covers of owners, and the ranges of its run have none"),
    ],
)
def test_covers_that_no_reader_would_take_are_not_written(
    path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        write_checkpoint(path, dataclasses.replace(owners_checkpoint(), **change))
    assert not list(path.parent.iterdir())


def test_a_flipped_bit_of_a_cover_is_found(path: Path) -> None:
    state = owners_checkpoint()
    write_checkpoint(path, state)
    whole, packed = path.read_bytes(), b"".join(state.covers)
    assert whole.count(packed) == 1
    begin = whole.index(packed)
    for place in range(begin, begin + len(packed), 7):
        torn = bytearray(whole)
        torn[place] ^= 1 << place % 8
        path.write_bytes(torn)
        with pytest.raises(CheckpointError, match="it does not have its hash: a part of it has changed"):
            read_checkpoint(path)


def test_any_safetensors_reader_finds_the_tensors(path: Path) -> None:
    state = checkpoint()
    assert state.trainer is not None
    write_checkpoint(path, state)
    with safe_open(path, framework="np") as file:
        metadata = json.loads(file.metadata()["p2psgd"])
        weight = file.get_tensor("coordinates/hidden.weight")
        assert file.get_tensor("coordinates/scale").shape == ()
        assert file.get_tensor("residual").tobytes() == state.trainer.residual.tobytes()
        assert file.get_tensor("tail").tobytes() == b"".join(state.tail)
        for name, array in state.trainer.arrays.items():
            assert np.array_equal(file.get_tensor(f"trainer/{name}"), array)
    assert (weight.dtype, weight.shape) == (np.int32, (50, 20))
    assert np.array_equal(weight.reshape(-1), state.coordinates[:1000])
    assert metadata["fingerprint"] == SPEC.fingerprint.hex()


def test_shard_counts_are_a_tensor_of_their_own_and_have_no_residual(path: Path) -> None:
    plain = checkpoint()
    counts = np.arange(6, dtype=np.int32)
    spec = dataclasses.replace(SPEC, shards=3)
    coordinates = np.concatenate([plain.coordinates, counts])
    digest = codec.digest_coordinates(coordinates, spec.key)
    state = dataclasses.replace(plain, spec=spec, coordinates=coordinates, digest=digest)
    write_checkpoint(path, state)
    assert_same(read_checkpoint(path), state)
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("shard_counts").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.get_tensor("residual").shape == (SPEC.weights,)


def test_a_file_of_another_format_is_named_as_one(path: Path) -> None:
    write_checkpoint(path, checkpoint())
    path.write_bytes(path.read_bytes().replace(b'{\\"format\\":2', b'{\\"format\\":1', 1))
    with pytest.raises(CheckpointError, match="it has format 1, this p2psgd reads format 2"):
        read_checkpoint(path)


def test_the_hash_is_that_of_the_file_with_zeros_in_its_place(path: Path) -> None:
    write_checkpoint(path, checkpoint())
    data = path.read_bytes()
    with safe_open(path, framework="np") as file:
        digits = file.metadata()["sha256"]
    assert data.count(digits.encode()) == 1
    assert hashlib.sha256(data.replace(digits.encode(), b"0" * 64)).hexdigest() == digits


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    write_checkpoint(path, checkpoint(updates=1))
    whole = path.read_bytes()
    for place in (*range(150), *range(150, len(whole), 11)):
        torn = bytearray(whole)
        torn[place] ^= 1 << place % 8
        path.write_bytes(torn)
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


def test_a_file_cut_anywhere_is_found(path: Path) -> None:
    write_checkpoint(path, checkpoint(updates=1))
    whole = path.read_bytes()
    for length in (*range(150), *range(150, len(whole), 11)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match=f"it has {len(whole) + 1} bytes where {len(whole)} belong"):
        read_checkpoint(path)


def test_a_header_of_any_length_is_refused_before_memory_is_taken(path: Path) -> None:
    for length in (0, 2**24 + 1, 2**63, 2**64 - 1):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(CheckpointError, match="it does not begin like a checkpoint"):
            read_checkpoint(path)
    for text in (
        b"[" * 100_000,
        b'{"__metadata__":null}',
        b'{"__metadata__":{"sha256":1,"p2psgd":2}}',
        b"\xff",
    ):
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


def test_without_a_file_there_is_a_sentence(path: Path) -> None:
    with pytest.raises(CheckpointError, match="it cannot be read: no such file or directory"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": 1}, "its coordinates do not have its digest"),
    ],
)
def test_a_state_no_replica_can_go_on_from_is_refused(
    path: Path, change: dict[str, object], words: str
) -> None:
    write_checkpoint(path, dataclasses.replace(checkpoint(), **change))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(path)


FRAMES = list(checkpoint(updates=2).tail)  # of the peer and of this node


@pytest.mark.parametrize(
    ("tail", "left", "fault"),
    [
        ([b"\x00" * 20], 0, "it is not made of whole updates"),
        ([*FRAMES, FRAMES[0][:-1]], 2, "it is not made of whole updates"),
        ([FRAMES[0][:-1] + b"\x77", FRAMES[1]], 1, "an update of it has changed"),
        ([FRAMES[0], FRAMES[1][:30] + b"\x77" + FRAMES[1][31:]], 1, "an update of it has changed"),
        ([*FRAMES, b"\1"], 2, "it ends inside a frame"),
    ],
)
def test_of_a_tail_that_was_damaged_when_it_was_written_the_rest_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, tail: list[bytes], left: int, fault: str
) -> None:
    state = checkpoint(updates=2)
    monkeypatch.setattr("p2psgd.storage.checkpoint.is_whole", lambda frame, weights: True)
    write_checkpoint(path, dataclasses.replace(state, tail=tail))
    found = read_checkpoint(path)
    assert found.warning == f"its tail is damaged, {left} updates of it can be used: {fault}"
    assert found.tail == [frame for frame in tail if frame in FRAMES]
    assert np.array_equal(found.coordinates, state.coordinates)


def test_before_a_hole_in_a_damaged_tail_nothing_of_that_origin_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(ME)
    frames = [life.update() for _ in range(5)]
    flipped = bytearray(frames[2])
    flipped[-1] ^= 1
    state = dataclasses.replace(
        checkpoint(updates=0, trainer=False),
        coordinates=life.lattice.coordinates,
        digest=life.lattice.digest,
        rows=[life.row()],
        tail=[*frames[:2], bytes(flipped), *frames[3:]],
    )
    with pytest.raises(UnreadableTailError):
        write_checkpoint(path, state)
    monkeypatch.setattr("p2psgd.storage.checkpoint.is_whole", lambda frame, weights: True)
    write_checkpoint(path, state)
    assert read_checkpoint(path).tail == frames[3:]


def test_a_coordinate_beyond_what_float32_holds_is_refused(path: Path) -> None:
    state = checkpoint()
    state.coordinates[3] = -(2**24) - 1
    digest = codec.digest_coordinates(state.coordinates, SPEC.key)
    write_checkpoint(path, dataclasses.replace(state, digest=digest))
    with pytest.raises(CheckpointError, match="a coordinate of it is beyond 16777216"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (TrainerCheckpoint(6, trainer_state(0).residual), "ahead of the frontier"),
        *((TrainerCheckpoint(0, residual_with(value)), "residual is not finite") for value in NOT_FINITE),
        (TrainerCheckpoint(0, trainer_state(0).residual, {"": np.zeros(1)}), "at least 1 character"),
        (
            TrainerCheckpoint(0, trainer_state(0).residual, {"a": np.array(["text"])}),
            "a type that is not known",
        ),
        (
            TrainerCheckpoint(0, trainer_state(0).residual, {"a": np.array([object()])}),
            "a type that is not known",
        ),
        (
            TrainerCheckpoint(0, trainer_state(0).residual, {}, "x" * (2**20 + 1)),
            "at most 1048576 characters",
        ),
    ],
)
def test_a_trainer_state_that_cannot_be_kept_is_refused_and_nothing_written(
    path: Path, trainer: TrainerCheckpoint, words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        write_checkpoint(path, dataclasses.replace(checkpoint(), trainer=trainer))
    assert not list(path.parent.iterdir())


def test_arrays_of_the_other_byte_order_come_back_as_values(path: Path) -> None:
    array = np.arange(5, dtype=">i4")
    state = dataclasses.replace(
        checkpoint(), trainer=TrainerCheckpoint(0, trainer_state(0).residual, {"a": array})
    )
    write_checkpoint(path, state)
    found = read_checkpoint(path).trainer
    assert found is not None
    assert found.arrays["a"].tolist() == [0, 1, 2, 3, 4]


def test_the_residual_may_lie_behind_on_purpose(path: Path) -> None:
    state = dataclasses.replace(checkpoint(), trainer=trainer_state(3))
    meta = write_checkpoint(path, state)
    assert meta.covers(state.origin, 3)
    assert not meta.covers(state.origin, 4)  # in the coordinates, but not in the residual
    assert meta.covers(state.origin._replace(incarnation=1), 0)


def test_a_run_of_tensors_with_odd_names_keeps_them(path: Path) -> None:
    tensors = (("residual", (2,)), ("__metadata__", (1,)), ('"/\\ü\n', (3,)), ("tail", ()))
    spec = RunSpec(tensors, -4, "ring-sparse", "", b"x" * 32, "stall")
    coordinates = np.arange(7, dtype=np.int32)
    state = dataclasses.replace(
        checkpoint(updates=0, trainer=False),
        spec=spec,
        coordinates=coordinates,
        digest=codec.digest_coordinates(coordinates, spec.key),
    )
    write_checkpoint(path, state)
    assert_same(read_checkpoint(path), state)
    with safe_open(path, framework="np") as file:
        assert file.get_tensor('coordinates/"/\\ü\n').tolist() == [3, 4, 5]


def test_weights_of_a_dense_ring_come_back_bit_by_bit(path: Path) -> None:
    spec = RunSpec((("w", (4, 2)),), -20, "ring-dense", "", b"x" * 32, "stall")
    weights = np.array([1e30, -3e38, 1e-45, -0.0, 0.1, -1, 2, 3], np.float32)
    coordinates = weights.view(np.int32)
    state = dataclasses.replace(
        checkpoint(updates=0, trainer=False),
        spec=spec,
        coordinates=coordinates,
        rows=[FrontierRow(0, 0, 3 << 32 | 12, 99, durable=3 << 32 | 12, steps=12)],
        digest=codec.digest_coordinates(coordinates, spec.key),
    )
    meta = write_checkpoint(path, state)
    found = read_checkpoint(path)
    assert_same(found, state)
    assert found.coordinates.view(np.float32).tobytes() == weights.tobytes()
    [row] = meta.rows
    assert (row.sequence, row.steps) == (3 << 32 | 12, 12)


def test_a_mode_that_is_not_known_cannot_be_kept(path: Path) -> None:
    spec = RunSpec((("w", (8,)),), -20, "ring-ternary", "", b"x" * 32, "stall")
    with pytest.raises(
        CheckpointError, match="mode 'ring-ternary' is not known; the modes are async, owners, owners-rounds"
    ):
        write_checkpoint(path, dataclasses.replace(checkpoint(updates=0, trainer=False), spec=spec))
