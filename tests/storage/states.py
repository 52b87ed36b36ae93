"""Small runs, updates of them and checkpoints, made from a seed."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.state import QuantizedWeights
from p2psgd.storage.checkpoint import Checkpoint, TrainerCheckpoint
from p2psgd.wire import codec
from p2psgd.wire.contribution import encode_words
from p2psgd.wire.cover import NEW, CoverRow, pack_table
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import UpdateHeader, pack_update

TENSORS = (("hidden.weight", (50, 20)), ("hidden.bias", (20,)), ("scale", ()))
SPEC = RunSpec(TENSORS, -20, "async", "digits", hash_coordinates(np.zeros(1021, np.int32)), "stall")
ME = Origin(2**64 - 5, 2**63 + 1)
PEER = Origin(7, 8)


class Life:
    """Makes the updates of one origin, in order, and applies them to coordinates it may share."""

    def __init__(self, origin: Origin, *, seed: int = 0, lattice: QuantizedWeights | None = None) -> None:
        self.origin = origin
        self.lattice = lattice or QuantizedWeights(np.zeros(SPEC.weights, np.int32), key=SPEC.key)
        self.sequence = 0
        self.digest = 0
        self._random = np.random.default_rng([seed, origin.node, origin.incarnation])

    def update(self) -> bytes:
        """The frame of the next update, one of any words."""
        count = int(self._random.integers(1, 60))
        indices = np.sort(self._random.choice(SPEC.weights, count, replace=False))
        words = (indices << 1 | self._random.integers(0, 2, count)).astype(np.uint32)
        return self.send(words, int(self._random.integers(1, 2**12)))

    def send(self, words: NDArray[np.uint32], magnitude: int) -> bytes:
        """The frame of the next update, of these words."""
        contribution = codec.digest_words(words, magnitude, SPEC.key)
        self.lattice.apply(words, magnitude, contribution)
        self.sequence += 1
        self.digest = (self.digest + contribution) % 2**64
        header = UpdateHeader(*self.origin, self.sequence, self.digest, self.sequence, magnitude, len(words))
        return pack_frame(FrameType.UPDATE, pack_update(header, codec.encode(words, SPEC.weights)))

    def row(self) -> FrontierRow:
        """Its line of a frontier."""
        sequence = self.sequence
        return FrontierRow(*self.origin, sequence, self.digest, durable=sequence, steps=sequence)


def trainer_state(sequence: int, *, seed: int = 0) -> TrainerCheckpoint:
    """A residual, and arrays of several types and shapes."""
    random = np.random.default_rng(seed)
    return TrainerCheckpoint(
        sequence=sequence,
        residual=random.normal(0, 0.01, SPEC.weights).astype(np.float32),
        arrays={
            "velocity": random.normal(size=(3, 5)),
            "half": random.normal(size=4).astype(np.float16),
            "seen": np.arange(7, dtype=np.uint8),
            "flags": np.array([True, False, True]),
            "epoch": np.array(3, np.int64),
            "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
            "none": np.empty((0, 4), np.float32),
        },
        text='{"epoch": 3, "name": "größer"}',
    )


def checkpoint(*, updates: int = 5, trainer: bool = True, seed: int = 0) -> Checkpoint:
    """A state after so many updates of this node and of a peer, with the last of each in the tail."""
    mine = Life(ME, seed=seed)
    peer = Life(PEER, seed=seed, lattice=mine.lattice)
    frames = [life.update() for _ in range(updates) for life in (mine, peer)]
    return Checkpoint(
        spec=SPEC,
        origin=ME,
        coordinates=mine.lattice.coordinates,
        rows=[peer.row(), mine.row()] if updates else [],
        digest=mine.lattice.digest,
        tail=frames[-2:],
        trainer=trainer_state(updates, seed=seed) if trainer else None,
        written_at=1_700_000_000.25,
    )


def owners_checkpoint() -> Checkpoint:
    """A state in mode `owners`: this node and a peer own ranges, and each covers what it was given."""
    spec = dataclasses.replace(SPEC, mode="owners")
    coordinates, digest = np.zeros(spec.weights, np.int32), 0
    rows, tail = [], []
    for origin, contributor in ((PEER, ME), (ME, PEER)):
        words = np.array([900 << 1, 901 << 1 | 1], np.uint32)
        base, payload = encode_words(words, spec.weights)
        after = codec.digest_words(words, 5, spec.key)
        cover = (CoverRow(NEW, 3, *contributor),)
        header = UpdateHeader(*origin, 1, after, 1, 5, len(words), base=base, cover=cover)
        tail.append(pack_frame(FrameType.UPDATE, pack_update(header, payload)))
        codec.apply_coordinates(coordinates, words, 5)
        rows.append(FrontierRow(*origin, 1, after, durable=1, steps=1))
        digest = (digest + after) % 2**64
    return Checkpoint(
        spec=spec,
        origin=ME,
        coordinates=coordinates,
        rows=rows,
        digest=digest,
        tail=tail,
        trainer=trainer_state(1),
        written_at=1_700_000_000.25,
        covers=[pack_table(PEER, [(ME, 3)]), pack_table(ME, [(PEER, 3), (Origin(9, 9), 1)])],
    )


def assert_same(found: Checkpoint | None, expected: Checkpoint) -> None:
    """Equal in every bit."""
    assert found is not None
    assert found.describe() == expected.describe()
    assert np.array_equal(found.coordinates, expected.coordinates)
    assert (found.spec, found.rows, found.tail) == (expected.spec, expected.rows, expected.tail)
    assert found.covers == expected.covers
    if expected.trainer is None:
        assert found.trainer is None
        return
    assert found.trainer is not None
    assert found.trainer.residual.tobytes() == expected.trainer.residual.tobytes()
    assert found.trainer.text == expected.trainer.text
    assert list(found.trainer.arrays) == list(expected.trainer.arrays)
    for name, array in expected.trainer.arrays.items():
        back = found.trainer.arrays[name]
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, array)
